#!/usr/bin/env python3
"""Mean next-token cross-entropy of an exported model, as transformers computes it: the judge of `orthant export`.

    check_export.py DIR TOKENS_FILE

DIR holds model.safetensors and config.json (MixtralForCausalLM or MistralForCausalLM). TOKENS_FILE is a safetensors
file with `token` and `label`, i32 [n, L]; labels are the targets themselves (already shifted), -1 where a position does
not count. Prints one number in nats per counted token, with 8 decimal digits. fp32, one sequence at a time. Exits 2 on
wrong arguments, 3 where torch, transformers or safetensors are missing, and 1 where model or tokens cannot be read.
"""
import sys


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import safetensors.torch
        import torch
        import transformers
    except ImportError as error:
        print(f"check_export.py needs torch, transformers and safetensors: {error}", file=sys.stderr)
        return 3
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        sys.argv[1], dtype=torch.float32, output_loading_info=True, local_files_only=True)
    problems = {kind: sorted(names) for kind, names in info.items() if names}
    if not isinstance(model, (transformers.MixtralForCausalLM, transformers.MistralForCausalLM)) or problems:
        print(f"{sys.argv[1]}: expected a whole MixtralForCausalLM or MistralForCausalLM, found "
              f"{type(model).__name__}: {problems}", file=sys.stderr)
        return 1
    data = safetensors.torch.load_file(sys.argv[2])
    tokens, labels = data["token"].long(), data["label"].long()
    if tokens.ndim != 2 or tokens.shape != labels.shape or not bool((labels >= 0).any()):
        print(f"{sys.argv[2]}: expected token and label [n, L] with a label >= 0, found {list(tokens.shape)} and "
              f"{list(labels.shape)}", file=sys.stderr)
        return 1

    total, counted = 0.0, 0
    with torch.inference_mode():
        for token, label in zip(tokens, labels):
            logits = model(input_ids=token[None]).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, label, ignore_index=-1, reduction="sum"))
            counted += int((label >= 0).sum())
    print(f"{total / counted:.8f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
