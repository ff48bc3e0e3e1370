#!/usr/bin/env python3
"""Writes t5_tiny, t5_gated_tiny and switch_tiny.safetensors: twenty steps of transformers' encoder-decoders in fp32.

    make_reference.sh make_encoder_decoder.py [--out FOLDER]      (README.md describes the files)

The models and their losses are transformers' own. This script adds weights, batches, the optimizer, our names, and the
check that fp64 gives the same numbers.
"""
import argparse
import re
from pathlib import Path

import safetensors.torch
import torch
import transformers
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.switch_transformers import modeling_switch_transformers as switch

from make_reference import relative_error, save, scalar

STEPS = 20
# eps lies well above the rounding of a gradient: with a smaller one the step of a gradient that is almost zero is
# decided by its rounding.
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-4, "weight_decay": 0.1, "clip_grad_norm": 1.0}
SHAPE = dict(vocab_size=29, d_model=18, d_kv=5, d_ff=22, num_layers=2, num_decoder_layers=3, num_heads=3,
             relative_attention_num_buckets=8, relative_attention_max_distance=9, dropout_rate=0.0)
SWITCH = dict(num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, router_jitter_noise=0.0,
              router_z_loss_coef=0.003, router_aux_loss_coef=0.02)


def our_name(name):
    """{name in transformers} -> ours."""
    for theirs, ours in (("shared.", "model.embed_tokens."), ("encoder.final_layer_norm.", "encoder.norm."),
                         ("decoder.final_layer_norm.", "model.norm.")):
        if name.startswith(theirs):
            return ours + name[len(theirs):]
    if "relative_attention_bias" in name:
        return name.split(".")[0] + ".relative_bias.weight"
    found = re.fullmatch(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\.(.*)", name)
    if not found:
        return name
    stack, block, layer, rest = found.groups()
    last = (stack, layer) in (("encoder", "1"), ("decoder", "2"))
    part = "mlp" if last else "self" if layer == "0" else "cross"
    if rest == "layer_norm.weight":
        rest = f"{part}_norm.weight"
    rest = rest.replace("SelfAttention.", "self_attn.").replace("EncDecAttention.", "cross_attn.")
    if "experts." in rest:
        rest = re.sub(r"mlp\.experts\.expert_(\d+)\.", r"moe.experts.\1.", rest)
        rest = rest.replace(".wi.", ".w1.").replace(".wo.", ".w2.")
    rest = rest.replace("mlp.router.classifier.", "moe.gate.").replace("DenseReluDense.", "mlp.")
    rest = rest.replace(".wi_0.", ".gate_proj.").replace(".wi_1.", ".up_proj.")
    rest = rest.replace("mlp.wi.", "mlp.up_proj.").replace("mlp.wo.", "mlp.down_proj.")
    return f"{stack}.layers.{block}.{rest}"


def ours(named):
    return {our_name(n): t for n, t in named}


def batches(source, target, padded):
    """ids [STEPS, 4, source], labels [STEPS, 4, target]: -1 and 0 where a sequence has ended, if `padded`."""
    g = torch.Generator().manual_seed(11)
    ids = torch.randint(1, SHAPE["vocab_size"], (STEPS, 4, source), generator=g)
    labels = torch.randint(1, SHAPE["vocab_size"], (STEPS, 4, target), generator=g)
    lengths = torch.randint(3, 1 + source, (STEPS, 4), generator=g) if padded else torch.full((STEPS, 4), source)
    longs = torch.randint(2, 1 + target, (STEPS, 4), generator=g) if padded else torch.full((STEPS, 4), target)
    mask = torch.arange(source) < lengths[..., None]
    return ids * mask, mask, torch.where(torch.arange(target) < longs[..., None], labels, -1)


def draw_weights(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            std = 0.1 if p.ndim == 1 else 1.0 if "shared" in name else 0.5 if "relative" in name else 0.15
            p.copy_((1.0 if p.ndim == 1 else 0.0) + std * torch.randn(p.shape, generator=g))


def router_losses(out, model):
    """What transformers adds with output_router_logits, and the least margin of a choice."""
    margins = [(l.softmax(-1).topk(2, -1).values.diff(dim=-1).abs().min()) for l in
               (*out.encoder_router_logits, *out.decoder_router_logits) if l is not None]
    assert min(margins) > 1e-6, f"a routing decision is within {min(margins):.1e} of a tie: change the seed"
    return {"balance": out.encoder_aux_loss + out.decoder_aux_loss, "z": out.encoder_z_loss + out.decoder_z_loss}


def train(make, seed, data, routed, dtype):
    model = make()
    model.train()
    draw_weights(model, seed)
    model.to(dtype)
    for module in model.modules():
        if isinstance(module, switch.SwitchTransformersTop1Router):
            module.dtype = dtype
    first = {n: t.detach().clone() for n, t in ours(model.named_parameters()).items()}
    decays = lambda n, p: p.ndim >= 2 and "relative_attention_bias" not in n
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named if decays(n, p)], "weight_decay": ADAMW["weight_decay"]},
         {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    losses, norms, balance, z, result = [], [], [], [], {}
    for step in range(STEPS):
        ids, mask, labels = (t[step] for t in data)
        optimizer.zero_grad()
        # Token 0 begins the target, and stands where it has ended: nobody sees it there.
        start = torch.cat([torch.zeros(4, 1, dtype=torch.long), labels[:, :-1].clamp_min(0)], dim=1)
        more = {"output_router_logits": True} if routed else {}
        out = model(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=start,
                    labels=torch.where(labels < 0, -100, labels), **more)
        out.loss.backward()
        if step in (0, STEPS - 1):
            result |= {f"grad_{step}/{n}": torch.zeros_like(p) if p.grad is None else p.grad.clone()
                       for n, p in ours(named).items()}
        if routed:
            extra = router_losses(out, model)
            balance.append(extra["balance"].detach())
            z.append(extra["z"].detach())
        losses.append(out.loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_grad_norm"]).detach())
        optimizer.step()
    result |= {"total_loss": torch.stack(losses), "grad_norm": torch.stack(norms)}
    if routed:
        result |= {"balance": torch.stack(balance), "z": torch.stack(z)}
    result |= {f"after/{n}": t.detach().clone() for n, t in ours(named).items()}
    return first, result


def twice(name, make, seed, data, routed=False):
    first, result = train(make, seed, data, routed, torch.float32)
    _, exact = train(make, seed, data, routed, torch.float64)
    worst = max((relative_error(t, exact[n]), n) for n, t in result.items())
    print(f"{name}: fp32 and fp64 differ by at most {worst[0]:.1e} relative ({worst[1]})")
    assert worst[0] < 2e-5, "ill conditioned: change the seed"
    return first, result


def write(path, data, first, results, hyper):
    ids, mask, labels = data
    start = torch.cat([torch.zeros(STEPS, 4, 1), labels[:, :, :-1].clamp_min(0)], dim=2)
    tensors = {"source": torch.where(mask, ids, -1).int(), "target": start.int(), "label": labels.int()}
    tensors |= {f"weight/{n}": t for n, t in first.items()} | results
    save(path, tensors, hyper | ADAMW)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    data = batches(13, 9, padded=True)
    for name, more, seed in (("t5_tiny", {}, 5),
                             ("t5_gated_tiny", dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), 4)):
        def make():
            model = T5ForConditionalGeneration(T5Config(**SHAPE, **more))
            if more:  # transformers 5 ties what a checkpoint does not untie
                model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            return model
        first, result = twice(name, make, seed, data)
        write(out / f"{name}.safetensors", data, first, result, {})
    data = batches(12, 12, padded=False)
    results = {}
    for case, capacity in (("dropless", 12), ("drops", 4)):
        make = lambda: SwitchTransformersForConditionalGeneration(
            SwitchTransformersConfig(**SHAPE, **SWITCH, expert_capacity=capacity))
        first, result = twice(f"switch_tiny, {case}", make, 8, data, routed=True)
        results |= {f"{case}/{n}": t for n, t in result.items() if case == "dropless" or not n.startswith("after/")}
    write(out / "switch_tiny.safetensors", data, first, results,
          {"z_loss": SWITCH["router_z_loss_coef"], "aux_loss": SWITCH["router_aux_loss_coef"]})


if __name__ == "__main__":
    main()
