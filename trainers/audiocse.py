"""AudioCSE: sentences, and sounds that have nothing to do with them. What it does is in `trainers/nonling.py`."""

from __future__ import annotations

from typing import Literal

from trainers.nonling import AudioConfig, NonLingSettings


class AudioCSEConfig(NonLingSettings):
    """NonLing-CSE with the stream ``audio``."""

    name: Literal["audiocse"] = "audiocse"
    audio: AudioConfig = AudioConfig()
    image: None = None
