"""On a GPU a step of every method has no device or type errors, waits for nothing, and uploads only its batch.

The GPU is simulated: tensors have their data on the CPU and report `cuda:0` (`device.py`), so the engine uses its code paths
for CUDA, with autocast and the operators of the attention kernels (`attention.py`). Kernels, NCCL and speed are not tested.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.method_steps import CASES, EQUAL, ROWS

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, offline: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the record of each row by name and precision, from a separate process since torch is modified there."""
    compiler, headers = shutil.which(os.environ.get("CXX", "c++")), TORCH / "include"
    if compiler is None or not headers.is_dir() or torch.version.cuda is not None:
        pytest.skip("needs a C++ compiler (CXX, c++) and a CPU build of torch with its headers")
    library, source = str(tmp_path_factory.mktemp("device") / "device.so"), str(HERE / "device.cpp")
    flags = ["-shared", "-fPIC", "-std=c++20", f"-I{headers}", f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}"]
    subprocess.run([compiler, source, *flags, "-ltorch_cpu", "-lc10", "-o", library], check=True)
    run = [sys.executable, "-m", "tests.cuda_like.steps", library]
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    lines = subprocess.run(
        run, check=True, cwd=offline, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    return {(name, precision): row for name, precision, row in map(json.loads, lines.stdout.splitlines())}


def ran(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row, or raise RuntimeError with the traceback of its error."""
    if "error" in row:
        raise RuntimeError(row["error"])
    return row


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_a_step_waits_for_nothing(name: str, precision: str, found: dict[tuple[str, str], dict[str, Any]]) -> None:
    row = ran(found[name, precision])
    if not any("Batch.to" in line for line in row["record"]):
        raise RuntimeError("nothing is recorded: not even the uploads of the batches before this step")
    assert [
        (kind, line, count) for kind, line, count in row["events"] if (kind, "Batch.to" in line) != ("upload", True)
    ] == []


@pytest.mark.parametrize("name", EQUAL)
def test_losses_and_gradients_equal_those_of_the_cpu(name: str, found: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Without dropout, in fp32, and without GCLSR's augmentation, which draws other random numbers on a GPU."""
    on_cpu, on_gpu = ran(found[name, ROWS[name][2][0]])["losses"]
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3)
