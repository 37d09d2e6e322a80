"""SG-BERT: the formulas against golden values and loops, the teacher that stays as it is, and where the variants differ."""

from __future__ import annotations

import contextlib
import hashlib
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
)

from data.batch import Batch
from models import pooling as encoders
from models.pooling import Pooling, pool, pooled_layers
from tests.models import tiny_encoder
from tests.models.test_text_encoder import CONFIGS
from tests.trainers import test_gather
from tests.trainers.test_losses import A, B, C
from trainers import losses
from trainers.gather import gather, offset
from trainers.sgbert import SGBERT, SGBERTConfig

BC = torch.stack([B, C], dim=1)
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 26, "pad_token_id": 0}  # fmt: skip
FAMILIES: dict[str, PretrainedConfig] = {
    **CONFIGS,
    "deberta-v3": DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], conv_kernel_size=3),
    "mpnet": MPNetConfig(**SIZES),
    "electra": ElectraConfig(**SIZES, embedding_size=8),
    "modernbert": ModernBertConfig(**SIZES, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3),
}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def sgbert(dropout: float = 0.0, config: PretrainedConfig | None = None, **settings: object) -> SGBERT:
    encoder = tiny_encoder.encoder(config=config or tiny_encoder.bert_config(dropout))
    return SGBERTConfig.model_validate({"head_width": 24, **settings}).build(encoder)


def total(method: SGBERT, batch: Batch) -> Tensor:
    out = method({"text": batch}).losses
    return torch.stack([method.loss_weights.get(name, 1.0) * loss for name, loss in out.items()]).sum()


