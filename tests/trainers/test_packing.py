"""Packing: without computing on padding, every text method has the gradients that it has with padded rows (float64)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PretrainedConfig

from multicse.data.streams.base import Batch
from multicse.models import packing
from multicse.models.packing import Packing, _within_lengths, _within_offsets, _within_padded, drop
from multicse.models.text_encoder import TextEncoder
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.method import Method
from multicse.trainers.mocoutrl import MoCoUTRLConfig
from multicse.trainers.nonling import NonLingCSEConfig
from multicse.trainers.pretrain import MaskedLMConfig
from multicse.trainers.sgbert import SGBERTConfig
from multicse.trainers.simcse import SimCSEConfig
from tests.cuda_like import attention
from tests.models import tiny_encoder
from tests.trainers.test_clip import ended, text_config
from tests.trainers.test_decoders import DECODERS
from tests.trainers.test_mocoutrl import triplets
from tests.trainers.test_sgbert import FAMILIES
from tests.worlds import AUDIO, IMAGE, TOWER

Made = Callable[[TextEncoder], Method]
text = tiny_encoder.text_batch
METHODS: dict[str, tuple[Made, dict[str, Batch]]] = {
    "simcse": (SimCSEConfig().build, {"text": text(12)}),
    "simcse, pairs": (SimCSEConfig(supervised=True).build, {"text": text(12, views=3)}),
    "nonling": (NonLingCSEConfig(image=IMAGE, audio=AUDIO).build, {"text": text(12)}),
    "sgbert": (SGBERTConfig(head_width=24).build, {"text": text(12)}),
    "mocoutrl": (MoCoUTRLConfig().build, {"text": triplets(12)}),
    "mlm": (MaskedLMConfig().build, {"text": text(12)}),
    "clip": (CLIPConfig(tower=TOWER, embed_dim=6, captions=1.0).build, {"pairs": ended(tiny_encoder.pair_batch(12))}),
}
CASES = [*((name, "bert") for name in METHODS), ("clip", "clip")]
CASES += [(name, family) for name in ("simcse", "sgbert", "mocoutrl") for family in FAMILIES]
CASES += [("simcse", "llama"), ("mocoutrl", "qwen3")]


def gradients(made: Made, encoder: TextEncoder, batches: dict[str, Batch]) -> dict[str, Tensor]:
    torch.manual_seed(1)
    method = made(encoder).double().eval()
    torch.manual_seed(2)
    doubled = {name: Batch({n: t.double() if t.is_floating_point() else t for n, t in batch.tensors.items()})
               for name, batch in batches.items()}  # fmt: skip
    out = method(doubled)
    torch.stack([method.loss_weights.get(name, 1.0) * value for name, value in out.losses.items()]).sum().backward()
    return {name: p.grad for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "family"), CASES)
def test_gradients_equal_those_of_padded_rows(name: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config: PretrainedConfig = {"bert": tiny_encoder.bert_config(), "clip": text_config(), **DECODERS, **FAMILIES}[family]
    made, batches = METHODS[name]

    def encoder() -> TextEncoder:
        fresh = copy.deepcopy(config)
        fresh._attn_implementation = None  # left by an earlier model
        return tiny_encoder.encoder("lasttoken" if family in ("clip", *DECODERS) else "cls", fresh)

    without = gradients(made, encoder(), batches)
    monkeypatch.setattr(packing, "PACKED", set())
    padded = gradients(made, encoder(), batches)
    assert without.keys() == padded.keys()
    tolerance = 1e-6 if family in DECODERS else 1e-10  # RMSNorm computes in float32
    for parameter, gradient in padded.items():
        torch.testing.assert_close(without[parameter], gradient, rtol=tolerance, atol=tolerance, msg=parameter)


def test_a_text_without_tokens_and_one_with_holes() -> None:
    """A text without tokens has a zero embedding; masked tokens are ignored, and the other tokens keep their positions."""
    encoder = tiny_encoder.encoder("mean").eval()
    batch = text(4, length=9)
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    mask[1, 1], mask[3] = 0, 0
    out = encoder.outputs(ids, mask)
    padded = encoder.outputs(ids, mask, padding=True)
    torch.testing.assert_close(out.pooled[:3], padded.pooled[:3])
    torch.testing.assert_close(out.tokens[:3][mask[:3] > 0], padded.tokens[:3][mask[:3] > 0])
    assert not out.tokens[3].any() and not out.pooled[3].any()


def row_of(packed: Packing) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, len(packed.places), 8, dtype=torch.float64, requires_grad=True)
    return query, key, value


def with_gradients(within: Any, packed: Packing, row: Any, options: dict[str, Any]) -> tuple[Tensor, ...]:
    out = within(packed, row, options)
    return tuple(part.double() for part in (out, *torch.autograd.grad(out.square().sum(), row)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("within", "kernel", "dtype", "tolerance"),
    [
        (_within_padded, "", torch.float64, 1e-10),
        (_within_offsets, "", torch.float64, 1e-10),  # neither kernel supports these, so the batch is padded
        (_within_offsets, "efficient", torch.float32, 1e-5),
        (_within_offsets, "flash", torch.bfloat16, 5e-2),
    ],
)
def test_attention_is_equal_on_other_devices(
    within: Any, kernel: str, dtype: torch.dtype, tolerance: float, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients. CUDA's kernels are replaced by formulas that check the requirements on their arguments."""
    for name in ("flash", "efficient"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", lambda rules, n=name: n == kernel)
    packed, options = (
        Packing(text(7, length=9)["attention_mask"][:, 0]),
        {"dropout_p": 0.0, "scale": 0.3, "is_causal": causal},
    )
    row = tuple(states.detach().to(dtype).requires_grad_() for states in row_of(packed))
    wanted = with_gradients(
        _within_lengths, packed, tuple(states.detach().double().requires_grad_() for states in row), options
    )
    with torch.library._scoped_library("aten", "IMPL") as library:
        attention.register(library)
        found = with_gradients(within, packed, row, options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


def test_rotated_queries_are_cast_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast, a decoder's rotation returns queries and keys in float32, and its values are in half precision."""
    packed, seen = Packing(text(7, length=9)["attention_mask"][:, 0]), list[Any]()

    def can_use(rules: Any) -> bool:
        seen.append(rules)
        return False

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", can_use)
    query, key, value = (states.detach().float() for states in row_of(packed))
    _within_offsets(packed, (query, key, value.bfloat16()), {"dropout_p": 0.0, "scale": None, "is_causal": True})
    assert [(rules.query.dtype, rules.key.dtype, rules.value.dtype) for rules in seen] == [(torch.bfloat16,) * 3]


def test_dropout_within_texts_equals_the_formula() -> None:
    """With the same draws: softmax of scaled products, dropout, times the values; gradients too."""
    row = row_of(packed := Packing(text(7, length=9)["attention_mask"][:, 0]))
    torch.manual_seed(5)
    out = _within_lengths(packed, row, {"dropout_p": 0.3, "scale": None, "is_causal": False})
    torch.manual_seed(5)
    naive, first = [], 0
    for count, length in packed.texts:
        kept = drop(torch.ones(count, 2, length, length, dtype=torch.float64), 0.3)
        for i in range(count):
            query, key, value = (states[0, :, first : first + length] for states in row)
            weights = torch.exp(torch.einsum("hid,hjd->hij", query, key) / 8**0.5)
            weights = weights / weights.sum(-1, keepdim=True) * kept[i]
            naive.append(torch.einsum("hij,hjd->ihd", weights, value))
            first += length
    alone = torch.cat(naive)[None]
    found = [(o, *torch.autograd.grad(o.square().sum(), row)) for o in (out, alone)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)
    assert not torch.allclose(out, _within_lengths(packed, row, {"dropout_p": 0.0, "scale": None, "is_causal": False}))


def test_rows_of_one_length_have_the_same_dropout_without_packing() -> None:
    """Patches are not packed: three rows of patches use the dropout of three packed texts of the same length."""
    layer: Any = tiny_encoder.encoder().model.encoder.layer[0].attention.self.double().train()
    layer.dropout.p = 0.3
    states = torch.randn(3, 5, 16, dtype=torch.float64)
    packed, found = Packing(torch.ones(3, 5, dtype=torch.long)), []
    for given in ({"hidden_states": states}, {"hidden_states": states.flatten(0, 1)[None], "packing": packed}):
        torch.manual_seed(5)
        found.append(layer(**given)[0].flatten(0, -2))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)
    assert not torch.allclose(found[0], layer.eval()(states)[0].flatten(0, -2))
