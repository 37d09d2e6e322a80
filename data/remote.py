"""Reading from stores on other machines: what fails for a while is tried again, everything else is a DataError."""

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
"""Tries of a read that fails, and seconds before the second one, twice as many before each further one."""
_DAMAGE = (pa.ArrowException, IndexError, UnicodeError)
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, ImportError, *_DAMAGE)
_T = TypeVar("_T")


class StoreError(DataError):
    """A store that does not answer. It says nothing of the samples in it."""


class Denied(StoreError):
    """A store that wants other credentials."""


def is_remote(url: str) -> bool:
    """Return whether a URL is of another machine's store."""
    return urlsplit(url).scheme not in ("", "file", "local")


def call_storage(url: str, act: Callable[[], _T]) -> _T:
    """Return the result of `act`, which reads from `url`. It is called again while the store of another machine fails.

    So `act` should be a whole read: a listing, the headers of a shard, the samples of a window.

    Raises:
        StoreError: If another machine's store does not answer, or denies access.
        FileNotFoundError, NotADirectoryError: If the store says so; of this machine's files every error of `act`.
        pa.ArrowException, IndexError, UnicodeError: If what was read is damaged.
    """
    if not is_remote(url):
        return act()
    try:
        return retry(act)
    except (FileNotFoundError, NotADirectoryError, DataError, *_DAMAGE):
        raise
    except Exception as error:  # of any package that knows a store
        text = str(error) or type(error).__name__
        if user := urlsplit(url).netloc.rpartition("@")[0]:  # botocore takes it for a part of the bucket, and says so
            text = text.replace(user, HIDDEN)
        why = f"{url} cannot be read: {text}"
        if _denied(error):
            fix = "give this machine its credentials (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws)"
            raise Denied(f"{why}; {fix}") from None  # an error's text may be the URL with its password
        raise StoreError(f"{why}; check its address and the network, or copy it to this machine") from None


def retry(act: Callable[[], _T]) -> _T:
    """Return the result of `act`, which is called again after errors that may pass, with exponential backoff.

    Raises the last error, at once one that stays.
    """
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
    """Whether the store may answer the next time. A package's own errors may pass, Python's are of the network or stay."""
    if status := _status(error):
        return status >= 500 or status in (408, 429)
    if isinstance(error, _LASTING):
        return False
    return not _denied(error) and (isinstance(error, OSError) or type(error).__module__ != "builtins")


def _denied(error: Exception) -> bool:
    return isinstance(error, PermissionError) or _status(error) in (401, 403) or "Credentials" in type(error).__name__


def _status(error: Exception) -> int:
    """Of HTTP, wherever the packages that know a store put it; 0: none."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        response = response.get("ResponseMetadata", {})
        return int(response.get("HTTPStatusCode", 0))
    codes = [getattr(holder, name, 0) for holder in (error, response) for name in ("status", "status_code", "code")]
    return next((code for code in codes if isinstance(code, int) and code), 0)
