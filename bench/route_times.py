#!/usr/bin/env python3
"""Predicted against measured: what `orthant route` says of 20 changed settings of a recorded run, and runs of them.

    python3 bench/route_times.py build/cpu/bin/orthant configs/quickstart.toml [--set a.b=c ...] [--steps 20]

Every setting is trained for the same few steps on one rank, in turns with the recorded run, so that a machine that is
busy for a while slows down both. Drops of the first step are compared too: those of the first routed layer are exact.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

SETTINGS = (
    [[f"moe.capacity_factor={c}"] for c in ("0.5", "0.75", "1.0", "1.25", "2.0", "3.0", "0")]
    + [[f"moe.capacity_factor={c}", 'moe.drop_policy="probability"'] for c in ("0.5", "1.0", "2.0")]
    + [[f"moe.capacity_factor={c}", 'moe.router="gshard"'] for c in ("1.0", "2.0")]
    + [[f"moe.capacity_factor={c}", 'moe.router="switch"', "moe.top_k=1"] for c in ("1.0", "1.5", "2.0")]
    + [[f"moe.capacity_factor={c}", 'moe.router="expert_choice"', "moe.top_k=0"] for c in ("1.0", "1.5", "2.0")]
    + [["moe.top_k=1", "moe.normalize_weights=false"], ["moe.top_k=3"]]
)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(args, folder, name, sets):
    keys = ["run.log_every=1", "run.checkpoint_every=0", "run.validate_every=0", f"run.steps={args.steps}",
            "plugins.data.size=1", "plugins.expert.size=1", "run.record_routing=1", f'run.directory="{folder}"',
            f'run.name="{name}"', *args.set, *sets]
    run([args.program, "train", args.config, *[word for key in keys for word in ("--set", key)]])
    lines = [json.loads(line) for line in open(pathlib.Path(folder) / name / "metrics.jsonl")]
    return lines[0], [line["step_seconds"] for line in lines[2:-1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    print("| setting | dropped in step 1: said | run | first layer | step, ms: said | run | off |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: |")
    errors, exact = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number, sets in enumerate(SETTINGS):
            train(args, folder, f"base_{number}", [])
            line, times = train(args, folder, f"other_{number}", sets)
            words = [word for key in sets for word in ("--set", key)]
            said = json.loads(run([args.program, "route", f"{folder}/base_{number}", "--json", *words]))["answers"][1]
            dropped = said["dropped_by_capacity"] + said["dropped_by_chance"]
            real = line["dropped_by_capacity"] + line["dropped_by_chance"]
            first = min(said["layers"], key=int)
            same = said["layers"][first]["expert_tokens"] == line["expert_tokens"][first]
            exact += same
            measured = statistics.median(times)
            errors.append(said["step_seconds"] / measured - 1)
            print(f"| {', '.join(sets)} | {dropped} | {real} | {'equal' if same else 'differs'} "
                  f"| {1e3 * said['step_seconds']:.1f} | {1e3 * measured:.1f} | {100 * errors[-1]:+.1f} % |", flush=True)
    within = sum(abs(error) <= 0.05 for error in errors)
    print(f"\nFirst routed layer equal: {exact} of {len(SETTINGS)}. Time within 5 %: {within} of {len(SETTINGS)}; "
          f"median |error| {100 * statistics.median(map(abs, errors)):.1f} %, "
          f"largest {100 * max(map(abs, errors)):.1f} %.")


if __name__ == "__main__":
    main()
