#!/usr/bin/env python3
"""Predicted against measured: what `orthant route` says of 20 changed settings of a recorded run, and runs of them.

    python3 bench/route_times.py build/cpu/bin/orthant configs/quickstart.toml [--set a.b=c ...] [--steps 40] [--ranks 2]

Drops: the first step of a run of each setting. Times: steps of the recorded setting and of the changed one in turns, one
by one (`orthant bench step --serve`), at a learning rate of nearly 0, so that routing stays that of the recorded step.
Of each the fastest step counts, because other work on the machine only adds time. With --ranks N the recording is of N
ranks that share the batch and the experts, the settings are those of their exchange too, and short runs take turns
(`orthant launch`).
"""
import argparse
import json
import pathlib
import shutil
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
EXCHANGES = (
    [[f"moe.capacity_factor={c}"] for c in ("0.5", "1.0", "2.0", "0")]
    + [["plugins.expert.padded=true", f"moe.capacity_factor={c}"] for c in ("0.5", "1.0", "1.5")]
    + [['plugins.expert.dispatch="hierarchical"', f"plugins.expert.node_ranks={n}"] for n in ("1", "2")]
    + [['plugins.expert.dispatch="hierarchical"', "plugins.expert.node_ranks=2", "plugins.expert.padded=true",
        "moe.capacity_factor=1.0"]]
    + [["plugins.expert.chunks=2"], ["plugins.expert.chunks=2", "moe.capacity_factor=1.0"]]
    + [["plugins.expert.size=1"], ["plugins.data.size=1", "plugins.expert.size=1"]]
    + [['moe.router="gshard"', "moe.capacity_factor=1.0"], ['moe.router="switch"', "moe.top_k=1", "moe.capacity_factor=1.5"],
       ['moe.router="expert_choice"', "moe.top_k=0", "moe.capacity_factor=1.0"], ["moe.top_k=3"],
       ["moe.top_k=1", "moe.normalize_weights=false"], ["batch.micro_batch=2"]]
)
RESTING = ["optimizer.lr=1e-9", "optimizer.min_lr=0", "run.checkpoint_every=0", "run.validate_every=0"]


def layout(ranks):
    threads = ["run.threads=1"] if ranks > 1 else []  # a change of ranks is no change of threads
    return [f"plugins.data.size={ranks}", f"plugins.expert.size={ranks}", *threads, *RESTING]


def words(sets):
    return [word for key in sets for word in ("--set", key)]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def first_step(args, folder, name, sets):
    keys = ["run.steps=1", "run.record_routing=1", f'run.directory="{folder}"', f'run.name="{name}"']
    run([args.program, "launch", args.config, *words([*layout(args.ranks), *args.set, *sets, *keys])])
    return json.loads(open(pathlib.Path(folder) / name / "metrics.jsonl").readline())


class Server:
    """A process that takes one step when it is asked to."""

    def __init__(self, args, sets):
        keys = [*layout(1), "run.log_every=1000000", *args.set, *sets]
        command = [args.program, "bench", "step", args.config, "--serve", *words(keys)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.times = []

    def step(self):
        self.process.stdin.write("step 1\n")
        self.process.stdin.flush()
        self.times += json.loads(self.process.stdout.readline())["seconds"]

    def quit(self):
        self.process.communicate("quit\n")
        return min(self.times[2:])


def fastest_of_run(args, folder, sets):
    keys = [f"run.steps={args.steps}", "run.log_every=1", "run.routing_metrics=false", "run.tensorboard=false",
            f'run.directory="{folder}"', 'run.name="timed"']
    shutil.rmtree(pathlib.Path(folder) / "timed", ignore_errors=True)
    run([args.program, "launch", args.config, *words([*layout(args.ranks), *args.set, *sets, *keys])])
    lines = [json.loads(line) for line in open(pathlib.Path(folder) / "timed" / "metrics.jsonl")]
    return min(line["step_seconds"] for line in lines[3:])


def runs_in_turns(args, folder, sets):
    rounds = [(fastest_of_run(args, folder, []), fastest_of_run(args, folder, sets)) for _ in range(4)]
    return [min(times) for times in zip(*rounds)]


def in_turns(args, folder, sets):
    if args.ranks > 1:
        return runs_in_turns(args, folder, sets)
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
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    print("| setting | dropped in step 1: said | run | first routed layer | recorded, ms | said | run | off |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    settings, errors, exact = EXCHANGES if args.ranks > 1 else SETTINGS, [], 0
    with tempfile.TemporaryDirectory() as folder:
        first_step(args, folder, "base", [])
        metrics = pathlib.Path(folder) / "base" / "metrics.jsonl"
        for number, sets in enumerate(settings):
            line = first_step(args, folder, f"other_{number}", sets)
            base, measured = in_turns(args, folder, sets)
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
    print(f"\nFirst routed layer equal: {exact} of {len(settings)}. Time within 5 %: {within} of {len(settings)}; "
          f"median |error| {100 * statistics.median(map(abs, errors)):.1f} %, "
          f"largest {100 * max(map(abs, errors)):.1f} %.")


if __name__ == "__main__":
    main()
