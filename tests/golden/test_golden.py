"""Every smoke recipe goes the way that it went when its file in this folder was written, bit for bit.

A file holds all that training logged at each step, the final scores and a hash of the vectors that the exported model gives
to ten sentences; ``-2-workers`` in its name: two processes trained together. After a deliberate change,
``python -m pytest tests/golden --record-golden`` writes the files anew. An empty file is the start of a new one.

Another processor or build of torch rounds differently: there the steps are compared with a tolerance, and no more. Scores
are compared up to their last digits everywhere: NumPy's sums differ in them between processors of one name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from threadpoolctl import threadpool_limits

from multicse.pipelines import registry
from multicse.pipelines.api import prepare
from multicse.pipelines.cli import parse
from multicse.trainers.engine import launch
from multicse.trainers.engine.checkpoint import CheckpointError
from tests.small import EXAMPLES

FOLDER = Path(__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))
TWO = "-2-workers"
TOLERANCE = 1e-4  # on another machine
# Rounding decides which of two nearly equal regions is GCLSR's maximum: its loss keeps four digits, its gradient two.
TOLERANCES = {"gclsr": 1e-2}
SENTENCES = [
    "A dog runs through the park.",
    "The market fell by three percent on Monday.",
    "one",
    "ὕδωρ 🙂",
    "Two of them, and a longer one, came home late at night.",
    "Where is the nearest station?",
    "Rain is expected in the north; the south stays dry.",
    "The committee has not decided yet.",
    "He bought 12 eggs, milk and bread.",
    "It was not the best film of the year, but it was not the worst either.",
]


@pytest.fixture(scope="module", autouse=True)
def databases(offline: Path, tables: Path) -> None:
    for name in ("mlflow", "rank-0", "rank-1"):
        shutil.copy(tables, offline / f"{name}.db")


def _case(name: str) -> Any:
    """Of the cases of two workers, which start processes, one belongs to every run of the tests."""
    rare = name.endswith(TWO) and "mocoutrl" not in name
    return pytest.param(name, marks=[pytest.mark.timeout(1800), *([pytest.mark.cluster] if rare else [])])


@pytest.mark.parametrize("name", map(_case, NAMES))
def test_golden(name: str, offline: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    monkeypatch.chdir(offline)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{offline}/mlflow.db")
    if name.endswith(TWO):
        mp.spawn(_worker, args=(name,), nprocs=2)
    else:
        train(name, name)
    found, file, tolerance = golden(Path(name)), FOLDER / f"{name}.json", TOLERANCES.get(name, TOLERANCE)
    if pytestconfig.getoption("record_golden"):
        file.write_text(json.dumps(found, indent=1) + "\n")
        return
    wanted = json.loads(file.read_text())
    exact = found["machine"] == wanted["machine"]
    if not exact:
        warnings.warn(f"recorded on {wanted['machine']}: only steps are compared, within {tolerance}", stacklevel=1)
    for part in ("steps", "after", "vectors") if exact else ("steps",):
        assert found[part].keys() >= wanted[part].keys()  # a task may measure more than it did
        for what, value in wanted[part].items():
            if part == "after":
                value = pytest.approx(value, rel=1e-12)
            elif not exact:
                value = pytest.approx(value, rel=tolerance, abs=tolerance)
            assert found[part][what] == value, f"{name} goes another way, first at {what!r}"


def train(paper: str, output: str) -> None:
    """Run a paper's smoke recipe in this process, on one thread of the CPU, into a folder."""
    own = EXAMPLES / f"{paper}.py"
    pipeline = registry.load(str(own) if own.is_file() else paper)
    settings = ["--run.output_dir", output, "--run.num_workers=0", "--run.threads=1", "--run.logging-steps=1"]
    recipe = parse(pipeline.RECIPES, "", ["smoke", *settings])
    recipe = prepare(recipe)
    with threadpool_limits(1), patch.object(launch, "log_figures"):  # figures take longer than training
        launch.fit(recipe)


def _worker(rank: int, name: str) -> None:
    """One of two processes that train together; the first exports."""
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///rank-{rank}.db"
    dist.init_process_group("gloo", init_method=f"file://{Path.cwd()}/{name}-store", rank=rank, world_size=2)
    launch.Host.rank, launch.Host.world_size = rank, 2
    with contextlib.ExitStack() as second:
        if rank:  # keeps no checkpoint, so there is nothing to deliver; transformers saves models on the first rank only
            second.enter_context(contextlib.suppress(CheckpointError))
            second.enter_context(patch.object(launch, "check_vectors"))
        train(name.removesuffix(TWO), f"{name}-rank-{rank}" if rank else name)
    dist.destroy_process_group()


def golden(output: Path) -> dict[str, dict[str, Any]]:
    """What a run left in its folder, without paths and times."""
    from sentence_transformers import SentenceTransformer

    lines = [json.loads(line) for line in (output / "journal.jsonl").read_text().splitlines()]
    metrics = [(line["step"], *metric) for line in lines if "step" in line for metric in line["metrics"].items()]
    after = json.loads((output / "summary.json").read_text())["after"]
    model = SentenceTransformer(str(output / "export"), device="cpu", trust_remote_code=True)
    vectors = model.encode(SENTENCES).astype("float32")
    return {
        "machine": machine(),
        "steps": {f"step {step} {name}": value for step, name, value in metrics if name.startswith("train/")},
        "after": {f"{task} {name}": value for task, scores in after.items() for name, value in scores.items()},
        "vectors": {"sha256": hashlib.sha256(vectors.tobytes()).hexdigest()},
    }


def machine() -> dict[str, str]:
    """What decides how sums are rounded."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    cpu = f"{model[1] if model else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
    return {"cpu": cpu, "torch": torch.__version__}
