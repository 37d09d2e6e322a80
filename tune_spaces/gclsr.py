"""What a sweep over GCLSR varies: its Tables 4 to 11, a grid each, and a wider space."""

from __future__ import annotations

from ray import tune

from trainers.tuning.space import SearchSpace

BATCHES = [64, 128, 256, 512, 1024]
REGIONS = [
    (1, 2, 3, 4, 5, 6),
    (2, 3, 4, 5, 6),
    (1, 1, 1, 2, 3, 4),
    (1, 1, 1, 4, 5, 6),
    (1, 1, 1, 1, 1, 1),
    (1, 1, 1, 6, 15, 20),
    (1, 1, 1, 20, 30, 40),
]
MOMENTA = [0.8, 0.9, 0.99]

TABLES: dict[str, SearchSpace] = {
    # The rate follows the batch (0.03 of 128), so the paper's rows are the diagonal of this grid.
    "batch": {
        "streams.text.batch_size": tune.grid_search(BATCHES),
        "optim.text.lr": tune.grid_search([0.03 * size / 128 for size in BATCHES]),
    },
    "weight-decay": {"optim.text.weight_decay": tune.grid_search([1e-4, 1e-3, 1e-2, 0.1])},
    "predictor-rate": {  # "decay" in the table: 0.12, cosine
        "optim.text.groups.predictor.lr": tune.grid_search([0.08, 0.12, 0.2, 0.5, 1.0]),
        "optim.text.groups.predictor.schedule": tune.grid_search(["constant", "cosine"]),
    },
    "momentum": {
        "optim.text.momentum": tune.grid_search(MOMENTA),
        "optim.text.momentum_after_warmup": tune.grid_search(MOMENTA),
    },
    "warm-up": {"optim.text.warmup": tune.grid_search([epochs / 20 for epochs in (1, 2, 3, 4, 5)])},
    "regions": {"encoder.regions": tune.grid_search(REGIONS)},
    "partial": {"method.partial": tune.grid_search([0.0, 0.5, 1.0])},  # no, partial and full augmentation
    "group-size": {"method.group_size": tune.grid_search([None, 4, 8, 16, 32, 128])},
}
wide: SearchSpace = {
    "optim.text.lr": tune.loguniform(1e-3, 1.0),
    "optim.text.weight_decay": tune.loguniform(1e-5, 1e-1),
    "optim.text.groups.predictor.lr": tune.loguniform(1e-2, 2.0),
    "method.partial": tune.uniform(0.0, 1.0),
    "method.group_size": tune.choice([None, 4, 16, 64]),
    "encoder.regions": tune.choice(REGIONS),
}
SPACES = {"gclsr": {**TABLES, "wide": wide}}
