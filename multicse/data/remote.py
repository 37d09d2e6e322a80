"""Reading from remote stores: temporary errors are retried, all other errors become DataError."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from multicse.data.errors import HIDDEN, DataError, redacted

log = logging.getLogger(__name__)

ATTEMPTS, PAUSE = 4, 1.0
"""Attempts of a read, and seconds before the second attempt, which double before each further one."""
_DAMAGE = (pa.ArrowException, IndexError, UnicodeError)
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, ImportError, *_DAMAGE)
_T = TypeVar("_T")


class StoreError(DataError):
    """Store that does not answer. Its samples may be complete."""


class Denied(StoreError):
    """Store that requires other credentials."""


def is_remote(url: str) -> bool:
    """Return whether a URL belongs to a remote store."""
    return urlsplit(url).scheme not in ("", "file", "local")


def call_storage(url: str, act: Callable[[], _T]) -> _T:
    """Return the result of `act`, a complete read from `url`, which is called again if a remote store fails.

    Raises:
        StoreError: If a remote store does not answer, or denies access.
        FileNotFoundError, NotADirectoryError: If the store reports it. For local files every error of `act` is raised.
        pa.ArrowException, IndexError, UnicodeError: If the content is damaged.
    """
    if not is_remote(url):
        return act()
    try:
        return retry(act)
    except (FileNotFoundError, NotADirectoryError, DataError, *_DAMAGE):
        raise
    except Exception as error:  # of any package for a store
        text = str(error) or type(error).__name__
        if user := urlsplit(url).netloc.rpartition("@")[0]:  # botocore reports it as a part of the bucket
            text = text.replace(user, HIDDEN)
        why = f"{url} cannot be read: {text}"
        if _denied(error):
            fix = "give this machine its credentials (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws)"
            raise Denied(f"{why}; {fix}") from None  # the text may contain the URL with its password
        raise StoreError(f"{why}; check its address and the network, or copy it to this machine") from None


def retry(act: Callable[[], _T]) -> _T:
    """Return the result of `act`, which is called again after temporary errors, with exponential backoff."""
    attempt = 0
    while True:
        try:
            return act()
        except Exception as error:
            found = _root_cause(error)
            if (attempt := attempt + 1) == ATTEMPTS or not _passes(found):
                raise found from None
            log.info("the store does not answer (%s); trying again", redacted(str(found)))
            time.sleep(PAUSE * 2 ** (attempt - 1))


def _root_cause(error: Exception) -> Exception:
    """Return the error of the store: over HTTP fsspec reports every error as a file that does not exist."""
    cause = error.__cause__
    hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and (_passes(cause) or _denied(cause))
    return cause if hidden else error  # type: ignore[return-value]  # an Exception, as above


def _passes(error: Exception) -> bool:
    """Return whether an error may be temporary: errors of packages and the network are, other Python errors are not."""
    if status := _status(error):
        return status >= 500 or status in (408, 429)
    if isinstance(error, _LASTING):
        return False
    return not _denied(error) and (isinstance(error, OSError) or type(error).__module__ != "builtins")


def _denied(error: Exception) -> bool:
    return isinstance(error, PermissionError) or _status(error) in (401, 403) or "Credentials" in type(error).__name__


def _status(error: Exception) -> int:
    """Return the HTTP status of an error of any package for a store, or 0."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        response = response.get("ResponseMetadata", {})
        return int(response.get("HTTPStatusCode", 0))
    codes = [getattr(holder, name, 0) for holder in (error, response) for name in ("status", "status_code", "code")]
    return next((code for code in codes if isinstance(code, int) and code), 0)
