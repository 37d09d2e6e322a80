"""Every smoke recipe goes the way that it went when its file in this folder was written.

A file holds all that training logged at each step, the final scores and a hash of the vectors that the exported model gives
to ten sentences; ``-2-workers`` in its name: two processes trained together. After a deliberate change,
``python -m pytest tests/golden --record-golden -m ""`` writes the files anew. An empty file is the start of a new one.

The steps in float64 (`double`) are compared on every machine. Another processor or build of torch rounds float32
differently, so the run itself is compared on the machine that recorded it: bit for bit, but for the last digits of scores,
in which NumPy's sums differ between processors of one name.
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
from threadpoolctl import threadpool_limits

from multicse.commands.api import write_inputs
from multicse.trainers.engine import deliver, launch
from multicse.trainers.engine.store import CheckpointError
from tests.golden.double import TWO, Steps, ask, join, smoke, two_forks

FOLDER = Path(__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))
PORTABLE = 1e-9
"""Relative difference between machines of what is computed in float64; 5e-14 was measured."""
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


@pytest.fixture(scope="module")
def double(request: pytest.FixtureRequest, offline: Path) -> dict[str, Steps]:
    """Steps in float64 of the selected cases."""
    selected = {item.name for item in request.session.items}
    return ask({name: {} for name in NAMES if f"test_golden[{name}]" in selected}, offline / "double")


def _case(name: str) -> Any:
    """Of the cases of two workers, which start processes, one belongs to every run of the tests."""
    rare = name.endswith(TWO) and "mocoutrl" not in name
    return pytest.param(name, marks=[pytest.mark.timeout(1800), *([pytest.mark.cluster] if rare else [])])


@pytest.mark.parametrize("name", map(_case, NAMES))
def test_golden(
    name: str,
    offline: Path,
    double: dict[str, Steps],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(offline)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{offline}/mlflow.db")
    if name.endswith(TWO):
        two_forks(_worker, name)
    else:
        train(name, name)
    found, file = {**golden(Path(name)), "double": double[name]}, FOLDER / f"{name}.json"
    assert "error" not in found["double"], found["double"]["error"]
    if pytestconfig.getoption("record_golden"):
        file.write_text(json.dumps(found, indent=1) + "\n")
        return
    wanted = json.loads(file.read_text())
    exact = found["machine"] == wanted["machine"]
    if not exact:
        warnings.warn(f"recorded on {wanted['machine']}: only the steps in float64 are compared", stacklevel=1)
    for part in ("double", "steps", "after", "vectors"):
        assert found[part].keys() >= wanted[part].keys()  # a task may measure more than it did
        for what, value in wanted[part].items() if exact or part == "double" else ():
            if part in ("double", "after"):
                value = pytest.approx(value, rel=PORTABLE if part == "double" else 1e-12, abs=1e-15)
            assert found[part][what] == value, f"{name} goes another way in {part!r}, first at {what!r}"


THREE = ("txt", "txt", "txt")
"""Each text three times, so that it has a view too many."""
FAULTS: dict[str, dict[str, Any]] = {
    "clap": {"method.temperature": 0.0505, "method.tower.mask_frames": 9, "method.i_cyclic": 0.2525},
    "cyclip": {"method.temperature": 0.0505, "method.c_cyclic": 0.2525},
    "gclsr": {"method.partial": 0.505, "method.group_size": 32},
    "mocoutrl": {"method.temperature": 0.0707, "method.margin": 1.01, "method.momentum": 0.998},
    "multicse": {
        "method.text.temperature": 0.202,
        "method.image.temperature": 0.0707,
        "method.audio.temperature": 0.0707,
        "method.guide.temperature": 0.0505,
        "streams.image.n_views": 3,
    },
    "nonlingcse": {"method.text.temperature": 0.202, "method.image.temperature": 0.0707, "method.audio.temperature": 0.0707},
    "audiocse": {"method.text.temperature": 0.202, "method.audio.temperature": 0.0707, "streams.text.columns": THREE},
    "visualcse": {"method.text.temperature": 0.202, "method.image.temperature": 0.0707, "streams.image.n_views": 3},
    "pretrain": {"method.mask_probability": 0.1515, "method.fresh.dropout": 0.101},
    "sgbert": {"method.temperature": 0.0101, "method.regularisation": 0.101},
    "simcse": {"method.temperature": 0.202, "streams.text.columns": THREE, "encoder.hidden_dropout": 0.101},
    "simcsepp": {"method.temperature": 0.202, "method.dimension_temperature": 5.05, "encoder.hidden_dropout": 0.101},
    "tsdae": {"method.deletion": 0.606},
    "uml": {"method.text.temperature": 0.202, "method.image.weight": 1.01, "streams.image.n_views": 2},
}
"""Settings that differ by 1 %, or by one, from those of a smoke recipe."""


@pytest.mark.cluster
def test_a_fault_changes_the_steps_in_float64(offline: Path) -> None:
    faults = {f"{name} {path}": {path: value} for name, faults in FAULTS.items() for path, value in faults.items()}
    assert FAULTS.keys() == {name for name in NAMES if TWO not in name}
    found, least = ask(faults, offline / "faults"), 100 * PORTABLE
    for fault, steps in found.items():
        assert "error" not in steps, steps["error"]
        wanted = json.loads((FOLDER / f"{fault.split()[0]}.json").read_text())["double"]
        same = {what: pytest.approx(wanted[what], rel=least) for what in steps if what in wanted}
        assert {what: steps[what] for what in same} != same, fault


def train(paper: str, output: str) -> None:
    """Run a paper's smoke recipe in this process, on one thread of the CPU, into a folder."""
    recipe = write_inputs(smoke(paper, output))
    with threadpool_limits(1), patch.object(deliver, "draw_figures"):  # figures take longer than training
        launch.run_recipe(recipe)


def _worker(rank: int, name: str) -> None:
    """One of two processes that train together; the first exports."""
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///rank-{rank}.db"
    join(rank, Path(f"{name}-store"))
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
    torch.set_num_threads(1)  # another test may have set more, with other sums
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
