"""Check of the length of audio files by their headers, because libsndfile reads most truncated files without an error."""

from __future__ import annotations

import re
from math import prod
from typing import Literal

UNKNOWN = 2**31 - 2**16
"""Smallest size (such as 0x7ffff000, 0xffffffff) that means that the length was unknown when the header was written."""
_XING = re.compile(rb"(?:Xing|Info)\0\0\0([\1-\17])", re.DOTALL)
_SPHERE = re.compile(rb"NIST_1A\n *(\d{1,9})\n(?!.*embedded-)", re.DOTALL)  # embedded: the samples are compressed
_SAMPLES = re.compile(rb"^(?:sample_count|channel_count|sample_n_bytes) -i (\d{1,18})", re.MULTILINE)
_LAST_PAGE = 4  # flag of the page that ends an OGG stream

_Order = Literal["little", "big"]


def complete(data: bytes) -> bytes:
    """Return an audio file, after a check that it is as long as its header announces.

    The size of the audio is checked in WAV (RIFF, RIFX, RF64), AIFF, AU, CAF, W64 and NIST SPHERE, the number of bytes that
    encoders write at the start of an MP3 (Xing, LAME; VBRI: Fraunhofer), and the last page of an OGG. Other damage is left
    to the decoder. A WAV with a size of 0, which encoders write to a pipe, gets its real size.

    Raises:
        EOFError: If the file ends before the audio that its header announces.
    """
    kind = data[:4]
    if kind in (b"RIFF", b"RF64", b"RIFX", b"FORM"):
        return _chunked(data)
    if kind == b"OggS":
        page = data[data.rfind(b"OggS") :]
        table = page[27 : 27 + page[26]] if len(page) > 26 else b""
        _require(27 + len(table) + sum(table), len(page))
        if not page[5] & _LAST_PAGE:
            raise EOFError("its last page does not end the stream")
    elif kind in (b".snd", b"dns."):
        place, size = (int.from_bytes(data[at : at + 4], "big" if kind == b".snd" else "little") for at in (4, 8))
        _require(size, len(data) - place)
    elif kind == b"caff":
        place, size = _audio_chunk(data, 8, 4, 8, "big")
        _require(size, len(data) - place)
    elif kind == b"riff":
        place, size = _audio_chunk(data, 40, 16, 8, "little", included=24, align=8)
        _require(size, len(data) - place)
    elif sphere := _SPHERE.match(data[: 2**14]):
        place = int(sphere[1])
        _require(prod(map(int, _SAMPLES.findall(data[:place]))), len(data) - place)
    elif kind[:3] == b"ID3" or kind[:1] == b"\xff":
        a, b, c, d = data[6:10] if kind[:3] == b"ID3" and len(data) > 9 else bytes(4)
        start = 10 + (a << 21 | b << 14 | c << 7 | d) if kind[:3] == b"ID3" else 0
        frame = data[start:]
        if (tag := _XING.search(frame, 0, 64)) and tag[1][0] & 2:
            place = tag.end() + 4 * (tag[1][0] & 1)
            _require(int.from_bytes(frame[place : place + 4]), len(frame))
        elif frame[36:40] == b"VBRI":
            _require(int.from_bytes(frame[46:50]), len(frame))
    return data


def _chunked(data: bytes) -> bytes:
    order: _Order = "little" if data[:4] in (b"RIFF", b"RF64") else "big"
    place, size = _audio_chunk(data, 12, 4, 4, order, align=2)
    there = len(data) - place
    if data[:4] == b"RF64" and size == 2**32 - 1:
        size = int.from_bytes(data[28:36], order)  # from the chunk ds64, which is the first
    if size == 0 < there and int.from_bytes(data[4:8], order) != len(data) - 8:
        return data[: place - 4] + there.to_bytes(4, order) + data[place:]
    _require(size, there)
    return data


def _audio_chunk(
    data: bytes, place: int, name: int, width: int, order: _Order, included: int = 0, align: int = 1
) -> tuple[int, int]:
    """Return where the content of the audio chunk starts, and its announced size; end and 0 if the chunk is not found.

    A chunk's name has `name` bytes, followed by `width` bytes of its size, which includes `included` bytes of the two.
    Chunks start at multiples of `align` bytes, the first one at `place`.
    """
    while (content := place + name + width) <= len(data):
        size = max(0, int.from_bytes(data[place + name : content], order) - included)
        if data[place : place + 4] in (b"data", b"SSND"):
            return content, size
        place = content + size + -size % align
    return len(data), 0


def _require(announced: int, there: int) -> None:
    if there < announced < UNKNOWN:
        raise EOFError(f"its header announces {announced:,} bytes, but it contains {max(0, there):,}")
