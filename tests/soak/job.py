"""The program under test as a child: its ranks, its words, its end. Nothing of it is linked or imported."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional, Sequence

MARK = "ORTHANT_SOAK"  # in the environment of a job and of all that it starts


def wait_for(condition: Callable[[], object], seconds: float, every: float = 0.005) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return bool(condition())
        time.sleep(every)
    return True


def _environment_of(pid: int) -> Optional[dict[str, str]]:
    """None where the process is gone, a zombie, or somebody else's."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry) or None


def marked_processes(mark: str) -> Iterator[tuple[int, dict[str, str]]]:
    """All that live and were started under a mark that begins so."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            environment = _environment_of(int(name))
            if environment and environment.get(MARK, "").startswith(mark):
                yield int(name), environment


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Pump:
    """A pipe whose reader can stop reading, as a terminal after Ctrl-S. What it reads goes to a file."""

    def __init__(self, file: Path) -> None:
        self._read, self.write_end = os.pipe()
        fcntl.fcntl(self._read, 1031, 4096)  # F_SETPIPE_SZ: little is swallowed while nobody reads
        self._flowing = threading.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._copy, args=(file,), daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def _copy(self, file: Path) -> None:
        with file.open("ab", buffering=0) as out:
            while True:
                self._flowing.wait()
                if not select.select([self._read], [], [], 0.1)[0] or not self._flowing.is_set():
                    continue
                data = os.read(self._read, 65536)
                if not data:
                    break
                out.write(data)
        os.close(self._read)

    def finish(self) -> None:
        """Once nobody has the other end any more: until the last byte is in the file."""
        self.go_on()
        self._thread.join(timeout=10)


class Job:
    """A started command. Its output goes to files, or through pumps."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        mark: str,
        environment: Mapping[str, str],
        output: Optional[Pump] = None,
        error: Optional[Pump] = None,
        descriptors: Optional[tuple[Optional[int], Optional[int]]] = None,
    ) -> None:
        self.mark = mark
        self.words = list(words)
        self.output_file = folder / f"{mark}.out"
        self.error_file = folder / f"{mark}.err"
        self._pumps = [pump for pump in (output, error) if pump is not None]
        opened = [self.output_file.open("ab"), self.error_file.open("ab")]
        out = output.write_end if output else opened[0].fileno()
        err = error.write_end if error else opened[1].fileno()
        if descriptors:
            out = out if descriptors[0] is None else descriptors[0]
            err = err if descriptors[1] is None else descriptors[1]
        self.process = subprocess.Popen(
            self.words,
            cwd=folder,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        for file in opened:
            file.close()
        for pump in self._pumps:
            os.close(pump.write_end)

    @property
    def pid(self) -> int:
        return self.process.pid

    def processes(self) -> dict[int, dict[str, str]]:
        return dict(marked_processes(self.mark))

    def ranks(self) -> dict[int, int]:
        """World rank to process, of the ranks that live."""
        found = {}
        for pid, environment in self.processes().items():
            rank = environment.get("ORTHANT_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if rank is not None and b"train" in words[1:2]:
                found[int(rank)] = pid
        return found

    def wait_for_ranks(self, number: int, seconds: float = 60) -> dict[int, int]:
        found: dict[int, int] = {}

        def all_there() -> bool:
            found.clear()
            found.update(self.ranks())
            return len(found) == number or self.process.poll() is not None

        wait_for(all_there, seconds, 0.02)
        return found

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> Optional[int]:
        """The exit code, -SIGNAL where one killed it, None where it has not ended."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        for pump in self._pumps:
            pump.finish()
        return code

    def kill_all(self) -> None:
        for _ in range(100):
            left = [pid for pid in self.processes() if pid != os.getpid()]
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        self.wait(10)

    def output(self) -> str:
        return self.output_file.read_text(errors="replace")

    def error(self, since: int = 0) -> str:
        return self.error_file.read_bytes()[since:].decode(errors="replace")

    def error_size(self) -> int:
        return self.error_file.stat().st_size

    def last_words(self, lines: int = 12) -> str:
        return "\n".join(f"      {line[:160]}" for line in self.error().splitlines()[-lines:])


def verdict(text: str) -> Optional[int]:
    """The rank with which the launcher's last words put the fault; None where they name none."""
    rank = None
    for line in text.splitlines():
        found = re.search(r"^launch: rank (\d+) failed(?: first)?:", line)
        found = found or re.search(r"^launch: the fault is with rank (\d+)", line)
        found = found or re.search(r"mpirun noticed that process rank (\d+) ", line)
        if found:
            rank = int(found.group(1))
    return rank
