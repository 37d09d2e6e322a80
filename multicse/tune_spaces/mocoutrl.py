"""Search spaces of MoCoUTRL: the loss weight and the momentum on a grid, and a wider space."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace

paper: SearchSpace = {  # the paper does not report lambda; the released code uses 0.5
    "method.balance": tune.grid_search([0.0, 0.25, 0.5, 0.75, 1.0]),
    "method.momentum": tune.grid_search([0.9, 0.99, 0.999, 0.9999]),
}
wide: SearchSpace = {
    "optim.text.lr": tune.loguniform(1e-7, 1e-3),
    "method.balance": tune.uniform(0.0, 1.0),
    "method.momentum": tune.choice([0.0, 0.9, 0.99, 0.999, 0.9999]),
    "method.temperature": tune.loguniform(1e-2, 0.5),
    "method.margin": tune.uniform(0.1, 4.0),
    "method.perturbation": tune.choice([True, False]),
    "method.projectors": tune.choice([True, False]),
    "method.dictionary_views": tune.choice([True, False]),
}
SPACES = {"mocoutrl": {"paper": paper, "wide": wide}}
