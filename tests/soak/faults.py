"""The faults of the long soak: each is done to a job in training, watched, and undone. What is wrong is returned."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Callable

import checkpoints
from job import Job, Pump, verdict, wait_for
from place import Place
from result import Result
from second_job import refused

TIMEOUT = 5  # run.timeout_seconds of the soak
_BOUND = 60  # seconds for what takes a few on a quiet machine


class Requeue:
    """The job, and what a scheduler's requeue loop does for it: it is started again, always with --resume auto."""

    def __init__(self, place: Place, settings: dict, rules: str) -> None:
        self.place = place
        self.settings = settings
        self.rules = rules
        self.starts = 0
        self.output = self.error = None  # type: ignore[assignment]
        self.job: Job = None  # type: ignore[assignment]
        self.start()

    @property
    def run(self) -> Path:
        return self.place.run()

    def start(self) -> None:
        self.starts += 1
        self.output = Pump(self.place.path / f"requeue{self.starts}.out")
        self.error = Pump(self.place.path / f"requeue{self.starts}.err")
        words = ("--resume", "auto", "--max-restarts", "3")
        settings = self.settings
        self.job = self.place.launch(*words, settings=settings, shim=self.rules, output=self.output, error=self.error)
        self.job.error_file = self.place.path / f"requeue{self.starts}.err"

    def trains(self, beyond: int, seconds: float = 2 * _BOUND) -> bool:
        """Waits for a step after `beyond`, and starts the job again where it has ended."""
        end = time.monotonic() + seconds
        while checkpoints.last_step(self.run) <= beyond:
            if self.job.process.poll() is not None:
                self.job.wait(10)
                self.start()
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def kill_launcher(self) -> list[str]:
        self.job.signal(signal.SIGKILL)
        if not wait_for(lambda: not self.job.processes(), _BOUND, 0.01):
            return [f"ranks outlive their launcher by {_BOUND} s"]
        return []


Fault = Callable[[Requeue, Result], "list[str]"]


def _wait_for_verdict(requeue: Requeue, rank: int, since: int, result: Result, what: str) -> list[str]:
    begin = time.monotonic()

    def over() -> bool:
        concluded = re.search(r"^launch: .*(restart|checkpoint)", requeue.job.error(since), re.MULTILINE)
        return bool(concluded) or requeue.job.process.poll() is not None

    if not wait_for(over, TIMEOUT + _BOUND, 0.005):
        return [f"rank {rank} was {what}, no verdict in {TIMEOUT + _BOUND} s:\n{requeue.job.last_words()}"]
    result.time("verdict", time.monotonic() - begin)
    time.sleep(0.2)  # the pump
    named = verdict(requeue.job.error(since))
    if named != rank:
        return [f"WRONG NAME: rank {rank} was {what}, the verdict names {named}:\n{requeue.job.last_words(30)}"]
    return []


def _signal_a_rank(requeue: Requeue, number: int, result: Result, what: str) -> list[str]:
    ranks = requeue.job.ranks()
    if not ranks:
        return ["no rank is there: the job ended by itself"]
    rank = requeue.place.context.random.choice(sorted(ranks))
    since = requeue.job.error_size()
    os.kill(ranks[rank], number)
    return _wait_for_verdict(requeue, rank, since, result, what)


def kill_rank(requeue: Requeue, result: Result) -> list[str]:
    return _signal_a_rank(requeue, signal.SIGKILL, result, "killed")


def kill_launcher(requeue: Requeue, result: Result) -> list[str]:
    begin = time.monotonic()
    problems = requeue.kill_launcher()
    result.time("all gone", time.monotonic() - begin)
    return problems


def stop_rank(requeue: Requeue, result: Result) -> list[str]:
    return _signal_a_rank(requeue, signal.SIGSTOP, result, "stopped")


def slow_disk(requeue: Requeue, result: Result) -> list[str]:
    """Every fsync takes nearly as long as the timeout, a save several times as long, until a whole one is done so."""
    job, since, before = requeue.job, requeue.job.error_size(), checkpoints.newest(requeue.run)
    begin = time.monotonic()
    flag = requeue.place.path / "slow"
    flag.touch()
    try:
        # The first may have begun before.
        two = before + 2 * requeue.settings["run.checkpoint_every"]
        saved = wait_for(lambda: checkpoints.newest(requeue.run) >= two or job.process.poll() is not None, 120, 0.05)
        time.sleep(1)  # the folders around it are still being synced
    finally:
        flag.unlink()
    result.time("two saves", time.monotonic() - begin)
    said = job.error(since)
    if verdict(said) is not None or "restart" in said or job.process.poll() is not None:
        return [f"a slow disk ended the ranks:\n{job.last_words(20)}"]
    return [] if saved else ["no two saves in two minutes"]


