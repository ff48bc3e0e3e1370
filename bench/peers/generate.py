"""Generation beside transformers: the same published model's folder, prompts and tokens, in turns.

    python bench/peers/generate.py --orthant build/bin/orthant --model DIR [--batches 1 32] [--tokens 128] [--threads 2]
    python bench/peers/generate.py --make DIR      # a Mixtral of 178 million random weights to try it on

Greedy, without an end, prompts of 32 bytes taken as ids; loading is not counted on either side. transformers runs in
eager mode with its own cache, as `generate` does without options. Prints tokens per second of each turn, medians, and
whether both sides wrote the same tokens.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import tempfile
import time

import torch
import transformers


def make(folder):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=32000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
        max_position_embeddings=2048, tie_word_embeddings=False, initializer_range=0.05)
    transformers.MixtralForCausalLM(config).save_pretrained(folder)


def prompts(count):
    random.seed(count)
    return ["".join(chr(random.randrange(97, 123)) for _ in range(32)) for _ in range(count)]


def of_transformers(model, texts, tokens):
    ids = torch.tensor([list(text.encode()) for text in texts])
    begin = time.perf_counter()
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                             do_sample=False, pad_token_id=0)
    seconds = time.perf_counter() - begin
    return len(texts) * tokens / seconds, out[:, 32:].tolist()


def of_orthant(args, texts, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for text in texts:
            file.write(json.dumps({"ids": list(text.encode())}) + "\n")
        file.flush()
        overrides = ["--set", 'run.dtype="bf16"'] if args.dtype == "bf16" else []
        result = subprocess.run(
            [args.orthant, "generate", args.model, "--prompts", file.name, "--tokenizer", "none", "--temperature", "0",
             "--max-tokens", str(tokens), "--batch", str(len(texts)), "--threads", str(args.threads), "--json", *overrides], capture_output=True, text=True, check=True)
    rate = float(re.search(r"([0-9.]+) tokens/s", result.stderr).group(1))
    return rate, [json.loads(line)["tokens"] for line in result.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orthant", default="build/bin/orthant")
    parser.add_argument("--model")
    parser.add_argument("--make")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()
    if args.make:
        make(args.make)
        return
    torch.set_num_threads(args.threads)
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    model.generation_config.eos_token_id = None
    for batch in args.batches:
        texts = prompts(batch)
        of_transformers(model, texts, 8)  # warm
        rates = {"transformers": [], "orthant": []}
        for _ in range(args.turns):
            rate, theirs = of_transformers(model, texts, args.tokens)
            rates["transformers"].append(rate)
            rate, ours = of_orthant(args, texts, args.tokens)
            rates["orthant"].append(rate)
        same = sum(a == b for x, y in zip(theirs, ours) for a, b in zip(x, y))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        print(f"batch {batch}: transformers {medians['transformers']:.1f} tokens/s {rates['transformers']}, "
              f"orthant {medians['orthant']:.1f} tokens/s {rates['orthant']}, "
              f"{medians['orthant'] / medians['transformers']:.2f}x; {same} of {batch * args.tokens} tokens equal",
              flush=True)


if __name__ == "__main__":
    main()
