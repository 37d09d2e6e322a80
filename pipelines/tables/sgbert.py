"""Every table and figure of SG-BERT (Kim et al., ACL 2021), and its rows at the small scale."""

from __future__ import annotations

from pipelines import parts
from pipelines.tables.offline import Offline
from pipelines.tables.table import Row, Table
from trainers.recipe import Recipe
from trainers.sgbert import SGBERTConfig

SEVEN = ("stsb-test", "sickr", "sts12", "sts13", "sts14", "sts15", "sts16")
"""In the paper's order."""

SEEDS = 8


def _only_average(average: float) -> tuple[float | None, ...]:
    return (*(None for _ in SEVEN), average)


TABLES: dict[str, Table] = {
    "T5": Table(
        "The losses and settings of SG-OPT: average over the seven STS sets",
        SEVEN,
        (
            Row("SG-OPT (L_opt3)", "sgbert/bert-base", paper=_only_average(74.62)),
            Row("L_opt2", "sgbert/ablation-opt2", paper=_only_average(73.14)),
            Row("L_opt1", "sgbert/ablation-opt1", paper=_only_average(72.61)),
            Row("SG (L_base)", "sgbert/bert-base-sg", paper=_only_average(72.17)),
            Row("temperature 0.1", "sgbert/ablation-temperature-0.1", paper=_only_average(70.39)),
            Row("temperature 0.001", "sgbert/ablation-temperature-0.001", paper=_only_average(74.16)),
            Row("lambda 0", "sgbert/ablation-lambda-0", paper=_only_average(73.76)),
            Row("lambda 1", "sgbert/ablation-lambda-1", paper=_only_average(73.18)),
            Row("no projection head", "sgbert/ablation-no-head", paper=_only_average(72.78)),
        ),
        average=True,
        reference="SG-OPT (L_opt3)",
        seeds=SEEDS,
    ),
}


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 150 steps of 16 sentences, chosen on STS-B dev."""
    method = recipe.method
    assert isinstance(method, SGBERTConfig)
    return parts.changed(
        recipe,
        {
            "encoder.path": parts.SMALL_ENCODER,
            "method.head_width": min(method.head_width, 768),
            "method.first_layer": min(method.first_layer, 1),
            "streams.text.shards": _sentences(recipe.streams["text"].shards, offline),
            "optim.text.lr": 3e-4,
            "evaluation.data": str(offline.data / "senteval" / "downstream"),
            "evaluation.final": (),
            "run.max_steps": 150,
            "run.gpus_per_worker": 0,
            "run.checkpoint_every": None,
        },
    )


def _sentences(shards: str, offline: Offline) -> str:
    return offline.stsb()
