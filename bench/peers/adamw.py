#!/usr/bin/env python3
"""AdamW on the CPU: ours, PyTorch's fused one and DeepSpeed's CPUAdam, in turns on one machine; a markdown table.

    adamw.py --ours build/cpu/bin/optimizer_bench [--threads 2] [--rounds 9] [--elements 33554432]
    adamw.py --serve torch|deepspeed --dtype f32|bf16       one peer, by the protocol of README.md

Every contestant is a process that sleeps while it is not its turn (compare.py). One tensor of f32. With bf16 each also
leaves a copy of the new weight in bf16: we in the same pass, the peers, which have no such option, by a second one. The
peers' memory is on huge pages too (THP_MEM_ALLOC_ENABLE). The first ratio is the median over rounds of
(theirs / ours); the last columns are of the fastest step of each, which other work on the machine disturbs less.
"""
import argparse
import json
import os
import statistics
import sys
import time

from compare import Contestant

COPIES = ["copy, plain stores", "copy, non-temporal stores"]


def serve(peer, dtype, elements, threads):
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    p = torch.nn.Parameter(torch.randn(elements) * 0.1)
    p.grad = torch.randn(elements) * 0.1
    weight = torch.zeros(elements, dtype=torch.bfloat16)
    how = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    if peer == "torch":
        optimizer = torch.optim.AdamW([p], fused=True, **how)
    else:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam([p], adamw_mode=True, **how)
    for line in sys.stdin:
        words = line.split()
        if len(words) != 2 or words[0] != "step":
            break
        seconds = []
        for _ in range(int(words[1])):
            begin = time.perf_counter()
            optimizer.step()
            if dtype == "bf16":
                with torch.no_grad():
                    weight.copy_(p)
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"name": peer, "tokens": elements, "seconds": seconds}), flush=True)


def busy_ticks():
    """Of all processors since the start: (busy, all)."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(x) for x in stat.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def wait_until_idle(seconds):
    """Returns when processors have been 90 % idle for half a second, or False after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        busy, total = busy_ticks()
        time.sleep(0.5)
        busy, total = busy_ticks()[0] - busy, busy_ticks()[1] - total
        if busy < 0.1 * total:
            return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours")
    parser.add_argument("--serve", choices=["torch", "deepspeed"])
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--peers", default="torch,deepspeed")
    parser.add_argument("--elements", type=int, default=1 << 25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contestant in a round")
    parser.add_argument("--when-idle", type=float, default=0, metavar="SECONDS",
                        help="begin a round only when the machine is idle, and wait so long for it at most")
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.dtype, args.elements, args.threads)
    if not args.ours:
        parser.error("--ours is missing")

    # Threads of one contestant must not spin while it is another's turn.
    os.environ.update(OMP_NUM_THREADS=str(args.threads), OMP_WAIT_POLICY="passive", THP_MEM_ALLOC_ENABLE="1")
    size = ["--elements", str(args.elements), "--threads", str(args.threads)]
    bytes_of = {name: 8 for name in COPIES}
    reference = {}
    contestants = [Contestant(name, [args.ours, "--serve", name, *size]) for name in COPIES]
    for dtype, moved in ("f32", 28), ("bf16", 30):
        ours = Contestant(f"Orthant {dtype}", [args.ours, "--serve", f"adamw {dtype}", *size])
        contestants.append(ours)
        bytes_of[ours.name] = moved
        for peer in args.peers.split(","):
            name = f"{peer} {dtype}"
            contestants.append(Contestant(name, [sys.executable, __file__, "--serve", peer, "--dtype", dtype, *size]))
            bytes_of[name], reference[name] = moved, ours
    try:
        for c in contestants:
            c.step(2)  # one at a time: starting up and compiling is work too
        for number in range(args.rounds):
            if args.when_idle and not wait_until_idle(args.when_idle):
                print(f"not idle for {args.when_idle} s: {number} rounds", file=sys.stderr)
                break
            for c in contestants if number % 2 == 0 else reversed(contestants):
                c.rounds.append(c.step(args.steps))
    finally:
        for c in contestants:
            c.close()

    if not contestants[0].rounds:
        raise SystemExit("the machine was never idle")

    def rate(c, of):
        return bytes_of[c.name] * args.elements / of(sum(c.rounds, []))

    def share(c, of):
        return f"{100 * rate(c, of) / max(rate(x, of) for x in contestants if x.name in COPIES):.0f} %"

    print(f"{args.elements} elements, {args.threads} threads, {len(contestants[0].rounds)} rounds of {args.steps} steps in turns\n")
    print("| | ms | GB/s | share of the better copy | ours is faster by | fastest, ms | share | ours is faster by |")
    print("| --- " * 8 + "|")
    for c in contestants:
        steps = sum(c.rounds, [])
        ratio = fastest = ""
        if c.name in reference:
            ours = reference[c.name]
            by_round = [statistics.median(t) / statistics.median(o) for t, o in zip(c.rounds, ours.rounds)]
            ratio = f"{statistics.median(by_round):.2f}x ({min(by_round):.2f} - {max(by_round):.2f})"
            fastest = f"{min(steps) / min(sum(ours.rounds, [])):.2f}x"
        print(f"| {c.name} | {1e3 * statistics.median(steps):.1f} | {rate(c, statistics.median) * 1e-9:.1f} | "
              f"{share(c, statistics.median)} | {ratio} | {1e3 * min(steps):.1f} | {share(c, min)} | {fastest} |")


if __name__ == "__main__":
    main()
