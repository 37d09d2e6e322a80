"""SG-OPT against the published algorithm written plainly on sentence-transformers (benchmarks/speed/sgbert.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.speed.sgbert import OPTIM, Plain, method_loss
from models.text_encoder import TextEncoder
from tests.models import tiny_encoder
from trainers.engine.optim import TurnOptimizer
from trainers.sgbert import SGBERT, SGBERTConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random BERT without dropout."""
    place = str(tmp_path_factory.mktemp("bert"))
    encoder = tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout=0))
    encoder.model.save_pretrained(place)
    encoder.tokenizer.save_pretrained(place)
    return place


def tokens(sentences: int = 7) -> dict[str, Tensor]:
    return {name: t[:, 0] for name, t in tiny_encoder.text_batch(sentences, length=9).tensors.items()}


def text_encoder(folder: str) -> TextEncoder:
    return TextEncoder.from_pretrained(folder, pooling="cls_before_pooler")


def both(folder: str, width: int) -> tuple[SGBERT, Plain]:
    """Ours and the plain one in float64 with equal weights, the student some steps away from its teacher."""
    method = SGBERTConfig(variant="paper", loss="opt3", head_width=width).build(text_encoder(folder)).double().train()
    plain = Plain(folder, width).double().train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learned(method):
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.03)
        for theirs, ours in zip(plain.head.parameters(), method.guide.head.parameters(), strict=True):
            theirs.copy_(ours)
    plain.student.model.load_state_dict(method.sentence_encoder.model.state_dict(), strict=False)  # we have no pooler
    return method, plain


def learned(module: nn.Module) -> list[nn.Parameter]:
    """What is trained, without the pooler that nothing uses."""
    return [p for name, p in module.named_parameters() if p.requires_grad and "pooler" not in name]


def pairs(method: SGBERT, plain: Plain) -> list[tuple[nn.Parameter, nn.Parameter]]:
    ours = learned(method.sentence_encoder) + learned(method.guide.head)
    return list(zip(ours, learned(plain.student) + learned(plain.head), strict=True))


@pytest.mark.parametrize("width", [0, 24])
def test_loss_and_gradients_are_those_of_the_published_algorithm(folder: str, width: int) -> None:
    method, plain = both(folder, width)
    ours, theirs = method_loss(method, tokens()), plain(tokens())
    assert plain.distance() > 1  # the regulariser is in play
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    ours.backward()
    theirs.backward()
    for mine, other in pairs(method, plain):
        assert other.grad is not None and other.grad.abs().max() > 1e-4
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-8)


def test_some_steps_of_both_end_at_the_same_weights(folder: str) -> None:
    method, plain = both(folder, 24)
    optimizer = TurnOptimizer(method, "text", OPTIM, 5, "fp32")
    theirs = torch.optim.AdamW(learned(plain), OPTIM.lr, OPTIM.betas, OPTIM.eps, weight_decay=0)
    before = [mine.detach().clone() for mine, _ in pairs(method, plain)]
    for step in range(5):
        batch = tokens(4 + step)
        optimizer.backward(method_loss(method, batch))
        optimizer.step()
        plain(batch).backward()
        nn.utils.clip_grad_norm_(learned(plain), 1.0)
        theirs.step()
        theirs.zero_grad()
    for (mine, other), start in zip(pairs(method, plain), before, strict=True):
        assert (mine - start).abs().max() > 1e-4
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-8)
