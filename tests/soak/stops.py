"""SIGSTOP of a rank: after the timeout the others end, and the launcher names the one that was stopped."""

from __future__ import annotations

import os
import signal
import time

import checkpoints
from job import verdict
from place import Context, Place
from result import Result

_TIMEOUT = 3  # seconds; enough for a loaded machine


def _stop_one(place: Place, result: Result, case: int) -> None:
    random = place.context.random
    job = place.launch(settings={"run.timeout_seconds": _TIMEOUT, "run.checkpoint_every": 50})
    ranks = job.wait_for_ranks(place.ranks)
    problems = []
    if len(ranks) != place.ranks or not place.trains(job, 0):
        result.case(str(case), [f"it did not start:\n{job.last_words()}"])
        job.kill_all()
        return
    time.sleep(random.uniform(0, 1))
    victim = random.randrange(place.ranks)
    begin = time.monotonic()
    os.kill(ranks[victim], signal.SIGSTOP)
    code = job.wait(_TIMEOUT + 60)
    seconds = time.monotonic() - begin
    if code is None:
        problems.append(f"the job goes on a minute after the timeout of {_TIMEOUT} s")
        job.kill_all()
    else:
        result.time("job over", seconds)
    if code == 0:
        problems.append("exit code 0")
    named = verdict(job.error())
    if named != victim:
        problems.append(f"rank {victim} was stopped, the verdict names {named}")
    problems += place.leavings()
    if problems:
        said = [line for line in job.error().splitlines() if "did not" in line or line.startswith("launch: ")]
        problems[-1] += "".join(f"\n      {line[:160]}" for line in said[:4] + said[-6:])
    result.case(str(case), problems)


def stop(context: Context) -> list[Result]:
    results = []
    for layout, words in (("data8", "data 8"), ("axes8", "data 4, tensor 2"), ("stages8", "pipeline, data, tensor 2")):
        result = Result(f"SIGSTOP of a random rank, {words}, timeout {_TIMEOUT} s")
        with Place(context, layout) as place:
            for case in context.rounds(6):
                _stop_one(place, result, case)
        results.append(result)
    return results


def pause(context: Context) -> list[Result]:
    """A rank that stands still for less than the timeout: nothing but time is lost."""
    result = Result("a rank stopped for 2 s, timeout 20 s")
    with Place(context, "axes8") as place:
        for case in context.rounds(2):
            name = f"r{case}"
            job = place.launch(settings={"run.timeout_seconds": 20, "run.name": f'"{name}"', "run.steps": 1000})
            ranks = job.wait_for_ranks(place.ranks)
            place.trains(job, 0, name=name)
            victim = ranks.get(context.random.randrange(place.ranks), job.pid)
            os.kill(victim, signal.SIGSTOP)
            time.sleep(2)
            os.kill(victim, signal.SIGCONT)
            code = job.wait(300)
            problems = [] if code == 0 else [f"exit code {code}:\n{job.last_words()}"]
            if not problems:
                if case == 0:
                    place.unbroken(1000)
                problems = checkpoints.differences(place.run(name), place.run("unbroken"), 1000)
            result.case(str(case), problems + place.leavings())
    return [result]
