#!/usr/bin/env python3
"""Whether PyTorch trains a model on pairs of answers as `orthant train` did.

    check_preference.py MODEL PAIRS METRICS LOSS BETA LABEL_SMOOTHING NLL_WEIGHT LR

MODEL is a folder that `orthant export` wrote of the weights that the run began with, PAIRS its JSON lines (texts, tokens
are bytes, "?prompt=answer."), METRICS its metrics.jsonl, a line for each step. Every step takes all pairs, by AdamW
(betas 0.9 and 0.95, eps 1e-5) without decay or clipping. The loop is written from the papers and calls transformers
for logits alone. Prints the largest difference of any step's loss, then that of rewards and log-probabilities, relative
to 1 or the value. fp32. Exits 2 on wrong arguments and 3 where torch or transformers are missing.
"""
import copy
import json
import sys


def main():
    if len(sys.argv) != 9:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"check_preference.py needs torch and transformers: {error}", file=sys.stderr)
        return 3
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder, pairs, metrics, loss_kind = sys.argv[1:5]
    beta, smoothing, nll_weight, lr = (float(word) for word in sys.argv[5:])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, experts_implementation="eager")
    reference = copy.deepcopy(model)
    with open(pairs, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    with open(metrics, encoding="utf-8") as lines:
        steps = [json.loads(line) for line in lines]

    def answer(model, row, key):
        """The sum of log p over the tokens of an answer, and how many there are."""
        before = f"?{row['prompt']}=".encode()
        tokens = torch.tensor(list(before + f"{row[key]}.".encode()))
        logits = model(input_ids=tokens[None]).logits[0, :-1]
        of_each = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
        counted = of_each[len(before) - 1:]
        return counted.sum(), len(counted)

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-5, weight_decay=0)
    with torch.no_grad():
        fixed = [(answer(reference, row, "chosen")[0], answer(reference, row, "rejected")[0]) for row in rows]
    of_loss = of_others = 0.0
    for told in steps:
        losses, nll, chosen_tokens = [], 0, 0
        sums = {"rewards/chosen": 0, "rewards/rejected": 0, "logps/chosen": 0, "logps/rejected": 0,
                "rewards/accuracies": 0}
        for row, (m_chosen, m_rejected) in zip(rows, fixed):
            (chosen, n_chosen), (rejected, n_rejected) = answer(model, row, "chosen"), answer(model, row, "rejected")
            nll = nll - chosen
            chosen_tokens += n_chosen
            if loss_kind == "ipo":
                chosen, m_chosen = chosen / n_chosen, m_chosen / n_chosen
                rejected, m_rejected = rejected / n_rejected, m_rejected / n_rejected
            h = (chosen - rejected) - (m_chosen - m_rejected)
            if loss_kind == "ipo":
                losses.append((h - 1 / (2 * beta)) ** 2)
            else:
                log_sigmoid = torch.nn.functional.logsigmoid
                losses.append(-(1 - smoothing) * log_sigmoid(beta * h) - smoothing * log_sigmoid(-beta * h))
            sums["rewards/chosen"] += (beta * (chosen - m_chosen)).item()
            sums["rewards/rejected"] += (beta * (rejected - m_rejected)).item()
            sums["logps/chosen"] += chosen.item()
            sums["logps/rejected"] += rejected.item()
            sums["rewards/accuracies"] += float((chosen - m_chosen > rejected - m_rejected).item())
        loss = torch.stack(losses).mean() + nll_weight * nll / chosen_tokens
        of_loss = max(of_loss, abs(loss.item() - told["loss"]))
        for name, value in sums.items():
            if name != "rewards/accuracies" or told["step"] > 1:  # there all rewards are 0 but for rounding
                mean = value / len(rows)
                of_others = max(of_others, abs(mean - told[name]) / max(1, abs(mean)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{of_loss:.3e} {of_others:.3e} {len(steps)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
