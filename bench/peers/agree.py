#!/usr/bin/env python3
"""Trains configurations by Orthant and by PyTorch (torch_moe.py), from the same weights on the same batches, and prints
how far the losses are apart. Exits with 1 where that is too far, with 78 where the peer cannot build the model, with 3
where this Python has no torch.

    agree.py [CONFIG...] [--steps 50] [--set KEY=VALUE]... [--double]
    agree.py [CONFIG...] --speed [--rounds 5]      tokens/s as well, in turns

Without CONFIG: those of configs/. An agreement: in every step the losses differ by at most 1e-4 (--tolerance), absolute:
cross-entropy in nats per token, balance loss and z loss before their coefficients, as in metrics.jsonl. The other columns
are printed to be read: the largest relative difference of the gradient's norm; and the differences of the experts' counts
of computed choices, summed over steps and experts. A sum in another order moves a near tie to another expert now and then.

Configurations of several ranks are welcome: PyTorch trains what all ranks train together. run.steps is --steps here, so a
cosine ends with it. --double: PyTorch trains in fp64 as well, and two more rows hold Orthant and PyTorch's fp32 against that.
Where PyTorch is as far from itself as from us, the run amplifies rounding.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import compare

HERE = Path(__file__).resolve().parent
PEER = HERE / "torch_moe.py"
LOSSES = ("loss", "aux_loss", "z_loss")


def run(command, name):
    """The standard output. What fails is told with its errors."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise SystemExit(f"{name} cannot be started ({error}): build the program, or name it with --orthant")
    if done.returncode != 0:
        print(done.stderr or done.stdout, file=sys.stderr)
        print(f"{name} ended with code {done.returncode}: {' '.join(map(str, command))}", file=sys.stderr)
        raise SystemExit(done.returncode if done.returncode in (3, 78) else 1)
    return done.stdout


def json_lines(text):
    try:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    except json.JSONDecodeError as error:
        raise SystemExit(f"expected lines of JSON, found one that is not whole: {error}")


class Pair:
    """One configuration, with the folder for both sides' files."""

    def __init__(self, config, args, folder):
        self.name, self.config, self.args = Path(config).stem, config, args
        self.folder, self.data = folder, folder / "data"
        self.overrides = [word for one in [*args.set, f"run.steps={args.steps}"] for word in ("--set", one)]
        self.peer = [sys.executable, str(PEER), str(self.data)]
        run([args.orthant, "bench", "peer-data", config, *self.overrides, "-o", self.data], "orthant bench peer-data")

    def ours(self):
        mine = {"run.log_every": 1, "run.validate_every": 0, "run.checkpoint_every": 0, "run.name": "agree",
                "run.directory": self.folder}
        run([self.args.orthant, "train", self.config, *self.overrides,
             *(word for key, value in mine.items() for word in ("--set", f"{key}={value}"))], "orthant train")
        metrics = self.folder / "agree" / "metrics.jsonl"
        if not metrics.is_file():
            raise SystemExit(f"{self.name}: the run wrote no {metrics.name}: look at what `orthant train {self.config}` says")
        return json_lines(metrics.read_text())

    def theirs(self, *more):
        return json_lines(run([*self.peer, *more], "torch_moe.py"))

    def contestants(self):
        ours = [self.args.orthant, "bench", "step", self.config, *self.overrides, "--serve"]
        peers = [("PyTorch", self.peer + ["--serve"]), ("PyTorch compiled", self.peer + ["--serve", "--compile"])]
        return [compare.Contestant("Orthant", ours)] + [compare.Contestant(name, command) for name, command in peers]


def number(line, key):
    return math.nan if line[key] is None else line[key]  # JSON has no NaN: null stands for it


def largest(values):
    """Of their sizes; nan where one is not finite, which max() would pass over."""
    sizes = [abs(value) for value in values]
    return max(sizes) if all(map(math.isfinite, sizes)) else math.nan


