#!/usr/bin/env python3
"""The model of an Orthant configuration, written again in PyTorch: same weights, same batches, same losses.

    orthant bench peer-data CONFIG --steps 50 -o DIR
    torch_moe.py DIR [--steps N] [--threads N]          trains, prints a JSON line for each step
    torch_moe.py DIR --serve [--compile]                answers "step N" lines on stdin (README.md: protocol)

It needs torch alone, and shares no line with Orthant's C++: where both print the same losses (agree.py), what you read
here is what our model computes, and torch_gates.py what our gates compute. Settings that this file does not know are
refused by name. fp32, one process, CPU; --double computes in fp64, which tells how much of a difference is rounding.

Shapes: those of torch_gates.py, and d model width, c width of a head, f width of an expert's hidden layer.
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as missing:
    print(f"torch_moe.py: this Python has no usable torch: {missing}", file=sys.stderr)
    raise SystemExit(3)

from torch_gates import Gate

# --- What `orthant bench peer-data` wrote --------------------------------------------------------------------------


def read_safetensors(path):
    """Name -> tensor. The format: u64 size of a JSON header, the header, the data."""
    data = bytearray(Path(path).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": torch.float32, "I32": torch.int32, "U8": torch.uint8}
    tensors = {}
    for name, about in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            count = math.prod(about["shape"])
            flat = torch.frombuffer(data, dtype=types[about["dtype"]], count=count, offset=begin + about["data_offsets"][0])
            tensors[name] = flat.view(about["shape"]).clone()
    return tensors


# Axes that change no mathematics. What another plugin does is not known here.
LAYOUT_PLUGINS = {"data", "tensor", "sequence", "pipeline", "expert", "offload"}


def refused(settings):
    """The settings that this file does not compute, a line each."""
    known = [("run.dtype", ["fp32"]), ("model.attention", ["multi_head"]), ("model.ffn", ["mlp"]), ("model.dropout", [0]),
             ("model.activation", ["relu", "gelu", "swiglu"]), ("model.attention_sinks", [False]), ("model.full_attention_every", [0]),
             ("model.qk_norm_over", ["head"]), ("model.output_bias", [False]), ("model.rope_scaling", ["none"]),
             ("model.rope_interleaved", [False]), ("optimizer.name", ["adamw"]), ("optimizer.schedule", ["constant", "cosine"]), ("optimizer.state_dtype", ["fp32"]), ("optimizer.gradient_dtype", ["fp32"]),
             ("optimizer.lr_of", [[]]), ("optimizer.no_decay", [[]])]
    if settings["moe"]["experts"] > 0:
        known += [("moe.router", ["switch", "gshard", "topk"]), ("moe.score", ["softmax"]), ("moe.drop_policy", ["position"]),
                  ("moe.balance_over", ["group"]), ("moe.jitter", [0]), ("moe.expert_groups", [1]),
                  ("moe.weight_scale", [1]), ("moe.shared_gate", [False]), ("moe.first_dense", [0]),
                  ("moe.router_bias", [False]), ("moe.expert_bias", [False])]
    lines = []
    for key, values in known:
        table, name = key.split(".")
        if settings[table][name] not in values:
            lines.append(f"{key} = {json.dumps(settings[table][name])}: known here: {', '.join(json.dumps(v) for v in values)}")
    lines += [f"plugins.{name}: it may change the mathematics" for name in settings["plugins"] if name not in LAYOUT_PLUGINS]
    return lines


class Data:
    """Settings, initial weights, and batches [steps, sequences, positions] of one configuration."""

    def __init__(self, folder):
        self.settings = json.loads((Path(folder) / "settings.json").read_text())
        lines = refused(self.settings)
        if lines:
            print(f"{folder}: this peer cannot build the model:\n  " + "\n  ".join(lines), file=sys.stderr)
            raise SystemExit(78)
        self.weights = read_safetensors(Path(folder) / "weights.safetensors")
        self.batches = read_safetensors(Path(folder) / "batches.safetensors")
        self.steps = self.settings["steps"]

    def widen(self):
        self.weights = {name: weight.double() for name, weight in self.weights.items()}

    def batch(self, step):
        return {name: tensor[step] for name, tensor in self.batches.items()}


# --- The model ----------------------------------------------------------------------------------------------------------


def activate(kind, h):
    """h [T, f], with swiglu [T, 2 f]: gate and up beside each other."""
    if kind == "swiglu":
        gate, up = h.chunk(2, dim=-1)
        return F.silu(gate) * up
    return {"gelu": lambda: F.gelu(h, approximate="tanh"), "relu": lambda: F.relu(h)}[kind]()


class Norm(nn.Module):
    def __init__(self, weights, stem, model):
        super().__init__()
        self.weight = nn.Parameter(weights[stem + ".weight"])
        self.bias = nn.Parameter(weights[stem + ".bias"]) if model["norm"] == "layernorm" else None
        self.eps = model["norm_eps"]

    def forward(self, x):
        if self.bias is None:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def joined(weights, names):
    """Matrices that are multiplied by the same rows, as one."""
    return nn.Parameter(torch.cat([weights[name] for name in names]))


class Attention(nn.Module):
    def __init__(self, weights, stem, settings):
        super().__init__()
        model, sizes = settings["model"], settings["sizes"]
        self.heads, self.kv_heads, self.width = model["heads"], sizes["kv_heads"], sizes["head_dim"]
        parts = [f"{stem}.{part}_proj" for part in "qkv"]
        self.qkv = joined(weights, [part + ".weight" for part in parts])
        self.bias = joined(weights, [part + ".bias" for part in parts]) if model["biases"] else None
        self.out = nn.Parameter(weights[stem + ".o_proj.weight"])
        names = [f"{stem}.{part}_norm.weight" for part in "qk"] if model["qk_norm"] else []
        self.norms = nn.ParameterList([weights[name] for name in names])
        self.eps = model["norm_eps"]

    def forward(self, x, batch):
        sequences, positions = batch["token"].shape
        sizes = [heads * self.width for heads in (self.heads, self.kv_heads, self.kv_heads)]
        heads = lambda t: t.view(sequences, positions, -1, self.width).transpose(1, 2)  # [sequences, heads, positions, c]
        q, k, v = map(heads, F.linear(x, self.qkv, self.bias).split(sizes, dim=-1))
        if self.norms:
            q, k = (F.rms_norm(t, t.shape[-1:], w, self.eps) for t, w in zip((q, k), self.norms))
        q, k = rotate(q, batch["angle"]), rotate(k, batch["angle"])
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=batch["mask"], is_causal=batch["mask"] is None,
                                           enable_gqa=self.heads != self.kv_heads)
        return F.linear(o.transpose(1, 2).reshape(len(x), -1), self.out)


def rotate(x, angle):
    """Rotary positions (Su et al., 2021): elements i and i + c/2 of a head turn together. angle: cosines and sines
    [sequences, 1, positions, c/2], or None with learned positions."""
    if angle is None:
        return x
    a, b = x.chunk(2, dim=-1)
    cosine, sine = angle
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


class Ffn(nn.Module):
    def __init__(self, weights, stem, model):
        super().__init__()
        self.activation = model["activation"]
        parts = ["gate_proj", "up_proj"] if self.activation == "swiglu" else ["up_proj"]
        self.inward = joined(weights, [f"{stem}.{part}.weight" for part in parts])
        self.outward = nn.Parameter(weights[stem + ".down_proj.weight"])

    def forward(self, x):
        return F.linear(activate(self.activation, F.linear(x, self.inward)), self.outward)


class MoeLayer(nn.Module):
    def __init__(self, weights, stem, settings, layer):
        super().__init__()
        self.activation = settings["model"]["activation"]
        self.gate = Gate(settings, layer)
        self.router = nn.Parameter(weights[stem + ".gate.weight"])  # [E, d]
        inward = ["w1", "w3"] if self.activation == "swiglu" else ["w1"]
        experts = [f"{stem}.experts.{e}" for e in range(self.gate.experts)]
        self.inward = nn.Parameter(torch.stack([torch.cat([weights[f"{e}.{w}.weight"] for w in inward]) for e in experts]))
        self.outward = nn.Parameter(torch.stack([weights[e + ".w2.weight"] for e in experts]))  # [E, d, f]
        shared = settings["moe"]["shared_experts"] > 0
        self.shared = Ffn(weights, stem + ".shared_experts", settings["model"]) if shared else None

    def forward(self, x, batch, step):
        valid = batch["valid"].view(-1).bool()
        logits = F.linear(x, self.router)
        expert, weight, made = self.gate.choose(logits, valid, batch["index"], step)
        seated = self.gate.seated(expert, made, valid)
        y = self.experts(x, expert, weight, seated)
        if self.shared is not None:
            y = y + self.shared(x)
        counted = {"kept": (F.one_hot(expert, self.gate.experts) * seated[..., None]).sum((0, 1)),
                   "dropped_by_capacity": (made & ~seated).sum(), "dropped_by_chance": (valid[:, None] & ~made).sum()}
        return y, self.gate.losses(logits, expert, valid), counted

    @torch.compiler.disable  # sizes that change with every step
    def experts(self, x, expert, weight, seated):
        """The seated choices, sorted by expert: each expert multiplies its rows, and a token adds up what its experts say.
        A dropped choice adds nothing; the residual path around the layer is the block's."""
        token, choice = seated.nonzero(as_tuple=True)
        order = expert[token, choice].sort(stable=True).indices
        token, choice = token[order], choice[order]
        counts = expert[token, choice].bincount(minlength=self.gate.experts).tolist()
        rows = x.index_select(0, token).split(counts)
        # unbind: one gradient of the whole [E, ...] tensor, not one that is zero outside of each expert.
        y = [F.linear(activate(self.activation, F.linear(r, w)), v)
             for r, w, v in zip(rows, self.inward.unbind(), self.outward.unbind())]
        return torch.zeros_like(x).index_add(0, token, torch.cat(y) * weight[token, choice][:, None])


