"""What a sweep over AudioCSE varies."""

from __future__ import annotations

from tune_spaces.nonling import spaces

SPACES = spaces("audio")
