"""Smoke recipes of all methods, and settings for code paths that they do not use, as engines in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.speed.engine import NOT_TRAINED
from multicse.commands import api, registry
from multicse.data.streams.base import Batch
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.store import Store
from multicse.trainers.engine.text_fit import prepare_encoder
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

PRECISIONS = ("fp32", "bf16", "fp16")
SMOKE = [name for name in registry.NAMES if "smoke" in registry.load(name).RECIPES]
TRAINED = {"encoder.vectors": "gclsr/vectors"}  # in the first row of GCLSR
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "simcse, chunks": ("simcse", {"run.mini_batch_size": 6}),
    "simcse, guided": ("simcse", {"method.negatives": {"margin": 0.1, "guide": "frozen", "hardness": 1.0}}),
    "sgbert, one layer": ("sgbert", {"method.loss": "opt1"}),
    "visualcse, paper": ("visualcse", {"method.variant": "paper"}),
    "visualcse, released": ("visualcse", {"method.variant": "released"}),
    "mocoutrl, paper": ("mocoutrl", {"method.variant": "paper"}),
    "mocoutrl, released": ("mocoutrl", {"method.variant": "released"}),
    "gclsr, paper": ("gclsr", {**TRAINED, "method.variant": "paper"}),
    "gclsr, nothing augmented": ("gclsr", {**TRAINED, "method.partial": 0.0}),
    "gclsr, redrawn": ("gclsr", {**TRAINED, "encoder.unknown": "redrawn", "method.weighting": "softmax"}),
}
"""Pipeline and settings of code paths that the smoke recipes do not use; in one precision."""
ROWS = {**{name: (name, {}, PRECISIONS) for name in SMOKE}, **{name: (*way, ("bf16",)) for name, way in VARIANTS.items()}}
"""Pipeline, settings and precisions of every row."""
CASES = [(name, precision) for name, (_, _, precisions) in ROWS.items() for precision in precisions]
EQUAL = [name for name in ROWS if "gclsr" not in name or name.endswith("nothing augmented")]
"""Rows with equal losses on all devices. GCLSR's augmentation draws other random numbers on a GPU."""


def smoke(name: str, changes: Mapping[str, Any], shards: Mapping[str, str] | None = None) -> Recipe:
    """Return the smoke recipe of a row with changes, whose output folder is the row's name; inputs are made.

    Args:
        name: Name of a row.
        changes: Values of settings by dotted name.
        shards: Shards for each kind of stream. If None, the offline shards of the recipe, which are made.
    """
    pipeline, settings, _ = ROWS[name]
    recipe = registry.load(pipeline).RECIPES["smoke"]()
    own = {f"streams.{stream}.shards": shards[config.kind] for stream, config in recipe.streams.items()} if shards else {}
    here = {"run.output_dir": name, "run.num_workers": 0}
    recipe = api.write_inputs(recipe.changed({**NOT_TRAINED, **settings, **here, **own, **changes}))
    prepare_encoder(recipe)
    return recipe


def engine(recipe: Recipe, device: torch.device | str = "cpu") -> Engine:
    """Return the engine of a recipe on a device, without a tracker."""
    host = Host(Store(f"{recipe.run.output_dir}/checkpoint"))
    host.device = torch.device(device)
    return Engine(recipe, host, None)


def first_batches(made: Engine) -> list[dict[str, Batch]]:
    """Return the first batches of each update, on the device of the engine."""
    updates = made.recipe.method.updates().values()
    with made.streams as readers:
        return [{name: readers[name].on_device(next(readers[name])) for name in streams} for streams in updates]


def losses(method: Method, updates: list[dict[str, Batch]]) -> dict[str, float]:
    """Return the losses of all updates without dropout, and their gradient norm; the gradients are kept."""
    method.eval()
    method.zero_grad()
    torch.manual_seed(0)
    found = [method(batches).losses for batches in updates]
    torch.stack([value.float() for values in found for value in values.values()]).sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in method.parameters() if p.grad is not None])
    return {name: float(value.detach()) for values in (*found, {"gradient": norm}) for name, value in values.items()}
