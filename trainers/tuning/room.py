"""What a trial needs of a cluster, and how many fit at a time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import ray
from ray import tune

from multicse.trainers.engine.checks import check_cluster
from multicse.trainers.engine.cluster import capacity, grows
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.trial import in_process

DRIVER = 0.01
"""CPUs of the function that starts Ray Train within a trial; 0 is refused by Tune."""


@dataclass(frozen=True)
class Room:
    """What a trial needs, and how many fit at a time."""

    need: tuple[float, float]
    """CPUs and GPUs of the largest trial, its workers and their reading included."""
    have: tuple[float, float]
    """Of the cluster, grown as far as it may."""
    at_once: int

    def __str__(self) -> str:
        def said(amounts: tuple[float, float]) -> str:
            cpus, gpus = amounts
            return f"{cpus:g} CPU{'s' * (cpus != 1)}" + (f" and {gpus:g} GPU{'s' * (gpus != 1)}" if gpus else "")

        return f"a trial takes {said(self.need)}, the cluster has {said(self.have)}: {self.at_once} at a time, others wait"


def needs(recipe: Recipe) -> tuple[float, float]:
    """CPUs and GPUs that a trial of this recipe takes."""
    run = recipe.run
    if in_process(recipe):
        return run.cpus_per_worker, run.gpus_per_worker
    reading = sum(stream.cpus for stream in recipe.streams.values())
    return run.workers * (run.cpus_per_worker + reading) + DRIVER, run.workers * run.gpus_per_worker


def room(recipes: Collection[Recipe], cpus: float, gpus: float, most: int | None = None) -> Room:
    """How many trials of these recipes fit, `most` at most. Raises RecipeError when not even one does, as all would wait."""
    every = [needs(recipe) for recipe in recipes]
    need = (max(cpu for cpu, _ in every), max(gpu for _, gpu in every))
    fits = [int((have + 1e-9) // want) for have, want in zip((cpus, gpus), need, strict=True) if want]
    found = Room(need, (cpus, gpus), min(fits))
    if found.at_once < 1:
        raise RecipeError(
            f"{found}: the sweep would wait for ever. Lower run.workers, run.cpus_per_worker or run.gpus_per_worker"
        )
    return replace(found, at_once=min(found.at_once, most or found.at_once))


def room_on_cluster(recipes: Collection[Recipe], most: int | None = None) -> Room:
    """`room` on the cluster that this process has joined, and the checks of the recipes that need to know it.

    Raises RecipeError where storage or tracking cannot be reached from its nodes, and for a process that fits on none.
    """
    cpus, gpus, nodes = capacity()
    for recipe in recipes:
        check_cluster(recipe, nodes=nodes)
    found = room(recipes, cpus, gpus, most)
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for run in [recipe.run for recipe in recipes] if not grows() else ():
        if not any(
            node.get("CPU", 0) >= run.cpus_per_worker and node.get("GPU", 0) >= run.gpus_per_worker for node in there
        ):
            raise RecipeError(
                f"run.cpus_per_worker={run.cpus_per_worker:g} and run.gpus_per_worker={run.gpus_per_worker:g} are of one "
                "node, and none has so much: the sweep would wait for ever. Lower them"
            )
    return found


def resources(recipe: Recipe) -> tune.PlacementGroupFactory:
    """What Tune sets aside for a trial; with several workers Ray Train asks for theirs."""
    cpus, gpus = needs(recipe) if in_process(recipe) else (DRIVER, 0.0)
    return tune.PlacementGroupFactory([{"CPU": cpus} | ({"GPU": gpus} if gpus else {})])
