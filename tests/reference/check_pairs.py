#!/usr/bin/env python3
"""How far the logits of an exported encoder-decoder, loaded by transformers, are from those of a file.

    check_pairs.py DIR EXPECTED.safetensors     (run it through make_reference.sh)

EXPECTED has source [B, S], token [B, T] (i32) and logits [B, T, V], as tests/encoder_decoder/models/NAME. Prints the
largest difference over the largest logit; exit code 1 above 1e-5, or where a weight was not found.
"""
import sys

import torch
import transformers
from safetensors.torch import load_file


def main():
    folder, file = sys.argv[1:]
    expected = load_file(file)
    model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"missing {sorted(info['missing_keys'])}, not used {sorted(info['unexpected_keys'])}")
    model.eval()
    with torch.inference_mode():
        logits = model(input_ids=expected["source"].long(), decoder_input_ids=expected["token"].long()).logits
    difference = float((logits - expected["logits"]).abs().max() / expected["logits"].abs().max())
    print(f"{type(model).__name__}: {difference:.2e} of the largest logit")
    sys.exit(0 if difference < 1e-5 else 1)


if __name__ == "__main__":
    main()
