#!/usr/bin/env bash
# A dense student that learns from a mixture's logits, against the same model without a teacher: at equal tokens and at
# equal seconds, from new weights and from those that orthant distil takes over. Three seeds of the order of the data and
# of new weights. Writes runs/ into the current folder, which has debian.txt (bench/debian_text.sh debian.txt), and prints
# the tables of bench/results/distil.md. Step times are taken in turns, of two programs that wait for each other.
#   bench/distil_study.sh build/cpu/bin/orthant
set -euo pipefail
orthant=$(readlink -f "$1")
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/results/distil" && pwd)
text=(--set "data.path=[\"$(readlink -f debian.txt)\"]")
train() { "$orthant" train "$@" "${text[@]}" >/dev/null; }

[[ -d runs/teacher/checkpoints/step_003000 ]] || train "$here/teacher.toml"
rm -rf copied
"$orthant" distil runs/teacher -o copied
taught=(--set 'distil.teacher="runs/teacher"')

# The distilled step over the plain one: pairs of a few steps each, one after the other.
python3 - "$orthant" "$here/student.toml" "${text[@]}" <<'PY' | tee ratio.txt
import json, statistics, subprocess, sys
def serve(*more):
    return subprocess.Popen([sys.argv[1], "bench", "step", sys.argv[2], "--serve", *sys.argv[3:], *more], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def ask(program, steps):
    program.stdin.write(f"step {steps}\n"); program.stdin.flush()
    return statistics.median(json.loads(program.stdout.readline())["seconds"])
plain, taught = serve(), serve("--set", 'distil.teacher="runs/teacher"')
for program in (plain, taught): ask(program, 10)
pairs = [(ask(plain, 5), ask(taught, 5)) for _ in range(40)]
print(f"{statistics.median(b / a for a, b in pairs):.2f} {1e3 * min(a for a, _ in pairs):.1f} {1e3 * min(b for _, b in pairs):.1f}")
PY
read -r ratio _ < ratio.txt
longer=$(python3 -c "print(round(400 * $ratio))")
for seed in 1 2 3; do
  of=(--set "run.seed=$seed")
  train "$here/student.toml" "${of[@]}" --set "run.name=\"new_$seed\""
  train "$here/student.toml" "${of[@]}" --set "run.name=\"new_longer_$seed\"" --set "run.steps=$longer"
  train "$here/student.toml" "${of[@]}" --set "run.name=\"new_taught_$seed\"" "${taught[@]}"
  train "$here/student.toml" "${of[@]}" --set "run.name=\"copied_$seed\"" --set 'train.from="copied"'
  train "$here/student.toml" "${of[@]}" --set "run.name=\"copied_longer_$seed\"" --set 'train.from="copied"' --set "run.steps=$longer"
  train "$here/student.toml" "${of[@]}" --set "run.name=\"copied_taught_$seed\"" --set 'train.from="copied"' "${taught[@]}"
done
python3 - <<'PY'
import json, statistics
def curve(name):
    lines = [json.loads(line) for line in open(f"runs/{name}/metrics.jsonl")]
    return [(l["step"], l["validation_loss"]) for l in lines if "validation_loss" in l]
print(f"teacher: {curve('teacher')[-1][1]:.4f}")
ratio, plain, taught = open("ratio.txt").read().split()
print(f"a distilled step takes {ratio} times a plain one, in turns; the quickest were {taught} and {plain} ms")
for kind in ("new", "new_longer", "new_taught", "copied", "copied_longer", "copied_taught"):
    ends = [curve(f"{kind}_{seed}")[-1] for seed in (1, 2, 3)]
    losses = [loss for _, loss in ends]
    print(f"{kind}: {ends[0][0]} steps, {statistics.mean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})")
for kind in ("new", "new_taught", "copied", "copied_taught"):
    curves = [curve(f"{kind}_{seed}") for seed in (1, 2, 3)]
    print(f"{kind}: " + ", ".join(f"{points[0][0]}: {statistics.mean(p[1] for p in points):.3f}" for points in zip(*curves)))
PY
