"""Batched views against independent versions: kornia's colour formulas, Python's colorsys, Kaldi's filter bank as
transformers computes it, and plain loops."""

from __future__ import annotations

import colorsys
import warnings

import kornia.augmentation
import kornia.enhance
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import audio_utils

from data.streams import device, views
from data.streams.inputs import AudioInput


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 6, height: int = 9, width: int = 7, seed: int = 0) -> Tensor:
    image = torch.rand(count, 3, height, width, generator=seeded(seed))
    image[0, :, 0] = torch.tensor([[0.0], [1.0], [0.5]]).expand(3, width)  # pure and gray colours: ties of max and min
    image[0, :, 1] = 0.25
    image[0, :, 2] = 0
    image[0, :, 3] = 1
    image[0, 0, 4] = image[0, 1, 4]
    return image


# ---- images


def kornia_step(image: Tensor, step: int, factor: Tensor) -> Tensor:
    """torchvision's formulas, kornia's code."""
    return [
        lambda: kornia.enhance.adjust_brightness_accumulative(image, factor),
        lambda: kornia.enhance.adjust_contrast_with_mean_subtraction(image, factor),
        lambda: kornia.enhance.adjust_saturation_with_gray_subtraction(image, factor),
        lambda: kornia.enhance.adjust_hue(image, factor * 2 * torch.pi),
    ][step]()


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("amount", [-0.5, -0.31, 0.0, 0.1, 0.4])
def test_each_step_is_kornias(step: int, amount: float) -> None:
    image = pictures()
    factors = torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(len(image), 1)
    factors[:, step] += amount
    # The other three steps are the identity, so that one is seen alone whatever the order.
    found = device.jitter(image, factors, torch.arange(4).repeat(len(image), 1).roll(step, 1))
    expected = kornia_step(image, step, factors[:, step])
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_mixed_orders_and_factors_are_kornias_picture_by_picture() -> None:
    image = pictures(40)
    factors = torch.rand(40, 4, generator=seeded(1)) * torch.tensor([1.6, 1.6, 1.6, 1.0]) + torch.tensor([0, 0, 0, -0.5])
    order = torch.rand(40, 4, generator=seeded(2)).argsort(1)
    found = device.jitter(image, factors, order)
    for i in range(40):
        expected = image[i : i + 1]
        for step in order[i].tolist():
            expected = kornia_step(expected, step, factors[i : i + 1, step])
        torch.testing.assert_close(found[i : i + 1], expected, atol=1e-5, rtol=0)


def test_hue_is_colorsys() -> None:
    image = pictures(1)
    found = device.jitter(image, torch.tensor([[1.0, 1.0, 1.0, 0.37]]), torch.arange(4)[None])
    for y in range(image.shape[2]):
        for x in range(image.shape[3]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[0, :, y, x].tolist())
            expected = torch.tensor(colorsys.hsv_to_rgb((hue + 0.37) % 1, saturation, value))
            torch.testing.assert_close(found[0, :, y, x], expected, atol=2e-6, rtol=0)


def test_color_jitter_draws_the_stated_distributions() -> None:
    """Flat pictures show their own factors: one channel of 0.4 under brightness alone is multiplied by the factor."""
    flat = torch.full((4000, 3, 1, 1), 0.4)
    found = device.color_jitter(flat, seeded(), brightness=0.4, contrast=0, saturation=0, hue=0)[:, 0, 0, 0] / 0.4
    changed = found[(found - 1).abs() > 1e-6]
    assert len(changed) / 4000 == pytest.approx(0.8, abs=0.02)
    assert 0.6 <= changed.min() < 0.605 and 1.395 < changed.max() <= 1.4
    assert changed.mean() == pytest.approx(1, abs=0.01) and changed.std() == pytest.approx(0.8 / 12**0.5, rel=0.03)


