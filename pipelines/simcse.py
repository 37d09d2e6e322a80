"""SimCSE (EMNLP 2021), unsupervised and supervised: the baseline of every table."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import EncoderConfig, OptimConfig, Recipe
from multicse.trainers.simcse import SimCSEConfig


def unsupervised(row: str, encoder: EncoderConfig, batch: int, lr: float) -> Recipe:
    """One pass over a million sentences of Wikipedia."""
    return Recipe(
        name=f"simcse/{row}",
        method=SimCSEConfig(),
        encoder=encoder,
        streams={"text": parts.wiki(batch)},
        optim={"text": OptimConfig(lr=lr)},
        evaluation=parts.STS,
        run=parts.paper_run(f"simcse/{row}"),
    )


def bert_base() -> Recipe:
    """Unsupervised BERT-base: one pass over a million sentences, 64 at 3e-5."""
    return unsupervised("bert-base", parts.BERT_BASE, 64, 3e-5)


def roberta_base() -> Recipe:
    """Unsupervised RoBERTa-base: 512 at 1e-5."""
    return unsupervised("roberta-base", parts.ROBERTA_BASE, 512, 1e-5)


def roberta_large() -> Recipe:
    """Unsupervised RoBERTa-large: 512 at 3e-5."""
    return unsupervised("roberta-large", parts.ROBERTA_LARGE, 512, 3e-5)


def supervised_bert_base() -> Recipe:
    """NLI triples, 3 epochs, 512 at 5e-5; the head stays in the exported model."""
    recipe = unsupervised("supervised-bert-base", parts.BERT_BASE, 512, 5e-5)
    changes = {"encoder.pooling": "cls", "method.supervised": True, "streams.text": parts.nli(512), "run.epochs": 3}
    return recipe.changed(changes)


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia and the small encoder of this project."""
    text = parts.offline_text(64)
    return parts.demo("simcse", parts.SMALL_TEXT, {"text": text}, {"text": parts.SMALL_OPTIM}, steps=200, every=50)


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo())


RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    "roberta-base": roberta_base,
    "roberta-large": roberta_large,
    "supervised-bert-base": supervised_bert_base,
    **parts.in_languages(bert_base),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
