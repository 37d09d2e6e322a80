"""SimCSE (EMNLP 2021), unsupervised and supervised: the baseline of every table."""

from __future__ import annotations

from pipelines import parts
from pipelines.cli import main
from trainers.recipe import EncoderConfig, OptimConfig, Recipe
from trainers.simcse import SimCSEConfig


def bert_base() -> Recipe:
    """Unsupervised BERT-base: one pass over a million sentences, 64 at 3e-5."""
    return Recipe(
        name="simcse/bert-base",
        method=SimCSEConfig(),
        encoder=parts.BERT_BASE,
        streams={"text": parts.wiki(64)},
        optim={"text": OptimConfig(lr=3e-5)},
        evaluation=parts.STS,
        run=parts.paper_run("simcse/bert-base"),
    )


def _with(row: str, encoder: EncoderConfig, batch: int, lr: float) -> Recipe:
    recipe = bert_base().replace("name", f"simcse/{row}").replace("encoder", encoder.model_dump())
    recipe = recipe.replace("streams.text.batch_size", batch).replace("optim.text.lr", lr)
    return recipe.replace("run.output", f"runs/simcse/{row}")


def roberta_base() -> Recipe:
    """Unsupervised RoBERTa-base: 512 at 1e-5."""
    return _with("roberta-base", parts.ROBERTA_BASE, 512, 1e-5)


def roberta_large() -> Recipe:
    """Unsupervised RoBERTa-large: 512 at 3e-5."""
    return _with("roberta-large", parts.ROBERTA_LARGE, 512, 3e-5)


def supervised_bert_base() -> Recipe:
    """NLI triples, 3 epochs, 512 at 5e-5; the head stays in the exported model."""
    recipe = _with("supervised-bert-base", parts.BERT_BASE.model_copy(update={"pooling": "cls"}), 512, 5e-5)
    recipe = recipe.replace("method.supervised", True).replace("streams.text", parts.nli(512).model_dump())
    return recipe.replace("run.epochs", 3)


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia and the small encoder of this project."""
    return Recipe(
        name="simcse/demo",
        method=parts.SMALL_TEXT,
        encoder=parts.SMALL,
        streams={"text": parts.offline_text(64)},
        optim={"text": parts.SMALL_OPTIM},
        evaluation=parts.offline_evaluation(every=50),
        run=parts.small_run("runs/simcse/demo", max_steps=200),
    )


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo(), "simcse")


RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    "roberta-base": roberta_base,
    "roberta-large": roberta_large,
    "supervised-bert-base": supervised_bert_base,
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
