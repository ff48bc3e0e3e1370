"""Writes logit_rules.json: what transformers' logits processors make of random logits, and OpenAI's penalties by their
formula (https://platform.openai.com/docs/api-reference: mu[j] - c[j] * frequency - (c[j] > 0) * presence).

    python3 tests/generate/make_processors.py     needs torch and transformers 5
"""

import json
import pathlib

import torch
from transformers import (MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor,
                          SequenceBiasLogitsProcessor)

SIZE = 16
CASES = [
    dict(),
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.7),
    dict(presence_penalty=0.5),
    dict(frequency_penalty=-0.25),
    dict(presence_penalty=-1.5, frequency_penalty=0.75),
    dict(bias={"3": 2.5, "0": -100.0}),
    dict(min_tokens=9, stop_ids=[1, 5]),
    dict(min_tokens=2, stop_ids=[1, 5]),
    dict(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, bias={"7": 1.0}, min_tokens=7, stop_ids=[2]),
]


def main():
    torch.manual_seed(3)
    made = []
    for case in CASES:
        logits = torch.randn(SIZE) * 3
        prompt = torch.randint(0, SIZE, (5,)).tolist()
        answer = torch.randint(0, SIZE, (6,)).tolist()
        ids, scores = torch.tensor([prompt + answer]), logits[None].clone()
        if case.get("stop_ids"):
            scores = MinNewTokensLengthLogitsProcessor(len(prompt), case["min_tokens"], case["stop_ids"], device="cpu")(ids, scores)
        if case.get("bias"):
            scores = SequenceBiasLogitsProcessor({(int(k),): v for k, v in case["bias"].items()})(ids, scores)
        if case.get("repetition_penalty"):
            scores = RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(ids, scores)
        counts = torch.bincount(torch.tensor(answer), minlength=SIZE)
        scores = scores - counts * case.get("frequency_penalty", 0.0) - (counts > 0) * case.get("presence_penalty", 0.0)
        expected = [None if value == float("-inf") else value for value in scores[0].tolist()]
        made.append(dict(case, logits=logits.tolist(), prompt=prompt, answer=answer, expected=expected))
    path = pathlib.Path(__file__).parent / "logit_rules.json"
    path.write_text("[\n" + ",\n".join(json.dumps(one) for one in made) + "\n]\n")


if __name__ == "__main__":
    main()
