"""VisualCSE: sentences, and images that have nothing to do with them. What it does is in `trainers/nonling.py`."""

from __future__ import annotations

from typing import Literal

from trainers.nonling import ImageConfig, NonLingSettings


class VisualCSEConfig(NonLingSettings):
    """NonLing-CSE with the stream ``image``."""

    name: Literal["visualcse"] = "visualcse"
    image: ImageConfig = ImageConfig()
    audio: None = None
