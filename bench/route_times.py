#!/usr/bin/env python3
"""Predicted against measured: what `orthant route` says of 20 changed settings of a recorded run, and runs of them.

    python3 bench/route_times.py build/cpu/bin/orthant configs/quickstart.toml [--set a.b=c ...] [--steps 40]

Drops: the first step of a run of each setting. Times: steps of the recorded setting and of the changed one in turns, one
by one (`orthant bench step --serve`), at a learning rate of nearly 0, so that routing stays that of the recorded step.
Of each the fastest step counts, because other work on the machine only adds time.
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
ONE_RANK = ["plugins.data.size=1", "plugins.expert.size=1", "optimizer.lr=1e-9", "optimizer.min_lr=0",
            "run.checkpoint_every=0", "run.validate_every=0", "run.log_every=1000000"]


def words(sets):
    return [word for key in sets for word in ("--set", key)]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def first_step(args, folder, name, sets):
    keys = ["run.steps=1", "run.record_routing=1", f'run.directory="{folder}"', f'run.name="{name}"']
    run([args.program, "train", args.config, *words([*ONE_RANK, *args.set, *sets, *keys])])
    return json.loads(open(pathlib.Path(folder) / name / "metrics.jsonl").readline())


class Server:
    """A process that takes one step when it is asked to."""

    def __init__(self, args, sets):
        command = [args.program, "bench", "step", args.config, "--serve", *words([*ONE_RANK, *args.set, *sets])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.times = []

    def step(self):
        self.process.stdin.write("step 1\n")
        self.process.stdin.flush()
        self.times += json.loads(self.process.stdout.readline())["seconds"]

    def quit(self):
        self.process.communicate("quit\n")
        return min(self.times[2:])


def in_turns(args, sets):
    servers = [Server(args, []), Server(args, sets)]
    for _ in range(args.steps):
        for server in servers:
            server.step()
    return [server.quit() for server in servers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    print("| setting | dropped in step 1: said | run | first routed layer | recorded, ms | said | run | off |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    errors, exact = [], 0
    with tempfile.TemporaryDirectory() as folder:
        first_step(args, folder, "base", [])
        metrics = pathlib.Path(folder) / "base" / "metrics.jsonl"
        for number, sets in enumerate(SETTINGS):
            line = first_step(args, folder, f"other_{number}", sets)
            base, measured = in_turns(args, sets)
            metrics.write_text(json.dumps({"step": 2, "step_seconds": base}) + "\n")
            said = json.loads(run([args.program, "route", f"{folder}/base", "--json", *words(sets)]))["answers"][1]
            dropped = said["dropped_by_capacity"] + said["dropped_by_chance"]
            real = line["dropped_by_capacity"] + line["dropped_by_chance"]
            first = min(said["layers"], key=int)
            same = said["layers"][first]["expert_tokens"] == line["expert_tokens"][first]
            exact += same
            errors.append(said["step_seconds"] / measured - 1)
            print(f"| `{' '.join(sets)}` | {dropped} | {real} | {'equal' if same else 'differs'} | {1e3 * base:.1f} "
                  f"| {1e3 * said['step_seconds']:.1f} | {1e3 * measured:.1f} | {100 * errors[-1]:+.1f} % |", flush=True)
    within = sum(abs(error) <= 0.05 for error in errors)
    print(f"\nFirst routed layer equal: {exact} of {len(SETTINGS)}. Time within 5 %: {within} of {len(SETTINGS)}; "
          f"median |error| {100 * statistics.median(map(abs, errors)):.1f} %, "
          f"largest {100 * max(map(abs, errors)):.1f} %.")


if __name__ == "__main__":
    main()
