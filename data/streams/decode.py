"""Bytes of one sample -> pictures, waveforms, texts and classes. Whatever is wrong with a sample is a DecodeError."""

from __future__ import annotations

import io
import json
import math
import re
import reprlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import soundfile
import soxr
from PIL import ExifTags, Image, UnidentifiedImageError

from multicse.data import limits
from multicse.data.errors import DecodeError
from multicse.data.streams.audio_headers import complete
from multicse.data.texts import text_of

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Fields of a sample that hold a picture, in the order of preference."""
SOUNDS = ("wav", "flac", "ogg", "mp3")
"""Fields of a sample that hold a sound, in the order of preference."""

_SOUND_BLOCK = 2**18  # values decoded at a time: many channels never lie in memory as a whole
_EDGE = 0.05  # seconds behind what is wanted of a sound: the resampling filter sees no end in what is kept
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # what undoes an EXIF orientation
_OTHERS = {
    "a GIF": rb"GIF8",
    "a HEIC image": rb".{4}ftyp(hei[cmsx]|hev[cmsx]|mif1|msf1)",
    "an AVIF image": rb".{4}ftypavi[fs]",
    "a TIFF image": rb"II\*\0|MM\0\*",
    "a BMP image": rb"BM.{4}\0{4}",
    "a JPEG XL image": rb"\xff\x0a|\0{3}\x0cJXL ",
    "a JPEG 2000 image": rb"\0{3}\x0cjP  |\xff\x4f\xff\x51",
    "an SVG drawing": rb"\s*(<\?xml[^>]*>\s*)?<svg",
    "a web page": rb"\s*<(!doctype )?html",
    "AAC audio in MP4 (m4a)": rb".{4}ftyp",
    "AAC audio": rb"\xff[\xf0\xf1\xf8\xf9]",
    "AMR audio": rb"#!AMR",
    "WMA audio": rb"0&\xb2u\x8ef\xcf\x11",
    "a WebM or Matroska file": rb"\x1aE\xdf\xa3",
}  # how files begin that are often found under a wrong name

Image.MAX_IMAGE_PIXELS = limits.PIXELS  # Pillow itself refuses twice that many


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
        f"{dotted(fields, extensions)}"
    )


def dotted(fields: Iterable[str], wanted: Sequence[str]) -> str:
    """Return a hint if files have dots in their names, so that there are fields such as `001.jpg`; otherwise nothing."""
    odd = next((field for field in sorted(fields) if "." in field and field.rpartition(".")[2] in wanted), None)
    rule = "The name of a sample ends at the first dot of a file's name, the rest is the field"
    return f". {rule}: rename files like NAME.{odd} to NAME-{odd}" if odd else ""


def check(data: bytes, extension: str, key: str) -> None:
    """Decode a picture or sound for no other end than to see that it can be; DecodeError where it cannot."""
    if extension in IMAGES:
        image(data, key, coarse=True)
    else:
        audio(data, extension, own_rate(data), key)


def image(data: bytes, key: str, max_pixels: int = limits.PIXELS, coarse: bool = False) -> Image.Image:
    """Decode a JPEG, PNG or WebP (of an animation the first picture) to 8-bit RGB.

    Transparency is laid on white, 16-bit gray is scaled to 8 bits, and the EXIF orientation is applied. No other metadata is
    looked at, and metadata that cannot be read is ignored. `coarse`: of a JPEG an eighth of the width and height is enough,
    which is three times as fast.

    Raises:
        DecodeError: not such a picture, cut short, or more than `max_pixels` pixels (refused from its header, before
            any pixel is decoded: a decompression bomb).
    """
    try:
        try:
            picture = _loaded(data, max_pixels, coarse)
        except Exception:
            if (bare := _without_metadata(data)) == data:
                raise
            picture = _loaded(bare, max_pixels, coarse)
        return _rgb(_upright(picture))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(
            f"sample {key!r}: the picture has more than the allowed {max_pixels:,} pixels; MULTICSE_MAX_PIXELS raises it"
        ) from error
    except UnidentifiedImageError as error:
        if name := _foreign(data):
            raise DecodeError(
                f"sample {key!r}: it is {name}, not a JPEG, PNG or WebP image; convert it, or fetch it again"
            ) from error
        raise DecodeError(f"sample {key!r}: {len(data):,} bytes are no JPEG, PNG or WebP picture") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
        raise DecodeError(f"sample {key!r}: the picture is damaged or cut short ({error})") from error


def _loaded(data: bytes, max_pixels: int, coarse: bool) -> Image.Image:
    # Only these formats: Pillow's others include ones that call programs or read other files.
    picture = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP"))
    if picture.width * picture.height > max_pixels:
        raise Image.DecompressionBombError
    if coarse:
        picture.draft("RGB", (1, 1))
    picture.load()
    return picture


def _upright(picture: Image.Image) -> Image.Image:
    """Undo the EXIF orientation of an image, if it has one that can be read."""
    try:
        turned = _TURNED.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow raises struct.error, SyntaxError, ValueError, ...
        turned = None
    return picture if turned is None else picture.transpose(turned)


def _without_metadata(data: bytes) -> bytes:
    """Return a PNG without the chunks that do not change its pixels (texts, profiles), but with its EXIF data if their
    checksum is right; other files as they are."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    kept, place = [data[:8]], 8
    while place < len(data):
        end = place + 12 + int.from_bytes(data[place : place + 4])
        chunk, kind = data[place:end], data[place + 4 : place + 8]
        whole = kind == b"eXIf" and zlib.crc32(chunk[4:-4]).to_bytes(4) == chunk[-4:]
        if whole or kind == b"tRNS" or kind[:1].isupper():
            kept.append(chunk)
        place = end
    return b"".join(kept)


