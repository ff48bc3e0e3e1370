"""Outputs that nobody reads, that are closed, or full: no reason to stop, or to be deaf."""

from __future__ import annotations

import os
import signal
import time
from typing import Optional

import checkpoints
from job import Job, Pump, wait_for
from place import Context, Place
from result import Result


def keeps_training(place: Place, job: Job, steps: int, standstill: float = 15) -> Optional[str]:
    """None once `steps` more steps are done; what is wrong where no step is done for `standstill` seconds."""
    first = last = checkpoints.last_step(place.run())
    since = time.monotonic()
    while last < first + steps:
        time.sleep(0.05)
        now = checkpoints.last_step(place.run())
        if now != last:
            last, since = now, time.monotonic()
        elif job.process.poll() is not None:
            return f"the job ended with {job.process.poll()} after {last - first} steps:\n{job.last_words()}"
        elif time.monotonic() - since > standstill:
            return f"no step in {standstill:g} s, {last - first} steps after the output was blocked"
    return None


def blocked_output(context: Context) -> list[Result]:
    """A pipe that is not read any more, as after Ctrl-S or in `| less`."""
    result = Result("a blocked output: goes on, TERM saves (75)")
    for case in context.rounds(3):
        which = ("stdout", "stderr", "both")[case % 3]
        with Place(context, "data2") as place:
            output = Pump(place.path / "pumped.out")
            error = Pump(place.path / "pumped.err")
            job = place.launch(output=output, error=error, settings={"run.timeout_seconds": 10})
            place.trains(job, 0)
            for pump in [output] * (which != "stderr") + [error] * (which != "stdout"):
                pump.pause()
            # 64 KiB in a rank's pipe and 64 in the launcher's are some 1500 lines.
            wrong = keeps_training(place, job, 3000)
            problems = [wrong] if wrong else []
            begin = time.monotonic()
            job.signal(signal.SIGTERM)
            ended = wait_for(lambda: job.process.poll() is not None, 60, 0.02)
            result.time("TERM to end", time.monotonic() - begin)
            if not ended:
                problems.append("TERM is not heard")
            elif job.process.poll() != 75:
                problems.append(f"after TERM: exit code {job.process.poll()}")
            elif checkpoints.newest(place.run()) != checkpoints.last_step(place.run()):
                problems.append("TERM did not save")
            for pump in (output, error):
                pump.go_on()
            job.kill_all()
            result.case(which, problems + place.leavings())
    return [result]


def _closed_pipe() -> int:
    """The end to write to of a pipe that nobody reads from."""
    read, write = os.pipe()
    os.close(read)
    return write


def broken_output(context: Context) -> list[Result]:
    """stdout or stderr are closed, full, or a pipe without a reader: the run goes on to its end."""
    result = Result("stdout, stderr closed, full, without a reader")
    cases = [(stream, kind) for stream in ("stdout", "stderr", "both") for kind in ("closed", "full", "no reader")]
    with Place(context, "data2") as place:
        for case in context.rounds(2 * len(cases)):
            stream, kind = cases[case % len(cases)]
            killed = case // len(cases) % 2 == 1  # at the end of a failed run there is most to say
            name = f"b{case}"
            words = [str(context.program), "launch", "c.toml", "--set", f'run.name="{name}"']
            words += ["--set", f"run.steps={100000 if killed else 10}"]
            broken: Optional[int] = None
            if kind == "closed":
                closing = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[stream]
                words = ["sh", "-c", f'exec "$@" {closing}', "sh", *words]
            else:
                broken = os.open("/dev/full", os.O_WRONLY) if kind == "full" else _closed_pipe()
            descriptors = (broken if stream != "stderr" else None, broken if stream != "stdout" else None)
            job = place.start(words, descriptors=descriptors)
            if broken is not None:
                os.close(broken)
            expected = 0
            if killed:
                ranks = job.wait_for_ranks(2)
                place.trains(job, 0, name=name)
                if len(ranks) == 2:
                    os.kill(ranks[1], signal.SIGKILL)
                expected = 137
            code = job.wait(120)
            problems = [] if code == expected else [f"exit code {code}, expected {expected}:\n{job.last_words()}"]
            if not killed and checkpoints.newest(place.run(name)) != 10:
                problems.append("it was not trained to the end")
            if code is None:
                job.kill_all()
            result.case(f"{stream} {kind}{', a rank killed' if killed else ''}", problems + place.leavings())
    return [result]
