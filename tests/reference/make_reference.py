#!/usr/bin/env python3
"""Writes the reference tensors that Orthant's tests compare with, computed by PyTorch and transformers in fp32.

    make_reference.py [--out FOLDER]      (run it through make_reference.sh; README.md describes the files)

The modules and loss functions are transformers' own. What this script adds is inputs, weights, the names of a Mixtral
checkpoint on disk, and checks that the references are well conditioned: no routing decision is near a tie, and a second
fp32 implementation of the same model (other kernels, other order of sums) gives the same numbers to 2e-6.
"""
import argparse
import json
import math
import tempfile
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from transformers import MixtralConfig, MixtralForCausalLM, SwitchTransformersConfig
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.switch_transformers import modeling_switch_transformers as switch

MADE_WITH = f"torch {torch.__version__}, transformers {transformers.__version__}, fp32"


def draw(generator, *shape, std=1.0):
    return torch.randn(*shape, generator=generator) * std


def save(path, tensors, hyper):
    """hyper: numbers, stored as 1-element tensors hyper/NAME (int -> i32, float -> f32)."""
    for name, value in hyper.items():
        dtype = torch.int32 if isinstance(value, int) else torch.float32
        tensors[f"hyper/{name}"] = torch.tensor([value], dtype=dtype)
    # contiguous copies: safetensors refuses views that share storage.
    tensors = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
    safetensors.torch.save_file(tensors, path, metadata={"made_with": MADE_WITH})
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


def scalar(value):
    return torch.as_tensor(value, dtype=torch.float32).reshape(1)


def relative_error(a, b):
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def require_no_near_ties(logits, k):
    """The k-th and (k+1)-th choice must differ by far more than fp32 noise, or a test would compare coin flips."""
    top = logits.detach().softmax(-1).topk(k + 1, dim=-1).values
    margin = float((top[..., :-1] - top[..., 1:]).min())
    assert margin > 2e-4, f"a routing decision is within {margin:.1e} of a tie: change the seed"


# --- names: transformers keeps an MoE layer's experts in two fused tensors; a Mixtral checkpoint on disk does not.


def to_disk_names(tensors):
    """{name in the module: tensor} -> {name on disk: tensor}; gate_up_proj[e] is w1 above w3, down_proj[e] is w2."""
    out = {}
    for name, tensor in tensors.items():
        name = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("experts.gate_up_proj"):
            for e, gate_up in enumerate(tensor):
                w1, w3 = gate_up.chunk(2, dim=0)
                out[name.replace("gate_up_proj", f"{e}.w1.weight")] = w1
                out[name.replace("gate_up_proj", f"{e}.w3.weight")] = w3
        elif name.endswith("experts.down_proj"):
            for e, w2 in enumerate(tensor):
                out[name.replace("down_proj", f"{e}.w2.weight")] = w2
        else:
            out[name] = tensor
    return out


def mixtral_balance_loss(logits, sequences, top_k):
    """transformers' balance loss of each sequence alone, averaged, over top_k: 1 when the experts are balanced.

    logits [sequences * tokens, E], of one layer."""
    experts = logits.shape[-1]
    losses = [mixtral.load_balancing_loss_func((group,), experts, top_k) for group in logits.chunk(sequences)]
    return sum(losses) / len(losses) / top_k


def gradient(loss, of):
    return torch.autograd.grad(loss, of)[0]


# --- mixtral_block.safetensors