def train(method: SGBERT, batch: Batch, steps: int = 3, lr: float = 1e-3) -> list[float]:
    groups = [{"params": params} for params in method.param_groups("text").values()]
    optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=0.0)
    history = []
    for _ in range(steps):
        loss = total(method.train(), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


def text(batch: Batch, column: int = 0) -> dict[str, Tensor]:
    return {name: tokens[:, column] for name, tokens in batch.tensors.items()}


def fingerprint(module: nn.Module | None) -> str:
    assert module is not None
    values = [*module.named_parameters(), *module.named_buffers()]
    return hashlib.sha256(b"".join(name.encode() + t.detach().numpy().tobytes() for name, t in values)).hexdigest()


# -------------------------------------------------------------------------------------------------------- the formulas


@pytest.mark.parametrize(
    ("value", "golden"),
    [
        pytest.param(lambda: losses.sg(A, B, A, B, 0.1), 2.093445, id="base"),
        pytest.param(lambda: losses.sg_opt1(A, A, B, 0.1), 2.073689, id="opt1"),
        pytest.param(lambda: losses.sg_opt2(A, B, 0.1), 1.835617, id="opt2"),
        pytest.param(lambda: losses.sg_opt2_released(A, B, 0.1), 1.428595, id="opt2-released"),
        pytest.param(lambda: losses.sg_opt3(A, BC, 0.1), 3.965843, id="opt3"),
    ],
)
def test_golden_values(value: Callable[[], Tensor], golden: float) -> None:
    assert value().item() == pytest.approx(golden, abs=1e-6)


def _phi(u: Tensor, v: Tensor, t: float) -> float:
    return math.exp((u @ v / (u.norm() * v.norm())).item() / t)


def _naive_base(c: Tensor, h: Tensor, t: float) -> float:
    x = [*c, *h]
    b = len(c)
    below = [sum(_phi(x[m], x[n], t) for n in range(2 * b) if n != m) for m in range(2 * b)]
    return sum(-math.log(_phi(x[m], x[(m + b) % (2 * b)], t) / below[m]) for m in range(2 * b)) / (2 * b)


def _naive_opt1(c: Tensor, h: Tensor, t: float) -> float:
    b = len(c)
    below = [
        sum(_phi(c[i], c[j], t) for j in range(b) if j != i) + sum(_phi(c[i], h[j], t) for j in range(b)) for i in range(b)
    ]
    return sum(-math.log(_phi(c[i], h[i], t) / below[i]) for i in range(b)) / b


def _naive_opt2(c: Tensor, h: Tensor, t: float, released: bool = False) -> float:
    """Released: all negatives in one list, first the c_j, then the h_j; the slice of the latter begins one too late."""
    b, value = len(c), 0.0
    for i in range(b):
        negatives = [_phi(c[i], c[j], t) for j in range(b) if j != i] + [_phi(c[i], h[j], t) for j in range(b) if j != i]
        value -= math.log(_phi(c[i], h[i], t) / (_phi(c[i], h[i], t) + sum(negatives[b if released else b - 1 :])))
    return value / b


def _naive_opt3(c: Tensor, h: Tensor, t: float) -> float:
    b, layers, value = len(c), h.shape[1], 0.0
    for i in range(b):
        others = sum(_phi(c[i], h[m, n], t) for m in range(b) if m != i for n in range(layers))
        for k in range(layers):
            own = _phi(c[i], h[i, k], t)
            value -= math.log(own / (own + others))
    return value / (b * layers)


@pytest.mark.parametrize("seed", range(3))
def test_against_loops(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    c = torch.randn(5, 4, dtype=torch.float64, generator=generator) * 3  # not unit: the formulas normalise
    h = torch.randn(5, 3, 4, dtype=torch.float64, generator=generator)
    one = h[:, 0]
    assert losses.sg(c, one, c, one, 0.2).item() == pytest.approx(_naive_base(c, one, 0.2), rel=1e-10)
    assert losses.sg_opt1(c, c, one, 0.2).item() == pytest.approx(_naive_opt1(c, one, 0.2), rel=1e-10)
    assert losses.sg_opt2(c, one, 0.2).item() == pytest.approx(_naive_opt2(c, one, 0.2), rel=1e-10)
    assert losses.sg_opt2_released(c, one, 0.2).item() == pytest.approx(_naive_opt2(c, one, 0.2, True), rel=1e-10)
    assert losses.sg_opt3(c, h, 0.2).item() == pytest.approx(_naive_opt3(c, h, 0.2), rel=1e-10)
    close(losses.sg_opt3(c, h[:, :1], 0.2), losses.sg_opt2(c, one, 0.2), 1e-12)  # one layer: the same formula


# Of local rows (N, 3, d), the rows of all workers, where the local ones begin, and the temperature.
FORMULAS: dict[str, Callable[[Tensor, Tensor, int, float], Tensor]] = {
    "sg": lambda z, every, first, t: losses.sg(z[:, 0], z[:, 1], every[:, 0], every[:, 1], t, first),
    "sg_opt1": lambda z, every, first, t: losses.sg_opt1(z[:, 0], every[:, 0], every[:, 1], t, first),
    "sg_opt2": lambda z, every, first, t: losses.sg_opt2(z[:, 0], every[:, 1], t, first),
    "sg_opt2_released": lambda z, every, first, t: losses.sg_opt2_released(z[:, 0], every[:, 1], t, first),
    "sg_opt3": lambda z, every, first, t: losses.sg_opt3(z[:, 0], every[:, 1:], t, first),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name: str) -> None:
    z = torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: FORMULAS[name](z, z, 0, 0.2), (z,))


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("name", FORMULAS)
def test_finite_at_the_paper_s_temperature(name: str, turned: int) -> None:
    """At .01 logits span 200: float32 suffices where positives are far ahead (turned 0) and far behind."""
    c, h = torch.eye(4), torch.eye(4).roll(turned, 0)
    z = torch.stack([c, h, h], dim=1).requires_grad_()
    value = FORMULAS[name](z, z, 0, 0.01)
    value.backward()
    assert z.grad is not None and torch.isfinite(z.grad).all()
    assert value.item() == pytest.approx(0, abs=1e-6) if turned == 0 else value.item() > 45


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    z = torch.randn(8, 3, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    for formula in FORMULAS.values():
        with torch.autocast("cpu", torch.bfloat16):
            half = formula(z, z, 0, 0.1)
        assert half.dtype == torch.float32
        close(half, formula(z.float(), z.float(), 0, 0.1), 0)


def test_squared_distance_has_no_singular_gradient() -> None:
    """The square of a root has 0/0 at the start of training, where both copies are the same."""
    here, there = torch.ones(3, 2, requires_grad=True), torch.ones(3, 2)
    distance = (here - there).square().sum().sqrt() ** 2
    assert torch.isnan(torch.autograd.grad(distance, here)[0]).all()
    assert torch.equal(torch.autograd.grad(losses.squared_distance([here], [there]), here)[0], torch.zeros(3, 2))
    other = torch.randn(3, 2).requires_grad_()
    value = losses.squared_distance([here, 2 * here], [other, there])
    close(value, ((here - other) ** 2).sum() + 6.0)
    value.backward()
    assert here.grad is not None and other.grad is None
    close(here.grad, 2 * (here - other) + 4 * (2 * here - there))


# --------------------------------------------------------------------------------------- workers (as test_gather does)

METHODS: dict[str, Any] = {
    "sg-opt": SGBERTConfig(head_width=24, temperature=0.1),
    # one layer: the sampler draws from each rank's own generator
    "sg": SGBERTConfig(loss="sg", layers=(1,), head_width=0, temperature=0.1, pooling="mean"),
    "opt1": SGBERTConfig(loss="opt1", layers=(2,), head_width=24, temperature=0.1, regularisation=0),
    "opt2-released": SGBERTConfig(loss="opt2", layers=(0,), head_width=24, temperature=0.1, variant="released"),
}


@contextlib.contextmanager
def _gather_test_on_sgbert() -> Iterator[None]:
    formulas = {
        name: lambda z, y, formula=formula: formula(z, gather(z), offset(len(z)), 0.1) for name, formula in FORMULAS.items()
    }
    with mock.patch.multiple(test_gather, FORMULAS=formulas, METHODS=METHODS):
        yield


def _worker(number: int, world: int, folder: str) -> None:
    with _gather_test_on_sgbert():
        test_gather._worker(number, world, folder)


def test_workers_equal_one_process(tmp_path: Path) -> None:
    with _gather_test_on_sgbert():
        alone = test_gather._everything()
    mp.spawn(_worker, args=(2, str(tmp_path)), nprocs=2)
    first, second = (load_file(tmp_path / f"{number}.safetensors") for number in range(2))
    assert first.keys() == alone.keys() and any("teacher" in name for name in alone)
    for name, value in alone.items():
        close(first[name], value, 1e-10)
        assert torch.equal(first[name], second[name]), f"{name} differs between workers"


# ---------------------------------------------------------------------------------------------------------- the method


def _expected(method: SGBERT, batch: Batch, positives: Tensor) -> Tensor:
    """The loss from the student's [CLS] and given positives (B, K, d), each through the one head."""
    encoder = method.sentence_encoder
    c = method.head(encoder.model(**text(batch)).last_hidden_state[:, 0])
    h = method.head(positives)
    formula = {
        "sg": lambda: _naive_base(c, h[:, 0], 0.2),
        "opt1": lambda: _naive_opt1(c, h[:, 0], 0.2),
        "opt2": lambda: _naive_opt2(c, h[:, 0], 0.2),
        "opt3": lambda: _naive_opt3(c, h, 0.2),
    }[method.config.loss]
    return torch.tensor(formula())


def _teacher_layers(method: SGBERT, tokens: dict[str, Tensor]) -> Tensor:
    """All hidden states of BERT_F (B, l + 1, d), max over the tokens that are not padding."""
    assert method.teacher is not None
    states = method.teacher(**tokens, output_hidden_states=True).hidden_states
    rows = range(len(tokens["input_ids"]))
    lengths = tokens["attention_mask"].sum(1).tolist()
    return torch.stack([torch.stack([layer[i, : lengths[i]].max(0).values for layer in states]) for i in rows])


@pytest.mark.parametrize("positive", ["teacher", "both"])
@pytest.mark.parametrize("loss", ["sg", "opt1", "opt2", "opt3"])
@torch.no_grad()
def test_what_goes_through_which_copy_to_which_loss(loss: str, positive: str) -> None:
    """The text through BERT_T; the same text, or its translation (BT + SG-OPT), through BERT_F."""
    layers = (2, 0) if loss == "opt3" else (1,)
    method = sgbert(loss=loss, positive=positive, layers=layers, temperature=0.2).double()
    for p in method.sentence_encoder.model.parameters():
        if p.requires_grad:
            p += 0.05 * torch.randn_like(p)  # so that the copies differ
    batch = tiny_encoder.text_batch(5, views=method.config.texts)
    views = _teacher_layers(method, text(batch, column=-1))[:, list(layers)]
    close(method({"text": batch}).losses["text"].float(), _expected(method, batch, views), 1e-6)


@torch.no_grad()
def test_back_translation_has_no_teacher() -> None:
    """BT: both texts through BERT_T in one forward, base NT-Xent; no BERT_F and so no L_reg."""
    method = sgbert(loss="sg", positive="translation", temperature=0.2).double()
    batch = tiny_encoder.text_batch(5, views=2)
    assert method.teacher is None and not any("teacher" in name for name, _ in method.named_modules())
    translations = method.sentence_encoder.model(**text(batch, 1)).last_hidden_state[:, :1]
    out = method({"text": batch}).losses
    assert list(out) == ["text"]
    close(out["text"].float(), _expected(method, batch, translations), 1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_teacher_views_are_its_hidden_states_pooled(family: str, pooling: Pooling) -> None:
    """Layer by layer gives what pooling the stacked hidden states gives, [CLS] and [SEP] included."""
    encoder = tiny_encoder.encoder(config=FAMILIES[family]).eval()
    tokens = text(tiny_encoder.text_batch(5))
    states = encoder.model(**tokens, output_hidden_states=True).hidden_states
    found = pooled_layers(encoder.model, **tokens, pooling=pooling)
    close(found, torch.stack([pool(layer, (), tokens["attention_mask"], pooling) for layer in states], dim=1), 1e-6)
    assert not found.requires_grad and not found.is_inference()
    assert not any(module._forward_pre_hooks for module in encoder.model.modules())


def test_token_states_of_all_layers_are_not_kept() -> None:
    """When a layer is pooled, no more are alive than the embedding output, this one and the one before."""
    seen: list[weakref.ref[Tensor]] = []
    alive = []

    def watched(tokens: Tensor, *rest: Any) -> Tensor:
        seen.append(weakref.ref(tokens))
        alive.append(sum(ref() is not None for ref in seen))
        return pool(tokens, *rest)

    encoder = tiny_encoder.encoder(config=BertConfig(**SIZES | {"num_hidden_layers": 9})).eval()
    with mock.patch.object(encoders, "pool", watched):
        pooled_layers(encoder.model, **text(tiny_encoder.text_batch(3)), pooling="max")
    assert len(alive) == 10 and max(alive) <= 3


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains(family: str) -> None:
    """Each parameter that is trained gets a gradient (DDP wants that), and the loss of a fixed batch falls."""
    method = sgbert(config=FAMILIES[family], temperature=0.1)
    history = train(method, tiny_encoder.text_batch(6), steps=8)
    assert all((p.grad is not None) == p.requires_grad for p in method.parameters())
    assert history[-1] < history[0]


@pytest.mark.parametrize("family", ["bert", "deberta-v3"])
def test_mixed_precision(family: str) -> None:
    """bfloat16 forward, float32 losses and gradients; near the float32 loss."""
    method = sgbert(config=FAMILIES[family], temperature=0.5).eval()
    batch = {"text": tiny_encoder.text_batch(6)}
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch).losses
    assert all(loss.dtype == torch.float32 for loss in out.values())
    close(out["text"], method(batch).losses["text"], 0.02)
    out["text"].backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in method.parameters() if p.grad is not None)


def test_layers_are_drawn_uniformly_per_sentence_from_those_chosen() -> None:
    method = sgbert(loss="opt2", layers=(0, 2), head_width=0)
    batch = tiny_encoder.text_batch(200)
    views = _teacher_layers(method, text(batch))

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        h = method.encode("text", batch)["h"]
        assert h.shape == (200, 1, 16)
        return (h - views).abs().amax(-1).argmin(1)

    layer = drawn(0)
    assert set(layer.tolist()) == {0, 2}
    assert (layer == 0).float().mean().item() == pytest.approx(0.5, abs=0.15)  # 4 standard deviations
    assert torch.equal(drawn(0), layer) and not torch.equal(drawn(1), layer)


def test_teacher_never_changes_and_is_no_part_of_training() -> None:
    """Neither weights nor gradients, optimizer groups or checkpoint; the frozen embeddings are held once for both."""
    method = sgbert(dropout=0.1)
    before, student = fingerprint(method.teacher), fingerprint(method.sentence_encoder.model)
    layer0 = fingerprint(method.sentence_encoder.embeddings)
    train(method, tiny_encoder.text_batch(6), steps=3, lr=1e-2)
    assert fingerprint(method.teacher) == before
    assert fingerprint(method.sentence_encoder.model) != student
    assert fingerprint(method.sentence_encoder.embeddings) == layer0
    assert method.teacher is not None and all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())
    trained = {id(p) for params in method.param_groups("text").values() for p in params}
    own = {id(p) for p in (*method.sentence_encoder.model.encoder.parameters(), *method.head.parameters())}
    assert trained == own
    assert not any("teacher" in name for name in method.state_dict())
    shared = {p.data_ptr() for p in method.sentence_encoder.embeddings.parameters()}
    assert {p.data_ptr() for p in method.teacher.get_submodule("embeddings").parameters()} == shared
    assert not any(part.training for part in method.train().teacher.modules())  # type: ignore[union-attr]


