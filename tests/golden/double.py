"""Steps of smoke recipes in float64, which agree to 1e-9 on all machines.

    python -m tests.golden.double '{"simcse": {}, "clap": {"method.temperature": 0.0505}}' FILE [THREADS]

Sums in float32 depend on the processor, and in eight steps a difference of 1e-7 can become one of 1e-3. Here, every call of
torch gets float64 instead of float32, and so weights, views and draws are float64 too: torch draws these in plain code, but
float32 with the processor's vector units. Nothing is evaluated or exported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gensim.models import Word2Vec
from torch import Tensor
from torch.overrides import TorchFunctionMode

from multicse.commands import api, registry
from multicse.commands.cli import parse
from multicse.trainers.engine import checkpoint
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.optim import UpdateOptimizer
from multicse.trainers.engine.store import Store
from multicse.trainers.engine.text_fit import prepare_encoder
from multicse.trainers.recipe import Recipe
from tests.worlds import EXAMPLES

ROOT = Path(__file__).parents[2]
TWO = "-2-workers"
STEPS = 8
# The gradient of an attention key's bias is 0 but for rounding. MultiCSE keeps the weights near those of its guide, and Adam
# multiplies so small a distance by 50 in every step: from 1e-17 to 1e-7 in eight.
FEWER_STEPS = {"multicse": 4}

Steps = dict[str, float]
"""What training logged, by ``step NUMBER NAME``; or the text of an error, by ``error``."""


class Double(TorchFunctionMode):
    """Replaces float32 by float64 in the arguments of every function of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        func = Tensor.double if func is Tensor.float else func
        return func(*map(_doubled, args), **{name: _doubled(value) for name, value in (kwargs or {}).items()})


def _doubled(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    if type(value) in (list, tuple):
        return type(value)(map(_doubled, value))
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


@contextmanager
def in_double() -> Iterator[None]:
    """Build and train in float64; the threads that read have it as their default, too."""
    build, update = checkpoint.build_method, UpdateOptimizer.update
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        stack.enter_context(patch.object(torch, "set_default_dtype"))  # transformers builds a model in the type of its files
        stack.enter_context(patch.object(checkpoint, "build_method", lambda recipe: build(recipe).double()))
        # Fused optimizers read the flag of a loss that is not finite as float32.
        stack.enter_context(patch.object(UpdateOptimizer, "update", lambda self, broken: update(self)))
        # Its training is in float32; the initial vectors will do.
        stack.enter_context(patch.object(Word2Vec, "train"))
        stack.enter_context(Double())
        yield


def smoke(paper: str, output: str) -> Recipe:
    """Return a paper's smoke recipe, in this process and on one thread of the CPU, into a folder."""
    own = EXAMPLES / f"{paper}.py"
    pipeline = registry.load(str(own) if own.is_file() else paper)
    settings = ["--run.output_dir", output, "--run.num_workers=0", "--run.threads=1", "--run.logging-steps=1"]
    return parse(pipeline.RECIPES, "", ["smoke", *settings])


def steps(recipe: Recipe, count: int) -> Steps:
    """Train in float64 and return all that each step logs."""
    found: Steps = {}
    with in_double():
        recipe = api.write_inputs(recipe)
        prepare_encoder(recipe)
        engine = Engine(recipe, Host(Store(recipe.run.output_dir)), None)
        with engine.streams as readers:
            for step in range(count):
                engine.stepper(step, readers, engine.meter)
                engine.method.after_step(step + 1)
                found |= {f"step {step + 1} {name}": value for name, value in engine.meter.means().items()}
                engine.meter.restart()
    assert {p.dtype for p in engine.method.parameters()} == {torch.float64}
    return found


def two_forks(worker: Callable[..., None], *arguments: object) -> None:
    """Run ``worker(rank, *arguments)`` in two forks of a process that has imported what takes seconds."""
    mp.get_context("forkserver").set_forkserver_preload(["multicse.trainers.engine.run", "sentence_transformers"])
    mp.start_processes(worker, arguments, nprocs=2, start_method="forkserver")


def join(rank: int, store: Path) -> None:
    """Become one of two processes that train together."""
    dist.init_process_group("gloo", init_method=f"file://{store.absolute()}", rank=rank, world_size=2)
    Host.rank, Host.world_size = rank, 2


def _worker(rank: int, request: tuple[Recipe, int], file: Path) -> None:
    join(rank, file.with_suffix(".store"))
    found = steps(*request)
    if rank == 0:
        file.write_text(json.dumps(found))
    dist.destroy_process_group()


def _answer(name: str, changes: Mapping[str, Any], threads: int) -> Steps:
    paper = name.split()[0].removesuffix(TWO)
    recipe = smoke(paper, name).changed({"run.threads": threads, **changes})
    request = recipe, 2 if changes else FEWER_STEPS.get(paper, STEPS)
    if TWO not in name:
        return steps(*request)
    file = Path(f"{name}.json").absolute()
    two_forks(_worker, request, file)
    found: Steps = json.loads(file.read_text())
    return found


def ask(requests: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, Steps]:
    """Return the steps of each request, from a process of its own: float64 would stay in caches of this one.

    Args:
        requests: Settings to change, by name of the golden file. Text after a blank in a name distinguishes requests.
        folder: Working folder; nothing else may use it, since recipes share the encoders that they make.
    """
    folder.mkdir(exist_ok=True)
    file = folder / "double.json"
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", __name__, json.dumps(requests), str(file)]
    subprocess.run(command, cwd=folder, env=os.environ | path, check=True)
    found: dict[str, Steps] = json.loads(file.read_text())
    return found


def main(requests: str, file: str, threads: str = "1") -> None:
    """Answer requests (JSON) in the current folder."""
    found: dict[str, Any] = {}
    for name, changes in json.loads(requests).items():
        try:
            found[name] = _answer(name, changes, int(threads))
        except Exception:
            found[name] = {"error": traceback.format_exc()}
    Path(file).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