def mixtral_block(path):
    sequences, tokens, d, ffn, experts, top_k = 2, 12, 16, 24, 4, 2
    g = torch.Generator().manual_seed(1)
    config = MixtralConfig(hidden_size=d, intermediate_size=ffn, num_local_experts=experts, num_experts_per_tok=top_k,
                           experts_implementation="eager")
    block = mixtral.MixtralSparseMoeBlock(config)
    with torch.no_grad():
        block.gate.weight.copy_(draw(g, experts, d, std=0.4))
        block.experts.gate_up_proj.copy_(draw(g, experts, 2 * ffn, d, std=0.3))
        block.experts.down_proj.copy_(draw(g, experts, d, ffn, std=0.3))
    x = draw(g, sequences, tokens, d).requires_grad_()
    upstream = draw(g, sequences, tokens, d)

    # The block hides its logits: keep them, with their gradient.
    routed = {}

    def keep(module, inputs, outputs):
        routed["logits"], routed["weight"], routed["expert"] = outputs
        routed["logits"].retain_grad()

    block.gate.register_forward_hook(keep)
    y = block(x)
    y.backward(upstream)
    require_no_near_ties(routed["logits"], top_k)
    assert routed["expert"].unique().numel() == experts

    weights = to_disk_names({f"block_sparse_moe.{n}": p for n, p in block.named_parameters()})
    grads = to_disk_names({f"block_sparse_moe.{n}": p.grad for n, p in block.named_parameters()})
    check_expert_names(weights, x.detach().reshape(-1, d), routed, y.detach().reshape(-1, d))

    logits = routed["logits"].detach().requires_grad_()
    aux = mixtral_balance_loss(logits, sequences, top_k)
    z = logits.logsumexp(-1).square().mean()
    tensors = {
        "input": x.reshape(-1, d), "output": y.reshape(-1, d), "grad/output": upstream.reshape(-1, d),
        "grad/input": x.grad.reshape(-1, d), "router_logits": routed["logits"],
        "grad/router_logits": routed["logits"].grad, "expert": routed["expert"].int(),
        "expert_weight": routed["weight"],
        "aux_loss": scalar(aux), "aux_loss_grad/router_logits": gradient(aux, logits),
        "z_loss": scalar(z), "z_loss_grad/router_logits": gradient(z, logits),
    }
    tensors |= {f"weight/{n}": t for n, t in weights.items()} | {f"grad/{n}": t for n, t in grads.items()}
    save(path, tensors, {"sequences": sequences, "tokens_per_sequence": tokens, "d_model": d, "d_expert": ffn,
                         "experts": experts, "top_k": top_k})


def check_expert_names(weights, x, routed, y):
    """The per-expert names mean what Mixtral's paper says: y = sum over k of p_k * w2(silu(w1 x) * w3 x)."""
    expect = torch.zeros_like(y)
    for t in range(x.shape[0]):
        for e, p in zip(routed["expert"][t].tolist(), routed["weight"][t].detach()):
            w1, w2, w3 = (weights[f"block_sparse_moe.experts.{e}.w{i}.weight"].detach() for i in (1, 2, 3))
            expect[t] += p * (w2 @ (F.silu(w1 @ x[t]) * (w3 @ x[t])))
    assert relative_error(expect, y) < 1e-6


# --- switch_block.safetensors


