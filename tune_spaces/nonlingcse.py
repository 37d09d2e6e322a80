"""What a sweep over text, images and sounds together varies: the grids of VisualCSE and AudioCSE, one by one and joined."""

from __future__ import annotations

from trainers.tuning.space import SearchSpace
from tune_spaces.nonling import spaces

image, audio = spaces("image"), spaces("audio")
both: SearchSpace = {**image["paper"], **audio["paper"]}  # 2,304 points: to be drawn from, not to be run through
wide: SearchSpace = {**image["wide"], **audio["wide"]}
SPACES = {"image": image["paper"], "audio": audio["paper"], "text": image["text"], "paper": both, "wide": wide}
