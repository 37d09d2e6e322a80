"""GCLSR's training step at the paper's sizes, from texts to updated weights.

    python -m benchmarks.speed.gclsr [--batch 128] [--rounds 3]

Against the paper's route as one would first write it: each word augmented in NumPy, padded to 64 words, one Conv2d after
another, the attention's matrix, torch's SGD. Both sides have the same sentences and, before anything is timed, the same
weights and loss to 1e-4. Sentences are made up; every word has a random vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from benchmarks.speed.gclsr_naive import RELEASED_KINDS, pwva_naive
from benchmarks.timer import Target, device, peaks, race, ratios, show
from data.batch import Batch
from models.word_encoder import WordEncoder
from models.word_module import EPSILON, split
from pipelines import gclsr
from trainers.engine.malloc import keep_freed_memory
from trainers.engine.optim import TurnOptimizer
from trainers.gclsr import GCLSR, GCLSRConfig

WORDS = 64  # of a padded sentence


def made_up(count: int, mean: float, rng: np.random.Generator) -> list[str]:
    """Sentences of about `mean` words out of 5,000, common ones often."""
    lengths = np.exp(rng.normal(np.log(mean), 0.4, count)).round().clip(3, WORDS).astype(int)
    letters = [chr(97 + i // 676) + chr(97 + i // 26 % 26) + chr(97 + i % 26) for i in range(5000)]
    return [" ".join(letters[i] for i in rng.zipf(1.3, length) % 5000) for length in lengths]


def encoder_for(texts: Sequence[str], dim: int) -> WordEncoder:
    """The paper's encoder with a random vector for every word of the texts."""
    words = sorted({word for text in texts for word in split(text)})
    table = torch.randn(len(words), dim, generator=torch.Generator().manual_seed(0)) / math.sqrt(dim)
    return WordEncoder(words, table, max_words=WORDS, regions=(1, 1, 1, 6, 15, 20), filters=300)


class Naive(nn.Module):
    """The paper's route, from word vectors (B, 64, d) that are padded, with the weights of a `GCLSR`."""

    def __init__(self, method: GCLSR) -> None:
        super().__init__()
        encoder: Any = method.sentence_encoder
        self.row = {word: i for i, word in enumerate(encoder.words)}
        self.table, self.padding = encoder.table.cpu().numpy(), encoder.padding.cpu().numpy()
        self.projector, self.predictor = method.groups.projector, method.groups.predictor
        self.convolutions = nn.ModuleList()
        for weight, bias in zip(encoder.cnn.weights, encoder.cnn.biases, strict=True):
            for part, shift in zip(weight.split(encoder.filters, 2), bias.split(encoder.filters), strict=True):
                convolution = nn.Conv2d(1, encoder.filters, (len(part), encoder.dim))
                convolution.weight.data = part.detach().permute(2, 0, 1)[:, None].contiguous()
                convolution.bias.data = shift.detach().clone()  # type: ignore[union-attr]  # it has a bias
                self.convolutions.append(convolution)

    def vectors(self, texts: list[str], rng: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Padded word vectors (B, 64, d), augmented with `rng`, and lengths (B,), one sentence after the other."""
        sentences, lengths = [], []
        for text in texts:
            words = self.table[[self.row[word] for word in split(text)[:WORDS]]]
            if rng is not None:
                words = pwva_naive(words, rng, kinds=RELEASED_KINDS, partial=0.5, form="released")
            lengths.append(len(words))
            sentences.append(np.concatenate([words, np.tile(self.padding, (WORDS - len(words), 1))]))
        on = next(self.parameters()).device
        return torch.from_numpy(np.stack(sentences)).to(on), torch.tensor(lengths, device=on)

    def view(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Projections and predictions of one view."""
        pad = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        scores = x @ x.transpose(1, 2) / math.sqrt(x.shape[2])
        scores = scores.masked_fill(pad[:, None] | pad[:, :, None], EPSILON)
        x = x * scores.sum(2, keepdim=True)
        found = [convolution(x[:, None]).squeeze(3).relu().amax(2) for convolution in self.convolutions]
        z = self.projector(torch.cat(found, 1))
        return z, self.predictor(z)

    def forward(self, texts: list[str], rng: np.random.Generator | None) -> Tensor:
        """The grouped cosine of two views, both ways."""

        def distance(p: Tensor, z: Tensor) -> Tensor:
            return -F.cosine_similarity(p.unflatten(1, (-1, 16)), z.detach().unflatten(1, (-1, 16)), dim=2).mean()

        (z1, p1), (z2, p2) = (self.view(*self.vectors(texts, rng)) for _ in range(2))
        return (distance(p1, z2) + distance(p2, z1)) / 2


def our_loss(method: GCLSR, texts: list[str], on: torch.device) -> Tensor:
    """From texts, as a stream tokenises them."""
    tokens = {name: t[:, None] for name, t in method.sentence_encoder.tokenize(texts).items()}
    return method({"text": Batch(tokens, [""] * len(texts)).to(on)}).losses["text"]


def training_step(batch: int, rounds: int, on: torch.device) -> None:
    """Ours against `Naive`."""
    texts = made_up(batch, 20, np.random.default_rng(0))

    def method(augmentation: Literal["pwva", "none"]) -> GCLSR:
        torch.manual_seed(0)
        return GCLSRConfig(augmentation=augmentation).build(encoder_for(texts, 300)).to(on).train()

    same = method("none")
    with torch.no_grad():
        losses = float(our_loss(same, texts, on)), float(Naive(same).to(on).train()(texts, None))
    if not abs(losses[0] - losses[1]) < 1e-4:
        raise SystemExit(f"the two sides do not compute the same: loss {losses[0]} and {losses[1]}")
    model, plain, rng = method("pwva"), Naive(same).to(on).train(), np.random.default_rng(0)
    optimizer = TurnOptimizer(model, "text", gclsr.sgd(batch), 10**6, "fp32")
    groups: list[dict[str, Any]] = [
        {"params": [*plain.convolutions.parameters(), *plain.projector.parameters()]},
        {"params": [*plain.predictor.parameters()], "lr": 1.0},
    ]
    sgd = torch.optim.SGD(groups, lr=gclsr.sgd(batch).lr, momentum=0.9, weight_decay=1e-3, nesterov=True)

    def ours() -> None:
        optimizer.backward(our_loss(model, texts, on))
        optimizer.step()
        model.after_step(0)

    def naive() -> None:
        sgd.zero_grad()
        plain(texts, rng).backward()
        sgd.step()

    took = race({"ours": ours, "naive": naive}, rounds)
    show(f"a step of {batch} sentences of about 20 words, {on}", took, batch)
    what = f"GCLSR, batch {batch}: ours / word by word and convolution by convolution, steps per second"
    Target(area="papers", what=what, at_least=1, measured=ratios(took["naive"], took["ours"]), peak_mb=peaks(took)).report()


def main(batch: int = 128, rounds: int = 3) -> None:
    """Print a table and a row."""
    keep_freed_memory()  # as the engine does; both sides have it
    training_step(batch, rounds, device())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
