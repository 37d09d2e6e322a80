"""Search spaces of SimCSE: its own grids, NonLing-CSE's grid for text, and a wider space."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace
from multicse.tune_spaces import nonling

paper: SearchSpace = {  # SimCSE, appendix A
    "streams.text.batch_size": tune.grid_search([64, 128, 256, 512]),
    "optim.text.lr": tune.grid_search([1e-5, 3e-5, 5e-5]),
}
temperature: SearchSpace = {"method.temperature": tune.grid_search([0.001, 0.01, 0.05, 0.1, 1.0])}  # its appendix D
wide: SearchSpace = {
    "streams.text.batch_size": tune.choice([32, 64, 128, 256]),
    "optim.text.lr": tune.loguniform(1e-6, 1e-3),
    "method.temperature": tune.loguniform(0.02, 0.5),
    # Dropout creates the two views; None is the rate of pretraining.
    "encoder.hidden_dropout": tune.choice([None, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3]),
}
SPACES = {"simcse": {"paper": paper, "text": nonling.text, "temperature": temperature, "wide": wide}}
