#!/usr/bin/env python3
"""Validation losses of runs as an SVG: plot_curves.py OUT.svg LABEL=RUN/metrics.jsonl ... (standard library only)."""
import json
import sys

WIDTH, HEIGHT, LEFT, TOP = 640, 320, 60, 20
COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"]


def points(path):
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["step"], row["validation_loss"]) for row in rows if "validation_loss" in row]


def main():
    out, curves = sys.argv[1], [argument.split("=", 1) for argument in sys.argv[2:]]
    data = [(label, points(path)) for label, path in curves]
    steps = [step for _, curve in data for step, _ in curve]
    losses = [loss for _, curve in data for _, loss in curve]
    low, high = min(losses) // 0.1 * 0.1, max(losses) // 0.1 * 0.1 + 0.1
    plot_width, plot_height = WIDTH - LEFT - 20, HEIGHT - TOP - 50

    def x(step):
        return LEFT + plot_width * step / max(steps)

    def y(loss):
        return TOP + plot_height * (high - loss) / (high - low)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for i in range(round((high - low) / 0.1) + 1):
        tick = low + 0.1 * i
        svg.append(f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{LEFT + plot_width}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.1f}</text>')
    for step in sorted(set(steps)):
        svg.append(f'<text x="{x(step):.1f}" y="{TOP + plot_height + 18}" text-anchor="middle">{step}</text>')
    svg.append(f'<text x="{LEFT + plot_width / 2}" y="{HEIGHT - 8}" text-anchor="middle">step; '
               'validation loss in nats per character</text>')
    for number, (label, curve) in enumerate(data):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        svg.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        svg.append(f'<text x="{LEFT + plot_width - 8}" y="{TOP + 16 + 16 * number}" text-anchor="end" fill="{colour}">{label}</text>')
    svg.append("</svg>")
    with open(out, "w") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
