"""Former name of `tests.worlds`."""

from tests.worlds import *  # noqa: F403
