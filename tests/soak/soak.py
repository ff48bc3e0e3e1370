"""./runtests --soak: what happens to a run when everything around it fails, tried on the built program.

Prints a line of a table for each trial, then every case that went wrong. Exit code 1 where one did.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, NoReturn, Optional

import damage
import disk
import kills
import long_soak
import output
import second_job
import signals
import stops
import torture
from job import marked_processes
from place import Context
from result import HEAD, Result

TRIALS: dict[str, Callable[[Context], "list[Result]"]] = {
    "kill-rank": kills.kill_rank,
    "kill-64": kills.kill_one_of_64,
    "kill-launcher": kills.kill_launcher,
    "kill-mpi": kills.kill_mpi,
    "stop": stops.stop,
    "pause": stops.pause,
    "torture": torture.torture,
    "slow-disk": disk.slow_disk,
    "short-writes": disk.short_writes,
    "failing-disk": disk.failing_disk,
    "small-disk": disk.small_disk,
    "damage": damage.damage,
    "signals": signals.stop_signals,
    "early-signals": signals.early_signals,
    "signal-twice": signals.signal_twice,
    "blocked-output": output.blocked_output,
    "broken-output": output.broken_output,
    "second-job": second_job.second_job,
    "soak": long_soak.soak,
}

_ROOT = Path(__file__).resolve().parents[2]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./runtests --soak", description=__doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help="of: " + ", ".join(TRIALS) + " (default: all)")
    parser.add_argument("--minutes", type=float, help="each trial goes on so long, instead of its short form")
    parser.add_argument("--seed", type=int, help="of everything random; default: a new one, which is printed")
    parser.add_argument("--program", type=Path, default=_ROOT / "build" / "cpu" / "bin" / "orthant")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    arguments = parser.parse_args()
    for name in arguments.trials:
        if name not in TRIALS:
            parser.error(f"there is no trial '{name}'; there are {', '.join(TRIALS)}")
    if arguments.minutes is not None and not arguments.minutes > 0:
        parser.error("--minutes takes a number above 0")
    if not arguments.program.is_file():
        parser.error(f"{arguments.program} is not there; ./runtests --soak builds it")
    return arguments


def _build_shim(folder: Path) -> Optional[Path]:
    source = _ROOT / "tests" / "support" / "disk_shim.c"
    library = folder / "disk_shim.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"soak: no trials with failing disks, {compiler}: {getattr(error, 'stderr', '') or error}", file=sys.stderr)
        return None
    return library


def _why_no_mpi(program: Path) -> str:
    plugin = program.parents[1] / "lib" / "orthant" / "plugins" / "liborthant_communicator_mpi.so"
    if not plugin.exists():
        return "MPI was not found when this was configured"
    return "" if shutil.which("mpirun") else "mpirun is not installed"


def _run(arguments: argparse.Namespace, context: Context) -> list[str]:
    print(HEAD, flush=True)
    problems = []
    for number, name in enumerate(arguments.trials or TRIALS):
        # A trial by itself is dealt the same chances as among all of them.
        context.random = random.Random(f"{arguments.seed} {name}")
        begin = time.monotonic()
        results = TRIALS[name](context)
        for result in results:
            print(result.line(), flush=True)
            problems += result.problems
        print(f"soak: {name} took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if list(marked_processes(f"{os.getpid()}.")):
        problems.append("processes of the trials live on")
    return problems


def _interrupted(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)  # by way of every `with`


def main() -> int:
    arguments = _arguments()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1_000_000)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _interrupted)
    root = Path(tempfile.mkdtemp(prefix="orthant_soak_"))
    print(f"soak: seed {arguments.seed}, {arguments.program}, in {root}", file=sys.stderr)
    try:
        context = Context(
            program=arguments.program.resolve(),
            root=root,
            random=random.Random(),
            shim=_build_shim(root),
            mpi=_why_no_mpi(arguments.program.resolve()),
            minutes=arguments.minutes,
            keep=arguments.keep,
        )
        problems = _run(arguments, context)
    finally:
        if not arguments.keep:
            shutil.rmtree(root, ignore_errors=True)
    for problem in problems:
        print(f"WRONG  {problem}")
    print(f"soak: {len(problems)} wrong (seed {arguments.seed})" if problems else "soak: all right", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
