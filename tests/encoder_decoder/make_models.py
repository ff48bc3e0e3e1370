#!/usr/bin/env python3
"""Makes tests/encoder_decoder/models: tiny random encoder-decoders, as transformers saves them, and their logits.

    python make_models.py [FOLDER]     needs torch, transformers 5 and safetensors; CPU alone

Sizes are odd on purpose. FOLDER/NAME holds config.json, model.safetensors and expected.safetensors: source [2, 21],
token [2, 32] of the decoder, and logits [2, 32, V], computed in fp64 from the weights as they are stored.
"""
import json
import pathlib
import sys

import torch
import transformers as t
from safetensors.torch import load_file, save_file

SHAPE = dict(vocab_size=38, d_model=26, d_kv=7, d_ff=22, num_layers=2, num_decoder_layers=3, num_heads=3,
             relative_attention_num_buckets=12, relative_attention_max_distance=17)
MODELS = {
    "t5": (t.T5ForConditionalGeneration, t.T5Config, SHAPE),
    "t5_gated": (t.T5ForConditionalGeneration, t.T5Config,
                 dict(SHAPE, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "mt5": (t.MT5ForConditionalGeneration, t.MT5Config, dict(SHAPE, num_decoder_layers=2)),
    "switch_transformers": (t.SwitchTransformersForConditionalGeneration, t.SwitchTransformersConfig,
                            dict(SHAPE, num_layers=4, num_experts=5, num_sparse_encoder_layers=2,
                                 num_sparse_decoder_layers=1, expert_capacity=64)),
}
UNTIED = ("t5_gated", "mt5")


def randomised(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            std = 0.1 if p.dim() == 1 else 0.5 if "relative" in name or "classifier" in name else 0.3
            p.copy_((1.0 if p.dim() == 1 else 0.0) + std * torch.randn(p.shape, generator=generator))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "models")
    t.utils.logging.set_verbosity_error()
    generator = torch.Generator().manual_seed(5)
    source = torch.randint(1, SHAPE["vocab_size"], (2, 21), generator=generator)
    token = torch.randint(1, SHAPE["vocab_size"], (2, 32), generator=generator)
    token[:, 0] = 0
    for name, (model_class, config_class, keys) in MODELS.items():
        torch.manual_seed(3)
        model = model_class(config_class(**keys)).eval()
        if name in UNTIED:  # transformers 5 ties what a checkpoint does not untie
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        randomised(model)
        model.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        # Weights of a Switch's router are in the type of its config.
        model = model_class.from_pretrained(folder / name, dtype=torch.float64, attn_implementation="eager").eval()
        for module in model.modules():
            if type(module).__name__ == "SwitchTransformersTop1Router":
                module.dtype = torch.float64
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=token).logits
        save_file({"source": source.to(torch.int32), "token": token.to(torch.int32),
                   "logits": logits.to(torch.float32).contiguous()}, folder / name / "expected.safetensors")
        print(name, json.loads((folder / name / "config.json").read_text())["architectures"], float(logits.abs().max()),
              len(load_file(folder / name / "model.safetensors")))


if __name__ == "__main__":
    main()
