"""Your own modality in one file: rows of a table, which have nothing to do with the sentences, as VisualCSE has images.

The table has 569 rows from scikit-learn, each with 30 measured numbers of the cells of a tumour, and its class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from pydantic import Field
from ray import tune
from torch import Tensor, nn

from multicse.data.errors import DecodeError
from multicse.data.shards import RawSample
from multicse.data.streams.base import LabelledStream, Row, Tokenize
from multicse.data.streams.decode import field_of
from multicse.pipelines import parts
from multicse.trainers.nonling import ModalityConfig, NonLingCSEConfig
from multicse.trainers.recipe import OptimConfig, Recipe
from multicse.trainers.tuning.space import SearchSpace


class TableStream(LabelledStream):
    """Rows of numbers, each as two views without some of them: ``table`` (B, 2, columns) and ``label`` (B,)."""

    kind: Literal["table"] = "table"
    columns: int = Field(30, gt=0)
    """Number of values in a row, which are the field `values`; their mean is 0 and their standard deviation 1."""
    masked: float = Field(0.3, ge=0, lt=1)
    """Probability that a value of a view is replaced by the mean."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Name the fields that the shards must have, here the values and the class."""
        return [("kind", ("values",)), *super().needs()]

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Decode a sample and make its views, in a reading task; all randomness is from `rng`."""
        values = np.array(field_of(sample.fields, "values", sample.key), np.float32)
        if values.shape != (self.columns,) or not np.isfinite(values).all():
            raise DecodeError(f"sample {sample.key!r}: its values are not {self.columns} numbers")
        kept = rng.random((2, self.columns)) >= self.masked
        return {"table": values * kept, **self.label_of(sample)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Convert the rows of a batch to tensors."""
        return {"table": torch.from_numpy(rows["table"]), **self.labels(rows)}


class TableConfig(ModalityConfig):
    """Settings of the update on rows of a table, in addition to its loss, temperature and weight."""

    STREAM: ClassVar[str] = "table"
    TENSOR: ClassVar[str] = "table"
    SIZES: ClassVar[dict[str, str]] = {"columns": "columns"}

    kind: Literal["table"] = "table"
    columns: int = Field(30, gt=0)
    """Number of values in a row, equal to the stream's columns."""

    def patches(self, hidden_size: int, variant: str) -> nn.Module:
        """Return the module that makes tokens of rows."""
        return Cells(self.columns, hidden_size)

    def tokens(self, variant: str) -> int:
        """Return the number of tokens of a row: one per value, and [CLS]."""
        return self.columns + 1


class Cells(nn.Module):
    """Values (N, columns) to tokens (N, 1 + columns, d): a vector per column, times the value, plus another vector."""

    def __init__(self, columns: int, hidden_size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.02 * torch.randn(columns, hidden_size))
        self.shift = nn.Parameter(0.02 * torch.randn(1 + columns, hidden_size))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the tokens; the first one is [CLS]."""
        return F.pad(rows[..., None] * self.scale, (0, 0, 1, 0)) + self.shift


def cells() -> str:
    """Return the path of the table as a Parquet file, which is written at the first call."""
    from sklearn.datasets import load_breast_cancer

    path = Path("runs/tables/cells.parquet")
    values, label = load_breast_cancer(return_X_y=True)
    values = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"values": [*values], "cls": label}), part := path.with_suffix(".part"))
        part.rename(path)  # a file that a death has cut short is not used
    return str(path)


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences and rows of a table."""
    modality = TableConfig(weight=1.0)
    return parts.demo(
        "cells",
        NonLingCSEConfig(text=parts.SMALL_TEXT, image=None, audio=None, modalities={"cells": modality}),
        {"text": parts.offline_text(64), "cells": TableStream(shards=cells(), batch_size=48)},
        {"text": parts.SMALL_OPTIM, "cells": OptimConfig(lr=1.5e-5, schedule="cosine")},
        steps=200,
        every=50,
    )


RECIPES = {"demo": demo, "smoke": parts.smoke_of(demo)}
SPACES: dict[str, SearchSpace] = {
    "wide": {"optim.cells.lr": tune.loguniform(1e-6, 1e-4), "method.modalities.cells.temperature": tune.uniform(0.05, 0.5)}
}
