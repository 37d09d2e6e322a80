"""Search spaces of SG-BERT: the paper's ablation as a single grid, and a wider continuous space."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace

ablation: SearchSpace = {  # Table 5, whose rows are points of this grid
    "method.loss": tune.grid_search(["opt3", "opt2", "opt1", "sg"]),
    "method.temperature": tune.grid_search([0.1, 0.01, 0.001]),
    "method.regularisation": tune.grid_search([0.0, 0.1, 1.0]),
    "method.head_width": tune.grid_search([4096, 0]),
}
wide: SearchSpace = {
    "optim.text.lr": tune.loguniform(1e-6, 1e-3),
    "method.temperature": tune.loguniform(1e-3, 0.5),
    "method.regularisation": tune.loguniform(1e-3, 10.0),
    "method.pooling": tune.choice(["max", "mean"]),
    "method.head_width": tune.choice([0, 768, 4096]),
}
SPACES = {"sgbert": {"paper": ablation, "wide": wide}}
