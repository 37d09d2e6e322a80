"""SG-BERT (ACL 2021): a frozen copy of the encoder guides its own sentence vector; nothing is augmented."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.streams.text import TextStream
from multicse.evaluation.tables import TRANSFER
from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe
from multicse.trainers.sgbert import SGBERTConfig

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

ABLATION: dict[str, dict[str, Any]] = {  # Table 5: what each row changes of SG-OPT; its base loss is `bert-base-sg`
    "opt2": {"method.loss": "opt2"},
    "opt1": {"method.loss": "opt1"},
    "temperature-0.1": {"method.temperature": 0.1},
    "temperature-0.001": {"method.temperature": 0.001},
    "lambda-0": {"method.regularisation": 0.0},
    "lambda-1": {"method.regularisation": 1.0},
    "no-head": {"method.head_width": 0},
}
TRACKS = tuple(f"pairs:semeval/STS.input.{track}.txt" for track in ("track1.ar-ar", "track3.es-es", "track5.en-en"))
"""SemEval 2017, and `SPANISH` of 2014: folders of the workshop's own files."""
SPANISH = "pairs:semeval/es2014"
TRANSLATED = {"streams.text.shards": "shards/stsb-translated", "streams.text.columns": ("original", "translation")}
NLI = {"streams.text.shards": "shards/nli-sentences", "run.max_steps": 1079}
LOSSES: dict[str, dict[str, Any]] = {
    "bt": {"method.loss": "sg", "method.positive": "translation", **TRANSLATED},
    "sg": {"method.loss": "sg"},
    "sg-opt": {},
}
RELEASED = {
    "method.variant": "released",
    "optim.text.weight_decay": 0.01,
    "evaluation.patience_counts": "decreases",
    "evaluation.keep": "last",
}


def bert_base() -> Recipe:
    """SG-OPT, BERT-base: Table 1's main row. 17,256 sentences of STS-B without labels, 16 at 5e-5, all in fp32."""
    return Recipe(
        name="sgbert/bert-base",
        method=SGBERTConfig(),
        encoder=EncoderConfig(path=ENCODERS["bert-base"], pooling=CLS),
        streams={"text": TextStream(shards="shards/stsb-sentences", batch_size=16, max_length=128)},
        optim={"text": OptimConfig(lr=5e-5, betas=(0.9, 0.9), eps=1e-6, warmup=0.1)},
        evaluation=EvaluationConfig(
            data="SentEval/data/downstream", select="stsb-dev", final=parts.STS.final, every=50, patience=10
        ),
        run=parts.paper_run("sgbert/bert-base").model_copy(update={"precision": "fp32"}),
    )


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia and the small encoder of this project."""
    return parts.demo(
        "sgbert",
        SGBERTConfig(head_width=768),
        {"text": parts.offline_text(16)},
        {"text": OptimConfig(lr=3e-4, betas=(0.9, 0.9), eps=1e-6, warmup=0.1)},
        steps=300,
        every=75,
        encoder=EncoderConfig(path=parts.SMALL_ENCODER, pooling=CLS),
    )


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo())


_row = partial(parts.row, bert_base)


def _of_encoder(encoder: str, loss: str) -> Callable[[], Recipe]:
    changes = {"encoder.path": ENCODERS[encoder], **LOSSES[loss]}
    if encoder == "mbert":
        changes["evaluation.final"] = (*TRACKS, SPANISH)
    tables = {"mbert": "Tables 2 and 3", "roberta-base": "Table 11", "roberta-large": "Table 11"}.get(encoder, "Table 1")
    return _row(f"{encoder}-{loss}", changes, f"{tables}: {loss.upper()} from {ENCODERS[encoder]}.")


def _transfer(encoder: str) -> Callable[[], Recipe]:
    changes = {"encoder.path": ENCODERS[encoder], **NLI, "method.pooling": "mean", "method.first_layer": 4}
    about = f"Table 4: SG-OPT from {ENCODERS[encoder]} on sentences of NLI, with means of the teacher's layers from 4 on."
    return _row(f"{encoder}-transfer", {**changes, "evaluation.final": TRANSFER}, about)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **{
        f"{encoder}-{loss}": _of_encoder(encoder, loss)
        for encoder in ENCODERS
        for loss in LOSSES
        if (encoder, loss) != ("bert-base", "sg-opt")
    },
    **{f"{encoder}-transfer": _transfer(encoder) for encoder in ("bert-base", "bert-large", "sbert-base")},
    "bt-sg-opt": _row(
        "bt-sg-opt",
        {"method.positive": "both", **TRANSLATED},
        "BT + SG-OPT (Table 7): the original through the student, its back-translation through the teacher.",
    ),
    "released": _row(
        "released",
        RELEASED,
        "SG-OPT as the released code runs: mean pooling, teacher dropout, weight decay, its stopping, the last weights.",
    ),
    "nli": _row("nli", NLI, "SG-OPT on sentences of SNLI and MultiNLI instead of STS-B (Figure 4)."),
    **{
        f"ablation-{row}": _row(f"ablation-{row}", changes, f"Table 5: SG-OPT with {changes}.")
        for row, changes in ABLATION.items()
    },
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
