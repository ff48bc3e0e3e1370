"""Disks that are slow, that fail, that are full: by a library that stands before the calls, or by a small tmpfs."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess

import checkpoints
from job import wait_for
from place import SMALL, Context, Place
from result import Result

_REASONS = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}


def slow_disk(context: Context) -> list[Result]:
    """Saves, loads and removals that take longer than run.timeout_seconds are no stuck rank."""
    result = Result("saves, loads, removals slower than the timeout")
    if context.shim is None:
        result.skipped = "no shim"
        return [result]
    timeout, late = 2, 3000
    cases = {
        "every rank's save": f"op=fsync path=rank_ count=2 delay_ms={late}",
        "one rank's save": f"op=fsync path=rank_00001 delay_ms={late}",
        "the manifest": f"op=fsync path=manifest nth=1 count=2 delay_ms={late}",
        "the removal of an old checkpoint": f"op=unlink path=checkpoints nth=1 count=2 delay_ms={late}",
        "a load": f"op=open path=step_000004/rank_ count=2 delay_ms={late}",
        "a listing": f"op=opendir path=checkpoints count=1 delay_ms={late}",
    }
    chosen = list(cases) if context.minutes is None else itertools.cycle(cases)
    rounds = context.rounds(len(cases))
    with Place(context, "data4") as place:
        for case, name in zip(rounds, chosen):
            settings = {"run.timeout_seconds": timeout, "run.checkpoint_every": 4, "run.keep": 1, "run.steps": 4}
            problems = []
            shutil.rmtree(place.run(), ignore_errors=True)
            if name in ("a load", "a listing"):  # of the checkpoint of step 4
                place.launch("--resume", "auto", settings=settings).wait(120)
            job = place.launch("--resume", "auto", settings={**settings, "run.steps": 12}, shim=cases[name])
            code = job.wait(180)
            if code != 0:
                problems.append(f"exit code {code}:\n{job.last_words(16)}")
            else:
                if not place.run("unbroken").exists():
                    place.unbroken(12)
                problems = checkpoints.differences(place.run(), place.run("unbroken"), 12)
            result.case(name, problems + place.leavings())
    return [result]


def short_writes(context: Context) -> list[Result]:
    """Every write takes half of its bytes, which is legal."""
    result = Result("every write cut to half")
    if context.shim is None:
        result.skipped = "no shim"
        return [result]
    with Place(context, "data4") as place:
        shim = "op=write path=/runs/ short=1"
        code = place.launch(settings={"run.steps": 8, "run.checkpoint_every": 4}, shim=shim).wait(120)
        problems = [] if code == 0 else [f"exit code {code}"]
        result.case("4 ranks", problems or place.finish(10, shim=shim))
    return [result]


def failing_disk(context: Context) -> list[Result]:
    """The n-th call fails: the run goes on or says why not, and the last checkpoint is there either way."""
    result = Result("failing calls on checkpoints")
    if context.shim is None:
        result.skipped = "no shim"
        return [result]
    random = context.random
    operations = ["write", "fsync", "rename", "open", "mkdir", "unlink", "close"]
    settings = {"run.checkpoint_every": 2, "run.keep": 2}
    steps = 16
    with Place(context, "data2") as place:
        for case in context.rounds(2 * len(operations)):
            operation = operations[case % len(operations)]
            error = list(_REASONS)[case // len(operations) % 2]
            nth = random.randint(1, 12)
            shutil.rmtree(place.run(), ignore_errors=True)
            shim = f"op={operation} path=/checkpoints nth={nth} count={random.choice([1, 1000])} errno={error}"
            job = place.launch(settings={**settings, "run.steps": steps}, shim=shim)
            code = job.wait(120)
            before = checkpoints.newest(place.run())
            problems = []
            result.count("went on", int(code == 0))
            if code is None or code < 0 or code >= 128:
                problems.append(f"exit code {code}:\n{job.last_words()}")
            elif code != 0 and _REASONS[error] not in job.error():
                problems.append(f"the reason is not said:\n{job.last_words()}")
            elif code != 0 and operation == "unlink":
                problems.append(f"what cannot be removed ended the training:\n{job.last_words()}")
            log = checkpoints.log_size(place.run())
            again = place.launch("--resume", "auto", settings={**settings, "run.steps": steps + 2})
            if again.wait(120) != 0:
                problems.append(f"going on failed:\n{again.last_words()}")
            else:
                resumed = checkpoints.resumed_steps(place.run(), log)
                if before > 0 and resumed[-1:] != [before]:
                    problems.append(f"the checkpoint of step {before} was there, it went on from {resumed}")
                if not place.run("unbroken").exists():
                    place.unbroken(steps + 2)
                problems += checkpoints.differences(place.run(), place.run("unbroken"), steps + 2)
            result.case(shim, problems + place.leavings())
    return [result]


def small_disk(context: Context) -> list[Result]:
    """A file system of a few hundred kilobytes that runs full, and then gets room."""
    result = Result("a tmpfs that runs full")
    if os.geteuid() != 0:
        result.skipped = "only root may mount a tmpfs"
        return [result]
    settings = {"run.checkpoint_every": 2, "run.keep": 2, **SMALL}
    steps = 12
    for case in context.rounds(5):
        kilobytes = context.random.choice([64, 256, 512, 768, 1024, 1536, 2048, 3072])
        with Place(context, "data4") as place:
            mount = place.path / "runs"
            mount.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "orthant_soak", str(mount)]
            if subprocess.run(command, check=False, capture_output=True).returncode != 0:
                result.skipped = "this machine does not permit to mount a tmpfs"
                return [result]
            try:
                result.case(f"{kilobytes} KiB", _run_full(place, result, settings, steps))
            finally:
                wait_for(lambda: subprocess.run(["umount", str(mount)], check=False).returncode == 0, 10, 0.2)
    return [result]


def _run_full(place: Place, result: Result, settings: dict, steps: int) -> list[str]:
    job = place.launch(settings={**settings, "run.steps": steps})
    code = job.wait(120)
    problems = []
    before = checkpoints.newest(place.run())
    if code != 0:
        result.count("ran full")
        if code is None or code < 0 or code >= 128:
            problems.append(f"exit code {code}:\n{job.last_words()}")
        elif not any(word in job.error() for word in ("No space left on device", "disk full")):
            problems.append(f"the reason is not said:\n{job.last_words()}")
    subprocess.run(["mount", "-o", "remount,size=64m", str(place.path / "runs")], check=True)
    log = checkpoints.log_size(place.run())
    problems += place.finish(steps + 2, settings)
    resumed = checkpoints.resumed_steps(place.run(), log)
    if before > 0 and resumed[-1:] != [before]:
        problems.append(f"the checkpoint of step {before} was there, it went on from {resumed}")
    return problems + place.leavings()
