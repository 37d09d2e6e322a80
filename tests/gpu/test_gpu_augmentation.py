"""Views of images and audio that are made on a GPU equal those on the CPU for the same draws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multicse.data.streams.device import JITTER_DRAWS, color_jitter, mask_draws, random_grayscale, spec_augment
from multicse.data.streams.preprocess import log_mel, normalise
from tests.gpu.compare import LIMITS, assert_close

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise")]
COUNT = 40
Inputs = dict[str, Tensor]
VIEWS: dict[str, Callable[[Inputs], Tensor]] = {
    "color_jitter": lambda x: color_jitter(x["image"], x["draws"]),
    "color_jitter, each image": lambda x: color_jitter(x["image"], x["draws"], 0.8, 0.8, 1.2, 0.5, probability=1.0),
    "random_grayscale": lambda x: random_grayscale(x["image"], x["draws"][:, 0], 0.5),
    "normalise, uint8": lambda x: normalise(x["pixels"], (0.5, 0.4, 0.3), (0.2, 0.3, 0.2)),
    "normalise": lambda x: normalise(x["image"], (0.5, 0.4, 0.3), (0.2, 0.3, 0.2)),
    "spec_augment": lambda x: spec_augment(x["spectrogram"], 20, 12, x["masks"]),
    "log_mel, kaldi": lambda x: log_mel(x["wave"], rate=16000, bins=64, frames=120, lengths=x["lengths"]),
    "log_mel, kaldi, padded": lambda x: log_mel(x["wave"], rate=16000, bins=128),
    "log_mel, clap": lambda x: log_mel(x["wave"], rate=16000, bins=40, features="clap", high_hz=8000.0, hop=160),
}


def inputs() -> Inputs:
    """Return images, with gray and pure colours, spectrograms and noise, more clips than are computed at once."""
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(COUNT, 3, 24, 20, generator=generator)
    image[0, :, 0] = torch.tensor([[0.0], [1.0], [0.5]])
    image[0, :, 1], image[0, :, 2], image[0, :, 3] = 0.25, 0.0, 1.0
    wave = (torch.randn(70, 1, 20_000, generator=generator) * 3000).clamp(-32768, 32767).short()
    lengths = torch.randint(100, 20_001, (70,), generator=generator)
    return {
        "image": image,
        "pixels": (image * 255).byte(),
        "draws": torch.rand(COUNT, JITTER_DRAWS, generator=generator),
        "spectrogram": torch.randn(COUNT, 1, 60, 40, generator=generator),
        "masks": mask_draws(COUNT, 2, generator),
        "wave": wave,
        "lengths": lengths,
    }


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, device: torch.device) -> None:
    wanted = VIEWS[name](inputs())
    found = VIEWS[name]({name: tensor.to(device) for name, tensor in inputs().items()})
    assert found.device.type == device.type and found.dtype == wanted.dtype
    assert_close({"view": found}, {"view": wanted}, 0.0 if name == "spec_augment" else LIMITS[torch.float32] / 10)


def test_the_given_images_stay(device: torch.device) -> None:
    given = {name: tensor.to(device) for name, tensor in inputs().items()}
    for name in ("color_jitter", "random_grayscale", "spec_augment"):
        VIEWS[name](given)
    assert all(torch.equal(given[name].cpu(), tensor) for name, tensor in inputs().items())
