"""What a sweep over VisualCSE varies."""

from __future__ import annotations

from tune_spaces.nonling import spaces

SPACES = spaces("image")
