"""Search spaces of UML: NonLing-CSE's grid for text, and a wider space."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace
from multicse.tune_spaces import nonling

wide: SearchSpace = {
    "optim.image.lr": tune.loguniform(1e-7, 1e-4),
    "optim.text.lr": tune.loguniform(1e-6, 1e-3),
    "method.text.temperature": tune.loguniform(0.02, 0.5),
    "method.image.masked": tune.uniform(0.3, 0.9),
}
SPACES: dict[str, dict[str, SearchSpace]] = {"uml": {"text": nonling.text, "wide": wide}}
