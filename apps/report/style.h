// The looks of pictures and pages: CSS with a light and a dark theme. Neither holds '<' or '&', so that it may stand in
// XML as it is.
//
// The colours to tell apart (c0 .. c7) are those of Okabe and Ito ("Color Universal Design", 2008), which colour-blind
// readers can tell apart, darker on white and lighter on black until each has a contrast of 3 or more. The colours in
// order (q0 .. q7) follow viridis, the heat map goes from blue over the background to orange.
#pragma once

namespace orthant::report {

extern const char* const picture_style;  // enough for an SVG file by itself
extern const char* const page_style;     // the rest of a page

}  // namespace orthant::report
