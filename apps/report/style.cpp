#include "apps/report/style.h"

namespace orthant::report {

const char* const picture_style = R"(
:root{--back:#ffffff;--ink:#1b1f24;--soft:#57606a;--grid:#e4e7eb;--axis:#8c959f;--link:#0550ae;--card:#f6f8fa;
--c0:#0072b2;--c1:#d55e00;--c2:#00865f;--c3:#b0478a;--c4:#a66f00;--c5:#2b8cbe;--c6:#6b4fbb;--c7:#6e7781;
--q0:#440154;--q1:#46307e;--q2:#365c8d;--q3:#277f8e;--q4:#1b9178;--q5:#3d9a45;--q6:#7a9416;--q7:#a88a00;
--h0:#08306b;--h1:#2166ac;--h2:#67a9cf;--h3:#c6dff0;--h4:#f3f3f1;--h5:#fdd9b5;--h6:#f4a261;--h7:#d9601a;--h8:#8c2d04}
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--grid:#262c34;--axis:#6e7681;
--link:#79b8ff;--card:#161b22;
--c0:#56b4e9;--c1:#ff8c42;--c2:#2cc99b;--c3:#e59ac6;--c4:#f0b429;--c5:#8fd3ff;--c6:#b39ddb;--c7:#aab4be;
--q0:#c79be8;--q1:#9c9cf0;--q2:#6fb0e6;--q3:#3fc1c9;--q4:#35c995;--q5:#74d055;--q6:#b8de29;--q7:#fde725;
--h0:#b3daf7;--h1:#6db3e8;--h2:#2f7fbf;--h3:#1d3f5e;--h4:#20252b;--h5:#4f3318;--h6:#9a5313;--h7:#e07b1f;--h8:#ffc58a}}
.picture{font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
font-size:12px;fill:var(--ink)}
.picture .tick,.picture .label{fill:var(--soft)}.picture .small{font-size:10px}
.picture .halo{paint-order:stroke;stroke:var(--back);stroke-width:4px;stroke-linejoin:round}
.picture .heading{font-weight:600;font-size:13px}
.picture .grid{stroke:var(--grid);fill:none}.picture .axis{stroke:var(--axis);fill:none}
.picture .level{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
.picture .line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}
.picture .mark{fill:none;stroke:var(--ink);stroke-width:2}
.picture .band{fill:var(--c);opacity:.18;stroke:none}
.picture .bar{fill:none;stroke:var(--c);stroke-width:1.3}
.picture .dashed{stroke-dasharray:6 4}.picture .dotted{stroke-dasharray:1.5 3}
.picture .dot,.picture .fill{fill:var(--c)}.picture .edge{stroke:var(--back);stroke-width:1}
.picture .faint{opacity:.5}
.picture .ink{--c:var(--ink)}
.picture .c0{--c:var(--c0)}.picture .c1{--c:var(--c1)}.picture .c2{--c:var(--c2)}.picture .c3{--c:var(--c3)}
.picture .c4{--c:var(--c4)}.picture .c5{--c:var(--c5)}.picture .c6{--c:var(--c6)}.picture .c7{--c:var(--c7)}
.picture .q0{--c:var(--q0)}.picture .q1{--c:var(--q1)}.picture .q2{--c:var(--q2)}.picture .q3{--c:var(--q3)}
.picture .q4{--c:var(--q4)}.picture .q5{--c:var(--q5)}.picture .q6{--c:var(--q6)}.picture .q7{--c:var(--q7)}
.picture .h0{fill:var(--h0)}.picture .h1{fill:var(--h1)}.picture .h2{fill:var(--h2)}.picture .h3{fill:var(--h3)}
.picture .h4{fill:var(--h4)}.picture .h5{fill:var(--h5)}.picture .h6{fill:var(--h6)}.picture .h7{fill:var(--h7)}
.picture .h8{fill:var(--h8)}
)";

const char* const page_style = R"(
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:16px;max-width:1120px;background:var(--back);color:var(--ink);
font:16px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:.4em 0}
h2{font-size:1.3rem;margin:2.2em 0 .6em;padding-top:.4em;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:1.2em 0 .4em}
header p,figcaption,.note{color:var(--soft)}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:1em 0}
a{color:var(--link)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:8px 32px}
figure{margin:0 0 16px;min-width:0;max-width:620px}
.picture{display:block;width:100%;height:auto}
figure h3{margin:.6em 0}
figcaption,.note{font-size:.85rem;line-height:1.4;text-align:left}
figcaption{margin:.4em 0}
.note{margin:1em 0 .4em}
.block{display:block;white-space:pre-wrap;margin-top:.3em}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,"DejaVu Sans Mono",monospace;font-size:.8rem}
pre,.scroll{overflow-x:auto;max-width:100%}
pre{background:var(--card);padding:10px}
table{border-collapse:collapse;margin:0 0 1em;font-size:.85rem;overflow-wrap:normal}
th,td{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--grid);vertical-align:top}
th{color:var(--soft);font-weight:600}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.above td{border-bottom:0;padding-bottom:0}.below td{padding-top:0;color:var(--soft)}
.below code{overflow-wrap:anywhere}
@media screen and (min-width:940px){.figures figure:last-child:nth-child(odd){grid-column:1/-1;max-width:none;display:grid;
grid-template-columns:minmax(0,528px) minmax(0,1fr);gap:0 32px;align-content:start}
figure:last-child:nth-child(odd) h3{grid-column:1/-1}figure:last-child:nth-child(odd) .picture{grid-row:2/span 2}}
@media screen and (max-width:600px){table,tbody,tr,td{display:block;width:auto}thead{display:none}
tr{border-bottom:1px solid var(--grid);padding:4px 0}th,td{border:0;padding:1px 0;white-space:normal}
td[data-of]{display:flex;justify-content:space-between;gap:12px}td[data-of]::before{content:attr(data-of);color:var(--soft)}}
details{margin:.3em 0}summary{cursor:pointer;color:var(--link);font-size:.85rem}
.alarm{border-left:3px solid var(--c1);padding-left:24px}
dl.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:1em 0}
.tiles div{background:var(--card);padding:8px 14px;border-radius:6px}
.tiles dt{font-size:.8rem;color:var(--soft)}.tiles dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
@page{margin:15mm}
@media print{:root{--back:#fff;--ink:#000;--soft:#444;--grid:#ddd;--axis:#777;--link:#000;--card:#f4f4f4;
--c0:#0072b2;--c1:#d55e00;--c2:#00865f;--c3:#b0478a;--c4:#a66f00;--c5:#2b8cbe;--c6:#6b4fbb;--c7:#6e7781;
--q0:#440154;--q1:#46307e;--q2:#365c8d;--q3:#277f8e;--q4:#1b9178;--q5:#3d9a45;--q6:#7a9416;--q7:#a88a00;
--h0:#08306b;--h1:#2166ac;--h2:#67a9cf;--h3:#c6dff0;--h4:#f3f3f1;--h5:#fdd9b5;--h6:#f4a261;--h7:#d9601a;--h8:#8c2d04}
body{max-width:none;padding:0;font-size:10.5pt;-webkit-print-color-adjust:exact;print-color-adjust:exact}
nav,details{display:none}.figures{grid-template-columns:1fr 1fr;gap:0 24px}figure,tr{break-inside:avoid}h2,h3{break-after:avoid}
figure{margin:0 0 4mm}.picture{width:88%}figure h3{font-size:9pt;margin:0 0 1mm}figcaption,.note,table{font-size:7.5pt}
figcaption code,.below code{font-size:6.5pt}h2{margin:5mm 0 3mm}th,td{padding-right:6px}
.scroll,pre{overflow:visible}pre{white-space:pre-wrap}}
)";

}  // namespace orthant::report