def test_checkpoint_restores_the_student_and_the_encoder_path_the_teacher() -> None:
    method = sgbert(dropout=0.1)
    teacher = fingerprint(method.teacher)
    train(method, tiny_encoder.text_batch(6))
    again = sgbert(dropout=0.1)
    again.load_state_dict(method.state_dict())
    assert fingerprint(again.teacher) == teacher
    assert fingerprint(again.sentence_encoder) == fingerprint(method.sentence_encoder)
    assert fingerprint(again.head) == fingerprint(method.head)
    batch = tiny_encoder.text_batch(4)
    assert torch.equal(total(again.eval(), batch), total(method.eval(), batch))


def test_student_s_dropout_is_active_in_its_frozen_embeddings_too() -> None:
    method = sgbert(dropout=0.5).train()
    ids = torch.full((2, 6), 9)
    first, second = method.sentence_encoder.outputs(ids, torch.ones_like(ids), layers=True).layers[0]
    assert not torch.equal(first, second)


def test_evaluated_encoder_is_the_student_s_cls_without_the_head() -> None:
    method = sgbert()
    train(method, tiny_encoder.text_batch(6))
    tokens = text(tiny_encoder.text_batch(4))
    close(method.sentence_encoder.eval()(tokens), method.sentence_encoder.model(**tokens).last_hidden_state[:, 0])


