"""MoCoUTRL: losses, dictionary, views, and differences between the variants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CanineConfig, ElectraConfig, PretrainedConfig

from multicse.data.streams.base import Batch
from multicse.trainers import losses
from multicse.trainers.mocoutrl import PADDED, MoCoUTRL, MoCoUTRLConfig
from tests.models import tiny_encoder
from tests.trainers.test_losses import A

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VOCABULARY = tiny_encoder.bert_config().vocab_size


def method(dropout: float = 0.0, **settings: Any) -> MoCoUTRL:
    torch.manual_seed(0)
    config = tiny_encoder.bert_config(dropout=dropout)
    config.max_position_embeddings = PADDED
    encoder = tiny_encoder.encoder("mean", config)
    return MoCoUTRLConfig(**settings).build(encoder).train()


def triplets(samples: int = 16, seed: int = 0, absent: tuple[int, ...] = ()) -> Batch:
    """Return sentences of up to 8 tokens that differ at positions 2 and 3; the first `absent` have no marked word."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (samples, 1, 8), generator=generator).repeat(1, 3, 1)
    ids[:, 1:, 2:4] = torch.randint(5, VOCABULARY, (samples, 2, 2), generator=generator)
    mask, marks = torch.ones_like(ids), torch.zeros_like(ids)
    mask[::3, :, 6:] = 0
    marks[:, :, 2:4] = 1
    candidate = torch.ones(samples, dtype=torch.bool)
    for row in absent:
        ids[row, 1:], marks[row], candidate[row] = ids[row, 0].clone(), 0, False
    return Batch(
        {"input_ids": ids * mask, "attention_mask": mask, "word_mask": marks, "candidate": candidate}, ["x"] * samples
    )


def test_disagree_6_2_eq_6_against_nt_xent_over_all_sentences() -> None:
    """Eq. 6 has B antonym sentences as negatives and may be negative; the code has 3B - 2 negatives.

    Golden values of both are in test_losses.py.
    """
    assert (
        losses.long_span(A, A, -A, 0.07, torch.ones(4, dtype=torch.bool))
        < 0
        < losses.nt_xent_with_negatives(torch.stack([A, A], 1), torch.stack([A, A], 1), -A)
    )
    for variant, name in (("paper", "eq6"), ("released", "nt_xent"), ("fixed", "nt_xent")):
        assert MoCoUTRLConfig(variant=variant).choices.sentence_loss == name


def test_sentences_without_a_candidate_are_not_negatives() -> None:
    z = torch.randn(5, 3, 4, dtype=torch.float64)
    kept = torch.tensor([True, False, True, True, False])
    for formula in (
        lambda n, k: losses.nt_xent_with_negatives(z[:, :2], z[:, :2], n, 0.2, 0, k),
        lambda n, k: losses.long_span(z[:, 0], z[:, 1], n, 0.2, k),
    ):
        assert torch.allclose(formula(z[:, 2], kept), formula(z[kept, 2], kept[kept]))
        assert not torch.allclose(formula(z[:, 2], kept), formula(z[:, 2], kept | True))


@pytest.mark.parametrize("n", [1, 5])
def test_eq_6_without_antonym_sentences(n: int) -> None:
    """Only the positives remain, with finite gradients."""
    z, positives, negatives = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    loss = losses.long_span(z, positives, negatives, 0.2, torch.zeros(n, dtype=torch.bool))
    assert loss.item() == pytest.approx(-F.cosine_similarity(z, positives).mean().item() / 0.2)
    loss.backward()
    assert z.grad is not None and torch.isfinite(z.grad).all() and z.grad.abs().max() > 0
    assert negatives.grad is not None and not negatives.grad.any()


