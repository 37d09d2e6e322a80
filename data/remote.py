"""Reading from other machines, whose stores err: what they refuse for a while is tried again, all else is a DataError."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from multicse.data.errors import DataError
from multicse.data.redact import HIDDEN, redacted

log = logging.getLogger(__name__)

ATTEMPTS, PAUSE = 4, 1.0
"""Tries to reach a store that errs, and seconds before the second one, twice as many before each further one."""
_T = TypeVar("_T")


class StoreError(DataError):
    """A store that does not answer. It says nothing of the samples in it."""


class Denied(StoreError):
    """A store that wants other credentials."""


class Remote:
    """A file system of fsspec that is asked patiently: its methods raise StoreError, or FileNotFoundError.

    url: what it is asked for, which its errors name.
    """

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._fs, name)
        return lambda *values, **options: answered(self._url, partial(method, *values, **options))

    def exists(self, path: str) -> bool:
        """Whether there is such a file. fsspec's own says of a store that does not answer that there is none."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def open(self, path: str, mode: str = "rb") -> _File:
        """A file to read."""
        return _File(answered(self._url, partial(self._fs.open, path, mode)), self._url)


class _File(io.RawIOBase):
    """A file that is read patiently."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(answered(self._url, partial(self._file.seek, offset, whence)))

    def read(self, size: int = -1) -> bytes:
        place = self.tell()

        def act() -> bytes:
            if self.tell() != place:
                self._file.seek(place)
            return bytes(self._file.read(size))

        return answered(self._url, act)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def answered(url: str, act: Callable[[], _T]) -> _T:
    """What a store answers to `act`, which asks for `url`.

    Raises:
        StoreError: it does not answer, or denies it; FileNotFoundError and NotADirectoryError: it says so.
    """
    try:
        return patiently(act)
    except (FileNotFoundError, NotADirectoryError, DataError):
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


def patiently(act: Callable[[], _T]) -> _T:
    """The outcome of something that a store may refuse for a while. Raises the last error, at once one that stays."""
    attempt = 0
    while True:
        try:
            return act()
        except Exception as error:
            found = _true(error)
            if (attempt := attempt + 1) == ATTEMPTS or not _passes(found):
                raise found from None
            log.info("the store does not answer (%s); trying again", redacted(str(found)))
            time.sleep(PAUSE * 2 ** (attempt - 1))


def _true(error: Exception) -> Exception:
    """What went wrong: fsspec says of whatever happens over HTTP that there is no such file."""
    cause = error.__cause__
    told = isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and (_passes(cause) or _denied(cause))
    return cause if told else error  # type: ignore[return-value]  # an Exception, as above


def _passes(error: Exception) -> bool:
    """Whether the store may answer the next time. A package's own errors may pass, Python's are of the network or stay."""
    if status := _status(error):
        return status >= 500 or status in (408, 429)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | ValueError | ImportError):
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
