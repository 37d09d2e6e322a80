"""SG-OPT against the published algorithm written plainly on sentence-transformers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer import modules as st
from sentence_transformers.util import cos_sim
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.models.text_encoder import TextEncoder
from multicse.trainers.engine.optim import TurnOptimizer
from multicse.trainers.method import Method
from multicse.trainers.recipe import OptimConfig
from multicse.trainers.sgbert import SGBERT, SGBERTConfig
from tests.models import tiny_encoder

OPTIM = OptimConfig(lr=5e-5, betas=(0.9, 0.9), eps=1e-6, schedule="constant")
TEMPERATURE, REGULARISER = 0.01, 0.1

Tokens = dict[str, Tensor]


class Plain(nn.Module):
    """SG-OPT with its regulariser (Kim et al., ACL 2021) on sentence-transformers: tokens (B, L) to the loss.

    As in the released code the teacher's parameters take no gradient, so that nothing is recorded of it, and there is no
    `no_grad` around it. It stays in evaluation mode, as in the paper. Projection 0 leaves the head out.
    """

    def __init__(self, folder: str, projection: int = 4096) -> None:
        super().__init__()
        self.student = st.Transformer(folder, max_seq_length=128, config_kwargs={"output_hidden_states": True})
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.student.model.embeddings.requires_grad_(False)
        width = self.student.get_embedding_dimension()
        self.pooling = st.Pooling(width, "cls")
        linears = [nn.Linear(width, projection), nn.Linear(projection, projection)] if projection else []
        for linear in linears:
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        self.head = nn.Sequential(*(part for linear in linears for part in (linear, nn.GELU())))

    def train(self, mode: bool = True) -> Plain:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, tokens: Tokens) -> Tensor:
        sentence = self.pooling(self.student(dict(tokens)))["sentence_embedding"]
        states = torch.stack(self.teacher(dict(tokens))["all_layer_embeddings"], dim=1)
        views = states.masked_fill(tokens["attention_mask"][:, None, :, None] == 0, -1e9).max(dim=2).values
        return self.contrast(self.head(sentence), self.head(views)) + REGULARISER * self.distance()

    def contrast(self, sentence: Tensor, views: Tensor) -> Tensor:
        """L_opt3, layer after layer: sentence (B, p), views (B, l+1, p)."""
        batch, layers = views.shape[:2]
        others = ~torch.eye(batch, dtype=torch.bool, device=sentence.device)
        positives, negatives = [], []
        for k in range(layers):
            similarities = cos_sim(sentence, views[:, k]) / TEMPERATURE
            positives.append(similarities.diag())
            negatives.append(similarities[others].view(batch, batch - 1))
        shared = torch.cat(negatives, dim=1)
        target = torch.zeros(batch, dtype=torch.long, device=sentence.device)
        losses = [F.cross_entropy(torch.cat([positive[:, None], shared], dim=1), target) for positive in positives]
        return torch.stack(losses).mean()

    def distance(self) -> Tensor:
        """The squared norm of the difference of student and teacher, over all pairs of parameters, the frozen too."""
        pairs = zip(self.student.parameters(), self.teacher.parameters(), strict=True)
        return torch.stack([torch.norm(old - new) ** 2 for new, old in pairs]).sum()


def method_loss(method: Method, tokens: Tokens) -> Tensor:
    """The sum of the weighted losses, as the engine forms it."""
    output = method({"text": Batch({name: tensor[:, None] for name, tensor in tokens.items()})})
    return torch.stack([method.loss_weights.get(name, 1.0) * value for name, value in output.losses.items()]).sum()


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
        optimizer.clip()
        optimizer.update()
        plain(batch).backward()
        nn.utils.clip_grad_norm_(learned(plain), 1.0)
        theirs.step()
        theirs.zero_grad()
    for (mine, other), start in zip(pairs(method, plain), before, strict=True):
        assert (mine - start).abs().max() > 1e-4
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-8)
