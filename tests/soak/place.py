"""Where a trial works: a temporary folder, experiments in it, and a look at what its jobs left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

import checkpoints
from job import Job, Pump, marked_processes, wait_for

# Whoever starts the trials may itself be a rank of something.
_NOT_INHERITED = ("ORTHANT_", "OMPI_", "PMIX_", "SLURM_", "MASTER_", "LD_PRELOAD")
_NOT_INHERITED_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

# Layouts, as tables in the order of the axes.
LAYOUTS = {
    "data2": "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n",
    "data4": "[plugins.data]\nsize = 4\nzero = 1\n[plugins.expert]\nsize = 2\n",
    "data8": "[plugins.data]\nsize = 8\n[plugins.expert]\nsize = 2\n",
    "axes8": "[plugins.data]\nsize = 4\nzero = 1\n[plugins.tensor]\nsize = 2\n[plugins.expert]\nsize = 2\n",
    "data64": "[plugins.data]\nsize = 64\n[plugins.expert]\nsize = 2\n",
    "stages8": "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\n[plugins.tensor]\nsize = 2\n"
    "[plugins.expert]\nsize = 2\n",
}
RANKS = {"data2": 2, "data4": 4, "data8": 8, "axes8": 8, "stages8": 8, "data64": 64}

# A constant learning rate: a run of N steps is the beginning of every longer one.
_TINY = """[run]
name = "r"
directory = "runs"
steps = 1000000
log_every = 1
keep = 3
timeout_seconds = 60
[data]
source = "text"
path = ["text.txt"]
sequence_length = 16
[batch]
sequences = 8
[model]
layers = 2
d_model = 16
heads = 2
dropout = 0.1
[moe]
experts = 4
top_k = 2
router = "gshard"
capacity_factor = 1.25
[optimizer]
schedule = "constant"
"""

# The tiny model's shape elsewhere: 60 thousand parameters, a checkpoint of about 800 kB.
SMALL = {"model.d_model": 32, "moe.experts": 8, "model.d_ff": 64}


@dataclass
class Context:
    """What all trials share."""

    program: Path
    root: Path  # the temporary folder of them all
    random: random.Random
    shim: Optional[Path] = None  # the library that makes calls on files slow or fail
    mpi: str = ""  # why there is no MPI
    keep: bool = False  # folders stay, to be looked at
    minutes: Optional[float] = None  # how long a trial goes on; None: its short form

    def rounds(self, short: int) -> Iterator[int]:
        """Numbers of cases: `short` of them, or until the minutes are over."""
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        number = 0
        while time.monotonic() < end if end is not None else number < short:
            yield number
            number += 1


class Place:
    """REQUIRES: used by `with`; at the end every process of its jobs is killed and the folder removed."""

    _made = 0

    def __init__(self, context: Context, layout: str = "data2") -> None:
        Place._made += 1
        self.context = context
        self.mark = f"{os.getpid()}.{Place._made}."
        self.path = context.root / f"place{Place._made}"
        self.temporary = self.path / "tmp"  # TMPDIR of the jobs
        self.temporary.mkdir(parents=True)
        self.ranks = RANKS[layout]
        self._jobs: list[Job] = []
        lines = (f"line {i} says {i * i % 17} and {'stops' if i % 5 == 0 else 'goes on'}\n" for i in range(60))
        (self.path / "text.txt").write_text("".join(lines))
        (self.path / "c.toml").write_text(_TINY + LAYOUTS[layout])

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            job.kill_all()
        if not self.context.keep:
            shutil.rmtree(self.path, ignore_errors=True)

    def run(self, name: str = "r") -> Path:
        return self.path / "runs" / name

    def environment(self, shim: str = "") -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_NOT_INHERITED) and name not in _NOT_INHERITED_NAMES
        }
        kept["TMPDIR"] = str(self.temporary)
        kept["OMPI_MCA_btl_vader_backing_directory"] = str(self.temporary)  # else it stays in /dev/shm after a kill
        if shim:
            kept["LD_PRELOAD"] = str(self.context.shim)
            kept["ORTHANT_SHIM"] = shim
        return kept

    def start(
        self,
        words: list[str],
        shim: str = "",
        output: Optional[Pump] = None,
        error: Optional[Pump] = None,
        descriptors: Optional[tuple[Optional[int], Optional[int]]] = None,
    ) -> Job:
        mark = f"{self.mark}{len(self._jobs)}"
        job = Job(words, self.path, mark, self.environment(shim), output, error, descriptors)
        self._jobs.append(job)
        return job

    def launch(self, *words: str, config: str = "c.toml", settings: Optional[dict] = None, **others: object) -> Job:
        """Starts `orthant launch`. settings: run.steps and the like, to their values."""
        command = [str(self.context.program), "launch", config, *words]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        return self.start(command, **others)  # type: ignore[arg-type]

    def unbroken(self, step: int, settings: Optional[dict] = None, seconds: float = 3600) -> Path:
        """The same experiment without any trouble, in a folder of its own, to the end of `step`."""
        mine = {**(settings or {}), "run.name": '"unbroken"', "run.steps": step, "run.checkpoint_every": 0}
        job = self.launch(settings=mine)
        if job.wait(seconds) != 0:
            raise RuntimeError(f"the unbroken run failed:\n{job.last_words()}")
        return self.run("unbroken")

    def finish(self, step: int, settings: Optional[dict] = None, seconds: float = 300, shim: str = "") -> list[str]:
        """Goes on to the end of `step` and compares with an unbroken run. Returns what is wrong."""
        mine = {**(settings or {}), "run.steps": step}
        job = self.launch("--resume", "auto", settings=mine, shim=shim)
        code = job.wait(seconds)
        if code != 0:
            return [f"--resume auto to step {step} ended with {code}:\n{job.last_words()}"]
        return checkpoints.differences(self.run(), self.unbroken(step, settings), step)

    def trains(self, job: Job, beyond: int, seconds: float = 60, name: str = "r") -> bool:
        """Waits for a step after `beyond`; False where the job ends or the time is over."""
        run = self.run(name)
        wait_for(lambda: checkpoints.last_step(run) > beyond or job.process.poll() is not None, seconds, 0.01)
        return checkpoints.last_step(run) > beyond

    def leavings(self, seconds: float = 5) -> list[str]:
        """What jobs that are over left behind, other than their run folders. Memory of a memfd lives with a process."""
        found = []
        if not wait_for(lambda: not list(marked_processes(self.mark)), seconds, 0.02):
            left = [pid for pid, _ in marked_processes(self.mark)]
            found.append(f"processes {left} live on")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        found += [f"{entry} is left" for entry in Path("/dev/shm").glob("*orthant*")]
        if not self.context.mpi:
            ignored = ("ompi.", "pmix", "vader_segment", "prun.", "openmpi")  # Open MPI's own, after a kill
        else:
            ignored = ()
        found += [f"{entry} is left" for entry in self.temporary.iterdir() if not entry.name.startswith(ignored)]
        return found
