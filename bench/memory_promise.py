#!/usr/bin/env python3
"""Both tables of results/memory_promise.md: the promise of memory.limit against routers that do their worst, and the
prediction of a plan against balanced steps. It drives the program; nothing here knows how a plan is made.

    cmake --preset cpu -DORTHANT_BENCH=ON && ninja -C build/cpu orthant_run orthant_plugin_adversary
    python3 bench/memory_promise.py build/cpu > bench/results/memory_promise.md

--only TEXT: the configurations whose names have it; --table promise or prediction: one table. Standard library only.
Exit code 1: a run died, or did not keep its promise."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

BASE = {
    "run.steps": 6,
    "run.log_every": 1,
    "run.validate_every": 3,
    "data.source": "synthetic",
    "data.sequence_length": 64,
    "data.validation_sequences": 16,
    "batch.sequences": 16,
    "model.layers": 4,
    "model.d_model": 64,
    "model.heads": 4,
    "model.d_ff": 128,
    "model.vocab_size": 256,
    "model.norm": "rmsnorm",
    "model.activation": "swiglu",
    "moe.experts": 8,
    "moe.top_k": 2,
    "moe.router": "adversary",
    "moe.d_expert": 128,
}
RUNS = 3  # of each configuration that is predicted
PATTERNS = ["one_expert", "one_rank", "rotating", "oscillating"]


class Layout:
    """Plugins in the order of their tables, and what differs from BASE."""

    def __init__(self, name, plugins, **settings):
        self.name = name
        self.plugins = plugins
        self.settings = {key.replace("__", "."): value for key, value in settings.items()}

    def ranks_of_experts(self):
        return dict(self.plugins).get("expert", {}).get("size", 1)


def data(size, zero=0, **more):
    keys = {"size": size, "zero": zero, **more}
    if zero == 3:
        keys.setdefault("whole_below", 0)
    return ("data", keys)


def tensor(size, *modes):
    keys = {"size": size}
    if "rows" in modes:
        keys["sequence_parallel"] = True
    if "fold" in modes:
        keys["experts"] = "fold"
    return ("tensor", keys)


def pipeline(size, schedule="1f1b", chunks=1):
    return ("pipeline", {"size": size, "schedule": schedule, "chunks": chunks})


def ulysses(size):
    return ("sequence", {"size": size})


def ring(size):
    return ("sequence", {"size": size, "method": "ring"})


def expert(size, mode=""):
    modes = {"": {}, "hier": {"dispatch": "hierarchical", "node_ranks": 2}, "chunks": {"chunks": 2}, "padded": {"padded": True}}
    return ("expert", {"size": size, **modes[mode]})


def offload(**places):
    return ("offload", places)


# One micro-batch of 2 sequences: 16 of them make 8 on one rank, 4 on two.
SMALL = {"batch__micro_batch": 2}
KEEP = {**SMALL, "memory__recompute": "full"}
ALL_HOST = {"states": "host", "gradients": "host", "weights": "host", "activations": "host"}

PROMISE = [
    # data and experts
    Layout("data 2, expert 2", [data(2), expert(2)]),
    Layout("data 4, expert 4", [data(4), expert(4)]),
    Layout("data 8, expert 8, top 1", [data(8), expert(8)], moe__top_k=1),
    Layout("data 4, expert 4 hierarchical", [data(4), expert(4, "hier")]),
    Layout("data 8, expert 4 hierarchical, micro-batches", [data(8), expert(4, "hier")], batch__micro_batch=1),
    Layout("data 4, expert 2 in chunks", [data(4), expert(2, "chunks")]),
    Layout("data 4, expert 4 in chunks, top 1, shared expert", [data(4), expert(4, "chunks")], moe__top_k=1, moe__shared_experts=1),
    Layout("data 4, expert 4 padded", [data(4), expert(4, "padded")], moe__capacity_factor=1.25),
    Layout("data 8, expert 2, capacity 1.5", [data(8), expert(2)], moe__capacity_factor=1.5),
    # ZeRO
    Layout("ZeRO 1 on 4, expert 2", [data(4, 1), expert(2)]),
    Layout("ZeRO 1 on 8, expert 4 in chunks", [data(8, 1), expert(4, "chunks")]),
    Layout("ZeRO 1 on 4, expert 4 padded, bf16", [data(4, 1), expert(4, "padded")], moe__capacity_factor=2.0, run__dtype="bf16"),
    Layout("ZeRO 2 on 4, expert 4", [data(4, 2), expert(4)]),
    Layout("ZeRO 2 on 8, expert 2, micro-batches", [data(8, 2), expert(2)], batch__micro_batch=1),
    Layout("ZeRO 2 on 4, expert 4 hierarchical, recompute", [data(4, 2), expert(4, "hier")], memory__recompute="full"),
    Layout("ZeRO 3 on 4, expert 2", [data(4, 3), expert(2)]),
    Layout("ZeRO 3 on 8, expert 8, bf16", [data(8, 3), expert(8)], run__dtype="bf16"),
    Layout("ZeRO 3 on 4, layered, expert 4", [data(4, 3, layered=True), expert(4)], **SMALL),
    Layout("ZeRO 3 on 8 in shards of 2, expert 2 in chunks", [data(8, 3, shard_ranks=2), expert(2, "chunks")]),
    Layout("ZeRO 3 on 4, expert 4, selective, every 2nd block", [data(4, 3), expert(4)], moe__every=2, memory__recompute="selective"),
    # tensor
    Layout("tensor 2 x data 2, expert 2", [tensor(2), data(2), expert(2)]),
    Layout("tensor 2 rows x data 2, expert 2", [tensor(2, "rows"), data(2), expert(2)]),
    Layout("tensor 2 rows x ZeRO 1 on 4, expert 4", [tensor(2, "rows"), data(4, 1), expert(4)]),
    Layout("tensor 2 folded x data 2, expert 4", [tensor(2, "fold"), data(2), expert(4)]),
    Layout("tensor 2 rows folded x data 2, expert 4 in chunks", [tensor(2, "rows", "fold"), data(2), expert(4, "chunks")]),
    Layout("tensor 4 rows folded, expert 4, capacity 1.25", [tensor(4, "rows", "fold"), expert(4)], moe__capacity_factor=1.25),
    Layout("tensor 4 folded x ZeRO 2 on 2, expert 8", [tensor(4, "fold"), data(2, 2), expert(8)]),
    Layout("tensor 4 x ZeRO 3 on 2, expert 2", [tensor(4), data(2, 3), expert(2)]),
    # pipeline
    Layout("GPipe 2 x data 2, expert 2", [pipeline(2, "gpipe"), data(2), expert(2)], **SMALL),
    Layout("1F1B 2 x data 4, expert 4", [pipeline(2), data(4), expert(4)], **SMALL),
    Layout("interleaved 2 x data 2, expert 2", [pipeline(2, "interleaved", 2), data(2), expert(2)], **SMALL),
    Layout("1F1B 4 x ZeRO 1 on 2, expert 2 in chunks", [pipeline(4), data(2, 1), expert(2, "chunks")], **SMALL),
    Layout("GPipe 4 x data 2, expert 2, recompute, 2 keep", [pipeline(4, "gpipe"), data(2), expert(2)], **KEEP, memory__keep_micro_batches=2),
    Layout("1F1B 2 x ZeRO 3 on 2, expert 2, recompute, 1 keeps", [pipeline(2), data(2, 3), expert(2)], **KEEP, memory__keep_micro_batches=1),
    Layout("interleaved 2 x ZeRO 2 on 4, expert 4, recompute, 2 keep", [pipeline(2, "interleaved", 2), data(4, 2), expert(4)], **KEEP, memory__keep_micro_batches=2),
    Layout("1F1B 2 x tensor 2 rows x data 2, expert 2", [pipeline(2), tensor(2, "rows"), data(2), expert(2)], **SMALL),
    Layout("1F1B 2 x tensor 2 rows folded x ZeRO 1 on 2, expert 4", [pipeline(2), tensor(2, "rows", "fold"), data(2, 1), expert(4)], **SMALL),
    Layout("1F1B 2 x tensor 2 x ring 2, expert 2", [pipeline(2), tensor(2), ring(2), expert(2)], **SMALL),
    # sequences
    Layout("Ulysses 2, expert 2", [ulysses(2), expert(2)]),
    Layout("Ulysses 2 x data 2, expert 4, capacity 1.5", [ulysses(2), data(2), expert(4)], moe__capacity_factor=1.5),
    Layout("Ulysses 4 x data 2, expert 8", [ulysses(4), data(2), expert(8)]),
    Layout("ring 2, expert 2 in chunks", [ring(2), expert(2, "chunks")]),
    Layout("ring 4 x data 2, expert 4 hierarchical", [ring(4), data(2), expert(4, "hier")]),
    Layout("ring 2 x ZeRO 3 on 2, expert 4", [ring(2), data(2, 3), expert(4)]),
    Layout("Ulysses 2 x tensor 2 x ZeRO 1 on 2, expert 2", [ulysses(2), tensor(2), data(2, 1), expert(2)]),
    Layout("ring 2 x tensor 2 rows folded x data 2, expert 8", [ring(2), tensor(2, "rows", "fold"), data(2), expert(8)]),
    Layout("interleaved 2 x Ulysses 2 x data 2, expert 4", [pipeline(2, "interleaved", 2), ulysses(2), data(2), expert(4)], **SMALL),
    # offload
    Layout("data 2, expert 2, states on the host", [data(2), expert(2), offload(states="host")]),
    Layout("ZeRO 1 on 4, expert 4, states on disk, gradients on the host", [data(4, 1), expert(4), offload(states="nvme", gradients="host")]),
    Layout("ZeRO 3 on 2, expert 2, all on the host", [data(2, 3), expert(2), offload(**ALL_HOST)]),
    Layout("1F1B 2 x data 2, expert 2, activations on the host, 1 keeps", [pipeline(2), data(2), expert(2), offload(activations="host")], **KEEP, memory__keep_micro_batches=1),
    Layout("tensor 2 rows x data 2, expert 2, activations on disk, weights on the host", [tensor(2, "rows"), data(2), expert(2), offload(activations="nvme", weights="host")]),
    Layout("data 4, expert 4, lazy experts", [data(4), expert(4), offload(states="host", expert_states="lazy")]),
]

DENSE = {"moe__experts": 0}
WIDE = {"model__d_model": 128, "model__d_ff": 256, "moe__d_expert": 256}
DEEP = {"model__layers": 8}
LONG = {"data__sequence_length": 256, "batch__sequences": 8}
BF16 = {"run__dtype": "bf16"}
FULL = {"memory__recompute": "full"}
SELECTIVE = {"memory__recompute": "selective"}

PREDICTION = [
    # one rank
    Layout("one rank", []),
    Layout("one rank, bf16, wide", [], **WIDE, **BF16),
    Layout("one rank, dense, deep, recompute", [], **DENSE, **DEEP, **FULL),
    Layout("one rank, dense, selective, long", [], **DENSE, **SELECTIVE, **LONG),
    Layout("one rank, 16 experts, top 4, micro-batches", [], **SMALL, moe__experts=16, moe__top_k=4),
    Layout("one rank, states on the host", [offload(states="host")], **WIDE),
    Layout("one rank, all on the host, recompute", [offload(**ALL_HOST)], **WIDE, **FULL),
    Layout("one rank, states and activations on disk", [offload(states="nvme", activations="nvme")], **DEEP),
    # data and experts
    Layout("data 4, dense, wide", [data(4)], **DENSE, **WIDE),
    Layout("data 2, expert 2", [data(2), expert(2)]),
    Layout("data 4, expert 4, bf16", [data(4), expert(4)], **BF16),
    Layout("data 8, expert 8, long", [data(8), expert(8)], **LONG),
    Layout("data 4, expert 4 hierarchical, wide", [data(4), expert(4, "hier")], **WIDE),
    Layout("data 4, expert 2 in chunks, deep", [data(4), expert(2, "chunks")], **DEEP),
    Layout("data 4, expert 4 padded", [data(4), expert(4, "padded")], moe__capacity_factor=1.25),
    Layout("ZeRO 1 on 4, expert 2, wide", [data(4, 1), expert(2)], **WIDE),
    Layout("ZeRO 2 on 4, expert 4, deep, micro-batches", [data(4, 2), expert(4)], **DEEP, **SMALL),
    Layout("ZeRO 3 on 4, dense, wide", [data(4, 3)], **DENSE, **WIDE),
    Layout("ZeRO 3 on 4, expert 4, bf16, deep", [data(4, 3), expert(4)], **BF16, **DEEP),
    Layout("ZeRO 3 on 8, expert 2, recompute", [data(8, 3), expert(2)], **FULL),
    Layout("ZeRO 2 on 2, expert 2, states on the host", [data(2, 2), expert(2), offload(states="host")], **WIDE),
    Layout("ZeRO 3 on 2, expert 2, all on the host", [data(2, 3), expert(2), offload(**ALL_HOST)]),
    # tensor
    Layout("tensor 2, wide", [tensor(2)], **WIDE),
    Layout("tensor 2 rows x data 2, expert 2", [tensor(2, "rows"), data(2), expert(2)]),
    Layout("tensor 2 folded x data 2, expert 4, bf16", [tensor(2, "fold"), data(2), expert(4)], **BF16),
    Layout("tensor 4 rows folded, expert 4, long", [tensor(4, "rows", "fold"), expert(4)], **LONG),
    Layout("tensor 2 rows x ZeRO 1 on 4, expert 4, selective, shared expert", [tensor(2, "rows"), data(4, 1), expert(4)], **SELECTIVE, moe__shared_experts=1),
    Layout("tensor 2 rows x data 2, activations on the host", [tensor(2, "rows"), data(2), expert(2), offload(activations="host")]),
    # pipeline
    Layout("GPipe 2, dense, deep", [pipeline(2, "gpipe")], **DENSE, **DEEP, **SMALL),
    Layout("GPipe 2 x data 2, expert 2, recompute, 2 keep", [pipeline(2, "gpipe"), data(2), expert(2)], **KEEP, memory__keep_micro_batches=2),
    Layout("1F1B 4, deep, wide", [pipeline(4)], **DEEP, **WIDE, **SMALL),
    Layout("1F1B 4 x data 2, expert 2, recompute, 1 keeps", [pipeline(4), data(2), expert(2)], **KEEP, **DEEP, memory__keep_micro_batches=1),
    Layout("interleaved 2 x data 2, expert 2", [pipeline(2, "interleaved", 2), data(2), expert(2)], **SMALL),
    Layout("1F1B 2 x tensor 2 rows x ZeRO 1 on 2, expert 2", [pipeline(2), tensor(2, "rows"), data(2, 1), expert(2)], **SMALL),
    Layout("1F1B 2 x ZeRO 3 on 2, expert 2, bf16", [pipeline(2), data(2, 3), expert(2)], **SMALL, **BF16, **DEEP),
    # sequences
    Layout("Ulysses 4, long", [ulysses(4)], **LONG),
    Layout("Ulysses 2 x data 2, expert 4", [ulysses(2), data(2), expert(4)]),
    Layout("ring 2, long, bf16", [ring(2)], **LONG, **BF16),
    Layout("ring 4 x data 2, dense", [ring(4), data(2)], **DENSE, **LONG),
    Layout("ring 2 x tensor 2 rows folded x data 2, expert 8", [ring(2), tensor(2, "rows", "fold"), data(2), expert(8)]),
    Layout("1F1B 2 x ring 2 x data 2, expert 4, recompute", [pipeline(2), ring(2), data(2), expert(4)], **KEEP),
]


def toml_value(value):
    return json.dumps(value)


def toml(layout, pattern, adversary):
    values = {**BASE, **layout.settings}
    routed = values["moe.experts"] > 0
    if not routed:
        values = {key: value for key, value in values.items() if not key.startswith("moe.")}
    tables = {}
    for key, value in values.items():
        table, name = key.split(".")
        tables.setdefault(table, []).append(f"{name} = {toml_value(value)}")
    text = "\n".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items())
    plugins = list(layout.plugins)
    if routed:
        together = values["moe.experts"] // layout.ranks_of_experts()
        plugins.append(("adversary", {"path": str(adversary), "pattern": pattern, "together": together}))
    for name, keys in plugins:
        text += f"[plugins.{name}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in keys.items())
    return text


class Program:
    def __init__(self, build):
        self.orthant = build / "bin" / "orthant"
        self.adversary = build / "bench" / "liborthant_plugin_adversary.so"
        for file in (self.orthant, self.adversary):
            if not file.exists():
                sys.exit(f"{file} is missing: build orthant_run and orthant_plugin_adversary")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant_promise_"))

    def call(self, *words):
        return subprocess.run([self.orthant, *words], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "OMP_WAIT_POLICY": "passive"})

    def write(self, layout, pattern):
        (self.folder / "c.toml").write_text(toml(layout, pattern, self.adversary))

    def plan(self):
        done = self.call("plan", "c.toml", "--json")
        if done.returncode != 0:
            sys.exit(f"plan failed:\n{(self.folder / 'c.toml').read_text()}\n{done.stderr}")
        return json.loads(done.stdout)

    def peak(self, *overrides):
        """The peak of the rank that held most, or how the run ended."""
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        done = self.call("launch", "c.toml", *(word for o in overrides for word in ("--set", o)))
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            return None
        lines = (self.folder / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
        return max(json.loads(line)["peak_bytes"] for line in lines)


def largest(plan, key):
    return max(ranks[key] for ranks in plan["memory"])


def number(value):
    return "died" if value is None else str(value)


def promise_table(program, layouts):
    rows, broken = [], 0
    for layout in layouts:
        program.write(layout, "one_rank")
        plan = program.plan()
        promise, host = largest(plan, "worst_peak_bytes"), largest(plan, "worst_host_bytes")
        limits = [f"memory.limit={promise}"] + ([f"memory.host_limit={host}"] if host > 0 else [])
        peaks = []
        for pattern in PATTERNS:
            program.write(layout, pattern)
            peaks.append(program.peak(*limits))
            if peaks[-1] is None or peaks[-1] > promise:
                broken += 1
        most = max((peak for peak in peaks if peak is not None), default=0)
        rows.append([layout.name, plan["world_size"], largest(plan, "peak_bytes"), promise, *map(number, peaks), f"{most / promise:.3f}"])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["layout", "ranks", "balanced", "promised = limit", *(p.replace("_", " ") for p in PATTERNS), "most / promised"]
    return head, rows, broken


def prediction_table(program, layouts):
    rows = []
    for layout in layouts:
        program.write(layout, "balanced")
        plan = program.plan()
        predicted = largest(plan, "peak_bytes")
        peaks = sorted(program.peak("run.steps=3", "run.validate_every=0") or 0 for _ in range(RUNS))
        median = peaks[RUNS // 2]
        rows.append([layout.name, plan["world_size"], predicted, median, f"{median / predicted:.3f}", *(f"{p / predicted:.3f}" for p in (peaks[0], peaks[-1]))])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return ["configuration", "ranks", "predicted", "measured", "measured / predicted", "least", "most"], rows


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", choices=["promise", "prediction"])
    options = parser.parse_args()
    program = Program(options.build.resolve())

    def chosen(layouts):
        return [layout for layout in layouts if options.only in layout.name]

    print(f"""# The promise of memory.limit, and the prediction of a plan

