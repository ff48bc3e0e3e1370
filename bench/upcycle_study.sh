#!/usr/bin/env bash
# A dense model trained on, against the mixture that orthant upcycle makes of it, at equal operations per token: the
# same steps, the same batches. Three seeds of the order of the data. Writes runs/ into the current folder, which has
# debian.txt (bench/debian_text.sh debian.txt), and prints the table of bench/results/upcycle.md.
#   bench/upcycle_study.sh build/cpu/bin/orthant
set -euo pipefail
orthant=$(readlink -f "$1")
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/results/upcycle" && pwd)
text=$(readlink -f debian.txt)
train() { "$orthant" train "$@" --set "data.path=[\"$text\"]" >/dev/null; }

train "$here/dense.toml"
rm -rf mixture
"$orthant" upcycle runs/dense --experts 16 --granularity 2 --top-k 1 -o mixture
moe=(--set moe.experts=16 --set moe.top_k=2 --set moe.d_expert=192 --set moe.weight_scale=2.0 --set moe.z_loss=0.001)
from_scratch=(--set moe.experts=16 --set moe.top_k=2 --set moe.d_expert=192 --set moe.z_loss=0.001)
for seed in 1 2 3; do
  common=(--set "run.seed=$seed")
  train "$here/on.toml" "${common[@]}" --set "run.name=\"dense_on_$seed\"" --set 'train.from="runs/dense"'
  train "$here/on.toml" "${common[@]}" "${moe[@]}" --set "run.name=\"mixture_on_$seed\"" --set 'train.from="mixture"'
  train "$here/on.toml" "${common[@]}" "${from_scratch[@]}" --set "run.name=\"mixture_new_$seed\""
done
python3 - <<'PY'
import json, statistics
def lines(name):
    return [json.loads(l) for l in open(f"runs/{name}/metrics.jsonl")]
def curve(name):
    seconds, found, last = 0.0, [], 0
    step_seconds = statistics.median(l["step_seconds"] for l in lines(name)[1:])
    for l in lines(name):
        if "validation_loss" in l:
            found.append((l["step"], l["step"] * step_seconds, l["validation_loss"]))
    return found, step_seconds
print("dense after its 1500 steps:", lines("dense")[-1]["validation_loss"])
for kind in ("dense_on", "mixture_on", "mixture_new"):
    curves = [curve(f"{kind}_{s}") for s in (1, 2, 3)]
    ends = [c[0][-1][2] for c in curves]
    print(f"{kind}: {statistics.mean(ends):.4f} ({min(ends):.4f} to {max(ends):.4f}), "
          f"{1e3 * statistics.median(c[1] for c in curves):.1f} ms a step")
dense = [curve(f"dense_on_{s}") for s in (1, 2, 3)]
budget = statistics.median(c[0][-1][1] for c in dense)
for kind in ("dense_on", "mixture_on"):
    at = []
    for s in (1, 2, 3):
        before = [v for v in curve(f"{kind}_{s}")[0] if v[1] <= budget * 1.0001]
        at.append(before[-1][2])
    print(f"after {budget:.0f} s: {kind} {statistics.mean(at):.4f}")
print("steps: " + ", ".join(f"{a[0]}: {statistics.mean(curve(f'dense_on_{s}')[0][i][2] for s in (1,2,3)):.3f} / "
      f"{statistics.mean(curve(f'mixture_on_{s}')[0][i][2] for s in (1,2,3)):.3f}"
      for i, a in enumerate(curve('dense_on_1')[0])))
PY
