"""Parts of several recipes: encoders, streams, evaluations, run settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from multicse.data.offline import OFFLINE
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.data.streams.inputs import AudioInput
from multicse.data.streams.text import TextStream
from multicse.models.config import AnyEncoder
from multicse.trainers.method import MethodConfig
from multicse.trainers.recipe import AnyOptim, EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from multicse.trainers.simcse import SimCSEConfig

SMALL_ENCODER = str(Path(__file__).resolve().parents[1] / "models" / "small-bert-en")
"""Encoder that this project pretrained (`pipelines/pretrain.py`)."""

BERT_BASE = EncoderConfig(path="google-bert/bert-base-uncased", pooling="cls")
ROBERTA_BASE = EncoderConfig(path="FacebookAI/roberta-base", pooling="cls")
ROBERTA_LARGE = EncoderConfig(path="FacebookAI/roberta-large", pooling="cls")
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
    """Return the stream of one million sentences of English Wikipedia, packed as ``shards/wiki1m``."""
    return TextStream(shards="shards/wiki1m", batch_size=batch_size)


def nli(batch_size: int) -> TextStream:
    """Return the stream of 275,601 NLI triples (premise, entailment, contradiction), packed as ``shards/nli``.

    Empty sentences are kept, as in SimCSE's code.
    """
    columns = ("sent0", "sent1", "hard_neg")
    return TextStream(shards="shards/nli", batch_size=batch_size, columns=columns, keep_empty=True)


def paper_run(name: str, epochs: float = 1) -> RunConfig:
    """Return run settings for one GPU with mixed precision and a checkpoint every 1,000 steps.

    The released code uses fp16; bf16 needs no loss scaling.

    Args:
        name: Name of the recipe, which is also the folder below ``runs``.
        epochs: Number of epochs.
    """
    return RunConfig(output_dir=f"runs/{name}", epochs=epochs, precision="bf16", gpus_per_worker=1, save_steps=1000)


def text_bert_base(paper: str, method: MethodConfig) -> Recipe:
    """Return SimCSE's settings of BERT-base: one epoch of one million sentences, batch 64, lr 3e-5."""
    return Recipe(
        name=f"{paper}/bert-base",
        method=method,
        encoder=BERT_BASE,
        streams={"text": wiki(64)},
        optim={"text": OptimConfig(lr=3e-5)},
        evaluation=STS,
        run=paper_run(f"{paper}/bert-base"),
    )


CYCLIC = {"i_cyclic": 0.25, "c_cyclic": 0.25}
"""Weights of the two cyclic losses (Zhao et al. 2023, and CyCLIP)."""


def row(base: Callable[[], Recipe], name: str, changes: Mapping[str, Any], about: str) -> Callable[[], Recipe]:
    """Return a function that makes the recipe of a row of a paper's table.

    Args:
        base: Function that makes the recipe to change.
        name: Name of the recipe, without the paper.
        changes: Values of settings by dotted name.
        about: Description for the help.
    """

    def make() -> Recipe:
        recipe = base()
        named = {"name": f"{recipe.paper}/{name}", "run.output_dir": f"runs/{recipe.paper}/{name}"}
        return recipe.changed({**named, **changes})

    make.__doc__ = about
    return make


Rows = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Description and changed settings of each row of a table."""


def rows(base: Callable[[], Recipe], given: Rows) -> dict[str, Callable[[], Recipe]]:
    """Return the functions of the rows by name; all change one recipe."""
    return {name: row(base, name, changes, about) for name, (about, changes) in given.items()}


def models(
    make: Callable[[str], Recipe], weights: Mapping[str, Mapping[str, float]], about: str
) -> dict[str, Callable[[], Recipe]]:
    """Return the functions of models by name; each is described by `about` and the weights of its losses."""
    found: dict[str, Callable[[], Recipe]] = {}
    for name, own in weights.items():
        losses = " + ".join(["contrastive", *(f"{weight} {loss}" for loss, weight in own.items())])
        found |= rows(partial(make, name), {name: (f"{about} {losses}.", {})})
    return found


# ---------------------------------------------------------------- offline: demo and smoke


def offline_text(batch_size: int) -> TextStream:
    """Return the stream of sentences from the Wikipedia excerpt in gensim."""
    return TextStream(shards=f"{OFFLINE}/text", batch_size=batch_size)


def offline_digits(**views: Any) -> ImageStream:
    """Return the stream of scanned digits of scikit-learn, which are grey and must not be flipped."""
    grey = {"flip": 0.0, "jitter": (0.4, 0.4, 0.0, 0.0), "grayscale_probability": 0}
    return ImageStream(shards=f"{OFFLINE}/image", batch_size=48, size=32, **grey, **views)


OFFLINE_SOUND = AudioInput(features="kaldi", rate=16_000, seconds=1.0, bins=32)
"""Features of the synthesised audio for towers: 98 frames of 32 bins."""


def demo(
    paper: str,
    method: MethodConfig,
    streams: dict[str, StreamConfig],
    optim: dict[str, AnyOptim],
    *,
    steps: int,
    every: int,
    encoder: AnyEncoder = SMALL,
) -> Recipe:
    """Return a recipe that trains in minutes with one CPU worker on data from installed packages.

    The checkpoint is selected on 20 documents of the Lee corpus and evaluated on the other 30.

    Args:
        paper: Name of the pipeline.
        method: Method.
        streams: Streams by name.
        optim: Optimizers by update.
        steps: Number of steps.
        every: Number of steps between evaluations.
        encoder: Text encoder.
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


def demo_of_pairs(paper: str, method: MethodConfig, stream: StreamConfig, items: str) -> Recipe:
    """Return a demo on image-caption or audio-caption pairs, which is selected and evaluated by retrieval.

    Args:
        paper: Name of the pipeline.
        method: Method.
        stream: Stream of the pairs.
        items: Prefix of the offline shards: ``emoji`` or ``sounds``.
    """
    optim = OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1)
    recipe = demo(paper, method, {"pairs": stream}, {"pairs": optim}, steps=300, every=50)
    evaluation = EvaluationConfig(
        select=f"retrieval:{OFFLINE}/{items}-val?primary=mean_map10",
        final=(f"retrieval:{OFFLINE}/{items}-test", f"geometry:{OFFLINE}/{items}-test"),
        eval_steps=50,
    )
    return recipe.model_copy(update={"lead": "pairs", "evaluation": evaluation})


def text_demo(paper: str, method: MethodConfig) -> Recipe:
    """Return a demo on sentences alone: 200 steps with batches of 64."""
    return demo(paper, method, {"text": offline_text(64)}, {"text": SMALL_OPTIM}, steps=200, every=50)


def smoke(demo: Recipe) -> Recipe:
    """Return a recipe that trains eight steps of a demo with small batches."""
    eight = {
        "run.max_steps": 8,
        "run.logging_steps": 2,
        "evaluation.eval_steps": 4,
        **{f"streams.{name}.batch_size": 16 for name in demo.streams},
    }
    return row(lambda: demo, "smoke", eight, "")()


def smoke_of(demo: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Return a function that makes the recipe `smoke` of a demo."""

    def make() -> Recipe:
        return smoke(demo())

    make.__doc__ = "Train eight steps, for tests."
    return make
