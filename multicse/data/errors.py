"""Errors of inputs, suggestions for wrong names, and the end of commands."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

from multicse import clone, process

LONGEST = 4000
"""Characters of a message; the content of a damaged sample may be longer."""


_USER = re.compile(r"(?<=://)[^/@\s'\"]*:[^/@\s'\"]*@|(?<=http://)[^/@\s'\"]+@|(?<=https://)[^/@\s'\"]+@")
_SECRET = re.compile(
    r"([?&](?:x-(?:amz|goog|oss|cos)-[\w-]+|[\w.-]*(?:sig|token|secret|passw|credential|auth|key)[\w.-]*"
    r"|googleaccessid|policy|expires|se|sp|sv|sr|st|spr|sdd|sip)=)(?:(?!::)[^&#\s'\"])+",
    re.IGNORECASE,
)
"""Query parameters with signatures in URLs of S3, Google, Azure, Alibaba and Tencent, and names of secrets."""
HIDDEN = "***"


def redacted(text: str) -> str:
    """Return a text in which ``user:password@`` and the signatures of every URL are replaced by ``***``."""
    return _SECRET.sub(rf"\1{HIDDEN}", _USER.sub(f"{HIDDEN}@", text)) if "://" in text else text


def public(values: Mapping[str, object]) -> dict[str, str]:
    """Return the values as redacted texts, by name."""
    return {name: redacted(str(value)) for name, value in values.items()}


class DataError(ValueError):
    """Shards, samples, files or fields that cannot be used. Passwords and signatures of URLs are removed from the text."""

    def __init__(self, text: object) -> None:
        # An object, since Ray copies errors; names of damaged samples may contain any character.
        text = str(text).encode("utf-8", "backslashreplace").decode()
        super().__init__(redacted(text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"))


class DecodeError(DataError):
    """Sample that cannot be used; the text names the sample, the cause and the remedy."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'sts12'?``, with a space before it, or an empty text if no known name is similar."""
    by_lower = {item.lower(): item for item in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def command(name: str, package: str = "pipelines") -> str:
    """Return the command that starts a script: ``python pipelines/pack.py`` in a clone, otherwise ``multicse pack``."""
    script, folder = f"{package}/{name}.py", clone()
    return f"python {script}" if folder and (folder / script).is_file() else f"multicse {name}"


@contextlib.contextmanager
def handle_interrupt() -> Iterator[None]:
    """End a command without a traceback: code 130 after Ctrl-C, and 1 if the reader of its output stops, as ``head``."""
    process.collect_rarely()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the text that Python flushes at its end
        sys.exit(1)


REPORTED = (ValueError, OSError, FloatingPointError)
"""Errors of input, files and the numbers of a training: a command prints their message, and no traceback."""
WRONG_INPUT = (ValueError, FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


EXIT_CODES = """\
Exit codes: 0 success; 1 a run failed, or a check found a difference; 2 a wrong option, setting or input file, which the
message names; 130 interrupted by Ctrl-C."""


def report_error(error: Exception) -> int:
    """Print the error that ends a command, and return its exit code according to `EXIT_CODES`.

    An attribute ``exit_code`` marks ValueErrors that are failures of a run.
    """
    print(f"error: {error}", file=sys.stderr)
    code: int = getattr(error, "exit_code", 2 if isinstance(error, WRONG_INPUT) else 1)
    return code


def cli_errors(main: Callable[[list[str] | None], int]) -> Callable[..., int]:
    """Make a command print `REPORTED` errors in one line and return the code of `report_error`; see `handle_interrupt`."""

    @functools.wraps(main)
    @handle_interrupt()
    def command(argv: list[str] | None = None) -> int:
        try:
            return main(argv)
        except BrokenPipeError:
            raise
        except REPORTED as error:
            return report_error(error)

    return command
