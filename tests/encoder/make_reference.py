#!/usr/bin/env python3
"""Writes bert_tiny.safetensors and modernbert_tiny.safetensors: what PyTorch and transformers make of two tiny encoders.

    make_reference.py [--out FOLDER]      (needs torch, transformers and safetensors: tests/reference/requirements.txt)

All is computed in fp64 and stored in fp32. Weights have our names. bert_tiny: 20 steps of AdamW on batches of padded
texts of two token types; the losses of all steps, and every gradient of the first and of the last one.
modernbert_tiny: losses and logits of one batch, with windows in every other block.
"""
import argparse
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

MADE_WITH = f"torch {torch.__version__}, transformers {transformers.__version__}, fp64"
VOCAB, D, HEADS, FFN, POSITIONS, BATCH, STEPS = 40, 24, 4, 36, 12, 4, 20
ADAMW = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}

BERT_NAMES = {  # transformers' -> ours
    "bert.embeddings.word_embeddings": "model.embed_tokens", "bert.embeddings.position_embeddings": "model.embed_positions",
    "bert.embeddings.token_type_embeddings": "model.embed_types", "bert.embeddings.LayerNorm": "model.embed_norm",
    "cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "model.norm",
    "cls.predictions.bias": "lm_head.bias", "bert.encoder.layer.": "model.layers.",
    ".attention.self.query": ".self_attn.q_proj", ".attention.self.key": ".self_attn.k_proj",
    ".attention.self.value": ".self_attn.v_proj", ".attention.output.dense": ".self_attn.o_proj",
    ".attention.output.LayerNorm": ".input_layernorm", ".intermediate.dense": ".mlp.up_proj",
    ".output.dense": ".mlp.down_proj", ".output.LayerNorm": ".post_attention_layernorm",
}
MODERN_NAMES = {
    "model.embeddings.tok_embeddings": "model.embed_tokens", "model.embeddings.norm": "model.embed_norm",
    "model.final_norm": "model.final_norm", "head.dense": "head.dense", "head.norm": "model.norm",
    "decoder.bias": "lm_head.bias", ".attn_norm": ".input_layernorm", ".mlp_norm": ".post_attention_layernorm",
    ".attn.Wo": ".self_attn.o_proj", ".mlp.Wo": ".mlp.down_proj",
}


def renamed(name, names):
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name


def save(path, tensors, hyper):
    for name, value in hyper.items():
        tensors[f"hyper/{name}"] = torch.tensor([value], dtype=torch.int32 if isinstance(value, int) else torch.float32)
    narrow = {n: (t.detach().float() if t.is_floating_point() else t.int()).clone().contiguous()
              for n, t in tensors.items()}
    safetensors.torch.save_file(narrow, path, metadata={"made_with": MADE_WITH})
    print(f"{path.name}: {len(narrow)} tensors, {path.stat().st_size} bytes")


def draw_weights(model, seed):
    """Larger than a usual initialisation, so that no part of the model is negligible; of fp32, as they are stored."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = p.ndim == 1 and name.endswith("weight")
            p.copy_(((1 if norm else 0) + 0.2 * torch.randn(p.shape, generator=g)).float().double())


def masked_batches(steps, seed):
    """ids, labels (-1: none), types and lengths; texts of 5 to 12 tokens, of which some 30 % are labels."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (steps, BATCH, POSITIONS), generator=g)
    length = torch.randint(5, POSITIONS + 1, (steps, BATCH), generator=g)
    length[:, 0] = POSITIONS
    place = torch.arange(POSITIONS).expand_as(ids)
    inside = place < length[..., None]
    chosen = (torch.rand(ids.shape, generator=g) < 0.3) & inside
    chosen[:, :, 1] = True
    labels = torch.where(chosen, ids, -1)
    ids = torch.where(chosen & (torch.rand(ids.shape, generator=g) < 0.8), 1, ids)
    types = (place * 2 >= length[..., None]).long()
    return torch.where(inside, ids, 0), labels, torch.where(inside, types, 0), length


