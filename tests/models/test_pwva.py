"""PWVA in batch is compared with a loop over words in NumPy, closed forms and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from multicse.models.pwva import Form, background_noise, fourier, gaussian_noise, pwva, random_zeros

KINDS = (0.5, 0.2, 0.2, 0.1)
FORMS = get_args(Form)
Kind = Callable[[Tensor, torch.Generator, Form], Tensor]

# ---- naive version: a loop over words, in NumPy


def naive_noise(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """Apply GWN to one word (d,)."""
    if form == "paper":
        return word + 0.1 * rng.standard_normal(len(word))
    snr = rng.integers(6, 12)
    power = np.sum(word**2) / len(word)
    return word + rng.standard_normal(len(word)) * np.sqrt(power / 10 ** (snr / 10))


def naive_zeros(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """Apply RZS to one word (d,)."""
    if form == "paper":
        return np.where(rng.random(len(word)) < 0.1, 0.0, word / 0.9)
    word, longest = word.copy(), int(rng.integers(1, 3))
    for _ in range(rng.integers(15, 20)):
        if form == "fixed":
            length, last = int(rng.integers(1, 3)), len(word)
        else:
            length, last = int(rng.uniform(1, longest + 0.1)), len(word) - 1
        start = int(rng.integers(0, max(0, last - length) + 1))
        word[start : start + length] = 0
    return word


def naive_background(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """Apply RBN to one word (d,)."""
    if form == "paper":
        return word + rng.uniform(0, 0.1, len(word))
    low, high = word.min(), 0.8 * word.max()
    return word + rng.uniform(0, 0.01) * (low + (high - low) * rng.random(len(word)))


def naive_fourier(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """Apply IFFT to one word (d,)."""
    return np.fft.ifft(np.fft.fft(word if form == "paper" else word - word.mean())).real


BATCH: dict[str, Kind] = {
    "noise": gaussian_noise,
    "zeros": random_zeros,
    "background": background_noise,
    "fourier": lambda words, generator, form: fourier(words, form),
}
WORD_BY_WORD: dict[str, Callable[[np.ndarray, np.random.Generator, Form], np.ndarray]] = {
    "noise": naive_noise,
    "zeros": naive_zeros,
    "background": naive_background,
    "fourier": naive_fourier,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(count: int, dim: int = 300, seed: int = 0) -> Tensor:
    """Like word vectors: a mean that is not zero, another length for every word."""
    words = torch.randn(count, dim, generator=seeded(seed)) * 0.2 + 0.05
    return words * torch.linspace(0.5, 2, count)[:, None]


def view(words: Tensor, seed: int = 0, **settings: Any) -> Tensor:
    chosen: dict[str, Any] = {"kinds": KINDS, "partial": 0.5, "form": "released", **settings}
    return pwva(words, seeded(seed), **chosen)


# ---- each kind


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BATCH)
def test_each_kind_has_the_distribution_of_its_loop_over_words(kind: str, form: Form) -> None:
    count = 4000
    word = vectors(3, 50)[1]
    ours = (BATCH[kind](word.expand(count, -1).contiguous(), seeded(1), form) - word).double().numpy()
    rng = np.random.default_rng(2)
    theirs = np.stack([WORD_BY_WORD[kind](word.double().numpy(), rng, form) for _ in range(count)]) - word.numpy()
    for a, b in ((ours, theirs), (ours**2, theirs**2)):
        # per component; 5 standard errors of the difference of two means, over 50 components
        error = np.sqrt((a.var(0) + b.var(0)) / count)
        assert (abs(a.mean(0) - b.mean(0)) <= 5 * error + 1e-6).all()
    # The distance between a word and its augmented vector, and the variation of the distance between words.
    moved, moved_naive = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    assert np.quantile(moved, [0.1, 0.5, 0.9]) == pytest.approx(
        np.quantile(moved_naive, [0.1, 0.5, 0.9]), abs=0.05 * moved_naive.max() + 1e-6
    )


def test_disagree_5_5_all_four_kinds_differ_between_paper_and_code() -> None:
    words = vectors(5)
    for kind in BATCH.values():
        paper, released = (kind(words, seeded(3), form) for form in ("paper", "released"))
        assert not torch.allclose(paper, released, atol=1e-3)


def test_released_zeros_take_a_seventeenth_and_never_the_last_component() -> None:
    """The released function itself, on 20,000 words of ones, gives 17.27 zeros of 300 (standard deviation 1.90)."""
    for form, mean, sd, last in (("released", 17.27, 1.90, 0.0), ("fixed", 24.5, 2.92, 0.055)):
        zeros = random_zeros(torch.ones(20_000, 300), seeded(8), form) == 0  # type: ignore[arg-type]
        counts = zeros.sum(1).double()
        assert (counts.mean().item(), counts.std().item()) == pytest.approx((mean, sd), abs=0.1)
        assert zeros[:, -1].double().mean().item() == pytest.approx(last, abs=0.005) and (last > 0 or not zeros[:, -1].any())
    for dim in (1, 2, 3):  # the released function fails at the first two
        assert random_zeros(torch.ones(50, dim), seeded(8), "released")[:, -1].eq(0).all().item() is (dim == 1)


def test_lambda_and_the_share_of_zeros_are_settings_of_the_paper_s_form() -> None:
    words = vectors(500)
    noise = view(words, kinds=(1, 0, 0, 0), partial=1, form="paper", noise=0.4) - words
    assert noise.std().item() == pytest.approx(0.4, abs=0.01)
    zeros = view(words, kinds=(0, 1, 0, 0), partial=1, form="paper", dropout=0.3)
    assert (zeros == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(zeros[zeros != 0], (words / 0.7)[zeros != 0])


# ---- the choice of a kind


def kind_of(changed: Tensor, words: Tensor) -> str:
    """Return the kind of the released form that changed a word."""
    if torch.equal(changed, words):
        return "none"
    if (changed == 0).any():
        return "zeros"
    if torch.allclose(changed, words - words.mean(), atol=1e-6):
        return "fourier"
    return "noise" if float((changed - words).norm() / words.norm()) > 0.1 else "background"


@pytest.mark.parametrize("partial", [0.3, 1.0])
@pytest.mark.parametrize("kinds", [KINDS, (1, 3, 0, 4)])
def test_shares_of_the_kinds(partial: float, kinds: tuple[float, float, float, float]) -> None:
    words = vectors(2000)
    changed = view(words, kinds=kinds, partial=partial)
    found = [kind_of(*pair) for pair in zip(changed, words, strict=True)]
    shares = {kind: found.count(kind) / len(words) for kind in ("noise", "zeros", "background", "fourier", "none")}
    wanted = [partial * weight / sum(kinds) for weight in kinds] + [1 - partial]
    assert list(shares.values()) == pytest.approx(wanted, abs=0.03)
    assert [value == 0 for value in shares.values()] == [value == 0 for value in wanted]


# ---- repeatable, and at the edges


@pytest.mark.parametrize("form", FORMS)
def test_the_generator_decides_alone_and_the_type_is_kept(form: Form) -> None:
    words = vectors(300)
    one, given, state = view(words, seed=5, form=form), words.clone(), torch.get_rng_state()
    assert torch.equal(view(words, seed=5, form=form), one) and not torch.equal(view(words, seed=6, form=form), one)
    assert torch.equal(torch.get_rng_state(), state)
    same = view(words, partial=0, form=form)
    assert torch.equal(same, words) and same.data_ptr() != words.data_ptr()
    changed = view(words.bfloat16(), partial=1, form=form)
    assert changed.dtype == torch.bfloat16 and bool(changed.isfinite().all()) and torch.equal(words, given)
