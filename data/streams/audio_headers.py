"""Check of the length of audio files by their headers, because libsndfile reads most truncated files without an error."""

from __future__ import annotations

import re
from typing import Literal

UNKNOWN = 2**31 - 2**16
"""Smallest size (such as 0x7ffff000, 0xffffffff) that means that the length was unknown when the header was written."""
_XING = re.compile(rb"(?:Xing|Info)\0\0\0([\1-\17])", re.DOTALL)


def complete(data: bytes) -> bytes:
    """Check that an audio file is as long as its header announces.

    It checks the audio chunk of WAV (RIFF, RIFX, RF64) and AIFF, the number of bytes that encoders write at the start of an
    MP3 (Xing, LAME; VBRI: Fraunhofer), and the last page of an OGG. Other errors are left to the decoder.

    Returns:
        The file. A WAV with a size of 0, which encoders write to a pipe, gets its real size.

    Raises:
        EOFError: If the file ends before the audio that its header announces.
    """
    if data[:4] in (b"RIFF", b"RF64", b"RIFX", b"FORM"):
        return _chunked(data)
    if data[:4] == b"OggS":
        page = data[data.rfind(b"OggS") :]
        table = page[27 : 27 + page[26]] if len(page) > 26 else b""
        _require(27 + len(table) + sum(table), len(page))
    elif data[:3] == b"ID3" or data[:1] == b"\xff":
        a, b, c, d = data[6:10] if data[:3] == b"ID3" and len(data) > 9 else bytes(4)
        start = 10 + (a << 21 | b << 14 | c << 7 | d) if data[:3] == b"ID3" else 0
        frame = data[start:]
        if (tag := _XING.search(frame, 0, 64)) and tag[1][0] & 2:
            place = tag.end() + 4 * (tag[1][0] & 1)
            _require(int.from_bytes(frame[place : place + 4]), len(frame))
        elif frame[36:40] == b"VBRI":
            _require(int.from_bytes(frame[46:50]), len(frame))
    return data


def _chunked(data: bytes) -> bytes:
    order: Literal["little", "big"] = "little" if data[:4] in (b"RIFF", b"RF64") else "big"
    place, size = 12, 0
    while True:
        size = int.from_bytes(data[place + 4 : place + 8], order)
        if data[place : place + 4] in (b"data", b"SSND") or place + 8 > len(data):
            break
        place += 8 + size + size % 2
    there = len(data) - place - 8
    if data[:4] == b"RF64" and size == 2**32 - 1:
        size = int.from_bytes(data[28:36], order)  # from the chunk ds64, which is the first
    if size == 0 < there and int.from_bytes(data[4:8], order) != len(data) - 8:
        return data[: place + 4] + there.to_bytes(4, order) + data[place + 8 :]
    if there >= 0:
        _require(size, there)
    return data


def _require(announced: int, there: int) -> None:
    if there < announced < UNKNOWN:
        raise EOFError(f"its header announces {announced:,} bytes, but it contains {max(0, there):,}")
