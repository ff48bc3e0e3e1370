#!/usr/bin/env python3
"""Writes vit.safetensors beside it: transformers' ViT for classes, trained for 20 steps in fp32 by PyTorch's SGD.

    tests/reference/make_reference.sh tests/images/make_vit_reference.py

Weights before the first step and their gradients in it, four batches that take turns, the loss of every step, and the
weights after the last one. Model and loss are transformers' own; this script draws numbers and names tensors.
"""
from pathlib import Path

import safetensors.torch
import torch
import transformers
from transformers import ViTConfig, ViTForImageClassification

STEPS, BATCHES, IMAGES, RATE = 20, 2, 8, 0.05

# Ours of a block, and theirs.
BLOCK = {
    "input_layernorm": "layernorm_before",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.o_proj": "attention.o_proj",
    "post_attention_layernorm": "layernorm_after",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
}


def ours(get, layers):
    """By our names; `get` gives a tensor by theirs, or its gradient."""
    d = get("classifier.weight").shape[1]
    tensors = {
        "model.embed_patches.weight": get("vit.embeddings.patch_embeddings.projection.weight").reshape(d, -1),
        "model.embed_tokens.weight": torch.stack([get("vit.embeddings.patch_embeddings.projection.bias"),
                                                  get("vit.embeddings.cls_token").reshape(d)]),
        "model.embed_positions.weight": get("vit.embeddings.position_embeddings").reshape(-1, d),
    }
    for kind in ("weight", "bias"):
        tensors[f"model.norm.{kind}"] = get(f"vit.layernorm.{kind}")
        tensors[f"lm_head.{kind}"] = get(f"classifier.{kind}")
        for i in range(layers):
            for name, theirs in BLOCK.items():
                tensors[f"model.layers.{i}.{name}.{kind}"] = get(f"vit.layers.{i}.{theirs}.{kind}")
    return tensors


def main():
    torch.manual_seed(31)
    config = ViTConfig(image_size=16, patch_size=4, num_channels=3, hidden_size=24, num_hidden_layers=2,
                       num_attention_heads=4, intermediate_size=40, hidden_act="gelu_pytorch_tanh", num_labels=8,
                       layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "eager"
    model = ViTForImageClassification(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    parameters = dict(model.named_parameters())
    images = torch.randn(BATCHES, IMAGES, 3, 16, 16)
    labels = torch.randint(0, 8, (BATCHES, IMAGES))
    layers = config.num_hidden_layers
    tensors = {"images": images, "labels": labels.to(torch.int32)}
    named = ours(lambda name: parameters[name], layers)
    assert sum(t.numel() for t in named.values()) == sum(p.numel() for p in parameters.values())
    tensors |= {f"weight/{name}": t for name, t in named.items()}
    tensors = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(pixel_values=images[step % BATCHES], labels=labels[step % BATCHES]).loss
        loss.backward()
        if step == 0:
            tensors |= {f"grad/{name}": t.detach().clone().contiguous()
                        for name, t in ours(lambda name: parameters[name].grad, layers).items()}
        losses.append(loss.item())
        optimizer.step()
    tensors["losses"] = torch.tensor(losses)
    tensors |= {f"after/{name}": t.detach().clone().contiguous()
                for name, t in ours(lambda name: parameters[name], layers).items()}
    path = Path(__file__).parent / "vit.safetensors"
    made = f"torch {torch.__version__}, transformers {transformers.__version__}, fp32"
    safetensors.torch.save_file(tensors, path, metadata={"made_with": made})
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes; losses {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
