"""What the figures of clip.toml are drawn by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from multicse.reproduction.tables.clip_mini import mini as mini
from multicse.reproduction.tables.table import Table, Values, read_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_2(table: Table, values: Values) -> Figure:
    """Alignment against the uniformity of texts, a mark for each run."""
    from multicse.reproduction.figures.pairs import alignment_text_uniformity

    return alignment_text_uniformity(_runs(values))


def figure_3(table: Table, values: Values) -> Figure:
    """The uniformity of items against that of texts, a mark for each run."""
    from multicse.reproduction.figures.pairs import text_item_uniformity

    return text_item_uniformity(_runs(values))


def _runs(values: Values) -> dict[str, list[Mapping[str, float]]]:
    models: dict[str, list[Mapping[str, float]]] = {}
    for label, columns in values.items():
        metrics = [column.partition("#")[2] for column in columns]
        models[label] = [dict(zip(metrics, run, strict=True)) for run in zip(*columns.values(), strict=True)]
    return models


TABLES = read_tables(Path(__file__).with_suffix(".toml"), globals())
