"""Search spaces of TSDAE: the paper's deletion ratios, and a wider space."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace

deletion: SearchSpace = {"method.deletion": tune.grid_search([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])}
wide: SearchSpace = {
    "method.deletion": tune.uniform(0.2, 0.9),
    "optim.text.lr": tune.loguniform(1e-5, 1e-3),
    "optim.text.warmup": tune.choice([0.0, 0.1]),
}
SPACES = {"tsdae": {"deletion": deletion, "wide": wide}}
