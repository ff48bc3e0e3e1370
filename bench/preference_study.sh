#!/usr/bin/env bash
# Preference training (DPO): a small mixture learns to prefer lines of one kind. Writes runs/ and pairs.jsonl into the
# current folder, which has debian.txt (bench/debian_text.sh debian.txt), and prints the tables of
# bench/results/preference.md.
#   bench/preference_study.sh build/cpu/bin/orthant
set -euo pipefail
orthant=$(readlink -f "$1")
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/results/preference" && pwd)
text=$(readlink -f debian.txt)
[[ -d runs/base/checkpoints/step_001000 ]] || "$orthant" train "$here/base.toml" --set "data.path=[\"$text\"]" >/dev/null

# The line that follows a line: one without a digit or a capital is preferred to one of the same length with one. The
# pairs are of the part of the text that the base was trained on, the last tenth of them are held out.
python3 - "$text" <<'PY'
import json, random, sys
random.seed(1)
with open(sys.argv[1], encoding="latin-1") as file:
    lines = file.read().split("\n")
lines = lines[:len(lines) * 9 // 10]
def plain(line): return not any(c.isdigit() or c.isupper() for c in line)
kinds = {True: {}, False: {}}
for line in lines:
    if 16 <= len(line) <= 48 and line.isascii() and line.isprintable() and line.strip():
        kinds[plain(line)].setdefault(len(line), []).append(line)
with open("pairs.jsonl", "w") as out:
    while out.tell() < 2200 * 150:
        before = random.choice(lines)
        length = random.randint(16, 48)
        if len(before) <= 48 and before.isascii() and before.isprintable() and before.strip() and all(length in of for of in kinds.values()):
            print(json.dumps({"prompt": before, "chosen": random.choice(kinds[True][length]),
                              "rejected": random.choice(kinds[False][length])}), file=out)
PY
wc -l pairs.jsonl
prefer() { "$orthant" train "$here/preferred.toml" --set 'data.path=["pairs.jsonl"]' --set train.from=runs/base "$@" >/dev/null; }
for loss in sigmoid ipo; do
  prefer --set "preference.loss=\"$loss\"" --set "run.name=\"$loss\""
done
prefer --set preference.nll_weight=0.2 --set 'run.name="with_nll"'

# What they write behind lines of the part that was never trained on.
python3 - "$text" "$orthant" <<'PY'
import json, random, subprocess, sys
random.seed(2)
with open(sys.argv[1], encoding="latin-1") as file:
    lines = file.read().split("\n")
held_out = [line for line in lines[len(lines) * 19 // 20:] if 8 <= len(line) <= 48 and line.isascii() and line.isprintable()]
with open("prompts.jsonl", "w") as out:
    for line in random.sample(held_out, 100):
        print(json.dumps({"prompt": line + "\n"}), file=out)
print("| run | step | validation loss | pairs in order | margin | written lines without a digit or a capital |")
print("| --- | ---: | ---: | ---: | ---: | ---: |")
for run in ["base", "sigmoid", "ipo", "with_nll"]:
    written = subprocess.run([sys.argv[2], "generate", f"runs/{run}", "--prompts", "prompts.jsonl", "--max-tokens", "48",
                              "--stop", "\n", "--json"], check=True, capture_output=True, text=True)
    texts = [json.loads(line)["text"] for line in written.stdout.splitlines()]
    texts = [text for text in texts if text.strip()]
    plain = sum(not any(c.isdigit() or c.isupper() for c in text) for text in texts)
    share = f"{100 * plain / len(texts):.0f} % of {len(texts)}"
    if run == "base":
        print(f"| {run} | | | | | {share} |")
        continue
    with open(f"runs/{run}/metrics.jsonl") as file:
        metrics = [json.loads(line) for line in file]
    told = [line for line in metrics if "validation_loss" in line]
    for line in told:
        print(f"| {run} | {line['step']} | {line['validation_loss']:.3f} | {100 * line['validation_rewards/accuracies']:.1f} % "
              f"| {line['validation_rewards/margins']:.3f} | {share if line is told[-1] else ''} |")
PY
