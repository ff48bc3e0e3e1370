"""What a run left: its checkpoints, read by the format's description and no code of the program, and its metrics."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Optional


def committed(run: Path) -> list[int]:
    """Steps of the finished checkpoints, the newest last."""
    folder = run / "checkpoints"
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step_\d+", name))


def newest(run: Path) -> int:
    """0 where there is none."""
    return max(committed(run), default=0)


def folder_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:06d}"


def tensors(checkpoint: Path) -> dict[tuple[str, str], tuple[str, tuple[int, ...], bytes]]:
    """(file, key) to (dtype, shape, bytes). A safetensors file: the header's length in 8 bytes, the header, the data."""
    found = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        for key, entry in header.items():
            if key != "__metadata__":
                begin, end = entry["data_offsets"]
                found[(file.name, key)] = (
                    entry["dtype"],
                    tuple(entry["shape"]),
                    data[8 + length + begin : 8 + length + end],
                )
    return found


def metrics(run: Path) -> list[dict]:
    """Of each whole line."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def last_step(run: Path) -> int:
    """Of metrics.jsonl's last whole line, without reading all of it; 0 where there is none."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 8192))
            text = file.read()
    except OSError:
        return 0
    found = re.findall(rb'"step":(\d+),', text[: text.rfind(b"\n") + 1])
    return int(found[-1]) if found else 0


def resumed_steps(run: Path, since: int = 0) -> list[int]:
    """After which steps the run went on, by rank 0's log from byte `since` on."""
    return [int(step) for step in re.findall(r"resumed from \S+ after step (\d+)", log_of_rank_0(run, since))]


def log_of_rank_0(run: Path, since: int = 0) -> str:
    try:
        return (run / "logs" / "rank_0.log").read_bytes()[since:].decode(errors="replace")
    except OSError:
        return ""


def log_size(run: Path) -> int:
    try:
        return (run / "logs" / "rank_0.log").stat().st_size
    except OSError:
        return 0


def differences(run: Path, unbroken: Path, step: int, first: int = 1, every: bool = True) -> list[str]:
    """What differs, in any bit, between two runs of one experiment that both ended with `step`.

    every: the metrics must have each step from `first` to `step` once, in order.
    """
    found = []
    folders = [folder_of(run, step), folder_of(unbroken, step)]
    for folder in folders:
        if not folder.is_dir():
            return [f"there is no {folder}"]
    mine, reference = tensors(folders[0]), tensors(folders[1])
    if not reference:
        found.append(f"{folders[1]} holds no tensor")
    differ = [key for key in mine.keys() | reference.keys() if mine.get(key) != reference.get(key)]
    if differ:
        found.append(f"{len(differ)} of {len(reference)} tensors differ after step {step}, such as {min(differ)}")
    lines = metrics(run)
    if every and [line["step"] for line in lines] != list(range(first, step + 1)):
        found.append(f"metrics.jsonl has {len(lines)} lines: not each of the steps {first} to {step} once, in order")
    losses = {line["step"]: line["loss"] for line in metrics(unbroken)}
    wrong = [line["step"] for line in lines if line["step"] in losses and line["loss"] != losses[line["step"]]]
    if wrong:
        found.append(f"{len(wrong)} losses differ, the first one in step {wrong[0]}")
    return found


def finished(run: Path, step: int) -> Optional[str]:
    return None if newest(run) == step else f"its newest checkpoint is of step {newest(run)}, not {step}"
