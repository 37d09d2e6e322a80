"""SG-BERT (ACL 2021): a frozen copy of the encoder guides its own sentence vector; nothing is augmented."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from data.streams.text import TextStream
from pipelines import parts
from pipelines.cli import main
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe
from trainers.sgbert import SGBERTConfig

ENCODERS = {
    "bert-base": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-uncased",
    "sbert-base": "sentence-transformers/bert-base-nli-mean-tokens",
    "sbert-large": "sentence-transformers/bert-large-nli-mean-tokens",
    "roberta-base": "FacebookAI/roberta-base",
    "roberta-large": "FacebookAI/roberta-large",
    "mbert": "google-bert/bert-base-multilingual-cased",
}
CLS = "cls_before_pooler"
SEEDS = (1, 2, 3, 4, 1234, 2345, 3456, 7890)
"""The paper's, for ``python pipelines/repeat.py sgbert bert-base --seeds 1 2 3 4 1234 2345 3456 7890``."""

ABLATION: dict[str, dict[str, Any]] = {  # Table 5: what each row changes of SG-OPT
    "opt2": {"method.loss": "opt2"},
    "opt1": {"method.loss": "opt1"},
    "base-loss": {"method.loss": "sg"},
    "temperature-0.1": {"method.temperature": 0.1},
    "temperature-0.001": {"method.temperature": 0.001},
    "lambda-0": {"method.regularisation": 0.0},
    "lambda-1": {"method.regularisation": 1.0},
    "no-head": {"method.head_width": 0},
}
TRACKS = tuple(f"pairs:semeval/STS.input.{track}.txt" for track in ("track1.ar-ar", "track3.es-es", "track5.en-en"))
"""SemEval 2017, and `SPANISH` of 2014: folders of the workshop's own files."""
SPANISH = "pairs:semeval/es2014"


def bert_base() -> Recipe:
    """SG-OPT, BERT-base: Table 1's main row. 17,256 sentences of STS-B without labels, 16 at 5e-5."""
    return Recipe(
        name="sgbert/bert-base",
        method=SGBERTConfig(),
        encoder=EncoderConfig(path=ENCODERS["bert-base"], pooling=CLS),
        streams={"text": TextStream(shards="shards/stsb-sentences", batch_size=16, max_length=128)},
        optim={"text": OptimConfig(lr=5e-5, betas=(0.9, 0.9), eps=1e-6, warmup=0.1)},
        evaluation=EvaluationConfig(
            data="SentEval/data/downstream", select="stsb-dev", final=parts.STS.final, every=50, patience=10
        ),
        run=parts.paper_run("sgbert/bert-base"),
    )


def released() -> Recipe:
    """SG-OPT as the released code runs: mean pooling, teacher dropout, weight decay, its stopping, the last weights."""
    recipe = _with("released", {"method.variant": "released", "optim.text.weight_decay": 0.01})
    recipe = recipe.replace("evaluation.patience_counts", "decreases")
    return recipe.replace("evaluation.keep", "last")


def back_translation() -> Recipe:
    """BT: the back-translation is the positive, no teacher. Columns original, translation."""
    changes = {"method.positive": "translation", "method.loss": "sg", "streams.text": _translated()}
    return _with("bt", changes)


def back_translation_sg() -> Recipe:
    """BT + SG-OPT (Table 7): the original through the student, its back-translation through the teacher."""
    return _with("bt-sg-opt", {"method.positive": "both", "streams.text": _translated()})


def domain_shift() -> Recipe:
    """SG-OPT on sentences of SNLI and MultiNLI instead of STS-B (Figure 4)."""
    return _with("nli", {"streams.text.shards": "shards/nli-sentences", "run.max_steps": 1079})


def transfer() -> Recipe:
    """SG-OPT for the transfer tasks (Table 4): NLI sentences, mean pooling of the teacher's layers from the fourth on."""
    recipe = domain_shift().replace("name", "sgbert/transfer").replace("run.output", "runs/sgbert/transfer")
    recipe = recipe.replace("method.pooling", "mean").replace("method.layers", tuple(range(4, 13)))
    return recipe.replace("evaluation.final", ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"))


def multilingual() -> Recipe:
    """MBERT trained on English STS-B, measured on Arabic, Spanish and English (Tables 2 and 3)."""
    recipe = _row("mbert", "sg-opt").replace("evaluation.final", (*TRACKS, SPANISH))
    return recipe.replace("name", "sgbert/multilingual").replace("run.output", "runs/sgbert/multilingual")


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia and the small encoder of this project."""
    return Recipe(
        name="sgbert/demo",
        method=SGBERTConfig(head_width=768),
        encoder=EncoderConfig(path=parts.SMALL_ENCODER, pooling=CLS),
        streams={"text": parts.offline_text(16)},
        optim={"text": OptimConfig(lr=3e-4, betas=(0.9, 0.9), eps=1e-6, warmup=0.1)},
        evaluation=parts.offline_evaluation(every=75),
        run=parts.small_run("runs/sgbert/demo", max_steps=300),
    )


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo(), "sgbert")


def _with(name: str, changes: dict[str, Any]) -> Recipe:
    recipe = bert_base().replace("name", f"sgbert/{name}").replace("run.output", f"runs/sgbert/{name}")
    for path, value in changes.items():
        recipe = recipe.replace(path, value)
    return recipe


def _row(encoder: str, loss: str) -> Recipe:
    return _with(
        f"{encoder}-{loss}", {"encoder.path": ENCODERS[encoder], "method.loss": {"sg": "sg", "sg-opt": "opt3"}[loss]}
    )


def _translated() -> dict[str, Any]:
    stream = TextStream(shards="shards/stsb-translated", batch_size=16, max_length=128, columns=("original", "translation"))
    return stream.model_dump()


def _described(make: partial[Recipe], text: str) -> Callable[[], Recipe]:
    make.__doc__ = text
    return make


RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **{
        f"{encoder}-{loss}": _described(partial(_row, encoder, loss), f"Tables 1 and 11: {loss.upper()} from {path}.")
        for encoder, path in ENCODERS.items()
        for loss in ("sg", "sg-opt")
        if (encoder, loss) != ("bert-base", "sg-opt")
    },
    "bert-base-bt": back_translation,
    "bt-sg-opt": back_translation_sg,
    "released": released,
    "nli": domain_shift,
    "transfer": transfer,
    "multilingual": multilingual,
    **{
        f"ablation-{row}": _described(partial(_with, f"ablation-{row}", changes), f"Table 5: SG-OPT with {changes}.")
        for row, changes in ABLATION.items()
    },
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
