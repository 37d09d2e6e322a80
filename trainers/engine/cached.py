"""Gradients of a large batch in the memory of a small one (GradCache; Gao et al., RepL4NLP 2021)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from multicse.data.batch import Batch
from multicse.trainers.engine.sharding import full_tensors
from multicse.trainers.method import Method, StepOutput


def cached_backward(
    method: Method,
    batches: dict[str, Batch],
    chunk: int,
    backward: Callable[[StepOutput], None],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> StepOutput:
    """Losses of a turn, and their gradients added to those of the parameters, with the activations of `chunk` samples at a
    time.

    Every chunk is encoded without a graph; `backward` takes the losses of all features back to these, and to the parameters
    that the losses use themselves; then every chunk is encoded again, with the random numbers that it had, and its
    features' gradients go on from there. The gradients are those of one graph over the same chunks, for one more forward.

    Args:
        autocast: makes a new context of mixed precision; one for every graph, since it keeps the weights that it has cast.
    """
    device = next(method.parameters()).device
    chunks = [
        (name, first, batch.rows(first, first + chunk))
        for name, batch in batches.items()
        for first in range(0, len(batch), chunk)
    ]
    states: list[list[Tensor]] = []
    parts: dict[str, list[dict[str, Tensor]]] = {name: [] for name in batches}
    with torch.no_grad(), autocast():
        for name, _, rows in chunks:
            states.append(_random_state(device))
            parts[name].append(method.encode(name, rows))
    features = {name: _leaves(found) for name, found in parts.items()}
    del parts
    with autocast():
        output = method.nested_losses(features, batches)
        output = full_tensors(StepOutput({**output.losses, **method.penalties()}, output.metrics))
    backward(output)
    after = _random_state(device)
    for (name, first, rows), state in zip(chunks, states, strict=True):
        _set_random_state(state, device)
        with autocast():
            again = method.encode(name, rows)
        gradients = {key: leaf.grad[first : first + chunk] for key, leaf in features[name].items() if leaf.grad is not None}
        learned = [key for key in gradients if again[key].requires_grad]
        torch.autograd.backward([again[key] for key in learned], [gradients[key] for key in learned])
    _set_random_state(after, device)
    return output


def _leaves(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The chunks' features one below the other, as leaves that collect gradients where they can have any."""
    joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: feature.requires_grad_(feature.is_floating_point()) for key, feature in joined.items()}


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