def switch_block(path):
    sequences, tokens, d, ffn, experts, factor = 2, 12, 16, 24, 4, 1.1
    capacity = max(1, math.ceil(factor * 1 * tokens / experts))
    g = torch.Generator().manual_seed(2)
    config = SwitchTransformersConfig(d_model=d, d_ff=ffn, num_experts=experts, expert_capacity=capacity,
                                      router_jitter_noise=0.0, dropout_rate=0.0, router_bias=False,
                                      dense_act_fn="relu", router_dtype="float32")
    block = switch.SwitchTransformersSparseMLP(config)
    names = {"router.classifier.weight": (experts, d, 0.4)}
    for e in range(experts):
        names[f"experts.expert_{e}.wi.weight"] = (ffn, d, 0.3)
        names[f"experts.expert_{e}.wo.weight"] = (d, ffn, 0.3)
    parameters = dict(block.named_parameters())
    assert parameters.keys() == names.keys()
    with torch.no_grad():
        for name, (rows, columns, std) in names.items():
            parameters[name].copy_(draw(g, rows, columns, std=std))
    # A common direction in the inputs, so that some experts are crowded.
    x = (draw(g, sequences, tokens, d) + 0.5 * draw(g, d)).requires_grad_()
    upstream = draw(g, sequences, tokens, d)

    routed = {}

    def keep(module, inputs, outputs):
        routed["mask"], routed["weight"], routed["logits"] = outputs
        routed["logits"].retain_grad()

    block.router.register_forward_hook(keep)
    y = block(x)
    y.backward(upstream)
    require_no_near_ties(routed["logits"], 1)

    expert = routed["logits"].argmax(-1)  # [sequences, tokens], before capacity
    kept = routed["mask"].sum(-1)  # 1 where the expert had room
    assert all(0 < int(k.sum()) < tokens for k in kept), "each sequence should drop some tokens"
    assert float(y[kept == 0].detach().abs().max()) == 0, "a dropped token's output should be zero"
    assert int(routed["mask"].sum(1).max()) == capacity

    logits = routed["logits"].detach().requires_grad_()
    aux = switch.load_balancing_loss_func(logits.softmax(-1), logits.argmax(-1))
    z = switch.router_z_loss_func(logits)
    flat = {"input": x, "output": y, "grad/output": upstream, "grad/input": x.grad, "router_logits": routed["logits"],
            "grad/router_logits": routed["logits"].grad, "aux_loss_grad/router_logits": gradient(aux, logits),
            "z_loss_grad/router_logits": gradient(z, logits)}
    tensors = {name: t.reshape(sequences * tokens, -1) for name, t in flat.items()}
    tensors |= {"expert": expert.reshape(-1, 1).int(), "kept": kept.reshape(-1, 1).int(),
                "expert_weight": routed["weight"].reshape(-1, 1), "aux_loss": scalar(aux), "z_loss": scalar(z)}
    for name, p in parameters.items():
        tensors[f"weight/{name}"] = p
        # PyTorch leaves no gradient at all for an expert without tokens; it is zero.
        tensors[f"grad/{name}"] = torch.zeros_like(p) if p.grad is None else p.grad
    save(path, tensors, {"sequences": sequences, "tokens_per_sequence": tokens, "d_model": d, "d_expert": ffn,
                         "experts": experts, "top_k": 1, "capacity": capacity, "capacity_factor": factor})


# --- mixtral_tiny.safetensors

TINY = {  # config.json as Mixtral checkpoints carry it (a flat rope_theta)
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 16, "sliding_window": None, "tie_word_embeddings": False,
    "attention_dropout": 0.0, "router_jitter_noise": 0.0, "router_aux_loss_coef": 0.02, "bos_token_id": None,
    "eos_token_id": None, "dtype": "float32",
}
ADAMW = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad_norm": 1.0}


def tiny_weights():
    """Every tensor of the checkpoint, under its name on disk. Larger than a usual initialisation, and norm weights off 1,
    so that no part of the model is negligible in the result."""
    g = torch.Generator().manual_seed(3)
    d, n, v = TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"]
    kv = d // TINY["num_attention_heads"] * TINY["num_key_value_heads"]
    weights = {"model.embed_tokens.weight": draw(g, v, d, std=0.5)}
    for layer in range(TINY["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        weights[f"{at}.input_layernorm.weight"] = 1 + draw(g, d, std=0.2)
        for name, rows in {"q": d, "k": kv, "v": kv, "o": d}.items():
            weights[f"{at}.self_attn.{name}_proj.weight"] = draw(g, rows, d, std=0.2)
        weights[f"{at}.post_attention_layernorm.weight"] = 1 + draw(g, d, std=0.2)
        weights[f"{at}.block_sparse_moe.gate.weight"] = draw(g, TINY["num_local_experts"], d, std=0.3)
        for e in range(TINY["num_local_experts"]):
            for name, shape in {"w1": (n, d), "w2": (d, n), "w3": (n, d)}.items():
                weights[f"{at}.block_sparse_moe.experts.{e}.{name}.weight"] = draw(g, *shape, std=0.2)
    weights["model.norm.weight"] = 1 + draw(g, d, std=0.2)
    weights["lm_head.weight"] = draw(g, v, d, std=0.1)
    return weights


def load_tiny(folder, weights, **how):
    """Loads the weights as a Mixtral checkpoint on disk, and proves that transformers writes the same names back."""
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(TINY))
    model, info = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **how)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.config.rope_parameters["rope_theta"] == TINY["rope_theta"]
    in_memory = to_disk_names(dict(model.named_parameters()))
    assert in_memory.keys() == weights.keys() and all(torch.equal(in_memory[n], weights[n]) for n in weights)
    again = folder / "again"
    model.save_pretrained(again)
    written = safetensors.torch.load_file(again / "model.safetensors")
    assert written.keys() == weights.keys() and all(torch.equal(written[n], weights[n]) for n in weights)
    return model


