"""Search spaces of SimCSE++: its two parts, and a wider space."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace
from multicse.tune_spaces import nonling

parts: SearchSpace = {
    "optim.text.lr": tune.grid_search([1e-5, 3e-5, 5e-5]),
    "method.positive_scale": tune.grid_search([0.9, 1.0]),
    "method.dimension_weight": tune.grid_search([0.0, 0.1]),
}
wide: SearchSpace = {
    "streams.text.batch_size": tune.choice([32, 64, 128, 256]),
    "optim.text.lr": tune.loguniform(1e-6, 1e-3),
    "method.temperature": tune.loguniform(0.02, 0.5),
    "method.positive_scale": tune.uniform(0.8, 1.2),
    "method.dimension_weight": tune.loguniform(0.01, 1.0),
    "method.dimension_temperature": tune.loguniform(0.05, 20.0),
}
SPACES = {"simcsepp": {"parts": parts, "text": nonling.text, "wide": wide}}
