#!/usr/bin/env python3
"""The first peer: the benchmark's small Mixtral, trained by PyTorch and transformers on the CPU.

    pytorch_mixtral.py [--variant X[,Y...]|all] [--experts 8] [--vocabulary 256] [--dtype fp32|bf16] [--threads 2]
                       [--steps 10] [--json]
    pytorch_mixtral.py --variant X --serve ...    answers "step N" lines on stdin (README.md: protocol), for compare.py
    pytorch_mixtral.py --check ...                the variants compute the same loss and gradients

4 layers, d 256, 4 heads, top-2 of E experts of width 512 (SwiGLU); a step is 16 random sequences of 256
positions, forward, backward and fused AdamW. bf16 is autocast over fp32 weights. Variants, each also as X+compile:
  eager       transformers' loop over experts
  grouped_mm  transformers' grouped experts (torch.nn.functional.grouped_mm; under autocast it runs them in fp32)
  sorted      rows sorted by expert, one GEMM per expert and direction, in the autocast type: the best we could write
  dense       the twin with the same active FLOPs: one FFN of width 2 * 512 (Mistral)
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import transformers
from transformers import MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

SEQUENCES, POSITIONS, TOP_K, WIDTH = 16, 256, 2, 512
VARIANTS = ["dense", "eager", "grouped_mm", "sorted", "dense+compile", "grouped_mm+compile", "sorted+compile"]

# --- sorted: a grouped linear layer as an operator of its own, so that torch.compile need not look inside the loop.


@torch.library.custom_op("peer::grouped_linear", mutates_args=())
def grouped_linear(x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """x [S, k], rows in order of expert; w [E, n, k]; counts [E] rows of each expert -> [S, n]."""
    y = x.new_empty(x.shape[0], w.shape[1])
    begin = 0
    for e, count in enumerate(counts.tolist()):
        if count:
            torch.mm(x[begin:begin + count], w[e].t(), out=y[begin:begin + count])
        begin += count
    return y


@grouped_linear.register_fake
def _(x, w, counts):
    return x.new_empty(x.shape[0], w.shape[1])


@torch.library.custom_op("peer::grouped_linear_backward", mutates_args=())
def grouped_linear_backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor,
                            counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dy = dy.contiguous()
    dx, dw = torch.empty_like(x), torch.empty_like(w)
    begin = 0
    for e, count in enumerate(counts.tolist()):
        rows = slice(begin, begin + count)
        if count:
            torch.mm(dy[rows], w[e], out=dx[rows])
            torch.mm(dy[rows].t(), x[rows], out=dw[e])
        else:
            dw[e].zero_()
        begin += count
    return dx, dw


@grouped_linear_backward.register_fake
def _(dy, x, w, counts):
    return torch.empty_like(x), torch.empty_like(w)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy):
    return *grouped_linear_backward(dy, *ctx.saved_tensors), None


grouped_linear.register_autograd(_backward, setup_context=_save)


def sorted_experts(self, hidden_states, top_k_index, top_k_weights):
    tokens, top_k = top_k_index.shape
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else hidden_states.dtype
    order = torch.sort(top_k_index.reshape(-1), stable=True).indices  # [S]: packed row -> t * K + k
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    counts = F.one_hot(top_k_index.reshape(-1), self.num_experts).sum(0)
    x = hidden_states.to(dtype).index_select(0, order // top_k)
    gate, up = grouped_linear(x, self.gate_up_proj.to(dtype), counts).chunk(2, dim=-1)
    y = grouped_linear(F.silu(gate) * up, self.down_proj.to(dtype), counts)
    y = y.index_select(0, place).view(tokens, top_k, -1)
    return (y * top_k_weights[..., None].to(dtype)).sum(1).to(hidden_states.dtype)


ALL_EXPERTS_FUNCTIONS.register("sorted", sorted_experts)


class Contestant:
    """A model of one variant with its optimizer; step() trains on one random batch."""

    def __init__(self, variant, experts, vocabulary, dtype):
        torch.manual_seed(0)
        kind, _, compiled = variant.partition("+")
        sizes = dict(vocab_size=vocabulary, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                     num_key_value_heads=4, max_position_embeddings=POSITIONS, rope_theta=10000.0, sliding_window=None,
                     use_cache=False, attn_implementation="sdpa", bos_token_id=None, eos_token_id=None)
        if kind == "dense":
            self.model = MistralForCausalLM(MistralConfig(intermediate_size=TOP_K * WIDTH, **sizes))
        else:
            self.model = MixtralForCausalLM(MixtralConfig(
                intermediate_size=WIDTH, num_local_experts=experts, num_experts_per_tok=TOP_K,
                experts_implementation=kind, **sizes))
        self.model.train()
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.dtype = dtype
        self.vocabulary = vocabulary
        self.generator = torch.Generator().manual_seed(1)

    def loss(self):
        ids = torch.randint(0, self.vocabulary, (SEQUENCES, POSITIONS), generator=self.generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bf16"):
            return self.run(input_ids=ids, labels=ids).loss

    def step(self):
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimizer.step()
        return time.perf_counter() - start


def cpu():
    info = dict(line.split(":", 1) for line in open("/proc/cpuinfo") if ":" in line)
    info = {key.strip(): value.strip() for key, value in info.items()}
    has = info.get("flags", "").split()
    return " ".join([info.get("model name", "unknown CPU"), *(f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
                                                               if f in has)])


def about():
    return f"torch {torch.__version__}, transformers {transformers.__version__}, {cpu()}"


def serve(contestant, name):
    tokens = SEQUENCES * POSITIONS
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) != 2 or words[0] != "step" or not words[1].isdigit():
            answer = {"error": f"expected 'step N' or 'quit', found {line.strip()!r}"}
        else:
            answer = {"name": name, "tokens": tokens, "seconds": [contestant.step() for _ in range(int(words[1]))]}
        print(json.dumps(answer), flush=True)


def check(experts, vocabulary, dtype):
    """Every variant against eager: the same loss, and gradients as near as the dtype allows."""
    tolerance = 1e-4 if dtype == "fp32" else 5e-2
    expect = None
    for variant in [v for v in VARIANTS if not v.startswith("dense")]:
        contestant = Contestant(variant, experts, vocabulary, dtype)
        loss = contestant.loss()
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in contestant.model.parameters()])
        expect = expect or (loss.item(), gradient)
        error = float((gradient - expect[1]).norm() / expect[1].norm())
        print(f"{variant}: loss {loss.item():.6f}, gradients differ from eager's by {error:.1e}", flush=True)
        assert error < tolerance and abs(loss.item() - expect[0]) < tolerance, variant


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="all")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--about", action="store_true", help="print versions and CPU, nothing else")
    args = parser.parse_args()
    variants = VARIANTS if args.variant == "all" else args.variant.split(",")
    if unknown := [v for v in variants if v not in VARIANTS + ["eager+compile"]]:
        parser.error(f"unknown variant {', '.join(unknown)}; known: {', '.join(VARIANTS)}, eager+compile")
    torch.set_num_threads(args.threads)

    if args.about:
        return print(about())
    if args.check:
        return check(args.experts, args.vocabulary, args.dtype)
    if args.serve:
        if len(variants) != 1:
            parser.error("--serve needs exactly one --variant")
        return serve(Contestant(variants[0], args.experts, args.vocabulary, args.dtype), f"PyTorch {variants[0]}")
    if not args.json:
        print(f"# {about()}, {args.threads} threads, E = {args.experts}, vocabulary "
              f"{args.vocabulary}, {args.dtype}; tokens/s, median of {args.steps} steps")
    for variant in variants:
        contestant = Contestant(variant, args.experts, args.vocabulary, args.dtype)
        for _ in range(args.warmup):
            contestant.step()
        seconds = statistics.median(contestant.step() for _ in range(args.steps))
        speed = SEQUENCES * POSITIONS / seconds
        print(json.dumps({"variant": variant, "experts": args.experts,
                          "vocabulary": args.vocabulary, "dtype": args.dtype, "threads": args.threads,
                          "cpu": cpu(), "torch": torch.__version__, "transformers": transformers.__version__,
                          "seconds": seconds, "tokens_per_second": speed})
              if args.json else f"{variant:20} {speed:8.0f}", flush=True)


if __name__ == "__main__":
    main()
