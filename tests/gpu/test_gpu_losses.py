"""Losses and their gradients on a GPU equal those on the CPU in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from multicse.trainers import losses
from tests.gpu.compare import LIMITS, assert_close

pytestmark = pytest.mark.gpu
N, D = 24, 64
Inputs = dict[str, Tensor]
LOSSES: dict[str, Callable[[Inputs], Tensor]] = {
    "cosine_similarity": lambda x: losses.cosine_similarity(x["a"], x["b"]),
    "whitened": lambda x: losses.whitened(x["a"], x["b"], 0.3),
    "whitened, only centred": lambda x: losses.whitened(x["a"], x["b"], 1.0),
    "info_nce": lambda x: losses.info_nce(x["a"], x["b"], 0.07),
    "info_nce, part of the rows": lambda x: losses.info_nce(x["a"][8:16], x["b"], x["scale"].exp(), 8, x["mask"][8:16]),
    "simcse": lambda x: losses.simcse(x["a"], x["b"]),
    "simcse, hard negatives": lambda x: losses.simcse(x["a"], x["b"], x["c"], 0.05, 0.7, 0, 0.5, x["wide_mask"]),
    "supcon_eq4": lambda x: losses.supcon_eq4(x["a"], x["b"], x["labels"]),
    "supcon": lambda x: losses.supcon(x["pairs"], x["pairs"], x["labels"]),
    "supcon, part of the rows": lambda x: losses.supcon(x["pairs"][8:16], x["pairs"], x["labels"], 0.1, 8),
    "supcon_released": lambda x: losses.supcon_released(x["a"], x["b"], x["labels"]),
    "contrastive": lambda x: losses.contrastive(x["a"], x["b"], x["a"], x["b"], x["scale"].exp()),
    "consistency": lambda x: losses.consistency(x["a"], x["b"], x["b"], x["a"]),
    "grouped_cosine": lambda x: losses.grouped_cosine(x["a"], x["b"], 16),
    "spread": lambda x: losses.spread(x["a"]),
    "long_span": lambda x: losses.long_span(x["a"], x["b"], x["c"], 0.07, x["kept"]),
    "long_span, nothing kept": lambda x: losses.long_span(x["a"], x["b"], x["c"], 0.07, x["kept"] & False),
    "nt_xent_with_negatives": lambda x: losses.nt_xent_with_negatives(
        x["pairs"], x["pairs"], x["c"], 0.07, 0, x["kept"], 0.5
    ),
    "token_eq10": lambda x: losses.token_eq10(x["a"], x["b"], x["c"]),
    "token_triplet": lambda x: losses.token_triplet(x["a"], x["b"], x["c"]),
    "token_rows": lambda x: losses.token_rows(x["states"], x["ids"], x["a"], x["scale"]),
    "token_rows, other sizes": lambda x: losses.token_rows(x["states"], x["ids"][:, [0, 1, 0]], x["a"], x["scale"]),
}
KINDS: tuple[losses.MarginStrategy, ...] = ("absolute", "relative", "threshold")
WITHOUT_GRADIENTS = {"full_precision", "false_negatives", "released_targets", "gaussian_shell", "move"}


def inputs() -> Inputs:
    """Return the inputs of all losses, in float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(3, N, D, generator=generator, dtype=torch.float64)
    b = a + b  # positives
    kept = torch.rand(N, generator=generator) < 0.7
    masks = torch.rand(N, 3 * N, generator=generator) < 0.3
    wide = masks[:, : 2 * N].scatter(1, torch.arange(N)[:, None], False)
    ids = torch.randint(N, (4, 3, 5), generator=generator)
    ids[:, 2] = ids[:, 0]
    ids[:, 2, 1] = (ids[:, 0, 1] + 1) % N  # one token differs
    states = torch.randn(4, 3, 5, D, generator=generator, dtype=torch.float64)
    found = {"a": a, "b": b, "c": c, "pairs": torch.stack([a, b], 1), "states": states, "ids": ids, "kept": kept}
    found |= {"labels": torch.arange(N) % 7, "mask": wide[:, :N], "wide_mask": wide}
    return found | {"scale": torch.tensor(0.4, dtype=torch.float64)}