def tiny_losses(model, ids, labels):
    """(logits, cross entropy, balance loss of each layer, the sum that is trained on)."""
    out = model(input_ids=ids, output_router_logits=True)
    ce = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-1)
    for logits in out.router_logits:
        require_no_near_ties(logits, TINY["num_experts_per_tok"])
    aux = torch.stack([mixtral_balance_loss(l, ids.shape[0], TINY["num_experts_per_tok"]) for l in out.router_logits])
    return out, ce, aux, ce + TINY["router_aux_loss_coef"] * aux.sum()


def train_tiny(weights, ids, labels, steps, **how):
    """All that mixtral_tiny.safetensors holds beside its inputs."""
    with tempfile.TemporaryDirectory() as folder:
        model = load_tiny(Path(folder), weights, **how).train()
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": ADAMW["weight_decay"]}, {"params": rest, "weight_decay": 0.0}],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    result, losses, norms = {}, [], []
    for step in range(steps):
        optimizer.zero_grad()
        out, ce, aux, total = tiny_losses(model, ids, labels)
        total.backward()
        if step == 0:
            grads = to_disk_names({n: p.grad for n, p in model.named_parameters()})
            result |= {f"grad/{n}": t.clone() for n, t in grads.items()}
            result |= {"logits": out.logits, "ce_loss": scalar(ce), "aux_loss": scalar(aux.mean()),
                       "aux_loss_per_layer": aux, "total_loss": scalar(total)}
            result |= {f"router_logits/{layer}": l for layer, l in enumerate(out.router_logits)}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_grad_norm"]))
        losses.append(total)
        optimizer.step()
    result |= {"grad_norm": scalar(norms[0]), "total_loss_per_step": torch.stack(losses),
               "grad_norm_per_step": torch.stack(norms)}
    after = to_disk_names(dict(model.named_parameters()))
    return {n: t.detach() for n, t in (result | {f"after/{n}": t for n, t in after.items()}).items()}


def mixtral_tiny(path):
    batch, positions, steps = 4, 16, 3
    ids = torch.randint(0, TINY["vocab_size"], (batch, positions), generator=torch.Generator().manual_seed(6))
    labels = torch.cat([ids[:, 1:], torch.full((batch, 1), -1)], dim=1)
    weights = tiny_weights()
    result = train_tiny(weights, ids, labels, steps, attn_implementation="eager", experts_implementation="eager")
    other = train_tiny(weights, ids, labels, steps, attn_implementation="sdpa", experts_implementation="grouped_mm")
    worst = max((relative_error(other[n], t), n) for n, t in result.items())
    print(f"mixtral_tiny: two implementations differ by at most {worst[0]:.1e} relative ({worst[1]})")
    assert worst[0] < 2e-6, "ill conditioned: change the seed"

    tensors = {"id": ids.int(), "label": labels.int()} | {f"weight/{n}": t for n, t in weights.items()} | result
    hyper = {n: TINY[n] for n in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                  "num_attention_heads", "num_key_value_heads", "num_local_experts",
                                  "num_experts_per_tok", "rms_norm_eps", "rope_theta", "router_aux_loss_coef")}
    save(path, tensors, hyper | ADAMW | {"batch": batch, "positions": positions, "steps": steps})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    torch.set_num_threads(1)  # one order of sums
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    mixtral_block(out / "mixtral_block.safetensors")
    switch_block(out / "switch_block.safetensors")
    mixtral_tiny(out / "mixtral_tiny.safetensors")


if __name__ == "__main__":
    main()