{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f} at the start; made by

    cmake --preset cpu -DORTHANT_BENCH=ON && ninja -C build/cpu orthant_run orthant_plugin_adversary
    python3 bench/memory_promise.py build/cpu > bench/results/memory_promise.md
""")
    broken = 0
    if options.table != "prediction":
        head, rows, broken = promise_table(program, chosen(PROMISE))
        print(PROMISE_TEXT.format(count=len(rows), runs=len(rows) * len(PATTERNS), broken=broken))
        print(markdown(head, rows))
    if options.table != "promise":
        head, rows = prediction_table(program, chosen(PREDICTION))
        off = [row for row in rows if abs(float(row[4]) - 1) > 0.05]
        print(PREDICTION_TEXT.format(count=len(rows), within=len(rows) - len(off)))
        print(markdown(head, rows))
    shutil.rmtree(program.folder)
    return 1 if broken else 0


PROMISE_TEXT = """## Adversarial routers

{count} layouts, each with four routers and `memory.limit` equal to its promise: {runs} runs of six steps, two validations and a
checkpoint. Died, or held more than promised: {broken}. With offload `memory.host_limit` is the promise of the host's memory too.
Bytes of the rank that held most. *balanced*: what a plan predicts (`peak_bytes`); *promised*: `worst_peak_bytes`. The routers
(`bench/adversary`) send every token to the first experts (*one expert*), to the experts of the last rank (*one rank*), to those of
another rank in each step and layer (*rotating*), in turns to all experts equally and to those of the first rank (*oscillating*).

*rotating* is far below the promise, because it is never the same rank that has all rows of every layer. With a capacity, and not padded, no router here
takes the seats that the worst one would. In pipelines and with activations or weights elsewhere the promise counts what side streams
could hold, if they were as slow as the waits for them allow; they seldom are.
"""

PREDICTION_TEXT = """## Balanced routing

{count} configurations, three runs of three steps each, every expert chosen equally often. *predicted*: the largest `peak_bytes` of
`orthant plan --json`; *measured*: `peak_bytes` of `metrics.jsonl`, the median of the runs, beside it the *least* and the *most* as shares of
the prediction. Within 5 %: {within} of {count}. What differs is when side streams let go of what they send, sum or copy. They are
threads here: on a busy machine copies of activations wait for a processor while the rank's own thread goes on.
"""

if __name__ == "__main__":
    sys.exit(main())
