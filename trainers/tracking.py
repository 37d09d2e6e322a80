"""MLflow without waiting for it: the driver owns the run, rank 0 writes a journal, a thread sends the journal.

Training never depends on the tracking server. A metric is a line of a local file before it is anything else; what was sent
is remembered beside it (``JOURNAL.sent``), so that a restarted worker, a server that was away, or
``python pipelines/track.py sync JOURNAL`` days later go on from there.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[1]
SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "uc")
BATCH = 1000
"""Metrics per request, MLflow's limit; it takes 100 parameters or tags."""
SEND_EVERY = 1.0
"""Seconds between two requests while all goes well."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the server is away."""


class TrackingError(ValueError):
    """A tracking URI or run that cannot be used; the text says what to change."""


# ---------------------------------------------------------------------------------------------------------- journal


@dataclass
class Sent:
    """How far a journal was sent: bytes of the file, and the last step of every metric that the server has."""

    offset: int = 0
    last: dict[str, int] = field(default_factory=dict)


class Journal:
    """A file of JSON lines: a header (run id, URI, start), then metrics and, after training, what is left to be done.

    ``{"step": 10, "time": 1763700000000, "metrics": {"train/text": 0.5}}`` with time in ms; lines of the machine's load
    have ``"second"`` (since the run's start) in place of ``"step"``; ``{"do": "artifacts", ...}`` is an upload or the
    like that failed. Only whole lines count: one that a killed process left unfinished is not there.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.sent_path = Path(f"{path}.sent")

    def lock(self, timeout: float = -1) -> FileLock:
        """One process sends or rewrites at a time."""
        return FileLock(f"{self.path}.lock", timeout=timeout)

    def header(self) -> dict[str, Any] | None:
        """``run_id``, ``uri``, ``began`` (seconds since 1970); none for a file that is absent or no journal."""
        with contextlib.suppress(OSError, ValueError), open(self.path, "rb") as file:
            first = json.loads(file.readline())
            if isinstance(first, dict) and {"run_id", "uri", "began"} <= set(first):
                return first
        return None

    def create(self, run_id: str, uri: str) -> None:
        """Write the header, if the file is not there."""
        if self.path.exists():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(f"{self.path}.new")
        fresh.write_text(json.dumps({"run_id": run_id, "uri": uri, "began": time.time()}) + "\n")
        os.replace(fresh, self.path)

    def lines(self, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every whole line from byte `start`, with the byte behind it. The header is left out."""
        with open(self.path, "rb") as file:
            file.seek(start)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                start += len(raw)
                with contextlib.suppress(ValueError):
                    line = json.loads(raw)
                    if isinstance(line, dict) and "run_id" not in line:
                        yield start, line

    def append(self, line: Mapping[str, Any], file: IO[bytes] | None = None) -> None:
        """Add a line, to `file` where the journal is open already, and flush."""
        with contextlib.nullcontext(file) if file else open(self.path, "ab") as out:
            assert out is not None
            out.write(json.dumps(line).encode() + b"\n")
            out.flush()

    def sent(self) -> Sent | None:
        """How far it was sent; none where nobody remembers: nothing was, or the journal is a copy."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self.sent_path.read_text())
            if 0 <= int(state["offset"]) <= self.path.stat().st_size:
                return Sent(int(state["offset"]), {key: int(step) for key, step in state["last"].items()})
        return None

    def remember(self, sent: Sent) -> None:
        """Replace the record of what was sent, atomically."""
        fresh = Path(f"{self.sent_path}.new")
        fresh.write_text(json.dumps({"offset": sent.offset, "last": sent.last}))
        os.replace(fresh, self.sent_path)

    def waiting(self) -> int:
        """Lines that were not sent yet."""
        return sum(1 for _ in self.lines((self.sent() or Sent()).offset)) if self.path.exists() else 0

    def rewind(self, step: int) -> None:
        """Forget the lines after `step` that were not sent, and an unfinished last line: they will come again.

        Those that were sent stay, and when they come again they are not sent (`send` knows the last step of each metric).
        """
        with self.lock():
            offset = (self.sent() or Sent()).offset
            raw = self.path.read_bytes()
            kept = [line for _, line in self.lines(offset) if line.get("step", 0) <= step]
            head = raw[:offset] if offset else raw[: raw.find(b"\n") + 1]
            fresh = Path(f"{self.path}.new")
            fresh.write_bytes(head + b"".join(json.dumps(line).encode() + b"\n" for line in kept))
            os.replace(fresh, self.path)

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


def sync_command(journal: Path) -> str:
    """What a user types to send a journal later."""
    return f"python pipelines/track.py sync {journal}"


def send(journal: Journal, uri: str, run_id: str, lock_timeout: float = -1) -> int:
    """Send all that waits in a journal, in order; returns how many metrics that were.

    A metric is sent once per step: steps up to the last one that the server has are left out. When a process dies between
    a request and its record, the request is repeated with the same timestamps, and MLflow's database keeps equal metrics
    once. Raises what MLflow raises.
    """
    count = 0
    with journal.lock(lock_timeout):
        start = journal.sent()
        if start is not None and next(journal.lines(start.offset), None) is None:
            return 0
        client = _client(uri)
        sent = Sent(0, _last_steps(client, run_id)) if start is None else start
        for end, metrics, todo in _batches(journal, sent):
            if metrics:
                client.log_batch(run_id, metrics=metrics)
                count += len(metrics)
            if todo is not None:
                _perform(uri, run_id, todo)
            sent.offset = end
            journal.remember(sent)
        if start is None:
            journal.remember(sent)
    return count


def _batches(journal: Journal, sent: Sent) -> Iterator[tuple[int, list[Any], dict[str, Any] | None]]:
    """(byte behind the last line, metrics, what else is to be done); `sent.last` moves on as metrics are taken."""
    from mlflow.entities import Metric

    end, batch = sent.offset, []
    for behind, line in journal.lines(sent.offset):
        if "do" in line:
            yield behind, batch, line
            batch = []
        step = int(line.get("step", line.get("second", 0)))
        for key, value in line.get("metrics", {}).items():
            if step > sent.last.get(key, -1):
                sent.last[key] = step
                batch.append(Metric(key, float(value), int(line["time"]), step))
        end = behind
        while len(batch) > BATCH:  # a single enormous line: its record moves only with its last part
            yield sent.offset, batch[:BATCH], None
            batch = batch[BATCH:]
        if len(batch) > BATCH // 2:
            yield end, batch, None
            batch = []
    if end > sent.offset:
        yield end, batch, None


def _last_steps(client: Any, run_id: str) -> dict[str, int]:
    """The last step of every metric of a run."""
    keys = client.get_run(run_id).data.metrics
    return {key: max(metric.step for metric in client.get_metric_history(run_id, key)) for key in keys}


def drain(journal: Path | str, uri: str | None = None, run_id: str | None = None, timeout: float = 60.0) -> bool:
    """Send what a journal still holds, trying for `timeout` seconds; True when all is with the server.

    uri, run_id: without them, those in the journal. When the server cannot be reached the log says where the journal is
    and how to send it later; nothing is raised. Raises TrackingError for a file that is no journal.
    """
    book = Journal(journal)
    if not book.path.exists():
        log.warning("no journal at %s: nothing to send", book.path)
        return True
    header = book.header()
    if header is None:
        raise TrackingError(f"{journal} is no journal: its first line names no run. Journals are called journal.jsonl.")
    uri, run_id = uri or header["uri"], run_id or header["run_id"]
    end, pause = time.monotonic() + timeout, 0.5
    while True:
        try:
            send(book, uri, run_id, max(0.1, end - time.monotonic()))
            return True
        except Exception as error:
            left = end - time.monotonic()
            if left <= 0:
                log.error(
                    "the tracking server %s cannot be reached (%s). %d lines wait in %s; nothing is lost. Send them later: %s",
                    uri,
                    _brief(error),
                    book.waiting(),
                    book.path,
                    sync_command(book.path),
                )
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


# --------------------------------------------------------------------------------------------------- worker, rank 0


class Tracker:
    """Metrics of one run from rank 0: `log` writes a line and returns, a thread sends the lines. Thread-safe.

    journal_path: a file that the driver can read too. One that another run left there is set aside.
    system_every: seconds between samples of the machine's load (``system/...``: CPU, memory, disk, network; GPUs when
    nvidia-ml-py is installed), collected as MLflow collects them; 0: none. MLflow's own monitor is not used because it ends
    for good when the server once fails to answer.
    """

    def __init__(self, journal_path: Path | str, uri: str, run_id: str, system_every: float = 10.0) -> None:
        self.path = Path(journal_path)
        self.uri, self.run_id, self.system_every = uri, run_id, system_every
        self._journal = Journal(self.path)
        self._file: IO[bytes] | None = None
        self._began = 0.0
        self._guard = threading.RLock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        if self.path.exists() and (self._journal.header() or {}).get("run_id") != run_id:
            self._journal.set_aside()
        _import_mlflow()  # here, not in a thread while other threads import

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step. A metric that is logged again for a step, or for an earlier one, is not sent again.

        Raises ValueError after `close`, and TypeError for a value that is no number.
        """
        values = {metric_name(name): float(value) for name, value in metrics.items()}
        self._append({"step": int(step), "time": int(time.time() * 1000), "metrics": values})

    def resume(self, step: int) -> None:
        """Go on after `step`, that of the checkpoint. Lines after it that were not sent are dropped, since they come again."""
        with self._guard:
            if self._file is None and self.path.exists():
                self._journal.rewind(step)
            self._open()

    def close(self, timeout: float = 30.0) -> None:
        """Send the rest, for at most `timeout` seconds, and stop. What a server that is away did not get, `drain` sends."""
        with self._guard:
            threads, self._threads = self._threads, []
        self._stop.set()
        end = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.1, end - time.monotonic()))
        with self._guard:
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._journal.create(self.run_id, self.uri)
            header = self._journal.header()
            assert header is not None
            self._began = header["began"]
            self._file = open(self.path, "ab")  # noqa: SIM115
            self._sampler = _Sampler() if self.system_every > 0 else None
            targets = [self._sample] if self._sampler else []
            # The sampler is joined first: its last sample is among what is sent last.
            for target in (*targets, self._send):
                thread = threading.Thread(target=target, daemon=True, name=f"tracker{target.__name__}")
                self._threads.append(thread)
                thread.start()
        return self._file

    def _append(self, line: dict[str, Any]) -> None:
        with self._guard:
            if self._file is not None and self._file.closed:
                raise ValueError(f"the tracker of {self.path} is closed")
            self._journal.append(line, self._open())

    def _sample(self) -> None:
        assert self._sampler is not None
        stopped = False
        while not stopped:
            stopped = self._stop.wait(self.system_every)
            second, now = int(time.time() - self._began), int(time.time() * 1000)
            with contextlib.suppress(Exception):  # a sensor that fails is no reason to stop
                self._append({"second": second, "time": now, "metrics": self._sampler.read()})

    def _send(self) -> None:
        pause, away = SEND_EVERY, False
        while True:
            stopping = self._stop.wait(pause)
            if stopping:
                for thread in threading.enumerate():
                    if thread.name == "tracker_sample" and thread in self._others():
                        thread.join(5)
            try:
                send(self._journal, self.uri, self.run_id)
                if away:
                    log.warning("the tracking server %s is back; the waiting metrics were sent", self.uri)
                pause, away = SEND_EVERY, False
            except Exception as error:
                pause = min(2 * pause, LONGEST_PAUSE)
                if not away:
                    text = "the tracking server %s does not answer (%s); training goes on, metrics wait in %s"
                    log.warning(text, self.uri, _brief(error), self.path)
                away = True
            if stopping:
                return
