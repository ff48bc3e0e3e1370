"""Another job with the same run folder: refused with the holder's name, and the first one does not notice."""

from __future__ import annotations

import os
import signal

import checkpoints
from place import Context, Place
from result import Result


def refused(place: Place, holder: int, resume: bool, settings: dict, seconds: float = 60) -> list[str]:
    """Starts a second job of the run and returns what is wrong with how it ends."""
    words = ["--resume", "auto"] if resume else []
    second = place.launch(*words, settings=settings)
    code = second.wait(seconds)
    if code is None:
        second.kill_all()
        return ["the second job was not refused"]
    if code <= 0 or code >= 128:
        return [f"the second job: exit code {code}:\n{second.last_words()}"]
    if str(holder) not in second.error():
        return [f"the refusal does not name process {holder}:\n{second.last_words()}"]
    return []


def second_job(context: Context) -> list[Result]:
    result = Result("a second job in the run folder")
    steps = 400
    for case in context.rounds(4):
        with Place(context, "data2") as place:
            settings = {"run.checkpoint_every": 20, "run.steps": steps}
            job = place.launch(settings=settings)
            place.trains(job, 0)
            problems = refused(place, job.pid, case % 2 == 1, settings)
            code = job.wait(180)
            if code != 0:
                problems.append(f"the first one ended with {code}:\n{job.last_words()}")
            problems += checkpoints.differences(place.run(), place.unbroken(steps), steps)
            moved = [entry.name for entry in (place.path / "runs").iterdir() if entry.name not in ("r", "unbroken")]
            # A lock may lie beside the folder.
            problems += [f"runs/{name} appeared" for name in moved if name.startswith("r.") and name[2:].isdigit()]
            result.case("--resume auto" if case % 2 else "no --resume", problems + place.leavings())

    after = Result("the next job after kill -9 of the launcher")
    with Place(context, "data2") as place:
        settings = {"run.checkpoint_every": 5}
        for case in context.rounds(3):
            job = place.launch("--resume", "auto", settings=settings)
            place.trains(job, checkpoints.last_step(place.run()) + 10)
            os.kill(job.pid, signal.SIGKILL)
            again = place.launch("--resume", "auto", settings=settings)
            started = place.trains(again, checkpoints.last_step(place.run()))
            problems = [] if started else [f"it does not start:\n{again.last_words()}"]
            again.kill_all()
            job.kill_all()
            after.case(str(case), problems + place.leavings())
        after.case("the bits at the end", place.finish(checkpoints.newest(place.run()) + 5, settings))
    return [result, after]
