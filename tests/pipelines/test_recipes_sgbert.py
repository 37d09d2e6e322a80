"""Test the settings of SG-BERT's recipes, and the differences between paper and released code."""

from __future__ import annotations

from typing import Any

import pytest

from multicse.pipelines import sgbert
from multicse.reproduction.tables.table import read_tables
from tests.pipelines.rows import difference, holds, recipe_in

TABLES = read_tables("sgbert")
TRANSLATED = {"streams.text.shards": "shards/stsb-translated", "streams.text.columns": ["original", "translation"]}
NUMBERS: dict[str, Any] = {
    # Table 8
    **{"streams.text.batch_size": 16, "optim.text.lr": 5e-5, "optim.text.betas": [0.9, 0.9], "run.epochs": 1},
    **{"method.temperature": 0.01, "method.regularisation": 0.1, "evaluation.eval_steps": 50, "evaluation.patience": 10},
    # Section 3: two layers of 4,096, [CLS], all layers of the teacher
    **{"method.loss": "opt3", "method.head_width": 4096, "encoder.pooling": "cls_before_pooler", "method.first_layer": 0},
    # Further settings of the released code
    **{"optim.text.eps": 1e-6, "optim.text.warmup": 0.1, "optim.text.schedule": "linear", "optim.text.max_grad_norm": 1},
    **{"streams.text.max_length": 128, "optim.text.weight_decay": 0, "evaluation.select": "stsb-dev"},
    **{"evaluation.patience_counts": "no_new_best", "evaluation.keep": "best", "run.precision": "fp32"},
}
DIFFERENCES: dict[str, dict[str, Any]] = {
    # [errata 3.5, 3.6] weight decay that no table lists, a count of all decreases, the last weights
    "released": {
        **{"method.variant": "released", "optim.text.weight_decay": 0.01},
        **{"evaluation.patience_counts": "decreases", "evaluation.keep": "last"},
    },
    # Rows of the tables
    "T1/BERT-base BT": {"method.loss": "sg", "method.positive": "translation", **TRANSLATED},  # A.2
    "T7/BT + SG-OPT": {"method.positive": "both", **TRANSLATED},
    "T4/BERT-base SG-OPT": {  # mean pooling without the first layers; their number is not printed
        **{"streams.text.shards": "shards/nli-sentences", "run.max_steps": 1079},
        **{"method.pooling": "mean", "method.first_layer": 4},
    },
}


def test_numbers() -> None:
    holds(sgbert.bert_base(), NUMBERS)
    assert sgbert.bert_base().steps(17_256) == 1079  # including 108 of warm-up


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name: str) -> None:
    recipe = recipe_in(TABLES, name) if "/" in name else sgbert.RECIPES[name]()
    assert difference(recipe, sgbert.bert_base()) == DIFFERENCES[name]
