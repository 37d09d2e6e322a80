"""The journal of a run: a local file that has every metric before the tracking server does."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from multicse.data.errors import command

log = logging.getLogger(__name__)


@dataclass
class Sent:
    """How far a journal was sent: bytes of the file, and the last step of every metric that the server has."""

    offset: int = 0
    last: dict[str, int] = field(default_factory=dict)


class Journal:
    """A file of JSON lines: a header (run id, URI, start), then metrics and, after training, what is left to be done.

    ``{"step": 10, "time": 1763700000000, "metrics": {"train/text": 0.5}}`` with time in ms since 1970; lines of the
    machine's load have ``"second"`` (since the run's start) in place of ``"step"``; ``{"do": "artifacts", ...}`` is an
    upload or the like that failed. What was sent is remembered beside it in ``JOURNAL.sent``, which a copy lacks.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.sent_path = Path(f"{path}.sent")

    def lock(self, timeout: float = -1) -> FileLock:
        """One process sends or renames at a time."""
        return FileLock(f"{self.path}.lock", timeout=timeout)

    def header(self) -> dict[str, Any] | None:
        """``run_id``, ``uri``, ``began`` (seconds since 1970); none for a file that is absent or no journal."""
        with contextlib.suppress(OSError, ValueError), open(self.path, "rb") as file:
            first = json.loads(file.readline())
            if isinstance(first, dict) and {"run_id", "uri", "began"} <= set(first):
                return first
        return None

    def create(self, run_id: str, uri: str) -> None:
        """Write the header if the file is not there, else end a line that a killed process left unfinished."""
        if self.path.exists():
            with open(self.path, "rb+") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, {"run_id": run_id, "uri": uri, "began": time.time()})

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        with open(self.path, "ab") as file:
            file.write(line_of(line))

    def lines(self, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every whole line from byte `start` but the header, with the byte behind it."""
        with open(self.path, "rb") as file:
            file.seek(start)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                start += len(raw)
                with contextlib.suppress(ValueError):  # what a killed process left unfinished
                    line = json.loads(raw)
                    if "run_id" not in line:
                        yield start, line

    def sent(self) -> Sent | None:
        """How far it was sent; none where nobody remembers: nothing was, or the journal is a copy."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            sent = Sent(**json.loads(self.sent_path.read_text()))
            if sent.offset <= self.path.stat().st_size:
                return sent
        return None

    def remember(self, sent: Sent) -> None:
        """Replace the record of what was sent."""
        _replace(self.sent_path, asdict(sent))

    def waiting(self) -> int:
        """Lines that were not sent yet."""
        return sum(1 for _ in self.lines((self.sent() or Sent()).offset)) if self.path.exists() else 0

    def set_aside(self) -> None:
        """Make room for another run: a journal that was sent is removed, any other one renamed after its run."""
        header = self.header()
        with self.lock():
            if header and not self.waiting():
                self.path.unlink()
                self.sent_path.unlink(missing_ok=True)
                return
            other = self.path.with_name(f"{self.path.stem}-{header['run_id'] if header else 'unknown'}{self.path.suffix}")
            os.replace(self.path, other)
            if self.sent_path.exists():
                os.replace(self.sent_path, f"{other}.sent")
        log.warning("metrics of an earlier run were never sent; they are now in %s: %s", other, sync_command(other))


def news(line: Mapping[str, Any], last: dict[str, int]) -> tuple[int, dict[str, float]]:
    """Step (or second) of a line, and those of its metrics that `last`, the newest step of each, has no step so late of.

    `last` is brought up to date. So the steps that a restarted worker computes again count once, as the first time.
    """
    step = line.get("step", line.get("second", 0))
    fresh = {key: value for key, value in line.get("metrics", {}).items() if step > last.get(key, -1)}
    last.update(dict.fromkeys(fresh, step))
    return step, fresh


def line_of(content: Mapping[str, Any]) -> bytes:
    """A line of a journal."""
    return json.dumps(content).encode() + b"\n"


def sync_command(journal: Path) -> str:
    """What a user types to send a journal later."""
    return f"{command('track')} sync {journal}"


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Write a line of JSON to `path`, which is whole at any time."""
    fresh = Path(f"{path}.new")
    fresh.write_bytes(line_of(content))
    os.replace(fresh, path)
