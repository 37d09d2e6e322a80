"""Bytes of one sample -> pictures, waveforms, texts and classes. Whatever is wrong with a sample is a DecodeError."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import soundfile
import soxr
from PIL import Image, ImageOps, UnidentifiedImageError

from data.errors import DecodeError

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Fields of a sample that hold a picture, in the order of preference."""
SOUNDS = ("wav", "flac", "ogg", "mp3")
"""Fields of a sample that hold a sound, in the order of preference."""

MAX_PIXELS = 89_478_485
"""Largest picture that is decoded (256 MiB of RGB, the limit at which Pillow warns)."""
MAX_SOUND_VALUES = 2**28
"""Longest sound that is decoded, frames times channels (1 GiB of float32: 93 minutes of 48 kHz mono)."""

_SOUND_BLOCK = 2**18  # frames decoded at a time: many channels never lie in memory as a whole


def member(fields: Mapping[str, bytes], extensions: Sequence[str], key: str) -> bytes:
    """Content of the first of `extensions` that the sample has; DecodeError when it has none of them."""
    return member_with_extension(fields, extensions, key)[1]


def member_with_extension(fields: Mapping[str, bytes], extensions: Sequence[str], key: str) -> tuple[str, bytes]:
    """Name and content of the first of `extensions` that the sample has; DecodeError when it has none of them."""
    for extension in extensions:
        if extension in fields:
            return extension, fields[extension]
    raise DecodeError(
        f"sample {key!r} has no field {' or '.join(extensions)}; it has {', '.join(sorted(fields)) or 'no field'}"
    )


def image(data: bytes, key: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode a JPEG, PNG or WebP (of an animation the first picture) to 8-bit RGB.

    Transparency is laid on white, 16-bit gray is scaled to 8 bits, and the EXIF orientation is applied.

    Raises:
        DecodeError: not such a picture, cut short, or more than `max_pixels` pixels (refused from its header, before
            any pixel is decoded: a decompression bomb).
    """
    try:
        # Only these formats: Pillow's others include ones that call programs or read other files.
        picture = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP"))
        if picture.width * picture.height > max_pixels:
            raise Image.DecompressionBombError
        picture.load()
        ImageOps.exif_transpose(picture, in_place=True)
        return _rgb(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(
            f"sample {key!r}: the picture has more than the allowed {max_pixels:,} pixels (a decompression bomb?)"
        ) from error
    except UnidentifiedImageError as error:
        raise DecodeError(f"sample {key!r}: {len(data):,} bytes are no JPEG, PNG or WebP picture") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
        raise DecodeError(f"sample {key!r}: the picture is damaged or cut short ({error})") from error


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16-bit gray: convert() would clip at 255 instead of scaling
        gray = np.asarray(picture).astype(np.int64) >> 8
        return Image.fromarray(gray.clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")  # which copies in any case


def audio(data: bytes, extension: str, rate: int, key: str, max_values: int = MAX_SOUND_VALUES) -> np.ndarray:
    """Decode a WAV, FLAC, OGG (Vorbis, Opus) or MP3, average its channels and resample it.

    Returns:
        float32 (T,), full scale -1 to 1, `rate` samples per second.

    Raises:
        DecodeError: not such a sound, cut short (where the format says how long it should be), empty, with values that
            are not finite, or more than `max_values` values (frames times channels).
    """
    blocks: list[np.ndarray] = []
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            source_rate, announced, is_flac = sound.samplerate, sound.frames, sound.format == "FLAC"
            frames = 0
            while len(block := sound.read(_SOUND_BLOCK, dtype="float32", always_2d=True)):
                frames += len(block)
                if frames * sound.channels > max_values:
                    raise DecodeError(
                        f"sample {key!r}: the sound has more than the allowed {max_values:,} values "
                        f"({max_values / sound.channels / source_rate / 60:.0f} minutes)"
                    )
                blocks.append(block.mean(1))
    except soundfile.SoundFileError as error:
        raise DecodeError(f"sample {key!r}: the {extension} sound is damaged ({error})") from error
    if is_flac and frames < announced < 2**62:  # 2**63 - 1: a FLAC that was written as a stream does not know its length
        raise DecodeError(f"sample {key!r}: the FLAC sound is cut short ({frames} of {announced})")
    wave = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if not np.isfinite(wave).all():
        raise DecodeError(f"sample {key!r}: the sound holds values that are not finite")
    if source_rate != rate and len(wave):
        wave = soxr.resample(wave, source_rate, rate)
    if not len(wave):
        raise DecodeError(f"sample {key!r}: the sound is empty at {rate} samples per second")
    return np.ascontiguousarray(wave, np.float32)


def text(fields: Mapping[str, bytes], columns: Sequence[str], key: str, empty: str | None = None) -> list[str]:
    """The texts of a sample, one per column: a field of its own (`txt`), else an entry of its `json`.

    Line breaks and runs of white space become one space; `empty` stands for a text without anything else. DecodeError:
    missing, empty without `empty`, not UTF-8, or not a string.
    """
    return [_text(fields, column, key, empty) for column in columns]


def _text(fields: Mapping[str, bytes], column: str, key: str, empty: str | None) -> str:
    value = _value(fields, column, key)
    if not isinstance(value, str):
        raise DecodeError(f"sample {key!r}: {column!r} is {type(value).__name__}, not a text")
    value = re.sub(r"\s+", " ", value).strip()
    if not value and empty is None:
        raise DecodeError(f"sample {key!r}: the text {column!r} is empty")
    return value or empty or ""


def captions(fields: Mapping[str, bytes], key: str) -> list[str]:
    """The captions of a sample, at least one: the entry `captions` of its `json`, else its field `txt`.

    White space is made single. DecodeError: none, an empty one, or one that is no text.
    """
    found = _record(fields, key).get("captions", [])
    if not found and "txt" in fields:
        return text(fields, ("txt",), key)
    if not isinstance(found, list) or not found or not all(isinstance(item, str) and item.strip() for item in found):
        raise DecodeError(
            f"sample {key!r} has no captions; pack it with --captions COLUMN "
            '(json {"captions": [...]}, none of them empty, or txt)'
        )
    return [" ".join(item.split()) for item in found]


def label(fields: Mapping[str, bytes], column: str, key: str) -> int:
    """The class of a sample, an integer of at least 0: a field of its own (`cls`), else an entry of its `json`."""
    value = _value(fields, column, key)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise DecodeError(f"sample {key!r}: {column!r} is {value!r}, not a class number of at least 0")
    return value


def _value(fields: Mapping[str, bytes], column: str, key: str) -> Any:
    try:
        if column in fields:
            return fields[column].decode("utf-8-sig")  # files written on Windows begin with a byte order mark
    except UnicodeDecodeError as error:
        raise DecodeError(f"sample {key!r}: {column!r} is not UTF-8 ({error})") from error
    record = _record(fields, key)
    if column not in record:
        names = sorted(set(fields) - {"json"}) + [f"json[{name}]" for name in sorted(record)]
        raise DecodeError(f"sample {key!r} has no field {column!r}; it has {', '.join(names) or 'no field'}")
    return record[column]


def _record(fields: Mapping[str, bytes], key: str) -> dict[str, Any]:
    try:
        record = json.loads(fields.get("json", b"{}"))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"sample {key!r}: its json cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise DecodeError(f"sample {key!r}: its json is no object of named values")
    return record
