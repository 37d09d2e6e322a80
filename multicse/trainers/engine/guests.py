"""Code of users: callbacks, and methods from their files."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any


class GuestError(ValueError):
    """An error in a user's code. The text names the code, its line and the error."""

    exit_code = 1


@contextlib.contextmanager
def guest(what: str, code: Any, always: bool = False) -> Iterator[None]:
    """Convert an error that passes through a user's module to `GuestError`; bundled modules are no guests.

    Args:
        what: Setting and name of the code.
        code: Function, class or object of the module.
        always: Convert every error, also of bundled and installed modules.
    """
    try:
        yield
    except Exception as error:
        module = getattr(code, "__module__", None) or type(code).__module__
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        own = [place for place, frame in enumerate(frames) if frame.f_globals.get("__name__") == module]
        if not always and (not own or module.partition(".")[0] == "multicse"):
            raise
        lines = traceback.extract_tb(error.__traceback__)[own[0] :] if own else []
        shown = "".join(traceback.format_list(lines)).rstrip()
        raise GuestError(f"{what} failed: {type(error).__name__}: {error}{shown and chr(10)}{shown}") from error