def _foreign(data: bytes) -> str | None:
    """Return what a file is by its first bytes, if it is of a well-known kind that is not read."""
    return next((name for name, start in _OTHERS.items() if re.match(start, data[:512], re.DOTALL | re.IGNORECASE)), None)


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16-bit gray: convert() would clip at 255 instead of scaling
        gray = np.asarray(picture).astype(np.int64) >> 8
        return Image.fromarray(gray.clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")  # which copies in any case


class _Forward(soundfile.SoundFile):
    """An audio file that is read from its beginning only. Otherwise soundfile seeks to where it is after every block, and
    libsndfile cannot seek to the end of a FLAC of unknown length."""

    def seekable(self) -> bool:
        return False


def own_rate(data: bytes) -> int:
    """Samples per second that a sound has by its header; where it has none that can be read, some: `audio` says what is
    wrong with it."""
    try:
        return int(soundfile.info(io.BytesIO(data)).samplerate)
    except soundfile.SoundFileError:
        return 16_000


def audio(
    data: bytes,
    extension: str,
    rate: int,
    key: str,
    samples: int | None = None,
    max_values: int = limits.SOUND_VALUES,
) -> np.ndarray:
    """Decode a WAV, FLAC, OGG (Vorbis, Opus) or MP3, average its channels and resample it.

    Args:
        data, extension: the file, and its kind for messages.
        rate: samples per second of the result.
        key: name of the sample.
        samples: only so many of the result are wanted, those at the beginning: the rest is neither decoded nor resampled.
        max_values: most values (frames times channels) of the file, and most samples of the result.

    Returns:
        float32 (T,), full scale -1 to 1, `rate` samples per second; T may be more than `samples`.

    Raises:
        DecodeError: not such a sound, cut short (where the format says how long it should be), empty, with values that
            are not finite or above `limits.PEAK`, below 1,000 samples per second, or more than `max_values` values.
    """
    try:
        data = complete(data)
    except EOFError as error:
        raise DecodeError(f"sample {key!r}: the {extension} audio is cut short ({error}); copy the file again") from None
    try:
        with _Forward(io.BytesIO(data)) as sound:
            source_rate = sound.samplerate
            if source_rate < limits.LOWEST_RATE:
                raise DecodeError(
                    f"sample {key!r}: {source_rate} samples per second in the header of the {extension} sound, fewer than "
                    f"the allowed {limits.LOWEST_RATE:,}"
                )
            most = max_values // max(sound.channels, math.ceil(rate / source_rate))
            wanted = most if samples is None else math.ceil((samples / rate + _EDGE) * source_rate)
            wave = _mixed(sound, key, min(wanted, most))
            if (samples is None or wanted > most) and len(wave) == most and len(sound.read(1)):
                raise DecodeError(
                    f"sample {key!r}: the sound has more than the allowed {max_values:,} values "
                    f"({most / source_rate / 60:.1f} minutes); MULTICSE_MAX_SOUND_VALUES raises it"
                )
    except soundfile.SoundFileError as error:
        if name := _foreign(data):
            raise DecodeError(
                f"sample {key!r}: it is {name}, not WAV, FLAC, OGG or MP3; convert it, or fetch it again"
            ) from error
        text = getattr(error, "error_string", error)  # without the name of a file, which is in memory
        raise DecodeError(f"sample {key!r}: the {extension} sound is damaged ({text})") from error
    if not np.isfinite(wave).all():
        raise DecodeError(f"sample {key!r}: the sound holds values that are not finite")
    if (peak := float(np.abs(wave).max(initial=0))) > limits.PEAK:
        raise DecodeError(
            f"sample {key!r}: the audio has a peak of {peak:,.5g}, more than the allowed {limits.PEAK:g} (full scale is 1); "
            "of integers stored as floats, divide them by 32,768 (16 bits), or store them as integers"
        )
    if source_rate != rate and len(wave):
        wave = soxr.resample(wave, source_rate, rate)
    if not len(wave):
        raise DecodeError(f"sample {key!r}: the sound is empty at {rate} samples per second")
    return np.ascontiguousarray(wave, np.float32)


def _mixed(sound: soundfile.SoundFile, key: str, most: int) -> np.ndarray:
    """The mean of the channels, float32, of the first `most` frames; DecodeError for a FLAC that ends too early."""
    size = min(max(1, _SOUND_BLOCK // sound.channels), max(1, sound.frames))
    blocks: list[np.ndarray] = []
    frames = 0
    while len(block := sound.read(min(size, most - frames), dtype="float32", always_2d=True)):
        frames += len(block)
        blocks.append(block.mean(1))
    # 2**63 - 1: a FLAC that was written as a stream does not know its length
    if sound.format == "FLAC" and frames < min(most, sound.frames) and sound.frames < 2**62:
        raise DecodeError(f"sample {key!r}: the FLAC sound is cut short ({frames} of {sound.frames})")
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def text(fields: Mapping[str, bytes], columns: Sequence[str], key: str, empty: str | None = None) -> list[str]:
    """The texts of a sample, one per column: a field of its own (`txt`), else an entry of its `json`.

    Line breaks and runs of white space become one space; `empty` stands for a text without anything else. DecodeError:
    no such field, empty or missing without `empty`, and as `text_of`.
    """
    texts = []
    for column in columns:
        value = _text(_value(fields, column, key), column, key)
        if not value and empty is None:
            raise DecodeError(f"sample {key!r}: the text {column!r} is empty")
        texts.append(value or empty or "")
    return texts


def _text(value: Any, column: str, key: str) -> str:
    """The value as text with single white space. Raises DecodeError as `text_of`."""
    return " ".join(text_of(value, f"sample {key!r}: {column!r}").split())


def captions(fields: Mapping[str, bytes], key: str) -> list[str]:
    """The captions of a sample, at least one: the entry `captions` of its `json`, else its field `txt`, else the entry
    `caption`; an entry is a text or a list of texts.

    White space is made single. DecodeError: none, an empty one, or one that is no text.
    """
    record = _record(fields, key)
    if "captions" not in record and "txt" in fields:
        return text(fields, ("txt",), key)
    found = record.get("captions", record.get("caption"))
    found = [found] if isinstance(found, str) else found
    texts = [_text(item, "captions", key) for item in found] if isinstance(found, list) else []
    if not texts or not all(texts):
        raise DecodeError(
            f"sample {key!r} has no captions; pack it with --captions COLUMN "
            '(json {"captions": [...]}, none of them empty, or txt)'
        )
    return texts


def label(fields: Mapping[str, bytes], column: str, key: str) -> int:
    """The class of a sample, an integer of at least 0: a field of its own (`cls`), else an entry of its `json`."""
    value = _value(fields, column, key)
    if isinstance(value, bytes | float):  # whole numbers of a column with gaps are floats
        value = text_of(value, f"sample {key!r}: {column!r}")
    if isinstance(value, str) and len(digits := value.strip()) <= limits.CLASS_DIGITS and digits.isdecimal():
        value = int(digits)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise DecodeError(f"sample {key!r}: {column!r} is {reprlib.repr(value)}, not a class number of at least 0")
    return value


def _value(fields: Mapping[str, bytes], column: str, key: str) -> Any:
    if column in fields:
        return fields[column]
    record = _record(fields, key)
    if column not in record:
        names = sorted(set(fields) - {"json"}) + [f"json[{name}]" for name in sorted(record)]
        raise DecodeError(f"sample {key!r} has no field {column!r}; it has {', '.join(names[:20]) or 'no field'}")
    return record[column]


def _record(fields: Mapping[str, bytes], key: str) -> dict[str, Any]:
    content = fields.get("json", b"{}")
    if len(content) > limits.JSON:
        raise DecodeError(f"sample {key!r}: its json has {limits.over('JSON', len(content), limits.JSON)} bytes")
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"sample {key!r}: its json cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise DecodeError(f"sample {key!r}: its json is no object of named values")
    return record
