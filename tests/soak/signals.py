"""Requests to stop: the step is finished and saved, the job ends with 75, and --resume auto goes on at that step."""

from __future__ import annotations

import os
import signal
import time

import checkpoints
from place import Context, Place
from result import Result

_STOPPED = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def stop_signals(context: Context) -> list[Result]:
    result = Result("TERM, INT, HUP, USR1 to the launcher: saved, 75, goes on")
    with Place(context, "data4") as place:
        for case in context.rounds(8):
            number = _SIGNALS[case % len(_SIGNALS)]
            log = checkpoints.log_size(place.run())
            before = checkpoints.newest(place.run())
            job = place.launch("--resume", "auto")
            place.trains(job, checkpoints.last_step(place.run()))
            time.sleep(context.random.uniform(0, 0.5))
            begin = time.monotonic()
            if case % 5 == 4:  # as a scheduler does that signals every process of a job
                for pid in job.processes():
                    _try_signal(pid, number)
            else:
                job.signal(number)
            code = job.wait(60)
            result.time("signal to end", time.monotonic() - begin)
            problems = place.leavings()
            if code != _STOPPED:
                problems.append(f"exit code {code}:\n{job.last_words()}")
            elif checkpoints.newest(place.run()) != checkpoints.last_step(place.run()):
                problems.append(
                    f"step {checkpoints.last_step(place.run())} was the last, saved is {checkpoints.newest(place.run())}"
                )
            resumed = checkpoints.resumed_steps(place.run(), log)
            if before > 0 and resumed != [before]:
                problems.append(f"step {before} was saved, it went on from {resumed}")
            result.case(number.name, problems)
        result.case("the bits at the end", place.finish(checkpoints.newest(place.run()) + 3))
    return [result]


def early_signals(context: Context) -> list[Result]:
    """While the ranks start. The launcher itself needs some milliseconds before it can listen: a signal that ends it
    before it said anything is right too. Until a rank runs the code is 75 where a checkpoint is there already."""
    result = Result("TERM, INT in the first 50 ms")
    with Place(context, "data2") as place:
        place.launch(settings={"run.name": '"later"', "run.steps": 5}).wait(60)
        for case in context.rounds(20):
            number = _SIGNALS[case % 2]
            resumed = case % 4 > 1
            name = "later" if resumed else f"e{case}"
            wait = context.random.uniform(0, 0.05)
            job = place.launch("--resume", "auto", settings={"run.name": f'"{name}"'})
            time.sleep(wait)
            job.signal(number)
            code = job.wait(60)
            problems = place.leavings()
            if code == -number and not job.error():
                result.count("before it listened")
            elif code == 128 + number and not resumed and "no rank is started" in job.error():
                result.count("before a rank ran, no checkpoint")
            elif code != _STOPPED:
                problems.append(f"{number.name} after {1000 * wait:.0f} ms: exit code {code}:\n{job.last_words()}")
            result.case(str(case), problems)
    return [result]


def signal_twice(context: Context) -> list[Result]:
    result = Result("INT twice: gone at once, 130")
    with Place(context, "data4") as place:
        for case in context.rounds(2):
            job = place.launch(settings={"run.name": f'"t{case}"'})
            ranks = list(job.wait_for_ranks(place.ranks).values())
            place.trains(job, 0, name=f"t{case}")
            for pid in ranks:  # none of them can obey the first one
                _try_signal(pid, signal.SIGSTOP)
            job.signal(signal.SIGINT)
            time.sleep(0.5)
            job.signal(signal.SIGINT)
            begin = time.monotonic()
            code = job.wait(30)
            result.time("second to end", time.monotonic() - begin)
            result.case(str(case), place.leavings() + ([] if code == 130 else [f"exit code {code}:\n{job.last_words()}"]))
    return [result]


def _try_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
