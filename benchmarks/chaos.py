"""Kill runs at random moments and repeat their command: ``python -m benchmarks.chaos --runs 40``.

Every run is one of these, in turn: in process, with one worker, with two; checkpoints on the local disk or in an S3 server
on loopback. At a random step, or in the middle of writing a checkpoint, a worker, the driver, the raylet, the control store
or everything is killed, or the driver is told to stop. Then the same command is repeated until it succeeds. A run depends on
the seed and its number alone: ``--numbers 7 16`` repeats two of them.

Checked: the exported weights are, bit for bit, those of a run that nothing happened to; so are all metrics, each step once,
in one MLflow run that is FINISHED; no process, temporary folder or other run is left; a signal ends a command within 15
seconds. The last line says how many runs went well, and the exit code is 1 unless all did.
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

import psutil
import tyro

ROOT = Path(__file__).resolve().parents[1]
STEPS = 12
SETTINGS = f"smoke --run.max_steps {STEPS} --evaluation.every 4 --evaluation.keep last --run.checkpoint_every 3"
SETTINGS += " --run.log_every 2 --run.threads 1"
RAY = "--run.cpus_per_worker 0.5 --streams.text.cpus 0.1 --streams.image.cpus 0.1"
BUCKET = "multicse"
LIMIT, VANISH, SIGNALLED = 240.0, 60.0, 15.0
"""Seconds after which a command counts as hanging, that processes have to end by themselves once their command was killed
or has ended, and within which all have ended after a signal. On a machine that others use, `--patience` times that."""
REPORTING = 3
"""Times that which Ray's own agents take to end after the control store: they report to it first, in vain."""
RECONNECT = "5"
"""Seconds that Ray looks for a control store that was killed; 60 unless told."""
LIBRARIES = ("pymp-", "torch")
"""Temporary folders of Python's multiprocessing, which Ray's workers leave however they end, and torch's cache."""
ATTEMPTS = 4
"""Times that a command is repeated at most."""

VICTIMS = {
    "worker": "TrainWorker",
    "reading actor": "ray::Executor",
    "raylet": "raylet/raylet",
    "control store": "gcs_server",
}
"""What Ray's processes are known by."""


@dataclass
class Case:
    """One run: how it is carried out, and what happens to it."""

    number: int
    workers: int
    remote: bool
    victims: tuple[str, ...]
    """One for each time that it is disturbed."""
    moments: tuple[int, ...]
    """The step after which that happens; below 0: while a checkpoint is being written."""
    said: list[str] = field(default_factory=list)
    """What went wrong."""
    signalled: list[float] = field(default_factory=list)
    """Seconds from each signal until all processes had ended."""

    def __str__(self) -> str:
        how = "in process" if not self.workers else f"{self.workers} worker{'s' * (self.workers > 1)}"
        what = ", ".join(
            f"{victim} {'in a checkpoint' if step < 0 else f'after step {step}'}"
            for victim, step in zip(self.victims, self.moments, strict=True)
        )
        return f"{self.number:>3}  {how:<11}{'s3' if self.remote else 'disk':<6}{what}"


def case(number: int, seed: int, kinds: Sequence[int]) -> Case:
    """The case of a number. Kinds of runs take turns, and so do a kind's victims; every fourth blow is in a checkpoint."""
    dice, (turn, kind) = random.Random(f"{seed} {number}"), divmod(number, len(kinds))
    workers = kinds[kind]
    victims = ["driver", "SIGTERM", "SIGINT", *(["everything", *VICTIMS] if workers else [])]
    times = dice.choice((1, 1, 2))
    picked = [victims[(turn + i) % len(victims)] for i in range(times)]
    moments = sorted(dice.choice((-1, dice.randrange(STEPS), dice.randrange(STEPS), dice.randrange(STEPS))) for _ in picked)
    return Case(number, workers, bool(turn % 2), tuple(picked), tuple(moments))