def test_one_head_for_both_is_trained_through_the_teacher_s_views_too() -> None:
    method = sgbert(head_width=24)
    linears = [part for part in method.head.modules() if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in linears] == [(16, 24), (24, 24)]
    assert [type(part) for part in method.head.modules() if not list(part.children())] == [nn.Linear, nn.GELU] * 2
    for part in linears:
        assert part.weight.std().item() == pytest.approx(0.02, rel=0.15) and part.bias.abs().sum() == 0
    method.encode("text", tiny_encoder.text_batch(4))["h"].sum().backward()
    touched = {name for name, p in method.named_parameters() if p.grad is not None and p.grad.any()}
    assert touched == {name for name, _ in method.named_parameters() if name.startswith("head.")}
    bare = sgbert(head_width=0)
    assert not list(bare.head.parameters())
    assert SGBERTConfig().head_width == 4096


def test_regulariser_is_the_distance_of_the_transformers() -> None:
    method = sgbert(dropout=0.1, regularisation=0.3)
    batch = tiny_encoder.text_batch(6)
    out = method({"text": batch}).losses
    assert out["regularisation"].item() == 0 and method.loss_weights == {"regularisation": 0.3}
    train(method, batch, lr=1e-2)
    assert method.teacher is not None
    other = dict(method.teacher.named_parameters())
    expected = sum((p - other[name]).square().sum() for name, p in method.sentence_encoder.model.named_parameters())
    assert isinstance(expected, Tensor) and expected > 0.1
    torch.testing.assert_close(method({"text": batch}).losses["regularisation"], expected)
    assert list(sgbert(regularisation=0)({"text": batch}).losses) == ["text"]