def full_disk(requeue: Requeue, result: Result) -> list[str]:
    """No byte more can be written into the run folder, until somebody complains or some seconds are over."""
    job, since = requeue.job, requeue.job.error_size()
    flag = requeue.place.path / "full"
    flag.touch()
    try:
        said = wait_for(lambda: "No space left" in job.error(since) or job.process.poll() is not None, 20, 0.05)
        time.sleep(1)
    finally:
        flag.unlink()
    result.count("said so", int(said))
    time.sleep(0.2)
    code = job.process.poll()
    if code is not None and (code < 0 or code >= 128):
        return [f"exit code {code}:\n{job.last_words(20)}"]
    if code is not None and "No space left" not in job.error(since):
        return [f"it ended with {code} and does not say why:\n{job.last_words(20)}"]
    return []


def unreadable_checkpoint(requeue: Requeue, result: Result) -> list[str]:
    """The job is requeued while no checkpoint can be read: it must refuse, and leave all as it is."""
    random = requeue.place.context.random
    problems = []
    if random.random() < 0.5:
        problems = requeue.kill_launcher()
    else:
        requeue.job.signal(signal.SIGTERM)
        code = requeue.job.wait(_BOUND)
        if code != 75:
            problems.append(f"TERM: exit code {code}:\n{requeue.job.last_words()}")
            problems += requeue.kill_launcher()
    before = (checkpoints.committed(requeue.run), checkpoints.last_step(requeue.run))
    how = random.choice(["reads fail", "cannot be listed", "no manifest"])
    manifests = [checkpoints.folder_of(requeue.run, step) / "manifest.json" for step in before[0]]
    flag = requeue.place.path / ("unlistable" if how == "cannot be listed" else "unreadable")
    if how == "no manifest":
        for file in manifests:
            file.rename(file.with_name("aside"))
            file.mkdir()
    else:
        flag.touch()
    try:
        requeue.start()
        code = requeue.job.wait(_BOUND)
        if code is None:
            problems.append(f"{how}: it does not refuse:\n{requeue.job.last_words()}")
            problems += requeue.kill_launcher()
        elif code <= 0 or code >= 128:
            problems.append(f"{how}: exit code {code}, expected a refusal:\n{requeue.job.last_words()}")
    finally:
        if how == "no manifest":
            for file in manifests:
                if file.is_dir():
                    file.rmdir()
                    file.with_name("aside").rename(file)
        else:
            flag.unlink()
    after = (checkpoints.committed(requeue.run), checkpoints.last_step(requeue.run))
    if after != before:
        problems.append(f"{how}: checkpoints and last step were {before}, after the refusal {after}")
    result.count(how)
    return problems


def blocked_output(requeue: Requeue, result: Result) -> list[str]:
    """Nobody reads what it says for some seconds; half of the times it is asked to stop meanwhile."""
    random = requeue.place.context.random
    job = requeue.job
    requeue.output.pause()
    requeue.error.pause()
    problems = []
    try:
        first = checkpoints.last_step(requeue.run)
        time.sleep(random.uniform(5, 10))
        if checkpoints.last_step(requeue.run) <= first:
            problems.append("it does not go on while its output is blocked")
        if random.random() < 0.5:
            result.count("asked to stop")
            begin = time.monotonic()
            job.signal(signal.SIGTERM)
            if not wait_for(lambda: job.process.poll() is not None, _BOUND, 0.02):
                problems.append(f"TERM is not heard for {_BOUND} s while the output is blocked")
                problems += requeue.kill_launcher()
            elif job.process.poll() != 75:
                problems.append(f"TERM: exit code {job.process.poll()}")
            else:
                result.time("TERM to end", time.monotonic() - begin)
    finally:
        requeue.output.go_on()
        requeue.error.go_on()
    return problems


def second_job(requeue: Requeue, result: Result) -> list[str]:
    resume = requeue.place.context.random.random() < 0.5
    result.count("with --resume auto", int(resume))
    problems = refused(requeue.place, requeue.job.pid, resume, requeue.settings, _BOUND)
    if requeue.job.process.poll() is not None:
        problems.append(f"the first job ended with {requeue.job.process.poll()}:\n{requeue.job.last_words(20)}")
    return problems


ALL: dict[str, Fault] = {
    "kill -9 of a rank": kill_rank,
    "kill -9 of the launcher": kill_launcher,
    "SIGSTOP of a rank": stop_rank,
    "slow disk": slow_disk,
    "full disk": full_disk,
    "unreadable checkpoints": unreadable_checkpoint,
    "blocked output": blocked_output,
    "second job": second_job,
}


def rules(place: Place) -> str:
    """Of the shim: faults that begin when a file appears, and end when it goes."""
    folder = place.path
    return "; ".join(
        (
            f"op=fsync path=/checkpoints/ while={folder}/slow delay_ms={800 * TIMEOUT}",
            f"op=write path=/runs/ while={folder}/full errno=ENOSPC",
            f"op=open,read,mmap path=/checkpoints/step_ while={folder}/unreadable errno=EIO",
            f"op=opendir,open path=/checkpoints while={folder}/unlistable errno=EIO",
        )
    )
