"""Log to TensorBoard: ``--run.callbacks examples/tensorboard_callback.py:TensorBoard``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Event files for ``tensorboard --logdir OUTPUT_DIR/tensorboard``."""

    def __init__(self) -> None:
        self.writer: Any = None

    def __call__(self, step: int, metrics: dict[str, float], engine: Any) -> None:
        """Write the metrics of a step. After a restart, TensorBoard discards the former values of the steps that repeat."""
        if self.writer is None:
            folder = Path(engine.recipe.run.output_dir) / "tensorboard"
            self.writer = SummaryWriter(str(folder), purge_step=step)
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()
