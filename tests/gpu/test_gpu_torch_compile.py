"""`run.compile` on a GPU gives the losses and gradients of the eager model. Last, since it compiles for half a minute."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from multicse.trainers.engine.step import Stepper
from tests.gpu.compare import LIMITS, assert_close, gradients
from tests.method_steps import engine, first_batches, smoke

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise")]


def test_compiled_encoder(
    device: torch.device, shards: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed texts, without dropout, in two batches of different lengths."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("torch.compile needs a C compiler")
    monkeypatch.chdir(tmp_path)
    settings = {"run.max_steps": 8, "run.tf32": False, "run.precision": "bf16", "run.output_dir": str(tmp_path / "run")}
    made = engine(smoke("simcse", settings, shards), device)
    made.method.eval()
    (batches,) = first_batches(made)
    batches = {name: batch.rows(0, 12) for name, batch in batches.items()}
    found = []
    for compiled in (False, True):
        stepper = Stepper(made.recipe.replace("run.compile", compiled), made.method, made.host, made.steps)
        values: dict[str, Tensor] = {}
        for rows in (12, 5):
            part = {name: batch.rows(0, rows) for name, batch in batches.items()}
            output = stepper._backward("text", part, last=True)
            values |= {f"{rows} {name}": value.detach() for name, value in output.losses.items()}
            values |= {f"{rows} {name}": gradient for name, gradient in gradients(made.method).items()}
        found.append(values)
    assert_close(found[1], found[0], 2 * LIMITS[torch.bfloat16])