def moved(printed: bool, drawn: float, fixed: float) -> list[float]:
    """Return table and dictionary after 400 steps of eq. 1, starting at 1 and 2.

    At every step the table moves by the share `drawn` towards the dictionary (negative: away from it), and by `fixed`
    towards 1.
    """
    table, dictionary = torch.ones(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    for _ in range(400):
        table = table + drawn * (dictionary - table) + fixed * (1 - table)
        if printed:
            dictionary = 0.9 * dictionary + (0.9 - 1) * table
        else:
            losses.move(dictionary, table, 0.9)
    return [table.item(), dictionary.item()]


def test_disagree_6_1_the_printed_sign_collapses_or_diverges_and_the_correct_sign_converges() -> None:
    """Both signs are simulated with the same dynamics.

    With a constant table, the dictionary converges to it, or to minus the table with the printed sign. If the table is
    drawn to the dictionary, as by a token loss, both converge, or collapse to zero. If it is pushed away, as by eq. 10 with
    antonyms, and other losses fix it, both converge, or diverge. If nothing fixes it, they diverge with either sign.
    """
    assert moved(False, drawn=0, fixed=0) == pytest.approx([1, 1]) and moved(True, drawn=0, fixed=0) == pytest.approx(
        [1, -1]
    )
    for table, dictionary in (moved(False, drawn=0.5, fixed=0), moved(False, drawn=-0.1, fixed=0.1)):
        assert table == pytest.approx(dictionary) and 0.9 < dictionary < 2
    assert moved(True, drawn=0.5, fixed=0) == pytest.approx([0, 0], abs=1e-12)
    for diverged in (*moved(True, drawn=-0.1, fixed=0.1), *moved(False, drawn=-0.5, fixed=0)):
        assert abs(diverged) > 1e6


def test_token_losses_by_hand() -> None:
    """Eq. 10 has no lower bound, the triplet loss stops at 0; the target e is not normalised."""
    e, s, a = torch.randn(3, 4, 6, dtype=torch.float64)
    for row in range(4):
        mse = [sum((x - y) ** 2 for x, y in zip(e[row], other[row], strict=True)) / 6 for other in (s, a)]
        assert losses.token_eq10(e, s, a)[row] == pytest.approx(float(mse[0] - mse[1]))
        near, far = (sum((e[row] - other[row] / other[row].norm()) ** 2) for other in (s, a))
        assert losses.token_triplet(e, s, a, 0.7)[row] == pytest.approx(max(0.0, 0.7 + float(near - far)))


def test_gaussian_shell() -> None:
    torch.manual_seed(0)
    e = torch.randn(500, 768) * 9
    moved = F.normalize(e, dim=1) - losses.gaussian_shell(e)
    assert moved.mean().item() == pytest.approx(0.005, rel=0.01) and moved.std().item() == pytest.approx(0.005 / 3, rel=0.01)


@pytest.mark.parametrize("variant", ["paper", "fixed"])
def test_targets_are_perturbed_and_of_unit_length_or_unchanged(variant: str) -> None:
    """The ablation of Table 3: the loss depends on the length of dictionary rows only without perturbation."""
    for perturbation in (True, False):
        made = method(variant=variant, perturbation=perturbation, dictionary_views=False)
        found = []
        for _ in range(2):
            torch.manual_seed(0)
            found.append(made({"text": triplets()}).losses["token"])
            made.dictionary.mul_(3)
        assert torch.allclose(found[0], found[1], atol=1e-6) == perturbation


def test_no_gradient_reaches_the_dictionary_and_every_parameter_gets_one() -> None:
    split_rows = {"variant": "released", "projectors": True}
    for settings in ({}, {"variant": "released"}, split_rows, {"variant": "paper"}, {"balance": 0.0}, {"balance": 1.0}):
        made = method(**settings)
        out = made({"text": triplets()})
        sum(made.loss_weights[name] * value for name, value in out.losses.items()).backward()
        assert all(p.grad is not None for p in made.parameters()), settings
        assert set(out.losses) == ({"long"} if settings.get("balance") == 1.0 else {"long", "token"})


def test_token_loss_ignores_sentences_without_the_word() -> None:
    made, batch = method(perturbation=False), triplets(absent=(1, 5, 9))
    out = made({"text": batch})
    assert out.metrics["token_share"].item() == pytest.approx(13 / 16)
    rest = [i for i in range(16) if i not in (1, 5, 9)]
    fewer = Batch({n: t[rest] for n, t in batch.tensors.items()})
    assert torch.allclose(out.losses["token"], made({"text": fewer}).losses["token"], atol=1e-6)


def test_disagree_6_3_projectors_serve_training_only() -> None:
    batch = triplets()
    assert isinstance(method(variant="released").sld, nn.Identity)
    made = method()
    linears = [part for part in (*made.sld.modules(), *made.tld.modules()) if isinstance(part, nn.Linear)]
    activations = [part for head in (made.sld, made.tld) for part in head.modules() if isinstance(part, nn.GELU)]
    assert len(linears) == len(activations) == 4
    tokens = {"input_ids": batch["input_ids"][:, 0], "attention_mask": batch["attention_mask"][:, 0]}
    evaluated = made.sentence_encoder(tokens)
    assert torch.allclose(method(variant="released").sentence_encoder(tokens), evaluated)


def test_disagree_6_3_dictionary_views_and_perturbation_of_each_variant() -> None:
    views = {v: MoCoUTRLConfig(variant=v).choices for v in ("paper", "released", "fixed")}
    assert [views[v].dictionary_views for v in views] == [True, False, True]
    assert [views[v].perturbation for v in views] == [True, False, True]
    assert [views[v].token_loss for v in views] == ["eq10", "rows", "triplet"]
    losses_of = [method(variant=v)({"text": triplets()}).losses for v in views]
    assert len({round(float(found["token"]), 4) for found in losses_of}) == 3
    torch.manual_seed(0)
    first = method()({"text": triplets()}).losses["token"]
    torch.manual_seed(1)
    plain = [method(perturbation=False)({"text": triplets()}).losses["token"] for _ in range(2)]
    assert torch.equal(plain[0], plain[1]) and not torch.equal(first, plain[0])


def released_token_loss(made: MoCoUTRL, ids: Tensor, mask: Tensor) -> Tensor | None:
    """Compute the released code's loss in loops: in the first triplet, at positions where any triplet differs."""
    rest = PADDED - ids.shape[-1]
    ids, mask = F.pad(ids, (0, rest)), F.pad(mask, (0, rest))
    places = [place for one in ids for place in range(PADDED) if one[0, place] != one[2, place]]
    if len(places) != len(ids):
        return None
    states = made.sentence_encoder.outputs(ids[0], mask[0], padding=True).tokens
    outputs = [sign * states[view, place] for view, sign in ((0, 1), (1, 1), (2, -1)) for place in places]
    return F.mse_loss(torch.stack(outputs), torch.stack([made.dictionary[ids[0, v, p]] for v in range(3) for p in places]))


def test_disagree_6_3_released_token_loss_is_that_of_the_first_triplet() -> None:
    """It is read at the positions of all triplets, including padding; with any further position, it is the sentence loss."""
    made, batch = method(variant="released"), triplets(samples=5)
    out = made({"text": batch})
    assert torch.equal(out.losses["token"], out.losses["long"])  # two sub-tokens each
    ids = batch["input_ids"][:, :1].repeat(1, 3, 1)
    for sample, place in enumerate((2, 1, 7, 4, 4)):
        ids[sample, :, place] = torch.tensor([5, 6, 7])
    ids[3, 1] = ids[3, 1].flip(0)  # another synonym has no effect
    one_each = batch.replace(input_ids=ids)
    expected = released_token_loss(made, ids, batch["attention_mask"])
    assert expected is not None and torch.allclose(made({"text": one_each}).losses["token"], expected)
    ids[3, 2, 5] = 7
    assert released_token_loss(made, ids, batch["attention_mask"]) is None
    out = made({"text": batch.replace(input_ids=ids)})
    assert torch.equal(out.losses["token"], out.losses["long"])


def test_disagree_6_3_released_mean_counts_padding() -> None:
    made, batch = method(variant="released"), triplets(samples=4)
    z = made.encode("text", batch)["z"]
    ids = F.pad(batch["input_ids"], (0, PADDED - 8)).flatten(0, 1)
    mask = F.pad(batch["attention_mask"], (0, PADDED - 8)).flatten(0, 1)
    tokens = made.sentence_encoder.outputs(ids, mask, padding=True).tokens
    assert tokens.shape[1] == 200 and torch.allclose(z.flatten(0, 1), tokens.mean(1), atol=1e-5)
    masked = method(variant="released", mean_with_padding=False).encode("text", batch)["z"]
    assert not torch.allclose(z, masked, atol=1e-3)


def test_the_dictionary_is_the_moving_average_of_the_table() -> None:
    made = method(momentum=0.9)
    own = made.dictionary.double()
    for step in range(4):
        with torch.no_grad():
            made.table.weight.add_(torch.randn_like(made.table.weight))
        own = 0.9 * own + 0.1 * made.table.weight.double()
        made.after_step(step)
    assert (made.dictionary - own).abs().max() < 1e-6 < (own - made.table.weight).abs().max()


def test_word_embeddings_that_scale() -> None:
    """Gemma scales its embeddings by the root of their size, and so the dictionary's views."""
    from transformers import AutoConfig

    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 40, "pad_token_id": 0}
    config = AutoConfig.for_model("gemma3_text", **sizes)
    made, batch = MoCoUTRLConfig(projectors=False).build(tiny_encoder.encoder("mean", config)).train(), triplets()
    fresh = made.encode("text", batch)["z"]
    by_ids = made.sentence_encoder.outputs(batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)).pooled
    assert torch.allclose(fresh.flatten(0, 1), by_ids, atol=1e-5)
    with torch.no_grad():
        made.dictionary.copy_(made.dictionary.flip(0))
    assert not torch.allclose(made.encode("text", batch)["z"][:, 1:], fresh[:, 1:], atol=0.1)
    made({"text": batch}).losses["long"].backward()
    assert made.table.weight.grad is not None and not made.dictionary.requires_grad


@pytest.mark.parametrize(
    ("config", "settings", "named"),
    [
        (CanineConfig(num_hash_buckets=32, **SIZES), {}, "'canine'"),  # without a word embedding table
        (ElectraConfig(vocab_size=40, embedding_size=8, **SIZES), {"variant": "released"}, r"method\.projectors"),
    ],
)
def test_unsupported_models_are_refused(config: PretrainedConfig, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MoCoUTRLConfig(**settings).build(tiny_encoder.encoder("mean", config))
