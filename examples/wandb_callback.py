"""Log to Weights & Biases: ``--run.callbacks examples/wandb_callback.py:WandB``."""

from __future__ import annotations

import json
import secrets
from typing import Any

import wandb


class WandB:
    """A run of W&B with the settings of the recipe; with ``WANDB_MODE=offline`` in OUTPUT_DIR/wandb, for ``wandb sync``."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.run: Any = None

    def __call__(self, step: int, metrics: dict[str, float], engine: Any) -> None:
        """Log the metrics of a step, which is a metric too: the evaluation of step 0 is logged after step 1."""
        if self.run is None:
            recipe = json.loads(engine.recipe.to_json())
            paper, _, name = recipe["name"].partition("/")
            how = {"id": self.id, "resume": "allow", "dir": recipe["run"]["output_dir"]}
            self.run = wandb.init(project=paper, name=name or None, config=recipe, **how)
            self.run.define_metric("*", step_metric="step")
        self.run.log({"step": step, **metrics})

    def state_dict(self) -> dict[str, str]:
        """Return the ID of the run, which checkpoints contain."""
        return {"id": self.id}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Continue the run with this ID."""
        self.id = state["id"]
