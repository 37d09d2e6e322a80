"""Preprocessing is compared with CLIP's, CLAP's and AST's in transformers, and with plain loops."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from PIL import Image
from torch import Tensor

from multicse.data.shards import RawSample
from multicse.data.streams import image as views
from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.data.streams.preprocess import (
    crop_or_pad,
    log_mel,
    mel_filters,
    prepare_images,
    prepare_sounds,
    resize_center_crop,
)
from tests.worlds import png

AUDIO = AudioInput(rate=8000, seconds=0.5, bins=16, n_fft=256, hop=80, low_hz=50, high_hz=4000).model_dump()
IMAGE = ImageInput(size=12).model_dump()


def noise(width: int, height: int, low: int = 0, high: int = 256) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(low, high, (height, width, 3), np.uint8))


def waves(count: int, samples: int, rate: int, seed: int = 0) -> Tensor:
    time = torch.arange(samples) / rate
    tones = torch.stack([0.3 * torch.sin(2 * torch.pi * (200 + 313 * i) * time) for i in range(count)])
    hiss = torch.randn(count, samples, generator=torch.Generator().manual_seed(seed))
    return tones + 0.02 * hiss + 0.05  # and a constant offset


# ---- images


@pytest.mark.parametrize("size", [(90, 70), (64, 64), (300, 41), (20, 17)])
def test_resize_center_crop_equals_resizing_all_of_it(size: tuple[int, int]) -> None:
    image = noise(*size, 96, 160)  # Pillow clips between its two passes, in either order: leave no overshoot to clip
    shorter = min(size)
    whole = image.resize((max(64, 64 * size[0] // shorter), max(64, 64 * size[1] // shorter)), Image.Resampling.BICUBIC)
    left, top = round((whole.width - 64) / 2), round((whole.height - 64) / 2)
    expected = np.asarray(whole.crop((left, top, left + 64, top + 64))).astype(int)
    assert np.abs(np.asarray(resize_center_crop(image, 64)).astype(int) - expected).max() <= 1


def test_prepare_images_is_transformers_clip_preprocessing() -> None:
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size=12)
    images = [noise(20, 15, 96, 160), noise(15, 20, 96, 160)]
    expected = processor(images, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(prepare_images(images, **IMAGE), expected, atol=0.02, rtol=0)
    assert torch.equal(prepare_images([np.asarray(one) for one in images], **IMAGE), prepare_images(images, **IMAGE))
    with pytest.raises(ValueError, match="image 1"):
        prepare_images([images[0], np.zeros((3, 3, 3))], **IMAGE)


# ---- waveforms


def test_crop_or_pad_cuts() -> None:
    wave = np.arange(10, dtype=np.int16)
    np.testing.assert_array_equal(crop_or_pad(wave, 4), [[0, 1, 2, 3]])
    np.testing.assert_array_equal(crop_or_pad(wave, 4, "center"), [[3, 4, 5, 6]])
    np.testing.assert_array_equal(crop_or_pad(wave, 12, "center"), [[*wave, 0, 0]])
    starts = [crop_or_pad(wave, 4, np.random.default_rng(seed))[0, 0] for seed in range(300)]
    assert set(starts) == set(range(7))
    np.testing.assert_array_equal(crop_or_pad(np.zeros(0, np.float32), 3, pad="repeat"), [[0, 0, 0]])


def test_prepare_sounds_takes_the_middle_repeats_and_resamples() -> None:
    long, short = waves(1, 8000, 8000)[0].numpy(), waves(1, 1500, 8000)[0].numpy()
    found = prepare_sounds([(long, 8000), (short, 8000)], **AUDIO)
    quantised = [np.rint(wave * 32768).astype(np.int16) for wave in (long[2000:6000], np.tile(short, 2))]
    padded = np.concatenate([quantised[1], np.zeros(1000, np.int16)])
    assert torch.equal(found, prepare_sounds([(wave, 8000) for wave in (quantised[0], padded)], **AUDIO))
    assert found.shape == (2, 51, 16)
    slow = soxr.resample(long, 16000, 8000)
    assert torch.equal(prepare_sounds([(long, 16000)], **AUDIO), prepare_sounds([(slow, 8000)], **AUDIO))


@pytest.mark.parametrize("broken", [np.zeros((2, 100)), np.zeros(0), np.array([0.1, np.nan])])
def test_invalid_audio_is_refused(broken: np.ndarray) -> None:
    with pytest.raises(ValueError, match="audio 1"):
        prepare_sounds([(waves(1, 4000, 8000)[0].numpy(), 8000), (broken, 8000)], **AUDIO)


# ---- Kaldi's log-mel


def test_log_mel_is_the_ast_feature_extractors() -> None:
    from transformers import ASTFeatureExtractor

    wave = waves(1, 16000, 16000)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extractor = ASTFeatureExtractor(do_normalize=False, max_length=128)
    expected = extractor((wave - wave.mean()).numpy(), sampling_rate=16000, return_tensors="pt")["input_values"]
    found = log_mel(wave.view(1, 1, -1), rate=16000, bins=128, frames=128)
    torch.testing.assert_close(found[0], expected, atol=1e-3, rtol=0)
    assert (found[0, 0, 98:] == 0).all() and (found[0, 0, :98] != 0).any(1).all()  # zero frames, not the log floor


def test_log_mel_lengths_make_padding_invisible() -> None:
    wave = waves(4, 8000, 8000)
    lengths = torch.tensor([8000, 5013, 200, 150])
    padded = wave.clone()
    for i, length in enumerate(lengths.tolist()):
        padded[i, length:] = 0
    found = log_mel(padded[:, None], rate=8000, bins=64, frames=98, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = log_mel(wave[i : i + 1, None, :length], rate=8000, bins=64, frames=98)
        torch.testing.assert_close(found[i], alone[0], atol=1e-3, rtol=0)
    assert (found[1, 0, 61:] == 0).all() and (found[1, 0, 60] != 0).any() and (found[3] == 0).all()


@pytest.mark.parametrize(("rate", "bins", "most"), [(8000, 96, 95), (16000, 129, 126)])
def test_an_empty_mel_filter_is_an_error(rate: int, bins: int, most: int) -> None:
    with pytest.raises(ValueError, match=rf"bins={bins} .*rate={rate}.* is {most}:"):
        mel_filters(rate, bins)
    assert (mel_filters(rate, most).amax(0) > 0).all()
    assert (mel_filters(16000, 128).amax(0) == 0).nonzero().flatten().tolist() == [3]  # the paper's bank is allowed


# ---- CLAP's log-mel

CLAP: dict[str, Any] = {"features": "clap", "rate": 48000, "bins": 64}


@pytest.mark.parametrize("samples", [480_000, 9_000])
def test_clap_log_mel_is_transformers(samples: int) -> None:
    from transformers import ClapFeatureExtractor

    extractor = ClapFeatureExtractor(frequency_min=50, frequency_max=14000, truncation="rand_trunc", padding="repeatpad")
    wave = waves(1, samples, 48000, seed=samples)[0].numpy()
    whole = crop_or_pad(wave, 480_000, pad="repeat")
    quantised = whole[0, :samples].astype(np.float64) / 32768
    expected = extractor(quantised, sampling_rate=48000, return_tensors="np")["input_features"][0, 0]
    found = log_mel(torch.from_numpy(whole)[None], **CLAP)
    assert found.shape == (1, 1, 1001, 64) and found.dtype == torch.float32
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=2e-3)


def test_clap_mel_filters_refuse() -> None:
    with pytest.raises(ValueError, match="bins=128"):
        mel_filters(8000, 128, "clap", 128, 50.0, 4000.0)
    with pytest.raises(ValueError, match="high_hz=14000"):
        mel_filters(16000, 64, "clap")


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 8000, "seconds": 129 / 8000, "n_fft": 256, "hop": 80, "bins": 8, "high_hz": 4000},
        {"features": "kaldi", "rate": 8000, "seconds": 0.025, "bins": 8},
        {"features": "kaldi", "rate": 8000, "seconds": 0.5, "bins": 32},
    ],
)
def test_the_number_of_frames_of_an_input(settings: dict[str, Any]) -> None:
    """The first two settings are the shortest clips with a frame."""
    input = AudioInput(**settings)
    found = log_mel(waves(1, input.samples, 8000)[:, None], **input.model_dump(exclude={"seconds"}))
    assert found.shape == (1, 1, input.frames, input.bins) and input.frames > 0 and bool(found.isfinite().all())


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_random_resized_crop_is_crop_then_resize_away_from_the_border() -> None:
    image = noise(90, 70)
    for seed in range(10):
        found = np.asarray(views.random_resized_crop(image, 64, rng(seed), (0.2, 1.0))).astype(int)
        left, top, width, height = views._crop_box(90, 70, rng(seed), (0.2, 1.0))
        crop = image.crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((64, 64), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(found - expected)[3:-3, 3:-3].max() <= 1


@pytest.mark.parametrize("source", [(32, 32), (1, 1), (500, 3), (8, 8)])
def test_image_views(source: tuple[int, int]) -> None:
    sample = RawSample("a", "x", {"png": png(np.asarray(noise(*source)))})
    stream = views.ImageStream(shards="x", n_views=3, size=16, label=None)
    found, again, other = (stream.row(sample, rng(seed))["image"] for seed in (5, 5, 6))
    assert found.shape == (3, 3, 16, 16) and found.dtype == np.uint8
    np.testing.assert_array_equal(found, again)
    if source == (32, 32):
        assert (found[0] != found[1]).any() and (found != other).any()