def test_color_jitter_orders_and_factors_are_uniform_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Tensor] = {}

    def spy(image: Tensor, factors: Tensor, order: Tensor) -> Tensor:
        seen.update(factors=factors, order=order)
        return image

    monkeypatch.setattr(device, "jitter", spy)
    device.color_jitter(torch.zeros(20000, 3, 1, 1), seeded(), probability=1.0)
    assert torch.equal(seen["order"].sort(1).values, torch.arange(4).expand(20000, 4))
    counts = torch.bincount((seen["order"] * torch.tensor([64, 16, 4, 1])).sum(1))
    counts = counts[counts > 0]
    assert len(counts) == 24 and counts.min() > 0.85 * 20000 / 24 and counts.max() < 1.15 * 20000 / 24
    low, high = seen["factors"].amin(0), seen["factors"].amax(0)
    torch.testing.assert_close(low, torch.tensor([0.6, 0.6, 0.6, -0.1]), atol=1e-3, rtol=0)
    torch.testing.assert_close(high, torch.tensor([1.4, 1.4, 1.4, 0.1]), atol=1e-3, rtol=0)
    correlation = torch.corrcoef(torch.cat([seen["factors"], seen["order"][:, :1].float()], 1).T)
    assert (correlation - torch.eye(5)).abs().max() < 0.03


def test_color_jitter_seed_shape_and_input_left_alone() -> None:
    image = pictures(12).view(6, 2, 3, 9, 7)
    before = image.clone()
    found = device.color_jitter(image, seeded(1))
    assert found.shape == image.shape and found.min() >= 0 and found.max() <= 1
    torch.testing.assert_close(image, before, atol=0, rtol=0)
    torch.testing.assert_close(found, device.color_jitter(image, seeded(1)), atol=0, rtol=0)
    assert not torch.equal(found, device.color_jitter(image, seeded(2)))
    same = pictures(1, seed=5).repeat(8, 1, 1, 1)
    assert len({tuple(p.flatten().tolist()) for p in device.color_jitter(same, seeded(), probability=1.0)}) == 8
    torch.testing.assert_close(device.color_jitter(image, seeded(), probability=0.0), image, atol=0, rtol=0)
    state = torch.get_rng_state()
    device.color_jitter(image, seeded())
    assert torch.equal(state, torch.get_rng_state())


def test_random_grayscale() -> None:
    image = torch.rand(2000, 3, 2, 2, generator=seeded(9))
    found = device.random_grayscale(image.view(1000, 2, 3, 2, 2), seeded()).view(image.shape)
    gray = kornia.augmentation.RandomGrayscale(p=1.0)(image)
    changed = (found != image).flatten(1).any(1)
    assert changed.float().mean() == pytest.approx(0.2, abs=0.03)
    torch.testing.assert_close(found[changed], gray[changed], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[~changed], image[~changed], atol=0, rtol=0)
    torch.testing.assert_close(device.random_grayscale(image, seeded(), 1.0), gray, atol=1e-6, rtol=0)


def test_normalise() -> None:
    image = torch.randint(0, 256, (2, 3, 3, 4, 5), dtype=torch.uint8, generator=seeded())
    found = device.normalise(image)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (device.IMAGENET_MEAN, device.IMAGENET_STD))
    torch.testing.assert_close(found, (image / 255 - mean) / std)
    torch.testing.assert_close(device.normalise(image / 255), found, atol=1e-6, rtol=0)
    torch.testing.assert_close(device.normalise(image / 255, (0.5,) * 3, (0.5,) * 3), image / 127.5 - 1)
    assert device.normalise(image.double() / 255).dtype == torch.float64


def test_image_views_refuse() -> None:
    with pytest.raises(ValueError, match="must be float"):
        device.color_jitter(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), seeded())
    with pytest.raises(ValueError, match=r"random_grayscale: image is torch.float32 \(2, 1, 4, 4\)"):
        device.random_grayscale(torch.zeros(2, 1, 4, 4), seeded())
    with pytest.raises(ValueError, match=r"hue=0.6; it must be at least 0 and at most 0\.5"):
        device.color_jitter(pictures(), seeded(), hue=0.6)
    with pytest.raises(ValueError, match=r"contrast=-1; it must be at least 0$"):
        device.color_jitter(pictures(), seeded(), contrast=-1)


# ---- log-mel


