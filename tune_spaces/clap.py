"""What a sweep over CLAP and CyCLAP varies: Zhao et al. searched the same grid as for pictures and printed no winners."""

from __future__ import annotations

from tune_spaces.cyclip import spaces

SPACES = spaces("captions")
