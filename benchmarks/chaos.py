"""Kill runs at random moments and repeat their command: ``python -m benchmarks.chaos --runs 40``.

Runs alternate between one process, one worker and two; checkpoints are on the local disk or in an S3 server on loopback.
At a random step, or while a checkpoint is written, a worker, the driver, the raylet, the control store or everything is
killed, or the driver receives a signal. The command is repeated until it succeeds; every second run of two workers continues
with one, without dropout. A run depends only on its number: ``--numbers 7 16`` repeats two runs.

The checks: exported weights are bit-identical to an undisturbed run, or equal up to rounding after a change of the number of
workers; so are all metrics, each step once, in one MLflow run that is FINISHED; no process, temporary folder or other run is
left; a signal ends a command within 15 seconds. The exit code is 1 unless all runs pass.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import tyro
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
STEPS = 12
SETTINGS = f"smoke --run.max_steps {STEPS} --evaluation.eval_steps 4 --evaluation.keep last --run.save_steps 3"
SETTINGS += " --run.logging_steps 2 --run.threads 1"
RAY = "--run.cpus_per_worker 0.5 --streams.text.cpus 0.1 --streams.image.cpus 0.1"
QUIET = "--encoder.hidden_dropout 0 --encoder.attention_dropout 0"
BUCKET = "multicse"
ROUNDING = 1e-3
"""Largest difference of a weight or metric after a change of the number of workers."""
LIMIT, VANISH, SIGNALLED = 240.0, 180.0, 15.0
"""Timeouts in seconds: of a command, of all processes after a kill (Ray's agents first report to a control store that was
killed), and of all processes after a signal. `--patience` multiplies them on a busy machine."""
LIBRARIES = ("pymp-", "torch")
"""Temporary folders of Python's multiprocessing, which Ray's workers always leave, and torch's cache."""
ATTEMPTS = 4
"""Maximum number of repetitions of a command."""
VICTIMS = {
    "worker": "TrainWorker",
    "reading actor": "ray::Executor",
    "raylet": "raylet/raylet",
    "control store": "gcs_server",
}
"""Parts of the command lines of Ray's processes."""


@dataclass
class Case:
    """Run with its kills and signals."""

    number: int
    workers: int
    remote: bool
    blows: list[tuple[str, int]]
    """Victims, and the steps after which they are killed; a negative step means while a checkpoint is written."""
    workers_left: int
    """Workers of the repeated commands."""
    failures: list[str] = field(default_factory=list)
    """Failed checks."""
    signalled: list[float] = field(default_factory=list)
    """Seconds from each signal until all processes had ended."""

    def __str__(self) -> str:
        blows = (f"{victim} {'in a checkpoint' if step < 0 else f'after step {step}'}" for victim, step in self.blows)
        workers = (
            f"{self.workers} workers" if self.workers == self.workers_left else f"{self.workers}, then {self.workers_left}"
        )
        return f"{self.number:>3}  {workers:<9}  {'s3' if self.remote else 'disk':<6}{', '.join(blows)}"

    @property
    def shrinks(self) -> bool:
        """Return True if the run continues with fewer workers, and therefore trains without dropout."""
        return self.workers != self.workers_left

    @property
    def reference(self) -> tuple[int, bool]:
        """Return the workers of the undisturbed run, and True if it has no dropout; one worker trains like one process."""
        return 2 if self.workers == 2 else 0, self.shrinks


def case(number: int) -> Case:
    """Return the case of a number. Kinds of runs and victims alternate; every fourth kill is during a checkpoint."""
    dice, (cycle, workers) = random.Random(f"0 {number}"), divmod(number, 3)
    victims = ["driver", "SIGTERM", "SIGINT", *(["everything", *VICTIMS] if workers else [])]
    picked = [victims[(cycle + i) % len(victims)] for i in range(dice.choice((1, 1, 2)))]
    moments = sorted(dice.choice((-1, dice.randrange(STEPS), dice.randrange(STEPS), dice.randrange(STEPS))) for _ in picked)
    left = 1 if workers == 2 and cycle % 2 else workers
    return Case(number, workers, bool(cycle % 2), list(zip(picked, moments, strict=True)), left)