class Block(nn.Module):
    def __init__(self, weights, settings, number):
        super().__init__()
        stem, model, moe = f"model.layers.{number}", settings["model"], settings["moe"]
        self.norm1 = Norm(weights, stem + ".input_layernorm", model)
        self.attention = Attention(weights, stem + ".self_attn", settings)
        self.norm2 = Norm(weights, stem + ".post_attention_layernorm", model)
        self.routed = moe["experts"] > 0 and (number + 1) % moe["every"] == 0
        # Layer 0 is the embedding: random numbers count layers like that.
        self.ffn = (MoeLayer(weights, stem + ".block_sparse_moe", settings, number + 1) if self.routed
                    else Ffn(weights, stem + ".mlp", model))

    def forward(self, x, batch, step):
        x = x + self.attention(self.norm1(x), batch)
        if not self.routed:
            return x + self.ffn(self.norm2(x)), None, None
        y, losses, counted = self.ffn(self.norm2(x), batch, step)
        return x + y, losses, counted


class Model(nn.Module):
    def __init__(self, weights, settings):
        super().__init__()
        self.settings, model = settings, settings["model"]
        self.embedding = nn.Parameter(weights["model.embed_tokens.weight"])
        self.positions = nn.Parameter(weights["model.embed_positions.weight"]) if model["positions"] == "learned" else None
        self.blocks = nn.ModuleList(Block(weights, settings, number) for number in range(model["layers"]))
        self.norm = Norm(weights, "model.norm", model)
        self.head = None if model["tie_embeddings"] else nn.Parameter(weights["lm_head.weight"])

    def prepared(self, batch):
        """With what all layers share: the tokens' numbers, rotary angles, and a mask where not every earlier token of the
        sequence is seen (packed documents, a window)."""
        model, sequences, positions = self.settings["model"], *batch["token"].shape
        ready = {**batch, "index": torch.arange(sequences * positions), "angle": None, "mask": None}
        if model["positions"] == "rotary":
            half = self.settings["sizes"]["head_dim"] // 2
            turn = model["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
            angle = batch["position"][:, None, :, None] * turn
            ready["angle"] = angle.cos().to(self.embedding.dtype), angle.sin().to(self.embedding.dtype)
        place = torch.arange(positions)
        first = batch["first"]
        if model["sliding_window"] > 0:
            first = torch.maximum(first, place - model["sliding_window"] + 1)
        if first.any():
            ready["mask"] = ((place[None, None, :] >= first[:, :, None]) & (place[None, :] <= place[:, None]))[:, None]
        return ready

    def forward(self, batch, step):
        """Cross-entropy per counted token; balance and z loss per valid token, summed over routed layers; counts."""
        x = F.embedding(batch["token"].view(-1), self.embedding)
        if self.positions is not None:
            x = x + F.embedding(batch["position"].view(-1), self.positions)
        balance, z, counts = x.new_zeros(()), x.new_zeros(()), {}
        for number, block in enumerate(self.blocks):
            x, losses, counted = block(x, batch, step)
            if losses is not None:
                balance, z, counts[str(number)] = balance + losses[0], z + losses[1], counted
        logits = F.linear(self.norm(x), self.embedding if self.head is None else self.head)
        label = batch["label"].view(-1).long()
        loss = F.cross_entropy(logits, label, ignore_index=-1, reduction="sum") / (label >= 0).sum()
        tokens = batch["valid"].sum()
        return loss, balance / tokens, z / tokens, counts


# --- Training -------------------------------------------------------------------------------------------------------------


def learning_rate(settings, step):
    """Of a step, counted from 0."""
    o, warmup = settings["optimizer"], settings["optimizer"]["warmup_steps"]
    if step < warmup:
        return o["lr"] * (step + 1) / (warmup + 1)
    if o["schedule"] == "constant":
        return o["lr"]
    end = o["decay_steps"] or settings["run"]["steps"]
    done = min(max((step - warmup) / (end - warmup), 0), 1) if end > warmup else 1
    return o["min_lr"] + 0.5 * (1 + math.cos(math.pi * done)) * (o["lr"] - o["min_lr"])


class Trainer:
    def __init__(self, data, compiled=False):
        self.data, self.settings = data, data.settings
        self.model = Model(data.weights, data.settings)
        self.run = torch.compile(self.model) if compiled else self.model
        o, parameters = self.settings["optimizer"], list(self.model.parameters())
        decays = lambda wanted: [p for p in parameters if (p.dim() >= 2) == wanted]  # matrices decay, vectors do not
        self.optimizer = torch.optim.AdamW(
            [{"params": decays(True), "weight_decay": o["weight_decay"]}, {"params": decays(False), "weight_decay": 0.0}],
            betas=tuple(o["betas"]), eps=o["eps"], fused=True)
        self.tokens, self.done = 0, 0

    def step(self):
        """One training step, on the batch of its number (from the first again, where there are no more). Returns what
        Orthant's metrics.jsonl says of it, before anything is converted to numbers."""
        step, moe, o = self.done, self.settings["moe"], self.settings["optimizer"]
        batch = self.model.prepared(self.data.batch(step % self.data.steps))
        self.optimizer.zero_grad(set_to_none=True)
        loss, balance, z, counts = self.run(batch, step)
        # Of a dense model balance and z are constants without a gradient.
        (loss + moe["aux_loss"] * balance + moe["z_loss"] * z).backward()
        grads = [p.grad for p in self.model.parameters()]
        norm = torch.nn.utils.get_total_norm(grads)
        if o["clip_grad_norm"] > 0:
            torch._foreach_mul_(grads, (o["clip_grad_norm"] / norm).clamp(max=1))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, step)
        self.optimizer.step()
        self.done += 1
        self.tokens = int(batch["valid"].sum())
        layers = max(len(counts), 1)
        return {"step": self.done, "loss": loss.detach(), "aux_loss": balance.detach() / layers,
                "z_loss": z.detach() / layers, "grad_norm": norm, "lr": learning_rate(self.settings, step), "counts": counts}


