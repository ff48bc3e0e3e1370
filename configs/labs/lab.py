#!/usr/bin/env python3
"""Trains the lab's classifier in each of its layouts, and prints one table (docs/guides/lab.md).

    python3 configs/labs/lab.py [LAYOUT...] [--set a.b=c]... [--markdown]

LAYOUT: lab, pipeline, one_f_one_b, data, zero_1, zero_2, zero_3, offload, experts, soft; all of them by default. Runs that
are there are read, not repeated: remove runs/lab_* to train anew.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYOUTS = ["lab", "pipeline", "one_f_one_b", "data", "zero_1", "zero_2", "zero_3", "offload", "experts", "soft"]
SAME = LAYOUTS[:8]  # of one model: their losses are equal


def run_folder(layout):
    return ROOT / "runs" / ("lab_alone" if layout == "lab" else f"lab_{layout}")


def lines_of(layout):
    return [json.loads(line) for line in (run_folder(layout) / "metrics.jsonl").read_text().splitlines()]


def train(layout, overrides):
    config = ROOT / "configs" / "labs" / f"{layout}.toml"
    command = [str(ROOT / "launch"), str(config)] + [word for one in overrides for word in ("--set", one)]
    print("$ " + " ".join(str(Path(word).relative_to(ROOT)) if word.startswith(str(ROOT)) else word for word in command),
          file=sys.stderr, flush=True)
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"{layout} failed")


def ranks_of(layout):
    return len(list((run_folder(layout) / "logs").glob("rank_*.log")))


def row_of(layout, alone):
    lines = lines_of(layout)
    losses = [line["loss"] for line in lines]
    apart = max(abs(a - b) / b for a, b in zip(losses, alone)) if layout in SAME else None
    measured = [line for line in lines if "validation_loss" in line][-1]
    # The first steps allocate and warm up.
    seconds = statistics.median(line["step_seconds"] for line in lines[5:])
    return [layout, str(ranks_of(layout)), f"{losses[0]:.4f}", f"{losses[-1]:.4f}",
            "another model" if apart is None else "-" if layout == "lab" else f"{apart:.0e}",
            f"{100 * measured['validation_top1']:.1f} %", f"{max(line['peak_bytes'] for line in lines) / 2**20:.1f}",
            f"{1000 * seconds:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    unknown = [layout for layout in args.layouts if layout not in LAYOUTS]
    if unknown:
        parser.error(f"there is no layout {', '.join(unknown)}; there are {', '.join(LAYOUTS)}")
    layouts = ["lab"] + [layout for layout in args.layouts or LAYOUTS if layout != "lab"]
    for layout in layouts:
        if not (run_folder(layout) / "metrics.jsonl").exists():
            train(layout, args.set)
    alone = [line["loss"] for line in lines_of("lab")]
    head = ["layout", "ranks", "first loss", "last loss", "apart from alone", "top1", "MiB of a rank", "ms a step"]
    rows = [head] + [row_of(layout, alone) for layout in layouts]
    if args.markdown:
        rows.insert(1, ["---"] * len(head))
        print("\n".join("| " + " | ".join(row) + " |" for row in rows))
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main()