def computed(loss: Callable[[Inputs], Tensor], given: Inputs, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Return a loss and its gradients by the name of the input."""
    moved = {name: x.clone().to(device, dtype if x.is_floating_point() else None) for name, x in given.items()}
    moved["scale"] = given["scale"].clone().to(device, torch.promote_types(dtype, torch.float32))  # a parameter
    moved = {name: x.requires_grad_(x.is_floating_point()) for name, x in moved.items()}
    half = dtype in (torch.bfloat16, torch.float16)
    with torch.autocast(device.type, dtype if half else torch.bfloat16, enabled=half):
        out = loss(moved)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (out * weights.to(out)).sum().backward()
    return {"loss": out, **{name: x.grad for name, x in moved.items() if x.grad is not None}}


def test_every_loss_is_compared() -> None:
    public = {name for name, value in vars(losses).items() if inspect.isfunction(value) and not name.startswith("_")}
    own = {name for name in public if getattr(losses, name).__module__ == losses.__name__}
    assert own == {name.split(",")[0] for name in LOSSES} | WITHOUT_GRADIENTS


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Half-precision inputs under autocast give the loss of the rounded inputs, and gradients rounded once."""
    given = {name: x.to(dtype).double() if x.is_floating_point() else x for name, x in inputs().items()}
    given["scale"] = inputs()["scale"].float().double()
    wanted = computed(LOSSES[name], given, torch.device("cpu"), torch.float64)
    found = computed(LOSSES[name], given, device, dtype)
    if dtype != torch.float64:
        assert found["loss"].dtype == torch.float32
    assert_close({"loss": found.pop("loss")}, {"loss": wanted.pop("loss")}, min(LIMITS[dtype], LIMITS[torch.float32]))
    assert_close(found, wanted, LIMITS[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masks_targets_and_tables(dtype: torch.dtype, device: torch.device) -> None:
    """Formulas without a gradient."""
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs().items()}
    noise = torch.randn(N, D, generator=torch.Generator().manual_seed(5), dtype=dtype)

    similarities = losses.cosine_similarity(given["a"], given["b"])  # rounded equally, since they are compared with limits

    def found(place: torch.device) -> dict[str, Tensor]:
        x = {name: tensor.clone().to(place) for name, tensor in given.items()}
        positives = torch.arange(N, device=place)
        masks: dict[str, Tensor] = {
            kind: losses.false_negatives(similarities.to(place), positives, 0.5, kind) for kind in KINDS
        }
        with patch("torch.randn_like", lambda like: noise.to(like.device)):
            shell = losses.gaussian_shell(x["a"])
        losses.move(x["b"], x["c"], 0.9)
        return {**masks, "targets": losses.released_targets(x["labels"]), "shell": shell, "moved": x["b"]}

    on_cpu, on_gpu = found(torch.device("cpu")), found(device)
    assert 0 < on_cpu["absolute"].float().mean() < 1
    for name in (*KINDS, "targets"):
        assert torch.equal(on_gpu[name].cpu(), on_cpu[name]), name
    floats = ("shell", "moved")
    assert_close({n: on_gpu[n] for n in floats}, {n: on_cpu[n] for n in floats}, LIMITS[dtype] / 100)


def test_impossible_batches_are_not_finite_instead_of_an_error(device: torch.device) -> None:
    """A check would wait for the GPU. The engine stops at the first loss that is not finite."""
    x = {name: tensor.to(device) for name, tensor in inputs().items()}
    impossible: list[Callable[[], Tensor]] = [
        lambda: losses.supcon_eq4(x["a"], x["b"], x["labels"] * 0),
        lambda: losses.whitened(x["a"], x["a"] * 0).sum(),
    ]
    for call in impossible:
        if device.type == "cpu":
            with pytest.raises((ValueError, torch.linalg.LinAlgError)):
                call()
        else:
            assert not call().isfinite()
