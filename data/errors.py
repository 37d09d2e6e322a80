"""What goes wrong with the bytes that a stream reads, how a wrong name is answered, and how a command ends."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from multicse.data.redact import redacted

LONGEST = 4000
"""Characters of a message; what a damaged sample holds may be longer."""


class DataError(ValueError):
    """Shards, samples, files or fields that cannot be used; the text names what was found and what is allowed.

    Passwords and signatures of URLs do not appear in it: it is printed and logged.
    """

    def __init__(self, text: object) -> None:
        # Ray makes one of an error; names of damaged samples may hold anything.
        text = str(text).encode("utf-8", "backslashreplace").decode()
        super().__init__(redacted(text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"))


class DecodeError(DataError):
    """One sample that cannot be used; the text names it, what is wrong with it and what is allowed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'sts12'?``, with a space before it, or nothing when no known name is near; case is ignored."""
    by_lower = {item.lower(): item for item in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def command(name: str, room: str = "pipelines") -> str:
    """Return what starts a script of a room: ``python pipelines/pack.py`` where it stands beside the package, as in a clone
    and in the copy that a job runs in, and ``multicse pack`` where MultiCSE is installed."""
    script = f"{room}/{name}.py"
    return f"python {script}" if (Path(__file__).parents[2] / script).is_file() else f"multicse {name}"


@contextlib.contextmanager
def quiet_end() -> Iterator[None]:
    """A command that is cut off ends without a traceback: after Ctrl-C with code 130; where what reads its standard output
    has read enough, as ``head`` has, without a word and with code 1.

    Everything that is printed inside is written before the end.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes at its end
        sys.exit(1)


def told(main: Callable[[list[str] | None], int]) -> Callable[..., int]:
    """A command that says in one line what is wrong with its input (ValueError), its files (OSError) or the numbers of its
    training (FloatingPointError) and returns 2, and that is cut off as in `quiet_end`."""

    @functools.wraps(main)
    @quiet_end()
    def command(argv: list[str] | None = None) -> int:
        try:
            return main(argv)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, FloatingPointError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2

    return command
