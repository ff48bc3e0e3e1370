"""Checkpoints that something else damaged: noticed, named, never loaded, never a crash."""

from __future__ import annotations

import os
import random as randoms
import shutil
from pathlib import Path
from typing import Callable, Optional

import checkpoints
from place import Context, Place
from result import Result


def _flip_a_byte(file: Path, random: randoms.Random) -> None:
    data = bytearray(file.read_bytes())
    data[random.randrange(len(data))] ^= random.randrange(1, 256)
    file.write_bytes(data)


def _cut(file: Path, random: randoms.Random) -> None:
    os.truncate(file, random.randrange(file.stat().st_size))


def _lengthen(file: Path, random: randoms.Random) -> None:
    with file.open("ab") as out:
        out.write(random.randbytes(random.randint(1, 100)))


def _remove(file: Path, _: randoms.Random) -> None:
    file.unlink()


def _folder(file: Path, _: randoms.Random) -> None:
    file.unlink()
    file.mkdir()


def _dangling(file: Path, _: randoms.Random) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def _fifo(file: Path, _: randoms.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _zeros(file: Path, random: randoms.Random) -> None:
    data = bytearray(file.read_bytes())
    begin = random.randrange(len(data))
    data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))
    if bytes(data) == file.read_bytes():
        data[begin] ^= 1
    file.write_bytes(data)


def _other(file: Path, _: randoms.Random) -> None:
    """Another rank's file, or no manifest at all."""
    if file.suffix == ".json":
        file.write_text("{}")
        return
    other = next(entry for entry in sorted(file.parent.glob("rank_*")) if entry != file)
    shutil.copy(other, file)


_DAMAGES: dict[str, Callable[[Path, randoms.Random], None]] = {
    "a byte flipped": _flip_a_byte,
    "cut": _cut,
    "lengthened": _lengthen,
    "removed": _remove,
    "a folder instead": _folder,
    "a dangling link instead": _dangling,
    "a FIFO instead": _fifo,
    "zeros in it": _zeros,
    "another file's content": _other,
}


def _try_to_go_on(place: Place, good: Path, problems: list[str], name: str) -> Optional[str]:
    """--resume auto past a damaged step 12, or a refusal; returns its messages. It must name `name`, and load nothing
    that is damaged."""
    job = place.launch("--resume", "auto", settings={"run.steps": 14, "run.checkpoint_every": 4})
    code = job.wait(60)
    said = job.error() + job.output()
    if code is None:
        problems.append(f"it hangs:\n{job.last_words()}")
        job.kill_all()
        return None
    if code < 0 or code >= 128:
        problems.append(f"exit code {code}:\n{job.last_words()}")
    elif code == 0:
        problems += checkpoints.differences(place.run(), good, 14)
    if name not in said:
        problems.append(f"'{name}' is not named:\n{job.last_words()}")
    return said


def damage(context: Context) -> list[Result]:
    results = []
    with Place(context, "data2") as place:
        settings = {"run.checkpoint_every": 4, "run.steps": 12}
        job = place.launch(settings=settings)
        if job.wait(120) != 0:
            raise RuntimeError(f"the run to be damaged failed:\n{job.last_words()}")
        whole = place.path / "whole"
        shutil.copytree(place.run(), whole)
        unbroken = place.unbroken(14)

        flips = Result("one byte of one file of the newest checkpoint changed")
        others = Result("files cut, lengthened, removed, replaced, exchanged")
        for case in context.rounds(30):
            kinds = list(_DAMAGES)
            kind = kinds[0] if case % 2 == 0 else kinds[1 + case // 2 % (len(kinds) - 1)]
            result = flips if kind == kinds[0] else others
            shutil.rmtree(place.run())
            shutil.copytree(whole, place.run())
            file = context.random.choice(sorted(checkpoints.folder_of(place.run(), 12).iterdir()))
            _DAMAGES[kind](file, context.random)
            problems: list[str] = []
            _try_to_go_on(place, unbroken, problems, file.name)
            result.case(f"{file.name}: {kind}", problems + place.leavings())
        results += [flips, others]

        renamed = Result("a checkpoint's folder renamed to a later step")
        for case in context.rounds(2):
            shutil.rmtree(place.run())
            shutil.copytree(whole, place.run())
            step = context.random.choice([4, 8, 12])
            checkpoints.folder_of(place.run(), step).rename(checkpoints.folder_of(place.run(), 77))
            problems = []
            said = _try_to_go_on(place, unbroken, problems, "step_000077") or ""
            if "resumed from" in said and "step_000077 after" in said:
                problems.append(f"step_000077, which was step {step}, passes for the newest")
            renamed.case(f"step {step}", problems + place.leavings())
        results.append(renamed)
    return results
