"""PWVA in batch against a loop over words in NumPy, closed forms and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.speed import gclsr_naive as naive
from models.pwva import Form, background_noise, fourier, gaussian_noise, pwva, random_zeros

KINDS = (0.5, 0.2, 0.2, 0.1)
FORMS = get_args(Form)
Kind = Callable[[Tensor, torch.Generator, Form], Tensor]

BATCH: dict[str, Kind] = {
    "noise": gaussian_noise,
    "zeros": random_zeros,
    "background": background_noise,
    "fourier": lambda words, generator, form: fourier(words, form),
}
WORD_BY_WORD: dict[str, Callable[[np.ndarray, np.random.Generator, Form], np.ndarray]] = {
    "noise": naive.naive_noise,
    "zeros": naive.naive_zeros,
    "background": naive.naive_background,
    "fourier": naive.naive_fourier,
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
    # Of a whole word: how far it moves, and how much that varies from word to word.
    moved, moved_naive = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    assert np.quantile(moved, [0.1, 0.5, 0.9]) == pytest.approx(
        np.quantile(moved_naive, [0.1, 0.5, 0.9]), abs=0.05 * moved_naive.max() + 1e-6
    )


def test_disagree_5_5_all_four_kinds_differ_between_paper_and_code() -> None:
    words = vectors(5)
    for kind in BATCH.values():
        paper, released = (kind(words, seeded(3), form) for form in FORMS)
        assert not torch.allclose(paper, released, atol=1e-3)


def test_released_noise_lies_6_to_11_decibel_below_the_word() -> None:
    words = vectors(6000, 2000)
    noise = gaussian_noise(words, seeded(4), "released") - words
    decibel = 10 * torch.log10(words.square().sum(1) / noise.square().sum(1))
    # A sum of 2000 squares is within 0.7 dB of its mean, so every word shows which ratio it drew only nearly.
    assert float(decibel.min()) > 5.3 and float(decibel.max()) < 11.7
    shares = torch.histc(decibel.round(), 6, 5.5, 11.5) / len(words)
    assert shares.tolist() == pytest.approx([1 / 6] * 6, abs=0.025)
    off = (decibel - decibel.round()).abs()
    assert float(off.median()) < 0.12  # whole decibels: uniform ones would be 0.25 off


def test_noise_of_the_paper_does_not_depend_on_the_word() -> None:
    words = vectors(500, 400) * torch.linspace(0, 10, 500)[:, None]
    noise = gaussian_noise(words, seeded(5), "paper", noise=0.3) - words
    assert noise.std(1).numpy() == pytest.approx(0.3, rel=0.2) and float(noise.std()) == pytest.approx(0.3, rel=0.01)


def test_released_zeros_are_15_to_19_runs_of_one_or_two() -> None:
    words = torch.ones(600, 20_000)  # long vectors: runs that meet are rare
    zero = random_zeros(words, seeded(6), "released") == 0
    assert int(zero.sum(1).min()) >= 15 and int(zero.sum(1).max()) <= 38
    edges = zero.int().diff(dim=1, prepend=torch.zeros(600, 1), append=torch.zeros(600, 1))
    starts, ends = (edges == 1).nonzero(), (edges == -1).nonzero()
    runs = torch.bincount(starts[:, 0], minlength=600)
    shares = torch.bincount(runs, minlength=20)[15:20] / 600
    assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.08)
    lengths = ends[:, 1] - starts[:, 1]
    assert float((lengths == 1).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float((lengths <= 2).float().mean()) > 0.99
    # places are uniform
    assert np.histogram(starts[:, 1].numpy(), 4, (0, 20_000))[0] / len(starts) == pytest.approx([0.25] * 4, abs=0.03)


@pytest.mark.parametrize("dim", [1, 2, 3, 50])
def test_released_zeros_reach_every_component_of_short_vectors(dim: int) -> None:
    words = torch.ones(400, dim)
    ours = random_zeros(words, seeded(7), "released")
    rng = np.random.default_rng(7)
    theirs = np.stack([naive.naive_zeros(word, rng, "released") for word in words.numpy()])
    assert ours.mean(0).numpy() == pytest.approx(theirs.mean(0), abs=0.12)
    assert (ours == 0).any(0).all() and set(ours.unique().tolist()) <= {0.0, 1.0}


def test_zeros_of_the_paper_are_dropout() -> None:
    words = vectors(400)
    ours = random_zeros(words, seeded(8), "paper", dropout=0.3)
    torch.manual_seed(8)
    theirs = torch.nn.functional.dropout(words, 0.3)
    kept = ours != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.01)
    assert float((theirs != 0).float().mean()) == pytest.approx(0.7, abs=0.01)
    both = kept & (theirs != 0)
    torch.testing.assert_close(ours[both], theirs[both])
    assert torch.equal(random_zeros(words, seeded(8), "paper", dropout=0), words)


def test_backgrounds_stay_in_their_ranges() -> None:
    words = vectors(2000)
    paper = background_noise(words, seeded(9), "paper") - words
    assert float(paper.min()) > -1e-6 and 0.0999 < float(paper.max()) < 0.1 + 1e-6
    added = (background_noise(words, seeded(9), "released") - words) / words.abs().amax(1, keepdim=True)
    assert 0.0095 <= float(added.abs().max()) < 0.01
    # one loudness a word: the spread inside a word is uniform in loudness, as that of the loop
    spread = (added.amax(1) - added.amin(1)).sort().values
    assert float(spread[20]) < 0.05 * float(spread[-1]) and float(spread[1000]) == pytest.approx(
        float(spread[-1]) / 2, rel=0.2
    )


def test_background_of_words_below_zero_has_its_edges_the_other_way_round() -> None:
    words = torch.full((500, 100), -1.0)  # low -1, high -0.8; and of ones: low 1, high 0.8
    for word in (words, -words):
        added = ((background_noise(word, seeded(10), "released") - word) / word.sign()).numpy()
        assert added.min() >= -1e-6 and added.max() <= 0.01


def test_fourier_of_the_paper_is_the_word_and_released_is_the_word_without_its_mean() -> None:
    words = vectors(200).double()
    transformed = torch.fft.ifft(torch.fft.fft(words)).real
    torch.testing.assert_close(transformed, words, rtol=0, atol=1e-14)
    torch.testing.assert_close(fourier(words, "paper"), transformed, rtol=0, atol=1e-14)
    centred = words - words.mean(1, keepdim=True)
    released = fourier(words, "released")
    torch.testing.assert_close(released, torch.fft.ifft(torch.fft.fft(centred)).real, rtol=0, atol=1e-14)
    assert torch.equal(released, centred) and float((released - words).abs().min()) > 1e-4
    # As a step of the whole, too.
    assert torch.equal(view(words, kinds=(0, 0, 0, 2), partial=1), centred)
    assert torch.equal(view(words, kinds=(0, 0, 0, 2), partial=1, form="paper"), words)


# ---- the choice of a kind


def kind_of(changed: Tensor, words: Tensor) -> str:
    """What was done in the released form, read from one word."""
    if torch.equal(changed, words):
        return "none"
    if (changed == 0).any():
        return "zeros"
    if torch.allclose(changed, words - words.mean(), atol=1e-6):
        return "fourier"
    return "noise" if float((changed - words).norm() / words.norm()) > 0.1 else "background"


@pytest.mark.parametrize("partial", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kinds", [KINDS, (1, 3, 0, 4)])
def test_shares_of_the_kinds(partial: float, kinds: tuple[float, float, float, float]) -> None:
    words = vectors(4000)
    changed = view(words, kinds=kinds, partial=partial)
    loop = torch.from_numpy(
        naive.pwva_naive(words.numpy(), np.random.default_rng(0), kinds=kinds, partial=partial, form="released")
    )
    for result in (changed, loop):
        found = [kind_of(*pair) for pair in zip(result, words, strict=True)]
        shares = {kind: found.count(kind) / len(words) for kind in ("noise", "zeros", "background", "fourier", "none")}
        wanted = [partial * weight / sum(kinds) for weight in kinds] + [1 - partial]
        assert list(shares.values()) == pytest.approx(wanted, abs=0.03)
        assert [value == 0 for value in shares.values()] == [value == 0 for value in wanted]


@pytest.mark.parametrize("form", FORMS)
def test_as_a_whole_it_is_the_loop_over_words(form: Form) -> None:
    words = vectors(6000, 50)
    rng = np.random.default_rng(1)
    loop = naive.pwva_naive(words.numpy(), rng, kinds=KINDS, partial=0.5, form=form)
    ours, theirs = ((result - words.numpy()).astype(np.float64) for result in (view(words, form=form).numpy(), loop))
    for power in (1, 2, 4):
        a, b = (np.mean(moved**power, axis=1) for moved in (ours, theirs))
        assert a.mean() == pytest.approx(b.mean(), abs=5 * np.sqrt((a.var() + b.var()) / len(a)))


def test_words_are_independent_of_each_other() -> None:
    word = vectors(2)[1].expand(64, -1).contiguous()
    changed = view(word, partial=1, kinds=(1, 1, 1, 0))
    assert len({tuple(row.tolist()) for row in changed}) == 64


# ---- repeatable, at the edges, and refused


@pytest.mark.parametrize("form", FORMS)
def test_the_generator_decides_alone(form: Form) -> None:
    words = vectors(300)
    before = torch.get_rng_state()
    torch.manual_seed(1)
    one = view(words, seed=5, form=form)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(view(words, seed=5, form=form), one)
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)
    assert not torch.equal(view(words, seed=6, form=form), one)
    generator = seeded(5)
    first, second = (pwva(words, generator, kinds=KINDS, partial=0.5, form=form) for _ in range(2))
    assert torch.equal(first, one) and not torch.equal(second, one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("form", FORMS)
def test_a_generator_on_the_cpu_gives_the_same_on_cuda(form: Form) -> None:
    words = vectors(300)
    on_cuda = pwva(words.cuda(), seeded(5), kinds=KINDS, partial=0.7, form=form)
    torch.testing.assert_close(on_cuda.cpu(), view(words, seed=5, partial=0.7, form=form), rtol=1e-5, atol=1e-6)
    there = [
        pwva(words.cuda(), torch.Generator("cuda").manual_seed(5), kinds=KINDS, partial=0.7, form=form) for _ in range(2)
    ]
    assert torch.equal(*there) and there[0].is_cuda
    share = (there[0] != words.cuda()).any(1).float().mean()
    assert float(share) == pytest.approx(0.7 if form == "released" else 0.63, abs=0.12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_type_are_kept_without_augmentation(form: Form, dtype: torch.dtype) -> None:
    words = vectors(50).to(dtype)
    given = words.clone()
    same = view(words, partial=0, form=form)
    assert torch.equal(same, words) and same.data_ptr() != words.data_ptr()
    changed = view(words, partial=1, form=form)
    assert changed.dtype == dtype and torch.equal(words, given) and not torch.equal(changed, words)
    assert bool(changed.isfinite().all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 300), (1, 1), (7, 1), (7, 2), (1, 300)])
def test_few_and_short_words(form: Form, shape: tuple[int, int]) -> None:
    changed = view(vectors(*shape), partial=1, form=form)
    assert changed.shape == shape and bool(changed.isfinite().all())


def test_zero_vectors_stay_zero_in_the_released_form() -> None:
    words = torch.zeros(200, 30)
    assert torch.equal(view(words, partial=1), words)
    assert bool(view(words, partial=1, form="paper").isfinite().all())


def test_frozen_words_carry_no_gradient() -> None:
    words = vectors(8).requires_grad_()
    assert not view(words, partial=1).requires_grad


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": (0, 0, 0, 0)}, r"method\.kinds=\(0, 0, 0, 0\).*not all 0"),
        ({"kinds": (1, -0.1, 0, 0)}, r"method\.kinds.*at least 0"),
        ({"kinds": (1, float("nan"), 0, 0)}, r"method\.kinds"),
        ({"kinds": (1, float("inf"), 0, 0)}, r"method\.kinds"),
        ({"kinds": (1, 1, 1)}, r"method\.kinds.*four weights"),
        ({"partial": 1.1}, r"method\.partial=1\.1"),
        ({"partial": float("nan")}, r"method\.partial=nan"),
        ({"form": "fixed"}, r"form='fixed'; allowed are 'paper', 'released'"),
        ({"noise": -1.0}, r"noise=-1\.0"),
        ({"dropout": 1.0}, r"dropout=1\.0"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        view(vectors(3), **settings)


@pytest.mark.parametrize("words", [torch.zeros(3), torch.zeros(2, 3, 4), torch.zeros(3, 0), torch.zeros(3, 4).int()])
def test_wrong_words_are_refused(words: Tensor) -> None:
    with pytest.raises(ValueError, match=r"float \(N, d\)"):
        view(words)