@dataclass(frozen=True)
class Place:
    """Folder of all runs, environment of all commands, and factor of all timeouts."""

    folder: Path
    env: Mapping[str, str]
    patience: float

    @property
    def uri(self) -> str:
        """Return the tracking URI."""
        return f"sqlite:///{self.folder}/mlflow.db"

    def start(self, mark: str, workers: int, remote: bool, quiet: bool) -> subprocess.Popen[bytes]:
        """Start the command of a run like a user; its output is appended to a file."""
        settings = [*SETTINGS.split(), *(RAY.split() if workers else []), *(QUIET.split() if quiet else [])]
        settings += ["--run.num_workers", str(workers)]
        settings += ["--run.output_dir", str(self.folder / mark), "--run.tracking_uri", self.uri]
        settings += ["--run.storage", f"s3://{BUCKET}/runs"] if remote else []
        command = [sys.executable, str(ROOT / "pipelines" / "visualcse.py"), *settings]
        with open(self.folder / f"{mark}.log", "ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=log, stderr=subprocess.STDOUT)


def family(place: Place) -> list[psutil.Process]:
    """Return all processes with a working directory below the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(place.folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes; some may have ended."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def line(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def reached(output: Path, moment: int) -> bool:
    """Return whether a run has reached a step, or, if the moment is negative, writes a checkpoint (in a separate folder)."""
    if moment < 0:
        return any((output / "checkpoint").glob("*.part"))
    journal = output / "journal.jsonl"
    text = journal.read_text(errors="replace") if journal.exists() else ""
    return max(map(int, re.findall(r'"step": (\d+),', text)), default=0) >= moment


def strike(victim: str, driver: subprocess.Popen[bytes], place: Place) -> bool:
    """Kill the victim, or signal the driver.

    Returns:
        False if the process does not exist yet.
    """
    if victim.startswith("SIG"):
        driver.send_signal(signal.Signals[victim])
        return True
    everyone = family(place)
    if victim in VICTIMS:
        everyone = [one for one in everyone if VICTIMS[victim] in line(one)][:1]
    elif victim == "driver":
        everyone = [one for one in everyone if one.pid == driver.pid]
    kill(everyone)
    return bool(everyone)


def ended(
    driver: subprocess.Popen[bytes], place: Place, earlier: Collection[psutil.Process] = ()
) -> tuple[int | None, list[str], float]:
    """Wait for the command and all processes.

    Returns:
        Exit code (None after a timeout), the processes that had to be killed, and the seconds until all processes of the
        command had ended.
    """
    start, code = time.monotonic(), None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = driver.wait(LIMIT * place.patience)
    took = time.monotonic() - start
    deadline = time.monotonic() + VANISH * place.patience
    while (left := family(place)) and code is not None and time.monotonic() < deadline:
        if set(left) - set(earlier):
            took = time.monotonic() - start
        time.sleep(0.2)
    names = [line(process) for process in left]
    kill(left)
    driver.wait()
    return code, names, took


def disturb(case: Case, place: Place) -> None:
    """Disturb a run and repeat its command until it succeeds; failures are appended to the case."""
    mark, dice, blows = f"run-{case.number}", random.Random(f"{case.number} moments"), list(case.blows)
    output = place.folder / mark
    for attempt in range(len(blows) + ATTEMPTS):
        earlier = family(place)
        driver = place.start(mark, case.workers_left if attempt else case.workers, case.remote, case.shrinks)
        victim, moment = blows.pop(0) if blows else ("", 0)
        struck, start = False, time.monotonic()
        while victim and not struck and driver.poll() is None and time.monotonic() < start + LIMIT * place.patience:
            time.sleep(0.002 if moment < 0 else 0.02)
            if reached(output, moment):
                time.sleep(dice.uniform(0, {-1: 0.03, 0: 10.0}.get(moment, 0.3)))
                struck = strike(victim, driver, place)
        if struck and victim == "driver":  # a user repeats the command at once, while other processes still run
            driver.wait()
            continue
        code, left, took = ended(driver, place, earlier)
        if struck and victim == "everything" and case.remote:
            shutil.rmtree(output, ignore_errors=True)  # a new head node has an empty disk; the folder may not exist yet
        if left or code is None:
            case.failures.append(f"processes did not end after {victim or 'its end'}: {', '.join(left)}")
        if struck and victim.startswith("SIG"):
            case.signalled.append(took)
            number = signal.Signals[victim].value  # negative if the signal came before the handler was installed
            if code not in (0, 128 + number, -number) or took > SIGNALLED * place.patience:
                case.failures.append(f"{victim}: exit code {code}, all processes gone after {took:.0f} s")
        if code == 0 and not blows:
            return
    case.failures.append("the command does not succeed")


def weights(output: Path) -> dict[str, np.ndarray]:
    """Return the exported weights; empty if not found."""
    file = output / "export" / "model.safetensors"
    return load_file(file) if file.exists() else {}


def close(found: Mapping[str, object], wanted: Mapping[str, object], tolerance: float) -> bool:
    """Return True if the arrays of two mappings differ by at most this."""
    if found.keys() != wanted.keys():
        return False
    pairs = [(np.asarray(found[name]), np.asarray(wanted[name])) for name in wanted]
    return all(one.shape == other.shape and np.abs(one - other).max(initial=0) <= tolerance for one, other in pairs)


def metrics(uri: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Return all metrics of training and evaluation in MLflow."""
    from mlflow import MlflowClient

    client, kinds = MlflowClient(uri), ("train", "eval", "best", "untrained", "trained")
    keys = [key for key in client.get_run(run_id).data.metrics if key.split("/")[0] in kinds]
    return {key: sorted((point.step, point.value) for point in client.get_metric_history(run_id, key)) for key in keys}


def judge(case: Case, place: Place, reference: Path, known: Collection[str]) -> None:
    """Compare a run with the undisturbed run, and search for files that undisturbed runs do not leave."""
    from mlflow import MlflowClient

    output, tolerance = place.folder / f"run-{case.number}", ROUNDING if case.shrinks else 0.0
    if not close(weights(output), weights(reference), tolerance):
        case.failures.append("other weights")
    client = MlflowClient(place.uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"params.`run.output_dir` = '{output}'")
    statuses = [run.info.status for run in runs]
    if statuses != ["FINISHED"]:
        case.failures.append(f"its runs are {statuses}")
    else:
        whole = json.loads((reference / "summary.json").read_text())["mlflow_run_id"]
        if not close(metrics(place.uri, runs[0].info.run_id), metrics(place.uri, whole), tolerance):
            case.failures.append("other metrics")
    temporary = (place.folder / "tmp").iterdir()
    left = [file for file in temporary if file.name not in known and not file.name.startswith(LIBRARIES)]
    for pattern in ("checkpoint/*.part", "checkpoint/node-*", ".export-*", ".ray-train"):
        left += output.glob(pattern)
    if left:
        case.failures.append(f"remaining files: {', '.join(map(str, left))}")


@contextlib.contextmanager
def prepared(patience: float) -> Iterator[Place]:
    """Make a temporary folder and an S3 server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        env = {
            **{name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")},
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "TMPDIR": str(folder / "tmp"),
            "RAY_TMPDIR": str(folder / "r"),
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # Ray looks for a dead control store for 60 s by default
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        for part in ("tmp", "r"):
            (folder / part).mkdir()
        urllib.request.urlopen(urllib.request.Request(f"{env['AWS_ENDPOINT_URL']}/{BUCKET}", method="PUT")).close()
        try:
            yield Place(folder, env, patience)
        finally:
            server.stop()


def undisturbed(place: Place, workers: int, quiet: bool) -> Path:
    """Run without disturbance, with 0 workers in one process, and return the output folder."""
    mark = f"whole-{workers}{'-quiet' if quiet else ''}"
    if ended(place.start(mark, workers, remote=False, quiet=quiet), place)[:2] != (0, []):
        sys.exit(f"an undisturbed run fails:\n{(place.folder / f'{mark}.log').read_text()[-3000:]}")
    return place.folder / mark


def main(runs: int = 40, numbers: tuple[int, ...] = (), patience: float = 1.0) -> int:
    """Kill runs and repeat their commands.

    Args:
        runs: Number of runs.
        numbers: Numbers of the runs, instead of the first `runs`.
        patience: Factor of all timeouts, for a busy machine.

    Returns:
        Exit code.
    """
    chosen = [case(number) for number in numbers or range(runs)]
    with prepared(patience) as place:
        references = {parts: undisturbed(place, *parts) for parts in sorted({one.reference for one in chosen})}
        known = {file.name for file in (place.folder / "tmp").iterdir()}  # caches of libraries
        for one in chosen:
            start = time.monotonic()
            disturb(one, place)
            judge(one, place, references[one.reference], known)
            print(f"{one}  {time.monotonic() - start:.0f} s  {'; '.join(one.failures) or 'passed'}", flush=True)
            if one.failures:
                print((place.folder / f"run-{one.number}.log").read_text(errors="replace")[-3000:], flush=True)
    good, signals = sum(not one.failures for one in chosen), [took for one in chosen for took in one.signalled]
    print(f"{len(signals)} signals; all processes had ended after at most {max(signals, default=0):.1f} s")
    print(f"{good} of {len(chosen)} runs resumed when their command was repeated and ended as an undisturbed run")
    return 0 if good == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