def line(result):
    """The result of a step as a line of metrics.jsonl."""
    counts = result.pop("counts")
    plain = {key: float(value) if torch.is_tensor(value) else value for key, value in result.items()}
    if counts:
        for key in ("dropped_by_capacity", "dropped_by_chance"):
            plain[key] = sum(int(counted[key]) for counted in counts.values())
        plain["expert_tokens"] = {block: counted["kept"].tolist() for block, counted in counts.items()}
    return json.dumps(plain)


def serve(trainer, name):
    for text in sys.stdin:
        words = text.split()
        if words == ["quit"]:
            return
        if len(words) == 2 and words[0] == "step" and words[1].isdigit() and int(words[1]) > 0:
            seconds = []
            for _ in range(int(words[1])):
                begin = time.perf_counter()
                trainer.step()
                seconds.append(time.perf_counter() - begin)
            answer = {"name": name, "tokens": trainer.tokens, "seconds": seconds}
        else:
            answer = {"error": f"expected: step N, or quit; got: {text.strip()}"}
        print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what orthant bench peer-data wrote")
    parser.add_argument("--steps", type=int, help="default: as many as there are batches")
    parser.add_argument("--threads", type=int, help="default: run.threads of the configuration")
    parser.add_argument("--serve", action="store_true", help="answer the protocol of README.md")
    parser.add_argument("--double", action="store_true", help="compute in fp64")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    args = parser.parse_args()
    data = Data(args.folder)
    torch.set_num_threads(args.threads or data.settings["run"]["threads"])
    if args.double:
        data.widen()
    trainer = Trainer(data, args.compile)
    if args.serve:
        serve(trainer, "PyTorch compiled" if args.compile else "PyTorch")
        return
    for _ in range(args.steps or data.steps):
        print(line(trainer.step()), flush=True)


if __name__ == "__main__":
    main()