@dataclass(frozen=True)
class Place:
    """Where everything happens."""

    folder: Path
    env: Mapping[str, str]
    """Of every command."""
    patience: float

    @property
    def temporary(self) -> Path:
        """Where temporary folders are made."""
        return self.folder / "tmp"

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def command(self, output: Path, workers: int, remote: bool) -> list[str]:
        """What a user types."""
        places = ["--run.output", str(output), "--run.tracking_uri", self.uri, "--run.workers", str(workers)]
        storage = ["--run.storage", f"s3://{BUCKET}/runs"] if remote else []
        script = str(ROOT / "pipelines" / "visualcse.py")
        return [sys.executable, script, *SETTINGS.split(), *(RAY.split() if workers else []), *places, *storage]

    def start(self, mark: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command, whose words are appended to a file."""
        with open(self.folder / f"{mark}.log", "ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=log, stderr=subprocess.STDOUT)


def family(place: Place) -> list[psutil.Process]:
    """Processes that work below the folder: all of a run, whoever their parents are and whatever they call themselves."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(place.folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def reached(output: Path, moment: int) -> bool:
    """Whether the moment has come. A checkpoint that is on its way has a folder of its own."""
    if moment < 0:
        return any((output / "checkpoint").glob("*.part"))
    journal = output / "journal.jsonl"
    text = journal.read_text(errors="replace") if journal.exists() else ""
    return max(map(int, re.findall(r'"step": (\d+),', text)), default=0) >= moment


def strike(victim: str, driver: subprocess.Popen[bytes], place: Place) -> bool:
    """Kill it, or tell the driver to stop; False where there is no such process yet."""
    if victim.startswith("SIG"):
        driver.send_signal(signal.Signals[victim])
        return True
    everyone = family(place)
    if victim in VICTIMS:
        everyone = [one for one in everyone if VICTIMS[victim] in _line(one)][:1]
    elif victim == "driver":
        everyone = [one for one in everyone if one.pid == driver.pid]
    for one in everyone:
        with contextlib.suppress(psutil.Error):
            one.kill()
    return bool(everyone)


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def ended(
    driver: subprocess.Popen[bytes], place: Place, victim: str = "", earlier: Collection[psutil.Process] = ()
) -> tuple[int | None, list[str], float]:
    """Wait for the command, and for all processes: its exit code (none: it hung), the processes that had to be killed after
    it, and the seconds until all its own had ended.

    victim: what was killed; after the driver the others are not waited for. earlier: those of a driver killed before.
    """
    began, code = time.monotonic(), None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = driver.wait(LIMIT * place.patience)
    took = time.monotonic() - began
    if victim == "driver" and code is not None:
        return code, [], 0.0
    deadline = time.monotonic() + VANISH * place.patience * (REPORTING if victim == "control store" else 1)
    while (left := family(place)) and code is not None and time.monotonic() < deadline:
        if set(left) - set(earlier):
            took = time.monotonic() - began
        time.sleep(0.2)
    names = [_line(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    driver.wait()
    return code, names, took


def carry_out(case: Case, place: Place, seed: int) -> None:
    """Disturb it, repeat its command until it succeeds. What went wrong is in `said`."""
    mark, dice = f"run-{case.number}", random.Random(f"{seed} {case.number} moments")
    output = place.folder / mark
    command = place.command(output, case.workers, case.remote)
    blows = list(zip(case.victims, case.moments, strict=True))
    for _ in range(len(blows) + ATTEMPTS):
        earlier = family(place)
        driver = place.start(mark, command)
        victim, moment = blows.pop(0) if blows else ("", 0)
        struck, began = False, time.monotonic()
        while victim and not struck and driver.poll() is None and time.monotonic() < began + LIMIT * place.patience:
            time.sleep(0.002 if moment < 0 else 0.02)
            if reached(output, moment):
                time.sleep(dice.uniform(0, {-1: 0.03, 0: 10.0}.get(moment, 0.3)))
                struck = strike(victim, driver, place)
        # Who finds the driver dead repeats the command at once, whatever still runs.
        code, left, took = ended(driver, place, victim if struck else "", earlier)
        if struck and victim == "everything" and case.remote:
            shutil.rmtree(output, ignore_errors=True)  # a new head has an empty disk; it may be struck before there is one
        if left or code is None:
            case.said.append(f"processes did not end after {victim or 'its end'}: {', '.join(left)}")
        if struck and victim.startswith("SIG"):
            case.signalled.append(took)
            number = signal.Signals[victim].value  # and below 0: it came before anybody listened
            if code not in (0, 128 + number, -number) or took > SIGNALLED * place.patience:
                case.said.append(f"{victim}: exit code {code}, all processes gone after {took:.0f} s")
        if code == 0 and not blows:
            return
    case.said.append("the command does not succeed")


def weights(output: Path) -> bytes:
    """The exported weights; nothing where there are none."""
    file = output / "export" / "model.safetensors"
    return file.read_bytes() if file.exists() else b""


def metrics(uri: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Every value that MLflow has of training and evaluation."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    keys = [
        key
        for key in client.get_run(run_id).data.metrics
        if key.split("/")[0] in ("train", "eval", "best", "untrained", "trained")
    ]
    return {key: sorted((point.step, point.value) for point in client.get_metric_history(run_id, key)) for key in keys}


def _parts(case: Case) -> int:
    """What a run is compared with: one worker gives what a run in process does."""
    return 2 if case.workers == 2 else 0


def judge(case: Case, place: Place, reference: Path, known: Collection[str]) -> None:
    """Compare with the undisturbed run, and look for what is left. What is wrong is in `said`.

    known: names of temporary folders that undisturbed runs leave as well.
    """
    from mlflow import MlflowClient

    output = place.folder / f"run-{case.number}"
    if weights(output) != weights(reference):
        case.said.append("other weights")
    client = MlflowClient(place.uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"params.`run.output` = '{output}'")
    statuses = [run.info.status for run in runs]
    if statuses != ["FINISHED"]:
        case.said.append(f"its runs are {statuses}")
    else:
        whole = json.loads((reference / "summary.json").read_text())["mlflow_run_id"]
        if metrics(place.uri, runs[0].info.run_id) != metrics(place.uri, whole):
            case.said.append("other metrics")
    left = [
        *output.glob("checkpoint/*.part"),
        *output.glob("checkpoint/rank-*"),
        *output.glob(".export-*"),
        *output.glob(".ray-train"),
        *(file for file in place.temporary.iterdir() if file.name not in known and not file.name.startswith(LIBRARIES)),
    ]
    if left:
        case.said.append(f"left behind: {', '.join(map(str, left))}")


@contextlib.contextmanager
def prepared(keep: Path | None, patience: float) -> Iterator[Place]:
    """A folder of its own with an S3 server; afterwards nothing of it is left, unless it is to be kept."""
    from moto.server import ThreadedMotoServer

    folder = keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")},
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TMPDIR": str(folder / "tmp"),
        "RAY_TMPDIR": str(folder / "r"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": RECONNECT,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name in ("tmp", "r"):
        (folder / name).mkdir(exist_ok=True)
    urllib.request.urlopen(urllib.request.Request(f"{env['AWS_ENDPOINT_URL']}/{BUCKET}", method="PUT")).close()
    try:
        yield Place(folder, env, patience)
    finally:
        server.stop()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def undisturbed(place: Place, workers: int) -> Path:
    """The output of a run that nothing happens to."""
    mark = f"whole-{workers}"
    driver = place.start(mark, place.command(place.folder / mark, workers, remote=False))
    if ended(driver, place)[:2] != (0, []):
        sys.exit(f"a run that nothing happens to fails:\n{(place.folder / f'{mark}.log').read_text()[-3000:]}")
    return place.folder / mark


def main(
    runs: int = 40,
    seed: int = 0,
    workers: tuple[int, ...] = (0, 1, 2),
    numbers: tuple[int, ...] = (),
    patience: float = 1.0,
    keep: Path | None = None,
) -> int:
    """Kill runs and repeat their commands.

    Args:
        runs: how many.
        seed: of victims and moments.
        workers: of the runs, in turn; 0: in process.
        numbers: of the runs to carry out; none: all.
        patience: times that everything may take longer, on a machine that others use.
        keep: work there and leave all of it; references that are there are not made again.

    Returns:
        The exit code.
    """
    chosen = [case(number, seed, workers) for number in numbers or range(runs)]
    with prepared(keep, patience) as place:
        references = {parts: undisturbed(place, parts) for parts in sorted({_parts(one) for one in chosen})}
        known = {file.name for file in place.temporary.iterdir()}  # caches of libraries
        for one in chosen:
            began = time.monotonic()
            carry_out(one, place, seed)
            judge(one, place, references[_parts(one)], known)
            print(f"{one}  {time.monotonic() - began:.0f} s  {'; '.join(one.said) or 'as it should'}", flush=True)
            if one.said:
                print((place.folder / f"run-{one.number}.log").read_text(errors="replace")[-3000:], flush=True)
    good, signals = sum(not one.said for one in chosen), [took for one in chosen for took in one.signalled]
    print(f"{len(signals)} signals; until all processes had ended at most {max(signals, default=0):.1f} s")
    print(
        f"{good} of {len(chosen)} runs went on by repeating the command and ended bit-identical, with each step once; "
        f"{'nothing was' if good == len(chosen) else 'see above for what was'} left behind"
    )
    return 0 if good == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
