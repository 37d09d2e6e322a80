"""Metrics of a run from rank 0, without waiting for MLflow: a journal, and threads that send it.

Training never depends on the tracking server. A metric is a line of a local file before it is anything else; what was sent
is remembered beside it (``JOURNAL.sent``), so that a restarted worker, a server that was away, or
``python pipelines/track.py sync JOURNAL`` days later go on from there.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from multicse.trainers.engine.journal import Journal, line_of
from multicse.trainers.engine.mirrors import Mirrors
from multicse.trainers.engine.tracking import LONGEST_PAUSE, send
from multicse.trainers.engine.tracking_server import brief, import_mlflow, metric_name

log = logging.getLogger(__name__)

SEND_EVERY = 1.0
"""Seconds between two requests while all goes well."""


class Tracker:
    """Metrics of one run from rank 0: `log` writes a line and returns, a thread sends the lines. Thread-safe.

    journal_path: a file that the driver can read too. One that another run left there is set aside.
    system_every: seconds between samples of the machine's load (``system/...``), as MLflow takes them; 0: none.
    show: takes the progress line. also: who gets the metrics besides MLflow, see `mirrors.KINDS`.
    """

    def __init__(
        self,
        journal_path: Path | str,
        uri: str,
        run_id: str,
        system_every: float = 10.0,
        show: Callable[[dict[str, Any]], object] = lambda line: None,
        also: Sequence[str] = (),
    ) -> None:
        self.path = Path(journal_path)
        self.uri, self.run_id, self.system_every, self.progress = uri, run_id, system_every, show
        self._journal = Journal(self.path)
        self._mirrors = Mirrors(self._journal, also)
        self._guard = threading.Lock()
        self._file: FileIO | None = None
        self._late, self._full = b"", False
        """Lines that a full disk did not take, and whether that was said."""
        self._began = 0.0
        self._closing, self._ending = threading.Event(), threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True, name="tracker-sample")
        self._sending = threading.Thread(target=self._send, daemon=True, name="tracker-send")
        self._mirroring = threading.Thread(target=self._mirror, daemon=True, name="tracker-mirror") if also else None
        if self.path.exists() and (self._journal.header() or {}).get("run_id") != run_id:
            self._journal.set_aside()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step. A metric that is logged again for a step, or for an earlier one, is not sent again.

        Raises ValueError after `close`, and TypeError for a value that is no number.
        """
        self._append({"step": int(step)}, metrics)

    def _append(self, when: dict[str, int], metrics: Mapping[str, float]) -> None:
        values = {metric_name(name): float(value) for name, value in metrics.items()}
        with self._guard:
            if self._ending.is_set():
                raise ValueError(f"the tracker of {self.path} is closed")
            self._late += line_of({**when, "time": int(time.time() * 1000), "metrics": values})
            told = self._write()
        if told:
            log.error(
                "%s cannot be written (%s). Metrics wait in memory and training goes on; make room there", self.path, told
            )

    def _write(self) -> OSError | None:
        """Write what waits; the error where that fails for the first time."""
        try:
            file = self._file or self._open()
            while self._late:
                self._late = self._late[file.write(self._late) :]
            self._full = False
        except OSError as error:
            self._full, before = True, self._full
            return None if before else error
        return None

    def resume(self, checkpoint: Path) -> None:
        """Go on from the journal in a checkpoint's folder, where this machine has none of the run."""
        if (checkpoint / "journal.jsonl").exists() and not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkpoint / "journal.jsonl", self.path)

    def store(self, checkpoint: Path) -> None:
        """Put a copy of the journal into a checkpoint's folder."""
        if self.path.exists():
            shutil.copy(self.path, checkpoint / "journal.jsonl")

    def close(self, timeout: float = 30.0, mirrored: float = 300.0) -> None:
        """Send the rest, for at most `timeout` seconds, and stop. What a server that is away did not get, `drain` sends.
        Mirrors, whose files nothing writes later, have `mirrored` seconds."""
        # The sampler ends first: its last sample is among what is sent last.
        ends = (self._closing, self._sampling, 5.0), (self._ending, self._sending, timeout)
        for event, thread, seconds in (*ends, (self._ending, self._mirroring, mirrored)):
            event.set()
            if thread and thread.is_alive():
                thread.join(seconds)
        if self._mirroring and self._mirroring.is_alive():
            log.warning("run.also: records beside %s may lack the last metrics, which it has", self.path)
        with self._guard:
            if self._late:
                self._write()
        if self._late:
            log.error("%s cannot be written: the last %d bytes of metrics are lost", self.path, len(self._late))
        if self._file:
            self._file.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(*(3.0, 3.0) if kind else ())  # who stops a run does not wait for others

    def _open(self) -> FileIO:
        """Open the journal and start the threads.

        MLflow is imported first, in this thread, since other threads import too. That is as late as possible: the first step
        does not wait for it.
        """
        import_mlflow()
        self._journal.create(self.run_id, self.uri)
        self._began = (self._journal.header() or {})["began"]
        self._file = FileIO(self.path, "ab")  # closed by `close`
        self._sending.start()
        if self._mirroring:
            self._mirroring.start()
        if self.system_every > 0:
            self._sampling.start()
        return self._file

    def _sample(self) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        # Not started: its own thread ends for good when the server once fails to answer.
        monitor = SystemMetricsMonitor(self.run_id, tracking_uri=self.uri)
        monitor.collect_metrics()  # psutil's load counts from the last call; the first one has no meaning
        closing = False
        while not closing:
            closing = self._closing.wait(self.system_every)
            with contextlib.suppress(Exception):  # a sensor that fails is no reason to stop
                for one in monitor.monitors:
                    one.clear_metrics()
                monitor.collect_metrics()
                values = {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
                self._append({"second": int(time.time() - self._began)}, values)

    def _send(self) -> None:
        pause, away, ending = SEND_EVERY, False, False
        while not ending:
            ending = self._ending.wait(pause)
            try:
                send(self._journal, self.uri, self.run_id)
                if away:
                    log.warning("the tracking server %s is back; the waiting metrics were sent", self.uri)
                pause, away = SEND_EVERY, False
            except Exception as error:
                pause = min(2 * pause, LONGEST_PAUSE)
                if not away:
                    text = "the tracking server %s does not answer (%s); training goes on, metrics wait in %s"
                    log.warning(text, self.uri, brief(error), self.path)
                away = True

    def _mirror(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(SEND_EVERY)
            self._mirrors.play()
        self._mirrors.close()
