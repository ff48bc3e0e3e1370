#!/usr/bin/env python3
"""Whether an exported adapter, put onto its base by peft, gives the logits of the merged export.

    check_adapter.py BASE ADAPTER MERGED

BASE and MERGED are folders that `orthant export` wrote, ADAPTER one that `orthant export --adapter` wrote. Prints the
largest difference of the logits of 64 tokens relative to the largest logit, and then that of BASE alone, which shows
that the adapter does something. fp32. Exits 2 on wrong arguments, 3 where torch, transformers or peft are missing, and
1 where something cannot be read.
"""
import sys
import warnings


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import peft
        import torch
        import transformers
    except ImportError as error:
        print(f"check_adapter.py needs torch, transformers and peft: {error}", file=sys.stderr)
        return 3
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def load(folder):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, experts_implementation="eager")

    merged = load(sys.argv[3])
    torch.manual_seed(1)
    token = torch.randint(0, merged.config.vocab_size, (4, 16))
    with torch.inference_mode():
        wanted = merged(input_ids=token).logits
        base = load(sys.argv[1])
        without = base(input_ids=token).logits
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            adapted = peft.PeftModel.from_pretrained(base, sys.argv[2])
        missing = [str(w.message) for w in told if "issing" in str(w.message) or "nexpected" in str(w.message)]
        if missing:
            print("\n".join(missing), file=sys.stderr)
            return 1
        found = adapted(input_ids=token).logits
    largest = wanted.abs().max()
    print(f"{float((found - wanted).abs().max() / largest):.3e} {float((without - wanted).abs().max() / largest):.3e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
