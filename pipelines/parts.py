"""Parts that recipes share: encoders, streams, evaluations, run settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from multicse.data.offline import OFFLINE
from multicse.data.streams import AnyStream
from multicse.data.streams.inputs import AudioInput
from multicse.data.streams.text import TextStream
from multicse.models.config import AnyEncoder
from multicse.trainers.method import MethodConfig
from multicse.trainers.recipe import AnyOptim, EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from multicse.trainers.simcse import SimCSEConfig

SMALL_ENCODER = str(Path(__file__).resolve().parents[1] / "models" / "small-bert-en")
"""The encoder that this project pretrained itself (`pipelines/pretrain.py`)."""

BERT_BASE = EncoderConfig(path="google-bert/bert-base-uncased", pooling="cls_before_pooler")
ROBERTA_BASE = EncoderConfig(path="FacebookAI/roberta-base", pooling="cls_before_pooler")
ROBERTA_LARGE = EncoderConfig(path="FacebookAI/roberta-large", pooling="cls_before_pooler")
SMALL = EncoderConfig(path=SMALL_ENCODER, pooling="mean")

SMALL_TEXT = SimCSEConfig(head="none", temperature=0.2)
SMALL_OPTIM = OptimConfig(lr=5e-4, warmup=0.1)

STS = EvaluationConfig(
    data="SentEval/data/downstream",
    select="stsb-dev",
    watch=("sickr-dev", "stsb-dev-geometry"),
    final=("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sickr"),
    eval_steps=125,
)


def wiki(batch_size: int) -> TextStream:
    """A million sentences of English Wikipedia, one a line, packed as ``shards/wiki1m``."""
    return TextStream(shards="shards/wiki1m", batch_size=batch_size)


def nli(batch_size: int) -> TextStream:
    """Premise, entailment, contradiction (275,601 triples), packed as ``shards/nli``; an empty one is a blank, as in
    SimCSE's code."""
    columns = ("sent0", "sent1", "hard_neg")
    return TextStream(shards="shards/nli", batch_size=batch_size, columns=columns, keep_empty=True)


def paper_run(name: str, epochs: float = 1) -> RunConfig:
    """One GPU, mixed precision; checkpoints every 1,000 steps.

    The authors' code has fp16, for speed alone; bf16 needs no scaling of the loss.
    """
    return RunConfig(output_dir=f"runs/{name}", epochs=epochs, precision="bf16", gpus_per_worker=1, save_steps=1000)


CYCLIC = {"i_cyclic": 0.25, "c_cyclic": 0.25}
"""Weights of the two cyclic losses (Zhao et al. 2023; CyCLIP's own)."""


def losses(weights: Mapping[str, float]) -> str:
    """``{"captions": 0.1}`` as "contrastive + 0.1 captions"."""
    return " + ".join(["contrastive", *(f"{weight} {name}" for name, weight in weights.items())])


def row(base: Callable[[], Recipe], name: str, changes: Mapping[str, Any], about: str) -> Callable[[], Recipe]:
    """A row of a paper's table: the recipe `base` named ``PAPER/name`` with `changes`; --help says what it is `about`."""

    def make() -> Recipe:
        recipe = base()
        named = {"name": f"{recipe.paper}/{name}", "run.output_dir": f"runs/{recipe.paper}/{name}"}
        return recipe.changed({**named, **changes})

    make.__doc__ = about
    return make


# ---------------------------------------------------------------- offline: demo and smoke


def offline_text(batch_size: int) -> TextStream:
    """Sentences of the Wikipedia excerpt that gensim brings along."""
    return TextStream(shards=f"{OFFLINE}/text", batch_size=batch_size)


OFFLINE_SOUND = AudioInput(features="kaldi", rate=16_000, seconds=1.0, bins=32)
"""What towers take of the synthesised sounds: 98 frames of 32 bins."""


def demo(
    paper: str,
    method: MethodConfig,
    streams: dict[str, AnyStream],
    optim: dict[str, AnyOptim],
    *,
    steps: int,
    every: int,
    encoder: AnyEncoder = SMALL,
) -> Recipe:
    """Minutes of one CPU worker on what the installed packages bring along, evaluated `every` so many steps.

    Chosen on 20 documents of the Lee corpus, reported on the other 30.
    """
    return Recipe(
        name=f"{paper}/demo",
        method=method,
        encoder=encoder,
        streams=streams,
        optim=optim,
        evaluation=EvaluationConfig(
            select="lee-dev", watch=("lee-dev-geometry",), final=("lee", "lee-all"), eval_steps=every
        ),
        run=RunConfig(output_dir=f"runs/{paper}/demo", max_steps=steps, epochs=100, seed=1),
    )


def demo_of_pairs(paper: str, method: MethodConfig, stream: AnyStream, items: str) -> Recipe:
    """The demo on items with captions, ``emoji`` or ``sounds``: chosen and reported by how well each finds the other."""
    optim = OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1)
    recipe = demo(paper, method, {"pairs": stream}, {"pairs": optim}, steps=300, every=50)
    evaluation = EvaluationConfig(
        select=f"retrieval:{OFFLINE}/{items}-val?primary=mean_map10",
        final=(f"retrieval:{OFFLINE}/{items}-test", f"geometry:{OFFLINE}/{items}-test"),
        eval_steps=50,
    )
    return recipe.model_copy(update={"lead": "pairs", "evaluation": evaluation})


def smoke(demo: Recipe) -> Recipe:
    """Eight steps of the demo with small batches."""
    eight = {
        "run.max_steps": 8,
        "run.logging_steps": 2,
        "evaluation.eval_steps": 4,
        **{f"streams.{name}.batch_size": 16 for name in demo.streams},
    }
    return row(lambda: demo, "smoke", eight, "")()


def smoke_of(demo: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Return a recipe of eight steps of a demo."""

    def make() -> Recipe:
        return smoke(demo())

    make.__doc__ = "Eight steps: what tests run."
    return make
