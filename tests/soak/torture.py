"""kill -9 of launcher and ranks at random times, a checkpoint every step: no committed step is lost, no bit changes."""

from __future__ import annotations

import os
import re
import signal
import time

import checkpoints
from place import SMALL, Context, Place
from result import Result


def _torture(context: Context, title: str, short: int, shim: str) -> Result:
    result = Result(title)
    settings = {"run.checkpoint_every": 1, **SMALL}
    with Place(context, "data4") as place:
        floor = 0  # the newest checkpoint that was ever seen complete
        for case in context.rounds(short):
            log = checkpoints.log_size(place.run())
            job = place.launch("--resume", "auto", settings=settings, shim=shim)
            # From the start on, but mostly once it trains: else a loaded machine would do nothing but start.
            if context.random.random() < 0.8:
                place.trains(job, checkpoints.last_step(place.run()), 60)
            time.sleep(context.random.uniform(0, 1))
            victims = list(job.processes())
            context.random.shuffle(victims)
            seen = checkpoints.newest(place.run())
            early = job.process.poll()
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            job.kill_all()
            problems = place.leavings()
            if early is not None:
                problems.append(f"it had ended by itself with {early}:\n{job.last_words()}")
            resumed = checkpoints.resumed_steps(place.run(), log)
            if resumed and resumed[-1] < floor:
                problems.append(f"went on from step {resumed[-1]}, the checkpoint of step {floor} had been complete")
            if floor > 0 and "starting at step 1" in checkpoints.log_of_rank_0(place.run(), log):
                problems.append(f"started at step 1, the checkpoint of step {floor} had been complete")
            passed_over = re.findall(r"passed over: (.*)", job.error())
            problems += [f"damaged: {line}" for line in passed_over if "unfinished save" not in line]
            if seen < floor:
                problems.append(f"the newest checkpoint is of step {seen}, that of step {floor} had been complete")
            floor = max(floor, seen)
            leavings = list((place.run() / "checkpoints").glob("*.tmp"))
            result.count("kills inside a save", int(bool(leavings)))
            result.case(str(case), problems)
        last = max(floor, checkpoints.newest(place.run())) + 3
        result.case("the bits at the end", place.finish(last, settings))
        result.count("steps", last)
    return result


def torture(context: Context) -> list[Result]:
    title = "kill -9 of launcher and ranks, a checkpoint every step"
    results = [_torture(context, title, 12, "")]
    slow = Result(f"{title}, calls on it 15 ms slower")
    if context.shim is None:
        slow.skipped = "no shim"
    else:
        slow = _torture(context, slow.trial, 8, "op=write,fsync,rename,unlink path=/checkpoints/ delay_ms=15")
    return [*results, slow]
