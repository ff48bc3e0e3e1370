#!/usr/bin/env python3
"""Runs our training step and its peers in turns on one machine and prints a markdown table of medians and ratios.

    compare.py [--ours "COMMAND"] [--peers X[,Y...]] [--experts 8] [--vocabulary 256] [--dtype fp32] [--threads 2]
               [--rounds 5] [--steps 3]
    compare.py --ours "build/cpu/orthant bench step CONFIG --serve" --peers sorted,grouped_mm+compile,dense

Every contestant is a process that lives for the whole comparison and speaks the protocol of README.md. In each round each
one runs `steps` steps while the others sleep, so that a change in the machine's load meets all of them. A ratio is the
median over rounds of (peer's seconds / ours in the same round): above 1, ours is faster. The peers are variants of
pytorch_mixtral.py, run by the Python that runs this script.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

PEER = Path(__file__).with_name("pytorch_mixtral.py")


class Contestant:
    def __init__(self, name, command):
        self.name, self.command = name, command
        self.rounds = []  # seconds of each step, by round
        self.tokens = None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self, count):
        """Seconds of each of `count` steps. Lines that are no JSON object (a log) are passed over."""
        try:
            self.process.stdin.write(f"step {count}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # told below, with the exit code
        for line in self.process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if not isinstance(answer, dict):
                continue
            seconds = answer.get("seconds")
            if "error" in answer or not isinstance(seconds, list) or len(seconds) != count:
                raise SystemExit(f"{self.name}: expected \"seconds\" of {count} steps, found: {line.strip()}")
            self.tokens = answer["tokens"]
            return seconds
        raise SystemExit(f"{self.name} ended with code {self.process.wait()} instead of answering; "
                         f"command: {shlex.join(self.command)}")

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()  # end of input: leave
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()


def table(contestants, reference):
    """Markdown lines; ratios only where there is a reference."""
    lines = ["| | tokens/s | ms/step | fastest step, ms | " + (f"{reference.name} is faster by |" if reference else ""),
             "| --- " * (5 if reference else 4) + "|"]
    for c in contestants:
        steps = [s for r in c.rounds for s in r]
        median = statistics.median(steps)
        line = f"| {c.name} | {c.tokens / median:.0f} | {1e3 * median:.1f} | {1e3 * min(steps):.1f} |"
        if reference:
            # Seconds per token, so that contestants with another batch size stay comparable.
            ratios = [statistics.median(theirs) / c.tokens / (statistics.median(ours) / reference.tokens)
                      for theirs, ours in zip(c.rounds, reference.rounds)]
            line += f" {statistics.median(ratios):.2f}x ({min(ratios):.2f} - {max(ratios):.2f}) |"
        lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", help="a command that answers the protocol; without it the peers are compared alone")
    parser.add_argument("--ours-name", default="Orthant")
    parser.add_argument("--peers", default="grouped_mm,sorted,grouped_mm+compile,sorted+compile")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contestant in a round")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the first round")
    args = parser.parse_args()

    contestants = []
    try:
        if args.ours:
            contestants.append(Contestant(args.ours_name, shlex.split(args.ours)))
        for variant in filter(None, args.peers.split(",")):
            contestants.append(Contestant(f"PyTorch {variant}", [
                sys.executable, str(PEER), "--serve", "--variant", variant, "--experts", str(args.experts),
                "--vocabulary", str(args.vocabulary), "--dtype", args.dtype, "--threads", str(args.threads)]))
            contestants[-1].step(args.warmup)  # one at a time: starting up and compiling is work too
        if args.ours:
            contestants[0].step(args.warmup)
        for number in range(args.rounds):
            # Turn the order round each time: what follows a heavy neighbour is not always the same one.
            for c in contestants if number % 2 == 0 else reversed(contestants):
                c.rounds.append(c.step(args.steps))
    finally:
        for c in contestants:
            c.close()

    about = subprocess.run([sys.executable, str(PEER), "--about"], capture_output=True, text=True, check=True)
    print(f"E = {args.experts}, vocabulary {args.vocabulary}, {args.dtype}, {args.threads} threads, {args.rounds} rounds of {args.steps} steps in turns; "
          f"{about.stdout.strip()}\n")
    print("\n".join(table(contestants, contestants[0] if args.ours else None)))


if __name__ == "__main__":
    main()
