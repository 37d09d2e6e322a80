"""Batched views are compared with independent versions: kornia's colour formulas and plain loops."""

from __future__ import annotations

from unittest.mock import patch

import kornia.augmentation
import kornia.enhance
import pytest
import torch
from torch import Tensor

from multicse.data.streams import device
from multicse.data.streams.preprocess import log_mel, normalise


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 6, height: int = 9, width: int = 7, seed: int = 0) -> Tensor:
    image = torch.rand(count, 3, height, width, generator=seeded(seed))
    image[0, :, 0] = torch.tensor([[0.0], [1.0], [0.5]]).expand(3, width)  # pure and gray colours: ties of max and min
    image[0, :, 1] = 0.25
    image[0, :, 2] = 0
    image[0, :, 3] = 1
    image[0, 0, 4] = image[0, 1, 4]
    return image


# ---- images


def kornia_step(image: Tensor, step: int, factor: Tensor) -> Tensor:
    """Apply one of torchvision's formulas by kornia's code."""
    return [
        lambda: kornia.enhance.adjust_brightness_accumulative(image, factor),
        lambda: kornia.enhance.adjust_contrast_with_mean_subtraction(image, factor),
        lambda: kornia.enhance.adjust_saturation_with_gray_subtraction(image, factor),
        lambda: kornia.enhance.adjust_hue(image, factor * 2 * torch.pi),
    ][step]()


def test_mixed_orders_and_factors_are_kornias_image_by_image() -> None:
    image = images(40)
    factors = torch.rand(40, 4, generator=seeded(1)) * torch.tensor([1.6, 1.6, 1.6, 1.0]) + torch.tensor([0, 0, 0, -0.5])
    order = torch.rand(40, 4, generator=seeded(2)).argsort(1)
    found = device.jitter(image, factors, order)
    for i in range(40):
        expected = image[i : i + 1]
        for step in order[i].tolist():
            expected = kornia_step(expected, step, factors[i : i + 1, step])
        torch.testing.assert_close(found[i : i + 1], expected, atol=1e-5, rtol=0)


class Elsewhere(Tensor):
    """A tensor that claims not to be on the CPU."""

    is_cpu = False


def test_a_gpu_makes_the_views_of_the_cpu_without_data_dependent_shapes() -> None:
    image, draws = images(40), torch.rand(40, device.JITTER_DRAWS + 1, generator=seeded())
    given = image.clone()

    def views(image: Tensor) -> Tensor:
        return device.random_grayscale(device.color_jitter(image, draws[:, :-1]), draws[:, -1])

    expected = views(image)
    assert torch.equal(image, given) and not torch.equal(image, expected)
    with patch.object(Tensor, "nonzero", side_effect=AssertionError("the host would wait for the GPU")):
        found = views(image.as_subclass(Elsewhere))
    torch.testing.assert_close(found.as_subclass(Tensor), expected, atol=1e-6, rtol=0)
    unchanged = (expected == image).flatten(1).all(1)
    assert torch.equal(unchanged, (draws[:, 0] >= 0.8) & (draws[:, -1] >= 0.2)) and unchanged.any()


def test_constants_are_uploaded_once() -> None:
    image, draws = images(8), torch.rand(8, device.JITTER_DRAWS, generator=seeded())

    def made() -> list[Tensor]:
        mels = [
            log_mel(torch.zeros(1, 1, 4000), rate=8000, bins=8, features=features, high_hz=4000.0)
            for features in ("kaldi", "clap")
        ]
        return [normalise(device.color_jitter(image, draws), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)), *mels]

    first, error = made(), AssertionError("made again")
    with patch.multiple(torch, tensor=error, as_tensor=error, from_numpy=error):  # none of them can be called
        again = made()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_random_grayscale() -> None:
    image, draws = torch.rand(2000, 3, 2, 2, generator=seeded(9)), torch.rand(2000, generator=seeded())
    found = device.random_grayscale(image, draws)
    gray = kornia.augmentation.RandomGrayscale(p=1.0)(image)
    changed = (found != image).flatten(1).any(1)
    assert changed.float().mean() == pytest.approx(0.2, abs=0.03)
    torch.testing.assert_close(found[changed], gray[changed], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[~changed], image[~changed], atol=0, rtol=0)
    torch.testing.assert_close(device.random_grayscale(image, draws, 1.0), gray, atol=1e-6, rtol=0)


# ---- SpecAugment


def test_spec_augment_masks_whole_stripes() -> None:
    ones, draws = torch.ones(1000, 2, 60, 40), device.mask_draws(2000, 2, seeded())
    found = device.spec_augment(ones, 20, 12, draws)
    bands, spans = (found == 0).all(2).view(-1, 40), (found == 0).all(3).view(-1, 60)
    for masked, most in ((bands, 12), (spans, 20)):
        assert (masked.int().diff(dim=1).abs().sum(1) <= 4).all() and most < masked.sum(1).max() <= 2 * (most - 1)
    outside = ~(bands.view(1000, 2, 1, 40) | spans.view(1000, 2, 60, 1))
    assert (found[outside] == 1).all()
    assert (bands.view(1000, 2, 40)[:, 0] != bands.view(1000, 2, 40)[:, 1]).any()  # the masks of the views are independent
    assert torch.equal(device.spec_augment(ones, 0, 0, draws), ones)
