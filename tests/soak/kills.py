"""kill -9: of a rank, of the launcher, of mpirun and of its ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from job import is_alive, verdict, wait_for
from place import RANKS, Context, Place
from result import Result

_QUICKSTART = str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml")
_KILLED = 128 + signal.SIGKILL


def _kill_one(place: Place, result: Result, case: int, config: str, settings: dict, latest: float, whom: str) -> None:
    """Starts a run, and kills a rank ("rank"), the launcher ("launcher") or mpirun, which took its place."""
    random = place.context.random
    job = place.launch(config=config, settings=settings)
    ranks = job.wait_for_ranks(place.ranks)
    if len(ranks) != place.ranks:
        result.case(str(case), [f"{len(ranks)} ranks started ({job.process.poll()}):\n{job.last_words()}"])
        job.kill_all()
        return
    wait = random.uniform(0, latest)
    time.sleep(wait)
    victim = random.randrange(place.ranks)
    others = [pid for rank, pid in ranks.items() if rank != victim or whom != "rank"]
    begin = time.monotonic()
    os.kill(ranks[victim] if whom == "rank" else job.pid, signal.SIGKILL)
    problems = []
    if wait_for(lambda: not any(is_alive(pid) for pid in others), 30, 0.002):
        result.time("others gone", time.monotonic() - begin)
    else:
        problems.append("ranks live on 30 s later")
    code = job.wait(30)
    if whom == "rank":
        result.time("job ended", time.monotonic() - begin)
        if code != _KILLED:
            problems.append(f"exit code {code}, expected {_KILLED}")
        named = verdict(job.error())
        if named != victim:
            problems.append(f"rank {victim} was killed after {wait:.2f} s, the verdict names {named}")
    problems += place.leavings()
    if problems:
        problems[-1] += "\n" + job.last_words()
    result.case(str(case), problems)


def kill_rank(context: Context) -> list[Result]:
    result = Result("kill -9 of a random rank, quickstart on 8 ranks")
    with Place(context, "data8") as place:
        settings = {
            "plugins.data.size": 8,
            "run.directory": f'"{place.path / "runs"}"',
            "run.name": '"r"',
            "run.steps": 100000,
            "run.checkpoint_every": 20,
        }
        for case in context.rounds(10):
            _kill_one(place, result, case, _QUICKSTART, settings, 4 if context.minutes is None else 10, "rank")
    return [result]


def kill_one_of_64(context: Context) -> list[Result]:
    result = Result("kill -9 of a random rank of 64")
    with Place(context, "data64") as place:
        for case in context.rounds(3):
            _kill_one(place, result, case, "c.toml", {"batch.sequences": 64}, 5, "rank")
    return [result]


def kill_launcher(context: Context) -> list[Result]:
    result = Result("kill -9 of the launcher, 8 ranks")
    with Place(context, "data8") as place:
        for case in context.rounds(8):
            _kill_one(place, result, case, "c.toml", {"run.checkpoint_every": 20}, 2, "launcher")
    return [result]


def kill_mpi(context: Context) -> list[Result]:
    rank, mpirun = Result("kill -9 of a rank over MPI, 4 ranks"), Result("kill -9 of mpirun, 4 ranks")
    if context.mpi:
        rank.skipped = mpirun.skipped = context.mpi
        return [rank, mpirun]
    settings = {"run.communicator": '"mpi"', "run.checkpoint_every": 20}
    assert RANKS["data4"] == 4
    with Place(context, "data4") as place:
        for case in context.rounds(4):
            whom, result = ("rank", rank) if case % 2 == 0 else ("mpirun", mpirun)
            _kill_one(place, result, case, "c.toml", settings, 3, whom)
    return [rank, mpirun]