# -------------------------------------------------------------------------------------------------------- the variants


def test_disagree_3_1_released_default_is_mean_pooling() -> None:
    """[DISAGREE 3.1] Paper and fixed: max over tokens; the released code's default: mean."""
    batch = tiny_encoder.text_batch(5)
    views = {}
    for variant in ("paper", "released", "fixed"):
        method = sgbert(variant=variant, head_width=0)
        views[variant] = method.encode("text", batch)["h"]
        pooling: Pooling = "mean" if variant == "released" else "max"
        assert method.teacher is not None
        assert torch.equal(views[variant], pooled_layers(method.teacher, **text(batch), pooling=pooling))
    assert torch.equal(views["paper"], views["fixed"]) and not torch.allclose(views["paper"], views["released"])
    asked = sgbert(variant="released", pooling="max", head_width=0)
    assert torch.equal(asked.encode("text", batch)["h"], views["paper"])


@pytest.mark.parametrize(
    ("settings", "wakes"),
    [
        ({"variant": "paper"}, False),
        ({"variant": "fixed"}, False),
        ({"variant": "released"}, True),
        ({"variant": "released", "teacher_dropout": False}, False),
        ({"variant": "fixed", "teacher_dropout": True}, True),
    ],
)
def test_disagree_3_2_released_training_wakes_the_teacher_s_dropout(settings: dict[str, Any], wakes: bool) -> None:
    """[DISAGREE 3.2] The views of a text are the same every time, but not in the released code."""
    method = sgbert(dropout=0.1, head_width=0, **settings)
    batch = tiny_encoder.text_batch(5)

    def twice() -> bool:
        return torch.equal(method.encode("text", batch)["h"], method.encode("text", batch)["h"])

    method.train()
    assert twice() is not wakes
    method.eval()
    assert twice()
    before = fingerprint(method.teacher)
    train(method, batch)
    assert fingerprint(method.teacher) == before


