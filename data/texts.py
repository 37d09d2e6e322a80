"""Conversion of values to text, by the same rule in streams, packing and evaluation."""

from __future__ import annotations

import math
import re
from typing import Any

from multicse.data import limits
from multicse.data.errors import DecodeError

_NO_TEXT = re.compile(r"[\ud800-\udfff\0]")  # valid in JSON, not in UTF-8; a sign of damage


def text_of(value: Any, place: str) -> str:
    """Return a value of a row as text; the empty text if the value is missing (None, NaN).

    Bytes are decoded as UTF-8. Numbers, dates and times are written out, whole numbers always without a decimal point.

    Args:
        value: A cell of a table, a value of JSON or a file of a sample.
        place: Place of the value, at the start of error messages.

    Raises:
        DecodeError: If the value is not a text (a list, a map, a truth value, infinity), or if the text is not UTF-8, is
            longer than `limits.TEXT`, or contains a lone surrogate or a zero byte.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8-sig")  # files written on Windows start with a byte order mark
        except UnicodeDecodeError as error:
            raise DecodeError(f"{place} is not UTF-8 ({error})") from error
    if isinstance(value, float) and not math.isinf(value):
        value = "" if math.isnan(value) else repr(value).removesuffix(".0")
    if value is None:
        return ""
    if isinstance(value, bool | list | tuple | dict | float):
        found = value if isinstance(value, float) else type(value).__name__
        raise DecodeError(f"{place} is {found}, not a text; a text, a number or a date is needed")
    text = str(value)
    if len(text) > limits.TEXT:
        raise DecodeError(f"{place} has {limits.over('TEXT', len(text), limits.TEXT)} characters")
    if _NO_TEXT.search(text):
        raise DecodeError(f"{place} contains a lone surrogate or a zero byte, so it is not a text")
    return text