def require_counts(ours, theirs):
    """Ends the program where a step lacks a number, or the experts that were counted are not the same."""
    for side, lines in (("Orthant", ours), ("PyTorch", theirs)):
        for line in lines:
            missing = [key for key in ("step", *LOSSES, "grad_norm") if key not in line]
            if missing:
                raise SystemExit(f"step {line.get('step', '?')}: the line of {side} has no {', '.join(missing)}")
    for a, b in zip(ours, theirs):
        shapes = [{block: len(counts) for block, counts in line.get("expert_tokens", {}).items()} for line in (a, b)]
        if shapes[0] != shapes[1]:
            raise SystemExit(f"step {a['step']}: expected the same experts in the same blocks from both, found "
                             f"{shapes[0]} in Orthant and {shapes[1]} in PyTorch (block: experts)")


def differences(ours, theirs):
    """Largest differences over the steps, by key; "choices": (those that differ, all)."""
    require_counts(ours, theirs)
    if not ours:
        raise SystemExit("there is nothing to compare: neither side has a step")
    if len(ours) != len(theirs) or any(a["step"] != b["step"] for a, b in zip(ours, theirs)):
        raise SystemExit(f"expected the same steps from both, found {len(ours)} lines and {len(theirs)}")
    found = {key: largest(number(a, key) - number(b, key) for a, b in zip(ours, theirs)) for key in LOSSES}
    found["grad_norm"] = largest((number(a, "grad_norm") - number(b, "grad_norm")) / number(b, "grad_norm")
                                 for a, b in zip(ours, theirs))
    counts = [(mine, other) for a, b in zip(ours, theirs) for block, counted in a.get("expert_tokens", {}).items()
              for mine, other in zip(counted, b["expert_tokens"][block])]
    found["choices"] = sum(abs(mine - other) for mine, other in counts), sum(mine for mine, _ in counts)
    return found


def row(name, found, last):
    return (f"| {name} | " + " | ".join(f"{found[key]:.1e}" for key in (*LOSSES, "grad_norm")) +
            " | {} of {} |".format(*found["choices"]) + f" {last['loss']:.6f} |")


def speed(pair):
    """Lines of a table of seconds and ratios. One of each contestant runs at a time."""
    contestants = pair.contestants()
    try:
        for c in contestants:
            c.step(2)
        for number in range(pair.args.rounds):
            for c in contestants if number % 2 == 0 else reversed(contestants):
                c.rounds.append(c.step(3))
    finally:
        for c in contestants:
            c.close()
    return compare.table(contestants, contestants[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--orthant", default=HERE.parents[1] / "build/cpu/bin/orthant", help="the program")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of the losses, absolute")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both sides")
    parser.add_argument("--double", action="store_true", help="PyTorch in fp64 too")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of --speed, three steps of each in a round")
    args = parser.parse_args()
    configs = args.configs or sorted(str(file) for file in (HERE / "configs").glob("*.toml") if file.stem != "base")

    apart, tables = [], []
    print("| configuration | steps | loss | balance loss | z loss | gradient norm | expert counts | last loss |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(config, args, Path(folder))
            theirs, ours = pair.theirs(), pair.ours()  # first what may be refused
            found = differences(ours, theirs)
            print(row(f"{pair.name} | {len(ours)}", found, ours[-1]), flush=True)
            if args.double:
                exact = pair.theirs("--double")
                print(row(f"Orthant and fp64 | {len(ours)}", differences(ours, exact), ours[-1]))
                print(row(f"PyTorch and fp64 | {len(ours)}", differences(theirs, exact), theirs[-1]), flush=True)
            for key in LOSSES:
                if not found[key] <= args.tolerance:  # a NaN is no agreement
                    apart.append(f"{pair.name}: '{key}' differs by {found[key]:.1e}, allowed is {args.tolerance:.0e}")
            if args.speed:
                tables += ["", f"{pair.name}, {args.rounds} rounds of 3 steps in turns:", "", *speed(pair)]
    if tables:
        print("\n".join(tables))
    for words in apart:
        print(words, file=sys.stderr)
    raise SystemExit(1 if apart else 0)


if __name__ == "__main__":
    main()