def bert_tiny(path):
    config = BertConfig(vocab_size=VOCAB, hidden_size=D, num_hidden_layers=2, num_attention_heads=HEADS,
                        intermediate_size=FFN, hidden_act="gelu", hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0, max_position_embeddings=POSITIONS, type_vocab_size=2,
                        layer_norm_eps=1e-12, pad_token_id=None, attn_implementation="eager")
    model = BertForMaskedLM(config).double().train()
    draw_weights(model, 1)
    named = {renamed(n, BERT_NAMES): p for n, p in model.named_parameters()}
    tensors = {f"weight/{n}": p.detach().clone() for n, p in named.items()}
    decay = [p for p in named.values() if p.ndim >= 2]
    rest = [p for p in named.values() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": ADAMW["weight_decay"]}, {"params": rest, "weight_decay": 0.0}],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    ids, labels, types, length = masked_batches(STEPS, 2)
    losses, right = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        seen = (torch.arange(POSITIONS) < length[step][:, None]).long()
        logits = model(input_ids=ids[step], attention_mask=seen, token_type_ids=types[step]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels[step].flatten(), ignore_index=-1)
        loss.backward()
        if step in (0, STEPS - 1):
            which = "first" if step == 0 else "last"
            tensors |= {f"{which}/{n}": p.grad.clone() for n, p in named.items()}
        losses.append(loss.detach())
        right.append((logits.argmax(-1) == labels[step])[labels[step] >= 0].double().mean())
        optimizer.step()
    tensors |= {"id": ids, "label": labels, "type": types, "length": length, "loss": torch.stack(losses),
                "accuracy": torch.stack(right)}
    save(path, tensors, {"vocab_size": VOCAB, "d_model": D, "heads": HEADS, "d_ff": FFN, "positions": POSITIONS,
                         "batch": BATCH, "steps": STEPS} | ADAMW)


def modernbert_tiny(path):
    config = ModernBertConfig(vocab_size=VOCAB, hidden_size=D, num_hidden_layers=3, num_attention_heads=HEADS,
                              intermediate_size=FFN, hidden_activation="gelu",
                              classifier_activation="gelu", max_position_embeddings=POSITIONS,
                              global_attn_every_n_layers=2, local_attention=6, norm_eps=1e-5, pad_token_id=None,
                              global_rope_theta=160000.0, local_rope_theta=10000.0, attention_dropout=0.0,
                              embedding_dropout=0.0, mlp_dropout=0.0, attn_implementation="eager",
                              reference_compile=False)
    model = ModernBertForMaskedLM(config).double().train()
    draw_weights(model, 3)
    tensors = {}
    for name, p in model.named_parameters():
        of = renamed(name, MODERN_NAMES)
        parts = {of: p}
        if ".attn.Wqkv" in of:
            parts = dict(zip((of.replace(".attn.Wqkv", f".self_attn.{x}_proj") for x in "qkv"), p.chunk(3)))
        elif ".mlp.Wi" in of:
            parts = dict(zip((of.replace(".mlp.Wi", f".mlp.{x}_proj") for x in ("gate", "up")), p.chunk(2)))
        tensors |= {f"weight/{n}": t.detach() for n, t in parts.items()}
    ids, labels, _, _ = masked_batches(1, 4)
    ids[0] = torch.where(ids[0] == 0, 5, ids[0])  # no padding
    logits = model(input_ids=ids[0], attention_mask=torch.ones_like(ids[0])).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels[0].flatten(), ignore_index=-1)
    tensors |= {"id": ids, "label": labels, "logits": logits, "loss": loss.reshape(1)}
    save(path, tensors, {"window": 4})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    bert_tiny(out / "bert_tiny.safetensors")
    modernbert_tiny(out / "modernbert_tiny.safetensors")


if __name__ == "__main__":
    main()