@pytest.mark.parametrize("positive", ["teacher", "translation"])
def test_disagree_3_3_released_base_loss_cannot_run(positive: str) -> None:
    """[DISAGREE 3.3] 2b rows of logits, b labels: refused by name, as its cross-entropy raises. Fixed: 2b labels."""
    with pytest.raises(ValueError, match="batch_size"):
        F.cross_entropy(torch.zeros(8, 7), torch.zeros(4).long())
    with pytest.raises(ValueError, match=r"'released' cannot train with method.loss 'sg'.*\[DISAGREE 3.3\].*'fixed'"):
        sgbert(variant="released", loss="sg", positive=positive)
    batch = tiny_encoder.text_batch(4, views=1 if positive == "teacher" else 2)
    values = [sgbert(variant=v, loss="sg", positive=positive, layers=(1,))({"text": batch}) for v in ("paper", "fixed")]
    assert torch.equal(values[0].losses["text"], values[1].losses["text"])


def test_disagree_3_4_released_opt2_loses_a_negative() -> None:
    """[DISAGREE 3.4] A smaller denominator, so a smaller loss."""
    batch = tiny_encoder.text_batch(4)
    settings: dict[str, Any] = {"loss": "opt2", "layers": (0,), "pooling": "max", "temperature": 0.1}
    fixed, released = (sgbert(variant=v, **settings) for v in ("fixed", "released"))
    features = fixed.encode("text", batch)
    c, h = features["c"], features["h"][:, 0]
    close(fixed({"text": batch}).losses["text"], losses.sg_opt2(c, h, 0.1))
    close(released({"text": batch}).losses["text"], losses.sg_opt2_released(c, h, 0.1))
    assert released({"text": batch}).losses["text"] < fixed({"text": batch}).losses["text"] - 0.05


