#!/usr/bin/env python3
"""One routed layer (router, experts, combine) in PyTorch and in other systems, beside orthant-bench, in one run.

    moe_layer.py [--device cuda] [--shape NAME ...] [--ours build/cpu/bin/orthant-bench] [--products] [--samples 7] [--check]

Prints one markdown table: milliseconds and TFLOP/s of the forward pass and of forward and backward, for each shape, routing
and system. Variants (those that cannot be imported, or refuse a shape, are left out and said so):
  grouped_mm    rows sorted by expert and torch._grouped_mm; forwards and backwards rows move by gathers alone: the best we
                could write in PyTorch
  +compile      the same under torch.compile
  transformers  the grouped_mm experts of transformers' Mixtral
  scattermoe    ScatterMoE's GLUMLP
  sonicmoe      SonicMoE's MoE
--products adds a table of the experts' products alone, beside torch.bmm (cuBLAS's batched product) of the same FLOPs, every
expert having equally many rows. --check compares instead of timing: every variant with a loop over experts in fp32, and the
gathers with what autograd makes of indexing, in fp64.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

# name: (T, d, n, E, K), as bench/layer/shapes.h. Gated experts only: what the peers have.
SHAPES = {
    "olmoe-1b-7b": (32768, 2048, 1024, 64, 8),
    "qwen3-30b-a3b": (32768, 2048, 768, 128, 8),
    "mixtral-8x7b": (16384, 4096, 14336, 8, 2),
    "deepseek-v3-ep8": (16384, 7168, 2048, 32, 8),
    "fine-grained-7b": (24576, 1536, 256, 128, 8),
    "fine-grained-30b": (32768, 4096, 256, 256, 16),
    "tiny": (512, 64, 96, 8, 2),
}


def route(x, router, top_k):
    """x [T, d], router [E, d] -> weights [T, K] that sum to one, experts [T, K]."""
    probability = (x @ router.t()).float().softmax(-1)
    weight, expert = probability.topk(top_k, dim=-1)
    return (weight / weight.sum(-1, keepdim=True)).to(x.dtype), expert


def sorted_rows(expert, experts):
    """The choices in order of expert: their order [T K], where each choice went [T K], the ends of the experts [E]."""
    flat = expert.reshape(-1)
    order = flat.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    ends = torch.bincount(flat, minlength=experts).cumsum(0).to(torch.int32)
    return order, place, ends


class Permute(torch.autograd.Function):
    """x [T, d] -> rows [T K, d] in order of expert. The gradient of a token is the sum over its K rows, which are gathered:
    autograd's own of x[order // K] would add rows to tokens one by one, after sorting them."""

    @staticmethod
    def forward(ctx, x, order, place, top_k):
        ctx.save_for_backward(place)
        ctx.top_k = top_k
        return x.index_select(0, order // top_k)

    @staticmethod
    def backward(ctx, drows):
        place, = ctx.saved_tensors
        return drows.index_select(0, place).view(-1, ctx.top_k, drows.shape[1]).sum(1), None, None, None


class Combine(torch.autograd.Function):
    """rows [T K, d] in order of expert, weight [T, K] -> y [T, d]: y_t = sum over k of weight_tk times the row of choice k."""

    @staticmethod
    def forward(ctx, rows, weight, order, place):
        ctx.save_for_backward(rows, weight, order, place)
        chosen = rows.index_select(0, place).view(*weight.shape, -1)
        return torch.bmm(weight.unsqueeze(1), chosen).squeeze(1)

    @staticmethod
    def backward(ctx, dy):
        rows, weight, order, place = ctx.saved_tensors
        of_row = dy.index_select(0, order // weight.shape[1])
        dweight = (of_row * rows).sum(-1).index_select(0, place).view(weight.shape)
        return of_row * weight.reshape(-1).index_select(0, order).unsqueeze(1), dweight, None, None


class GroupedMm:
    """w_in [E, 2n, d], w_out [E, d, n]: as ours."""

    def __init__(self, shape, dtype, device):
        _, d, n, experts, self.top_k = shape
        generator = torch.Generator(device=device).manual_seed(0)

        def parameter(*size):
            return (torch.randn(*size, device=device, generator=generator) * 0.02).to(dtype).requires_grad_()

        self.router, self.w_in, self.w_out = parameter(experts, d), parameter(experts, 2 * n, d), parameter(experts, d, n)
        self.parameters = [self.router, self.w_in, self.w_out]

    def __call__(self, x):
        weight, expert = route(x, self.router, self.top_k)
        order, place, ends = sorted_rows(expert, self.router.shape[0])
        rows = Permute.apply(x, order, place, self.top_k)
        gate, up = torch._grouped_mm(rows, self.w_in.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        out = torch._grouped_mm(F.silu(gate) * up, self.w_out.transpose(1, 2), offs=ends)
        return Combine.apply(out, weight, order, place)


class Loop(GroupedMm):
    """The definition: one expert after another."""

    def __call__(self, x):
        weight, expert = route(x, self.router, self.top_k)
        y = torch.zeros_like(x)
        for e in range(self.router.shape[0]):
            token, k = (expert == e).nonzero(as_tuple=True)
            gate, up = (x[token] @ self.w_in[e].t()).chunk(2, dim=-1)
            y = y.index_add(0, token, ((F.silu(gate) * up) @ self.w_out[e].t()) * weight[token, k].unsqueeze(-1))
        return y


class Transformers(GroupedMm):
    def __init__(self, shape, dtype, device):
        super().__init__(shape, dtype, device)
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
        _, d, n, experts, top_k = shape
        config = MixtralConfig(hidden_size=d, intermediate_size=n, num_local_experts=experts, num_experts_per_tok=top_k,
                               experts_implementation="grouped_mm")
        with torch.device("meta"):
            self.block = MixtralSparseMoeBlock(config)
        self.block.gate.weight = torch.nn.Parameter(self.router.detach())
        self.block.experts.gate_up_proj = torch.nn.Parameter(self.w_in.detach())
        self.block.experts.down_proj = torch.nn.Parameter(self.w_out.detach())
        self.router, self.w_in, self.w_out = (self.block.gate.weight, self.block.experts.gate_up_proj,
                                              self.block.experts.down_proj)
        self.parameters = [self.router, self.w_in, self.w_out]

    def __call__(self, x):
        y = self.block(x.unsqueeze(0))
        return (y[0] if isinstance(y, tuple) else y).squeeze(0)


class ScatterMoe(GroupedMm):
    def __init__(self, shape, dtype, device):
        super().__init__(shape, dtype, device)
        from scattermoe.mlp import GLUMLP
        _, d, n, experts, top_k = shape
        self.mlp = GLUMLP(input_size=d, hidden_size=n, num_experts=experts, top_k=top_k, activation=torch.nn.SiLU())
        self.mlp = self.mlp.to(device=device, dtype=dtype)
        self.parameters = [self.router, *self.mlp.parameters()]

    def __call__(self, x):
        weight, expert = route(x, self.router, self.top_k)
        return self.mlp(x, weight, expert)


class SonicMoe(GroupedMm):
    def __init__(self, shape, dtype, device):
        super().__init__(shape, dtype, device)
        from sonicmoe import MoE
        from sonicmoe.enums import ActivationType
        _, d, n, experts, top_k = shape
        self.moe = MoE(num_experts=experts, num_experts_per_tok=top_k, hidden_size=d, intermediate_size=n,
                       activation_function=ActivationType.SWIGLU, add_bias=False, std=0.02)
        self.moe = self.moe.to(device=device, dtype=dtype)
        self.parameters = list(self.moe.parameters())

    def __call__(self, x):
        return self.moe(x)[0]


def compiled(shape, dtype, device):
    layer = GroupedMm(shape, dtype, device)
    call = torch.compile(layer.__call__)
    layer.run = call
    return layer


VARIANTS = {"grouped_mm": GroupedMm, "grouped_mm+compile": compiled, "transformers": Transformers,
            "scattermoe": ScatterMoe, "sonicmoe": SonicMoe}


def inputs(shape, dtype, device, skewed):
    generator = torch.Generator(device=device).manual_seed(1)
    x = torch.randn(shape[0], shape[1], device=device, generator=generator)
    if skewed:
        x += torch.randn(1, shape[1], device=device, generator=generator)
    dy = torch.randn(shape[0], shape[1], device=device, generator=generator)
    return x.to(dtype).requires_grad_(), dy.to(dtype)


def seconds(call, device, samples, sample_seconds):
    """The median of several samples, each of as many calls in a row as last sample_seconds."""
    def sample(calls):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / calls
    for _ in range(3):
        call()
    calls = max(1, int(sample_seconds / sample(1)))
    return statistics.median(sample(calls) for _ in range(samples))


def run_of(layer):
    return getattr(layer, "run", layer)


def measure(variant, shape, dtype, device, skewed, samples, sample_seconds):
    layer = VARIANTS[variant](shape, dtype, device)
    x, dy = inputs(shape, dtype, device, skewed)
    run = run_of(layer)

    def forward():
        with torch.no_grad():
            run(x)

    def both():
        x.grad = None
        for p in layer.parameters:
            p.grad = None
        run(x).backward(dy)

    return (seconds(forward, device, samples, sample_seconds), seconds(both, device, samples, sample_seconds))


def batched(shape, dtype, device, samples, sample_seconds):
    """Seconds of the six products of a layer, forward and backward, as batched ones."""
    tokens, d, n, experts, top_k = shape
    rows = -(-tokens * top_k // experts)
    x, h, a, w_in, w_out = (torch.randn(experts, *size, device=device).to(dtype)
                            for size in [(rows, d), (rows, 2 * n), (rows, n), (2 * n, d), (d, n)])
    products = {"experts in": (x, w_in.mT), "experts out": (a, w_out.mT), "experts out, dX": (x, w_out),
                "experts out, dW": (x.mT, a), "experts in, dW": (h.mT, x), "experts in, dX": (h, w_in)}
    return {name: seconds(lambda: torch.bmm(*of), device, samples, sample_seconds) for name, of in products.items()}


def products_table(shapes, mine, options, dtype):
    """`mine`: of each shape, the seconds of our steps with uniform routing."""
    print("\n| shape | product | ours ms | TFLOP/s | torch.bmm ms | TFLOP/s | ours runs at |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in shapes:
        tokens, d, n, _, top_k = SHAPES[name]
        times = batched(SHAPES[name], dtype, options.device, options.samples, options.seconds)
        rows = [(product, mine[name][product], theirs, (4 if " in" in product else 2) * tokens * top_k * d * n)
                for product, theirs in times.items()]
        rows.append(("all", *(sum(row[i] for row in rows) for i in (1, 2, 3))))
        for product, own, theirs, flops in rows:
            print(f"| {name} | {product} | {own * 1e3:.3f} | {flops / own * 1e-12:.1f} | {theirs * 1e3:.3f} "
                  f"| {flops / theirs * 1e-12:.1f} | {theirs / own:.2f}x |", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()


def check(variant, shape, dtype, device):
    layer, truth = VARIANTS[variant](shape, dtype, device), Loop(shape, torch.float32, device)
    if len(layer.parameters) == 3 and hasattr(layer, "w_in") and layer.parameters[1] is layer.w_in:
        truth.router, truth.w_in, truth.w_out = (p.detach().float().requires_grad_() for p in layer.parameters)
    else:
        return f"{variant}: has weights of its own, not compared"
    x, dy = inputs(shape, dtype, device, False)
    exact = x.detach().float().requires_grad_()
    y, want = run_of(layer)(x), truth(exact)
    y.backward(dy)
    want.backward(dy.float())
    worst = max(((a.float() - b).norm() / b.norm()).item()
                for a, b in [(y, want), (x.grad, exact.grad), (layer.w_in.grad, truth.w_in.grad),
                             (layer.w_out.grad, truth.w_out.grad)])
    return f"{variant}: {worst:.1e} from the loop in fp32"


def check_gathers(shape, device):
    """Permute and Combine around a product by a row of its own, against indexing."""
    tokens, d, _, experts, top_k = shape
    generator = torch.Generator(device=device).manual_seed(2)

    def random(*size):
        return torch.randn(*size, device=device, generator=generator, dtype=torch.float64)

    x, weight, dy, factor = random(tokens, d), random(tokens, top_k), random(tokens, d), random(tokens * top_k, d)
    expert = random(tokens, experts).topk(top_k, dim=-1).indices
    order, place, _ = sorted_rows(expert, experts)

    def result(by_gathers):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        if by_gathers:
            y = Combine.apply(Permute.apply(a, order, place, top_k) * factor, b, order, place)
        else:
            y = ((a[order // top_k] * factor)[place].view(tokens, top_k, d) * b.unsqueeze(-1)).sum(1)
        y.backward(dy)
        return y.detach(), a.grad, b.grad

    worst = max(((a - b).norm() / b.norm()).item() for a, b in zip(result(True), result(False)))
    if worst > 1e-12:
        sys.exit(f"gathers: {worst:.1e} from indexing in fp64, which is wrong")
    return f"gathers: {worst:.1e} from indexing in fp64"


def ours(program, names, options):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [program, "--device", options.device, "--dtype", options.dtype, "--json", out.name,
                   "--samples", str(options.samples), "--seconds", str(options.seconds)]
        if not options.products:
            command.append("--whole")
        for name in names:
            command += ["--shape", name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = json.load(open(out.name))
    print(f"Ceilings, {', '.join(names)}: product {found['product_flops_per_second'] * 1e-12:.0f} TFLOP/s, "
          f"copy {found['copy_bytes_per_second'] * 1e-12:.2f} TB/s", file=sys.stderr)
    return {(layer["shape"], layer["routing"]): {step["step"]: step["seconds"] for step in layer["steps"]}
            for layer in found["layers"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--ours", help="the program orthant-bench, measured between the peers")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS))
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.products and not options.ours:
        parser.error("--products compares with --ours")
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    names = options.shape or [name for name in SHAPES if name != "tiny"]
    variants = options.variant or list(VARIANTS)
    if options.check:
        for name in names:
            print(name, check_gathers(SHAPES[name], options.device))
            for variant in variants:
                try:
                    print(name, check(variant, SHAPES[name], dtype, options.device))
                except Exception as problem:  # whatever a peer does not support
                    print(name, f"{variant}: left out: {type(problem).__name__}: {problem}".splitlines()[0])
        return
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if options.device == 'cuda' else 'CPU'}, {options.dtype}. "
          f"Gradients of weights: Orthant's in fp32, the others' in {options.dtype}, as their weights are.\n")
    print("| shape | routing | system | forward ms | TFLOP/s | forward + backward ms | TFLOP/s | ours is |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    uniform = {}
    for name in names:
        tokens, d, n, _, top_k = SHAPES[name]
        flops = 6 * tokens * top_k * d * n
        mine = ours(options.ours, [name], options) if options.ours else {}
        for routing in ("uniform", "skewed"):
            steps = mine.get((name, routing))
            own = steps and [steps["layer forward"], steps["layer forward+backward"]]
            if routing == "uniform":
                uniform[name] = steps
            rows = [("Orthant", own)] if own else []
            for variant in variants:
                try:
                    rows.append((variant, measure(variant, SHAPES[name], dtype, options.device, routing == "skewed",
                                                  options.samples, options.seconds)))
                except Exception as problem:  # whatever a peer does not support
                    print(f"{name} {variant}: left out: {type(problem).__name__}: {problem}".splitlines()[0], file=sys.stderr)
                if options.device == "cuda":
                    torch.cuda.empty_cache()
            for system, (forward, both) in rows:
                ratio = f"{both / own[1]:.2f}x" if own else ""
                print(f"| {name} | {routing} | {system} | {forward * 1e3:.3f} | {flops / forward * 1e-12:.1f} "
                      f"| {both * 1e3:.3f} | {3 * flops / both * 1e-12:.1f} | {ratio} |", flush=True)
    if options.products:
        products_table(names, uniform, options, dtype)


if __name__ == "__main__":
    main()
