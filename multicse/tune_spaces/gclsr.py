"""Search space of GCLSR: learning rates, augmentation, groups and filters."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace

REGIONS = [
    (1, 2, 3, 4, 5, 6),
    (2, 3, 4, 5, 6),
    (1, 1, 1, 2, 3, 4),
    (1, 1, 1, 4, 5, 6),
    (1, 1, 1, 1, 1, 1),
    (1, 1, 1, 6, 15, 20),
    (1, 1, 1, 20, 30, 40),
]
wide: SearchSpace = {
    "optim.text.lr": tune.loguniform(1e-3, 1.0),
    "optim.text.weight_decay": tune.loguniform(1e-5, 1e-1),
    "optim.text.groups.predictor.lr": tune.loguniform(1e-2, 2.0),
    "method.partial": tune.uniform(0.0, 1.0),
    "method.group_size": tune.choice([None, 4, 16, 64]),
    "encoder.regions": tune.choice(REGIONS),
}
SPACES = {"gclsr": {"wide": wide}}