def reference_fbank(wave: np.ndarray, rate: int, bins: int) -> np.ndarray:
    """(frames, bins) as ASTFeatureExtractor computes it with numpy."""
    window, hop = rate * 25 // 1000, rate // 100
    fft = 2 ** int(np.ceil(np.log2(window)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its filter 3 is empty at 16 kHz and 128 bins
        filters = audio_utils.mel_filter_bank(
            num_frequency_bins=fft // 2 + 1,
            num_mel_filters=bins,
            min_frequency=20,
            max_frequency=rate / 2,
            sampling_rate=rate,
            norm=None,
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
    return audio_utils.spectrogram(
        wave,
        audio_utils.window_function(window, "hann", periodic=False),
        frame_length=window,
        hop_length=hop,
        fft_length=fft,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=1.192092955078125e-07,
        remove_dc_offset=True,
    ).T


def waves(count: int, samples: int, rate: int, seed: int = 0) -> Tensor:
    time = torch.arange(samples) / rate
    tones = torch.stack([0.3 * torch.sin(2 * torch.pi * (200 + 313 * i) * time) for i in range(count)])
    return tones + 0.02 * torch.randn(count, samples, generator=seeded(seed)) + 0.05  # and a constant offset


@pytest.mark.parametrize(("rate", "bins"), [(16000, 128), (16000, 80), (8000, 64), (22050, 128)])
def test_log_mel_is_kaldis(rate: int, bins: int) -> None:
    wave = waves(3, rate, rate)
    found = device.log_mel(wave[:, None], rate=rate, bins=bins, frames=98)
    assert found.shape == (3, 1, 98, bins) and found.dtype == torch.float32
    for i in range(3):
        expected = reference_fbank((wave[i] - wave[i].mean()).numpy(), rate, bins)[:98]
        np.testing.assert_allclose(found[i, 0].numpy(), expected, atol=1e-3)


def test_log_mel_is_the_ast_feature_extractors() -> None:
    from transformers import ASTFeatureExtractor

    wave = waves(1, 16000, 16000)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extractor = ASTFeatureExtractor(do_normalize=False, max_length=128)
    expected = extractor((wave - wave.mean()).numpy(), sampling_rate=16000, return_tensors="pt")["input_values"]
    found = device.log_mel(wave.view(1, 1, -1), rate=16000, bins=128, frames=128)
    torch.testing.assert_close(found[0], expected, atol=1e-3, rtol=0)
    assert (found[0, 0, 98:] == 0).all() and (found[0, 0, :98] != 0).any(1).all()  # zero frames, not the log floor


def test_log_mel_frames_and_views() -> None:
    wave = waves(4, 8000, 8000).view(2, 2, 8000)
    long, short = (device.log_mel(wave, rate=8000, bins=64, frames=frames) for frames in (98, 30))
    torch.testing.assert_close(short, long[:, :, :30], atol=1e-5, rtol=0)
    assert device.samples_for(8000, 98) == 97 * 80 + 200 <= 8000 < device.samples_for(8000, 99)
    assert (device.log_mel(wave[..., :199], rate=8000, bins=64, frames=5) == 0).all()
    assert (device.log_mel(wave[..., :200], rate=8000, bins=64, frames=5)[:, :, 0] != 0).any()
    other = device.log_mel(wave, rate=8000, bins=30, frames=10, window_ms=50, hop_ms=20, low_hz=100)
    assert other.shape == (2, 2, 10, 30)


def test_log_mel_of_16_bit_and_of_silence() -> None:
    wave = torch.from_numpy(views.crop_or_pad(waves(1, 4000, 8000)[0].numpy(), 4000))[None]
    torch.testing.assert_close(
        device.log_mel(wave, rate=8000, bins=64, frames=40), device.log_mel(wave / 32768, rate=8000, bins=64, frames=40)
    )
    silence = device.log_mel(torch.zeros(1, 1, 4000), rate=8000, bins=64, frames=40)
    torch.testing.assert_close(silence, torch.full_like(silence, np.log(device.LOG_FLOOR)))


def test_log_mel_lengths_make_padding_invisible() -> None:
    wave = waves(4, 8000, 8000)
    lengths = torch.tensor([8000, 5013, 200, 150])
    padded = wave.clone()
    for i, length in enumerate(lengths.tolist()):
        padded[i, length:] = 0
    found = device.log_mel(padded[:, None], rate=8000, bins=64, frames=98, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = device.log_mel(wave[i : i + 1, None, :length], rate=8000, bins=64, frames=98)
        torch.testing.assert_close(found[i], alone[0], atol=1e-3, rtol=0)
    assert (found[1, 0, 61:] == 0).all() and (found[1, 0, 60] != 0).any() and (found[3] == 0).all()


def test_mel_filters_are_kaldis() -> None:
    expected = audio_utils.mel_filter_bank(
        257, 80, 20, 8000, 16000, norm=None, mel_scale="kaldi", triangularize_in_mel_space=True
    )
    np.testing.assert_allclose(device.mel_filters(16000, 80).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("rate", "bins", "most"), [(8000, 128, 95), (8000, 96, 95), (16000, 127, 126), (16000, 129, 126)])
def test_empty_mel_filter_is_an_error(rate: int, bins: int, most: int) -> None:
    with pytest.raises(ValueError, match=rf"bins={bins} .*rate={rate} .*largest number.* is {most}:"):
        device.log_mel(torch.zeros(1, 1, rate), rate=rate, bins=bins, frames=10)
    assert (device.mel_filters(rate, most).amax(0) > 0).all()


def test_the_papers_filter_bank_is_kept_with_its_one_empty_filter() -> None:
    assert (device.mel_filters(16000, 128).amax(0) == 0).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("arguments", [{"bins": 0}, {"rate": 40}, {"low_hz": 4000.0}, {"window_ms": 0.1}])
def test_log_mel_refuses(arguments: dict) -> None:
    with pytest.raises(ValueError, match="bins must be at least 1"):
        device.log_mel(torch.zeros(1, 1, 8000), **({"rate": 8000, "bins": 64} | arguments))
    with pytest.raises(ValueError, match=r"must be \(B, V, T\)"):
        device.log_mel(torch.zeros(1, 8000), rate=8000, bins=64)


# ---- CLAP's log-mel

CLAP = {"rate": 48000, "n_fft": 1024, "hop": 480, "bins": 64, "low_hz": 50.0, "high_hz": 14000.0}


@pytest.mark.parametrize("samples", [480_000, 200_000, 9_000])
def test_clap_log_mel_is_transformers(samples: int) -> None:
    from transformers import ClapFeatureExtractor

    extractor = ClapFeatureExtractor(frequency_min=50, frequency_max=14000, truncation="rand_trunc", padding="repeatpad")
    wave = waves(1, samples, 48000, seed=samples)[0].numpy()
    whole = views.crop_or_pad(wave, 480_000, pad="repeat")
    heard = whole[0, :samples].astype(np.float64) / 32768
    expected = extractor(heard, sampling_rate=48000, return_tensors="np")["input_features"][0, 0]
    found = device.clap_log_mel(torch.from_numpy(whole)[None], **CLAP)  # type: ignore[arg-type]
    assert found.shape == (1, 1, 1001, 64) and found.dtype == torch.float32
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=2e-3)


def test_clap_log_mel_against_a_loop() -> None:
    wave = waves(3, 1003, 8000).double().numpy()
    n_fft, hop = 200, 77  # no power of two, and not a divisor of the length
    filters = audio_utils.mel_filter_bank(101, 10, 100, 3000, 8000, norm="slaney", mel_scale="slaney")
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    found = device.clap_log_mel(
        torch.from_numpy(wave).float()[:, None].expand(3, 2, -1), rate=8000, n_fft=n_fft, hop=hop, bins=10, low_hz=100,
        high_hz=3000,
    )  # fmt: skip
    assert found.shape == (3, 2, 1003 // hop + 1, 10)
    for i in range(3):
        padded = np.pad(wave[i], n_fft // 2, mode="reflect")
        for frame in range(found.shape[2]):
            power = np.abs(np.fft.rfft(padded[frame * hop : frame * hop + n_fft] * taper)) ** 2
            np.testing.assert_allclose(found[i, 1, frame].numpy(), 10 * np.log10(power @ filters), atol=2e-3)


def test_clap_log_mel_golden_value_silence_and_16_bit() -> None:
    # A full-scale sine at the centre of a bin: |X| = n_fft / 4 under a Hann window, in its bin alone but for two halves.
    time = torch.arange(48000) / 48000
    sine = torch.sin(2 * torch.pi * 1500 * time)[None, None]  # bin 32 of 1024 at 48 kHz
    filters = device.clap_mel_filters(48000, 1024, 64, 50.0, 14000.0).double()
    energy = (256**2 * filters[32] + 128**2 * (filters[31] + filters[33])).numpy()
    found = device.clap_log_mel(sine, **CLAP)[0, 0, 50].numpy()  # type: ignore[arg-type]
    near = energy > 1e-3
    assert near.sum() >= 1
    np.testing.assert_allclose(found[near], 10 * np.log10(energy[near]), atol=0.01)
    assert found[~near].max() < 10 * np.log10(energy.max()) - 40
    silent = device.clap_log_mel(torch.zeros(1, 1, 4800, dtype=torch.int16), **CLAP)  # type: ignore[arg-type]
    assert torch.equal(silent, torch.full((1, 1, 11, 64), -100.0))
    short = (sine * 20000).to(torch.int16)
    torch.testing.assert_close(
        device.clap_log_mel(short, **CLAP),  # type: ignore[arg-type]
        device.clap_log_mel(short.float() / 32768, **CLAP),  # type: ignore[arg-type]
    )


def test_clap_log_mel_is_float32_under_autocast() -> None:
    wave = waves(2, 9600, 48000)[:, None]
    plain = device.clap_log_mel(wave, **CLAP)  # type: ignore[arg-type]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = device.clap_log_mel(wave, **CLAP)  # type: ignore[arg-type]
    assert found.dtype == torch.float32 and torch.equal(found, plain)


def test_clap_mel_filters_refuse() -> None:
    with pytest.raises(ValueError, match=r"of bins=128 mel filters are empty at rate=8000 with n_fft=128.* is (\d+): lower"):
        device.clap_mel_filters(8000, 128, 128, 50.0, 4000.0)
    most = next(n for n in range(128, 0, -1) if _fits(n))
    with pytest.raises(ValueError, match=f"largest number of bins without an empty filter is {most}:"):
        device.clap_mel_filters(8000, 128, most + 1, 50.0, 4000.0)
    with pytest.raises(ValueError, match=r"high_hz=14000, rate=16000; .* rate / 2 = 8000"):
        device.clap_mel_filters(16000, 1024, 64, 50.0, 14000.0)
    with pytest.raises(ValueError, match=r"waveform \(1, 1, 512\), hop=480, n_fft=1024; .* more samples than half a window"):
        device.clap_log_mel(torch.zeros(1, 1, 512), **CLAP)  # type: ignore[arg-type]


def _fits(bins: int) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(audio_utils.mel_filter_bank(65, bins, 50, 4000, 8000, "slaney", "slaney").max(0).all())


def test_audio_features_follows_the_input() -> None:
    wave = waves(2, 8000, 16000)[:, None]
    clap = AudioInput(rate=16000, seconds=0.5, bins=20, n_fft=512, hop=160, low_hz=60, high_hz=7000)
    found = device.audio_features(wave, clap)
    expected = device.clap_log_mel(wave, rate=16000, n_fft=512, hop=160, bins=20, low_hz=60, high_hz=7000)
    assert torch.equal(found, expected) and found.shape == (2, 1, clap.frames, 20)
    kaldi = AudioInput(features="kaldi", rate=16000, seconds=0.5, bins=40)
    found = device.audio_features(wave, kaldi)
    assert torch.equal(found, device.log_mel(wave, rate=16000, bins=40, frames=48)) and kaldi.frames == 48


# ---- mix-up


def test_mixup_against_a_loop() -> None:
    """Every waveform lives in a dimension of its own, so that partner and lambda can be read off the result."""
    count = 400
    wave = torch.zeros(count, 1, 2 * count)
    for i in range(count):
        wave[i, 0, 2 * i], wave[i, 0, 2 * i + 1] = 0.5, -0.5  # no mean to remove
    label = torch.arange(count) % 7
    mixed, mixed_label = device.mixup(wave, label, seeded())
    assert mixed_label is not None
    amounts, was_mixed = [], 0
    for i in range(count):
        present = (mixed[i, 0, ::2] * 2).nonzero().flatten().tolist()
        assert i in present and len(present) in (1, 2)
        if len(present) == 1:
            assert torch.equal(mixed[i], wave[i]) and mixed_label[i] == label[i]
            continue
        was_mixed += 1
        (partner,) = set(present) - {i}
        share = float(mixed[i, 0, 2 * i] * 2)
        torch.testing.assert_close(mixed[i], share * wave[i] + (1 - share) * wave[partner], atol=1e-6, rtol=0)
        assert mixed_label[i] == (label[i] if share > 0.5 else label[partner])
        amounts.append(share)
    assert was_mixed / count == pytest.approx(0.5, abs=0.08)
    # Beta(10, 10): mean 1/2, variance 1 / (4 * 21)
    assert np.mean(amounts) == pytest.approx(0.5, abs=0.02)
    assert np.std(amounts) == pytest.approx((1 / 84) ** 0.5, rel=0.15)


def test_mixup_takes_the_others_class_half_of_the_time() -> None:
    label = torch.arange(2000)
    _, mixed = device.mixup(torch.zeros(2000, 1, 2), label, seeded(), probability=1.0)
    assert mixed is not None
    assert (mixed != label).float().mean() == pytest.approx(0.5, abs=0.04)


def test_mixup_removes_means_and_keeps_lengths() -> None:
    lengths = torch.tensor([10, 4])
    wave = torch.rand(2, 1, 10, generator=seeded())
    wave[1, :, 4:] = 0
    mixed, label = device.mixup(wave, None, seeded(), probability=1.0, alpha=1e6, lengths=lengths)
    assert label is None
    first, second = wave[0, 0] - wave[0, 0].mean(), wave[1, 0, :4] - wave[1, 0, :4].mean()
    padded = torch.cat([second, torch.zeros(6)])
    torch.testing.assert_close(mixed[0, 0], (first + padded) / 2, atol=2e-3, rtol=0)  # alpha 1e6: lambda = 0.5
    torch.testing.assert_close(mixed[1, 0], torch.cat([(second + first[:4]) / 2, torch.zeros(6)]), atol=2e-3, rtol=0)


def test_mixup_seed_single_and_16_bit() -> None:
    wave = torch.randint(-9000, 9000, (5, 2, 50), dtype=torch.int16, generator=seeded())
    label = torch.arange(5)
    a, b, c = (device.mixup(wave, label, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(a[0], b[0]) and not torch.equal(a[0], c[0])
    torch.testing.assert_close(device.mixup(wave, label, seeded(), probability=0.0)[0], wave / 32768)
    torch.testing.assert_close(device.mixup(wave[:1], label[:1], seeded(), probability=1.0)[0], wave[:1] / 32768)
    torch.testing.assert_close(device.mixup(wave, label, seeded(1))[0], device.mixup(wave / 32768, label, seeded(1))[0])


# ---- SpecAugment


def test_spec_augment_masks_one_band_and_one_span() -> None:
    ones = torch.ones(1000, 2, 60, 40)
    found = device.spec_augment(ones, seeded(), freq=12, time=20)
    bands, spans = (found == 0).all(2).view(-1, 40), (found == 0).all(3).view(-1, 60)
    for masked, most, size in ((bands, 12, 40), (spans, 20, 60)):
        width = masked.sum(1)
        edges = masked.int().diff(dim=1).abs().sum(1)
        assert (edges <= 2).all()  # one run
        counts = torch.bincount(width, minlength=most)
        assert len(counts) == most  # width 0 to most - 1, uniform
        assert counts.min() > 0.65 * 2000 / most and counts.max() < 1.35 * 2000 / most
        start = masked.int().argmax(1)[width > 0].float() / (size - width[width > 0])
        assert start.mean() == pytest.approx(0.5, abs=0.04) and start.max() <= 1
    outside = ~(bands.view(1000, 2, 1, 40) | spans.view(1000, 2, 60, 1))
    assert (found[outside] == 1).all()
    assert (bands.view(1000, 2, 40)[:, 0] != bands.view(1000, 2, 40)[:, 1]).any()  # views have masks of their own


def test_spec_augment_seed_and_settings() -> None:
    spectrogram = torch.randn(3, 1, 20, 16, generator=seeded())
    before = spectrogram.clone()
    a, b, c = (device.spec_augment(spectrogram, seeded(seed), freq=16, time=20) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c) and torch.equal(spectrogram, before)
    torch.testing.assert_close(device.spec_augment(spectrogram, seeded(), freq=0, time=0), spectrogram, atol=0, rtol=0)
    only_time = device.spec_augment(spectrogram, seeded(1), freq=0, time=20)
    assert ((only_time == 0).any(3) == (only_time == 0).all(3)).all()
    with pytest.raises(ValueError, match="time=192 for a spectrogram of 16 bins and 20 frames"):
        device.spec_augment(spectrogram, seeded(), freq=16)


def test_spec_augment_without_a_generator_uses_torchs() -> None:
    ones = torch.ones(4, 1, 30, 20)
    torch.manual_seed(3)
    a, b = device.spec_augment(ones, freq=10, time=10), device.spec_augment(ones, freq=10, time=10)
    torch.manual_seed(3)
    assert torch.equal(a, device.spec_augment(ones, freq=10, time=10)) and not torch.equal(a, b)
    assert torch.equal(a, device.spec_augment(ones, seeded(3), freq=10, time=10))
