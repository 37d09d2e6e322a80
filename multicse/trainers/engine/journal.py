"""Journal of a run: the file in its folder from which every tracker gets its metrics."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Journal:
    """Append-only file of JSON lines: a header with ``run_id`` and ``uri``, then the metrics of one step per line.

    ``{"step": 10, "time": 1763700000000, "metrics": {"train/text": 0.5}}``, with the time in ms since 1970.

    Args:
        path: File, which does not have to exist.
        run_id: MLflow run for the header of a new file; needed only for appending.
        uri: Tracking URI of this run.
    """

    def __init__(self, path: Path | str, run_id: str = "", uri: str = "") -> None:
        self.path, self.run_id, self.uri = Path(path), run_id, uri
        self._file: FileIO | None = None
        self._waiting = b""
        """Lines that could not be written yet."""

    def header(self) -> dict[str, Any] | None:
        """Return the first line, or None if the file does not exist or is not a journal."""
        with contextlib.suppress(OSError, ValueError), open(self.path, "rb") as file:
            first = json.loads(file.readline())
            if isinstance(first, dict) and {"run_id", "uri"} <= set(first):
                return first
        return None

    def lines(self, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the byte after each complete line of metrics, and the line, from byte `start` on."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(start)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                start += len(raw)
                with contextlib.suppress(ValueError):  # half a line that an earlier version left
                    line = json.loads(raw)
                    if "step" in line:
                        yield start, line

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line. If it cannot be written, it is kept in memory and written with the next line."""
        self._waiting += _line_of(line)
        self.write()

    def write(self) -> None:
        """Write the pending lines; a new file gets its header first."""
        try:
            file = self._file = self._file or self._open()
            while self._waiting:
                self._waiting = self._waiting[file.write(self._waiting) :]
        except OSError as error:
            text = "Cannot write %s (%s). Training continues and metrics are kept in memory; free some disk space"
            log.error(text, self.path, error)

    def close(self) -> None:
        """Write the pending lines and close the file."""
        if self._waiting:
            self.write()
        if self._waiting:
            log.error("Lost the last %d bytes of metrics: %s could not be written", len(self._waiting), self.path)
        if self._file:
            self._file.close()

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            with open(self.path, "rb+") as file:  # a killed process may leave half a line
                file.truncate(file.read().rfind(b"\n") + 1)
        opened = FileIO(self.path, "ab")  # closed by `close`
        if not self.path.stat().st_size:
            self._waiting = self._header() + self._waiting
        return opened

    def _header(self) -> bytes:
        return _line_of({"run_id": self.run_id, "uri": self.uri})

    def take(self, copy: Path) -> bool:
        """Replace the file with a checkpoint's copy if that is longer, as after steps on another machine.

        Returns:
            True if the file was replaced.
        """
        other = Journal(copy)
        if other.header() is None or (self.path.exists() and self._length() >= other._length()):
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _, _, lines = copy.read_bytes().partition(b"\n")
        partial = self.path.with_suffix(".partial")
        partial.write_bytes(self._header() + lines)
        partial.replace(self.path)
        return True

    def _length(self) -> tuple[int, int]:
        """Return the last step and the size of the file, since a step may have several lines."""
        return max((line["step"] for _, line in self.lines()), default=0), self.path.stat().st_size


def histories(journal: Path) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """Return for every task the step and metrics of each evaluation, sorted by step."""
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for _, entry in Journal(journal).lines():
        for name, value in entry["metrics"].items():
            if name.startswith("eval/"):
                task, _, metric = name.removeprefix("eval/").rpartition("/")
                steps.setdefault(task, {}).setdefault(entry["step"], {})[metric] = value
    return {task: sorted(values.items()) for task, values in steps.items()}


def retire(journal: Path, run_id: str = "") -> None:
    """Rename a journal that does not belong to `run_id` after its own run, so that it can still be sent."""
    found = (Journal(journal).header() or {}).get("run_id", "unknown")
    if journal.exists() and found != run_id:
        journal.rename(journal.with_stem(f"{journal.stem}-{found}"))


def new_metrics(line: Mapping[str, Any], last: dict[str, int]) -> dict[str, float]:
    """Return the metrics of a line that are newer than `last`, the latest step of each metric, which is updated.

    If a restarted worker repeats a step, its first values are kept.
    """
    fresh = {key: value for key, value in line["metrics"].items() if line["step"] > last.get(key, -1)}
    last.update(dict.fromkeys(fresh, line["step"]))
    return fresh


def _line_of(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
