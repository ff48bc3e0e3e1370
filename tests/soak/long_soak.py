"""The soak: one run on 8 ranks, a random fault after the other, and at the end the bits of an unbroken run."""

from __future__ import annotations

import signal
import time

import checkpoints
import faults
from place import Context, Place
from result import Result

_FAULTS_A_MINUTE = 3
_SHORT = 8  # each kind once


def _order(context: Context, number: int) -> list[str]:
    """All kinds equally often, in an order that nobody chose."""
    order: list[str] = []
    while len(order) < number:
        kinds = list(faults.ALL)
        context.random.shuffle(kinds)
        order += kinds
    return order[:number]


def soak(context: Context) -> list[Result]:
    minutes = context.minutes
    number = _SHORT if minutes is None else max(1, round(minutes * _FAULTS_A_MINUTE))
    whole = Result(f"soak: {number} random faults, data 4, tensor 2, expert 2")
    if context.shim is None:
        whole.skipped = "no shim"
        return [whole]
    results = {kind: Result(f"soak: {kind}") for kind in faults.ALL}
    settings = {"run.checkpoint_every": 5, "run.timeout_seconds": faults.TIMEOUT}
    with Place(context, "axes8") as place:
        begin = time.monotonic()
        requeue = faults.Requeue(place, settings, faults.rules(place))
        requeue.trains(10)
        floor = 0  # the newest checkpoint that was ever complete
        for case, kind in enumerate(_order(context, number)):
            if minutes is not None:  # at a random time of its share of the minutes
                share = 60 * minutes / number
                time.sleep(max(0.0, begin + share * case + context.random.uniform(0, 0.3 * share) - time.monotonic()))
            else:
                time.sleep(context.random.uniform(0, 1))
            last, log = checkpoints.last_step(requeue.run), checkpoints.log_size(requeue.run)
            floor = max(floor, checkpoints.newest(requeue.run))
            problems = faults.ALL[kind](requeue, results[kind])
            last = max(last, checkpoints.last_step(requeue.run))
            undone = time.monotonic()
            if not requeue.trains(last):
                problems.append(f"no new step in two minutes:\n{requeue.job.last_words(20)}")
            results[kind].time("undone to new step", time.monotonic() - undone)
            resumed = checkpoints.resumed_steps(requeue.run, log)
            if any(step < floor for step in resumed) or checkpoints.newest(requeue.run) < floor:
                problems.append(f"A COMMITTED STEP WAS LOST: {floor} was complete, it went on from {resumed}")
            if resumed:
                whole.count("steps done twice", max(0, last - resumed[-1]))
            results[kind].case(f"fault {case} at {undone - begin:.0f} s", problems)
        whole.count("seconds", round(time.monotonic() - begin))
        whole.count("starts of the launcher", requeue.starts)
        whole.case("the end", _end(place, requeue, whole, settings))
    return [*results.values(), whole]


def _end(place: Place, requeue: faults.Requeue, whole: Result, settings: dict) -> list[str]:
    problems = []
    requeue.job.signal(signal.SIGTERM)
    code = requeue.job.wait(120)
    if code != 75:
        problems.append(f"TERM at the end: exit code {code}:\n{requeue.job.last_words()}")
        requeue.job.kill_all()
    last = checkpoints.newest(place.run()) + 10
    whole.count("steps", last)
    begin = time.monotonic()
    # Nobody waits for a stopped rank here, and the machine may be busy.
    problems += place.finish(last, {**settings, "run.timeout_seconds": 60}, seconds=120)
    whole.count("seconds of the unbroken run", round(time.monotonic() - begin))
    return problems + place.leavings()