def test_released_sampler_cannot_leave_out_the_first_layers() -> None:
    """It draws k from [lmin, lmax) and looks it up in the layers from lmin on: the wrong one, or none."""
    with pytest.raises(ValueError, match=r"method.layers=\(1, 2\) with method.variant 'released'.*Use 'fixed'"):
        sgbert(variant="released", loss="opt1", layers=(1, 2))
    assert sgbert(variant="released", loss="opt3", layers=(1, 2)).layers == [1, 2]
    assert sgbert(variant="released", loss="opt1", layers=(0, 1)).layers == [0, 1]
    assert sgbert(loss="opt1", layers=(1, 2)).layers == [1, 2]


# ------------------------------------------------------------------------------------------------------------- errors


def test_bad_settings_are_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match=r"method.layers=\(0, 3\): the model's layers are 0 \(embedding output\) to 2"):
        sgbert(layers=(0, 3))
    for layers in ((), (-1,), (1, 1)):
        with pytest.raises(ValueError, match="give at least one layer from 0 on, each once"):
            SGBERTConfig(layers=layers).check_settings()
    with pytest.raises(ValueError, match=r"method.loss='opt3': method.positive 'translation' is the BT baseline; set loss"):
        SGBERTConfig(positive="translation").check_settings()
    with pytest.raises(ValueError, match="a 'albert' model are not one list of modules"):
        sgbert(config=AlbertConfig(**SIZES, embedding_size=8))
    encoder = tiny_encoder.encoder("cls")
    encoder.add_head(only_trains=False)
    with pytest.raises(ValueError, match=r"encoder.pooling 'cls' has a head .* use 'cls_before_pooler'"):
        SGBERTConfig().build(encoder)
    encoder = tiny_encoder.encoder()
    encoder.model.words = encoder.model.embeddings
    del encoder.model.embeddings
    with pytest.raises(ValueError, match="a 'bert' model has no module `embeddings`"):
        SGBERTConfig().build(encoder)


@pytest.mark.parametrize(("positive", "views"), [("teacher", 2), ("translation", 1), ("both", 3)])
def test_number_of_texts_must_fit_the_positive(positive: str, views: int) -> None:
    loss = "sg" if positive == "translation" else "opt3"
    with pytest.raises(ValueError, match=rf"method.positive is '{positive}', and the text stream has {views} texts"):
        sgbert(positive=positive, loss=loss)({"text": tiny_encoder.text_batch(4, views)})


def test_config_is_complete_and_closed() -> None:
    config = SGBERTConfig(layers=(0, 2), pooling="mean", teacher_dropout=True)
    assert SGBERTConfig.model_validate_json(config.model_dump_json()) == config
    assert SGBERTConfig().streams() == (("text",),)
    assert [SGBERTConfig.model_validate({"positive": p}).texts for p in ("teacher", "translation", "both")] == [1, 2, 2]
    for wrong in ({"learning_rate": 1}, {"loss": "opt4"}, {"temperature": 0}, {"regularisation": -1}):
        with pytest.raises(ValidationError):
            SGBERTConfig.model_validate(wrong)
