"""What goes wrong with the bytes that a stream reads."""

from __future__ import annotations


class DataError(ValueError):
    """Shards, samples or fields that cannot be used; the text names what was found and what is allowed."""


class DecodeError(DataError):
    """One sample that cannot be used.

    Args:
        message: names the sample, what is wrong with it and what is allowed.
        reason: the same in two or three words that are equal for equal causes, to count by.
    """

    def __init__(self, message: str, reason: str = "undecodable") -> None:
        super().__init__(message)
        self.reason = reason
