#!/usr/bin/env python3
"""Fine-tuning a small mixture on another text: all of it, parts of it, and adapters.

Needs debian.txt in the current folder (bench/debian_text.sh debian.txt); writes python.txt and runs/ there and prints
the tables of bench/results/finetune.md.
    python3 bench/finetune_study.py build/cpu/bin/orthant
"""
import glob, hashlib, json, os, statistics, subprocess, sys

ORTHANT = os.path.realpath(sys.argv[1])
CONFIGS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "results/finetune")
STEPS, SEEDS = 600, (1, 2, 3)
ALL = 'lora.targets=["*_proj.weight","*.experts.*"]'
KINDS = {  # what trains: its settings, and the learning rates that are tried
    "everything": ([], (2.5e-4, 5e-4, 1e-3, 2e-3)),
    "experts": (['train.train_only=["*.experts.*"]'], (5e-4, 1e-3, 2e-3)),
    "all but experts": (['train.freeze=["*.experts.*"]'], (5e-4, 1e-3, 2e-3)),
    "LoRA 8, attention": (["lora.rank=8", 'lora.targets=["*_proj.weight"]'], (8e-3, 1.6e-2, 3.2e-2)),
    "LoRA 8": (["lora.rank=8", ALL], (8e-3, 1.6e-2, 3.2e-2)),
    "LoRA 2": (["lora.rank=2", ALL], (2e-3, 4e-3, 8e-3)),
}


def orthant(*words):
    done = subprocess.run([ORTHANT, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def sets(values):
    return [word for value in values for word in ("--set", value)]


def python_text(path, size=1_000_000):
    files = glob.glob("/usr/lib/python3.*/*.py")
    files.sort(key=lambda file: hashlib.md5(os.path.basename(file).encode()).hexdigest())
    text = b"".join(open(file, "rb").read() for file in files)[:size]
    open(path, "wb").write(text)
    print(f"{path}: {len(text)} bytes, sha256 {hashlib.sha256(text).hexdigest()[:16]}...")


def text(path):
    return f'data.path=["{os.path.realpath(path)}"]'


def settings(kind, lr):
    return [text("python.txt"), 'train.from="runs/base"', f"run.steps={STEPS}", *KINDS[kind][0], f"optimizer.lr={lr}"]


def tune(kind, lr, seed):
    """(validation loss by step, seconds of a step) of a run, and its name."""
    name = f"{kind.replace(' ', '_').replace(',', '')}_{lr:g}_{seed}"
    if seed > 0 or not os.path.exists(f"runs/{name}/checkpoints/step_{STEPS:06d}"):  # a sweep goes on where it was
        orthant("train", f"{CONFIGS}/tune.toml",
                *sets([*settings(kind, lr), f"run.seed={seed}", f'run.name="{name}"']))
    lines = [json.loads(line) for line in open(f"runs/{name}/metrics.jsonl")]
    losses = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    return losses, statistics.median(line["step_seconds"] for line in lines[1:]), name


def loss_of(run, path):
    return json.loads(orthant("eval", f"runs/{run}", path, "--json"))["files"][0]["nats_per_token"]


def spread(values):
    return f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def main():
    python_text("python.txt")
    with open("debian.txt", "rb") as file:  # of what the base holds out
        file.seek(-300_000, os.SEEK_END)
        open("held_out.txt", "wb").write(file.read())
    if not os.path.exists("runs/base"):
        orthant("train", f"{CONFIGS}/base.toml", *sets([text("debian.txt")]))
    with open("python.txt", "rb") as file:  # of what every tuning holds out
        file.seek(-200_000, os.SEEK_END)
        open("python_end.txt", "wb").write(file.read())
    print(f"before: python {loss_of('base', 'python_end.txt'):.4f}, debian {loss_of('base', 'held_out.txt'):.4f}")

    best = {}
    for kind, (_, rates) in KINDS.items():  # seed 0 chooses the rate, other seeds measure
        ends = {lr: tune(kind, lr, 0)[0][STEPS] for lr in rates}
        best[kind] = min(ends, key=ends.get)
        print(f"{kind}: " + ", ".join(f"{lr:g} {end:.4f}" for lr, end in ends.items()), flush=True)

    curves = {kind: [] for kind in KINDS}
    for seed in SEEDS:  # in turns: their seconds are compared
        for kind in KINDS:
            curves[kind].append(tune(kind, best[kind], seed))
    seconds = {kind: statistics.median(c[1] for c in curves[kind]) for kind in KINDS}
    for kind in KINDS:
        plan = json.loads(orthant("plan", f"{CONFIGS}/tune.toml", "--json", *sets(settings(kind, best[kind]))))
        ends = [c[0][STEPS] for c in curves[kind]]
        print(f"{kind}: lr {best[kind]:g}, {(plan.get('trained') or ['trains all'])[0]}, "
              f"states {plan['memory'][0]['optimizer_bytes']} bytes, "
              f"python {spread(ends)}, debian {spread([loss_of(c[2], 'held_out.txt') for c in curves[kind]])}, "
              f"a step {seconds[kind] / seconds['everything']:.2f} of everything's {1e3 * seconds['everything']:.1f} ms")
        print("   by step: " + ", ".join(f"{step}: {statistics.mean(c[0][step] for c in curves[kind]):.4f}"
                                         for step in sorted(curves[kind][0][0])), flush=True)


main()
