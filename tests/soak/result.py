"""What a trial found: how many cases, how many right, and how long things took; one line of the table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

HEAD = (
    "| trial | n | right | seconds: median / p95 / max | remarks |\n"
    "| --- | --- | --- | --- | --- |"
)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass
class Result:
    """One line of the table. A case is right when it had no problem."""

    trial: str
    n: int = 0
    right: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    skipped: str = ""  # why nothing was tried

    def case(self, name: str, problems: list[str]) -> None:
        self.n += 1
        self.right += not problems
        self.problems += [f"{self.trial}, {name}: {problem}" for problem in problems]

    def time(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def line(self) -> str:
        times = "; ".join(
            f"{what} {quantile(values, 0.5):.2f} / {quantile(values, 0.95):.2f} / {max(values):.2f}"
            for what, values in self.seconds.items()
        )
        remarks = "; ".join(f"{what}: {number}" for what, number in self.counts.items())
        if self.skipped:
            return f"| {self.trial} | 0 | | | skipped: {self.skipped} |"
        return f"| {self.trial} | {self.n} | {self.right} | {times} | {remarks} |"
