"""Decoding of the fields of a sample to images, waveforms, texts and classes. Every fault of a sample is a DecodeError.

Fields are the bytes of files and the values of a table; an entry of a tar's `json` is read as a column of a table.
"""

from __future__ import annotations

import io
import json
import math
import re
import reprlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import soundfile
import soxr
from PIL import ExifTags, Image, UnidentifiedImageError

from multicse.data import limits, tables
from multicse.data.errors import DecodeError
from multicse.data.streams.audio_headers import complete
from multicse.data.text_files import text_of

IMAGES, SOUNDS = tables.IMAGES, tables.SOUNDS

_AUDIO_BLOCK = 2**18  # values decoded at a time, so that files with many channels are never completely in memory
_EDGE = 0.05  # seconds decoded beyond the wanted part, so that the resampling filter does not see an end in this part
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # EXIF orientation -> the transposition that undoes it
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
}  # first bytes of files that often have a wrong extension

Image.MAX_IMAGE_PIXELS = limits.PIXELS  # Pillow refuses images with twice that many pixels


def member(fields: Mapping[str, Any], extensions: Sequence[str], key: str) -> bytes:
    """Return the content of the first of `extensions` that the sample has, as `member_with_extension`."""
    return member_with_extension(fields, extensions, key)[1]


def member_with_extension(fields: Mapping[str, Any], extensions: Sequence[str], key: str) -> tuple[str, bytes]:
    """Return name and content of the first of several fields that a sample has and that is not empty.

    Args:
        fields: Fields of the sample.
        extensions: Names of the fields, in the order of preference.
        key: Name of the sample, for messages.
    """
    found = [extension for extension in extensions if isinstance(fields.get(extension), bytes)]
    for extension in found:
        if content := fields[extension]:
            return extension, content
    if found:
        what = "image" if found[0] in IMAGES else "audio" if found[0] in SOUNDS else "content"
        raise DecodeError(f"sample {key!r}: its {what} is missing (the field {found[0]!r} is null or empty)")
    raise DecodeError(
        f"sample {key!r} has no field {' or '.join(extensions)}; it has {', '.join(sorted(fields)) or 'no field'}"
        f"{dotted(fields, extensions)}"
    )


def dotted(fields: Iterable[str], wanted: Sequence[str]) -> str:
    """Return a hint if files have dots in their names, which gives fields such as `001.jpg`; otherwise an empty string."""
    odd = next((field for field in sorted(fields) if "." in field and field.rpartition(".")[2] in wanted), None)
    rule = "The name of a sample ends at the first dot of a file's name, the rest is the field"
    return f". {rule}: rename files like NAME.{odd} to NAME-{odd}" if odd else ""


def check(data: bytes, extension: str, key: str) -> None:
    """Check that the image or audio clip `key` can be decoded. Raises DecodeError."""
    if extension in IMAGES:
        image(data, key, coarse=True)
    else:
        audio(data, extension, own_rate(data), key)


def image(data: bytes, key: str, coarse: bool = False) -> Image.Image:
    """Decode a JPEG, PNG or WebP to 8-bit RGB.

    The background of transparent pixels is white, 16-bit gray is scaled to 8 bits, the EXIF orientation is applied, and of
    an animation the first frame is used. Other metadata, and metadata that cannot be read, are ignored.

    Args:
        data: Bytes of the file.
        key: Name of the sample, for messages.
        coarse: Decode a JPEG at an eighth of its width and height, which is three times as fast.

    Raises:
        DecodeError: If the file is not such an image, is truncated, or has more than `limits.PIXELS` pixels (a decompression
            bomb, detected from the header before any pixel is decoded).
    """
    try:
        try:
            image = _loaded(data, coarse)
        except Exception:
            if (bare := _without_metadata(data)) == data:
                raise
            image = _loaded(bare, coarse)
        return _rgb(_upright(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(
            f"sample {key!r}: the image has more than the allowed {limits.PIXELS:,} pixels; MULTICSE_MAX_PIXELS raises it"
        ) from error
    except UnidentifiedImageError as error:
        if name := _foreign(data):
            raise DecodeError(
                f"sample {key!r}: it is {name}, not a JPEG, PNG or WebP image; convert it, or fetch it again"
            ) from error
        raise DecodeError(f"sample {key!r}: {len(data):,} bytes that are not a JPEG, PNG or WebP image") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
        raise DecodeError(f"sample {key!r}: the image is damaged or cut short ({error})") from error


def _loaded(data: bytes, coarse: bool) -> Image.Image:
    # Only these formats: some other formats of Pillow call programs or read other files.
    image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP"))
    if image.width * image.height > limits.PIXELS:
        raise Image.DecompressionBombError
    if coarse:
        image.draft("RGB", (1, 1))
    image.load()
    return image


def _upright(image: Image.Image) -> Image.Image:
    """Undo the EXIF orientation of an image, if it is readable."""
    try:
        turned = _TURNED.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow raises struct.error, SyntaxError, ValueError, ...
        turned = None
    return image if turned is None else image.transpose(turned)


def _without_metadata(data: bytes) -> bytes:
    """Return a PNG without chunks that do not change its pixels (texts, profiles, damaged EXIF); other files unchanged."""
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
    """Return the format of a file by its first bytes, if it is a well-known format that is not supported."""
    return next((name for name, start in _OTHERS.items() if re.match(start, data[:512], re.DOTALL | re.IGNORECASE)), None)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit gray: convert() would clip at 255 instead of scaling
        pixels = np.asarray(image).astype(np.int64)
        gray = pixels >> 8
        if (transparent := image.info.get("transparency")) is not None:
            gray[pixels == transparent] = 255
        return Image.fromarray(gray.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # convert() always copies


class _Forward(soundfile.SoundFile):
    """An audio file that is read sequentially.

    For seekable files soundfile seeks to the current position after every block, and libsndfile cannot seek to the end of a
    FLAC of unknown length.
    """

    def seekable(self) -> bool:
        """Return False, so that soundfile does not seek."""
        return False


def own_rate(data: bytes) -> int:
    """Return the sampling rate in Hz in the header of an audio file, or 16,000 if `audio` will refuse the file."""
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
) -> np.ndarray:
    """Decode a WAV, FLAC, OGG (Vorbis, Opus) or MP3, average its channels and resample it.

    Args:
        data: Bytes of the file.
        extension: Format of the file, for messages.
        rate: Sampling rate of the result in Hz.
        key: Name of the sample, for messages.
        samples: Number of samples of the result that are needed; the rest of the file is neither decoded nor resampled.
            If None, decode the complete file.

    Returns:
        Waveform, float32 (T,), with full scale -1 to 1; T may be larger than `samples`.

    Raises:
        DecodeError: If the file is not such audio, is truncated (if the format contains its length), is empty, contains
            values that are not finite or above `limits.PEAK`, has a sampling rate below 1,000 Hz, or more than
            `limits.SOUND_VALUES` values (frames times channels, or samples of the result).
    """
    try:
        data = complete(data)
    except EOFError as error:
        raise DecodeError(f"sample {key!r}: the {extension} audio is cut short ({error}); copy the file again") from None
    try:
        with _Forward(io.BytesIO(data)) as file:
            source_rate = file.samplerate
            if source_rate < limits.LOWEST_RATE:
                raise DecodeError(
                    f"sample {key!r}: {source_rate} samples per second in the header of the {extension} audio, fewer than "
                    f"the allowed {limits.LOWEST_RATE:,}"
                )
            most = limits.SOUND_VALUES // max(file.channels, math.ceil(rate / source_rate))
            wanted = most if samples is None else math.ceil((samples / rate + _EDGE) * source_rate)
            wave = _mixed(file, key, min(wanted, most))
            if (samples is None or wanted > most) and len(wave) == most and len(file.read(1)):
                raise DecodeError(
                    f"sample {key!r}: the audio has more than the allowed {limits.SOUND_VALUES:,} values "
                    f"({most / source_rate / 60:.1f} minutes); MULTICSE_MAX_SOUND_VALUES raises it"
                )
    except soundfile.SoundFileError as error:
        if name := _foreign(data):
            raise DecodeError(
                f"sample {key!r}: it is {name}, not WAV, FLAC, OGG or MP3; convert it, or fetch it again"
            ) from error
        text = getattr(error, "error_string", error)  # without the name of the file, which is in memory
        raise DecodeError(f"sample {key!r}: the {extension} audio is damaged ({text})") from error
    if not np.isfinite(wave).all():
        raise DecodeError(f"sample {key!r}: the audio contains values that are not finite")
    if (peak := float(np.abs(wave).max(initial=0))) > limits.PEAK:
        raise DecodeError(
            f"sample {key!r}: the audio has a peak of {peak:,.5g}, more than the allowed {limits.PEAK:g} (full scale is 1); "
            "if these are integers stored as floats, divide them by 32,768 (16 bits), or store them as integers"
        )
    if source_rate != rate and len(wave):
        wave = soxr.resample(wave, source_rate, rate)
    if not len(wave):
        raise DecodeError(f"sample {key!r}: the audio is empty at {rate} samples per second")
    return np.ascontiguousarray(wave, np.float32)


def _mixed(file: soundfile.SoundFile, key: str, most: int) -> np.ndarray:
    """Return the mean of the channels of the first `most` frames, float32 (T,); check the length of a FLAC."""
    size = min(max(1, _AUDIO_BLOCK // file.channels), max(1, file.frames))
    blocks: list[np.ndarray] = []
    frames = 0
    while len(block := file.read(min(size, most - frames), dtype="float32", always_2d=True)):
        frames += len(block)
        blocks.append(block.mean(1))
    # 2**63 - 1: a FLAC that was written as a stream does not contain its length
    if file.format == "FLAC" and frames < min(most, file.frames) and file.frames < 2**62:
        raise DecodeError(f"sample {key!r}: the FLAC audio is cut short ({frames} of {file.frames} frames)")
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def text(fields: Mapping[str, Any], columns: Sequence[str], key: str, empty: str | None = None) -> list[str]:
    """Decode one text per column of a sample. Line breaks and runs of white space become one space.

    Args:
        fields: Fields of the sample.
        columns: Names of the texts, each a field (`txt`) or otherwise an entry of the `json`.
        key: Name of the sample, for messages.
        empty: Replacement of empty texts. If None, they are errors.
    """
    texts = []
    for column in columns:
        value = _text(field_of(fields, column, key), column, key)
        if not value and empty is None:
            raise DecodeError(f"sample {key!r}: the text {column!r} is empty")
        texts.append(value or empty or "")
    return texts


def _text(value: Any, column: str, key: str) -> str:
    """Return the value as text with single white space."""
    try:
        return " ".join(text_of(value, "").split())
    except DecodeError as error:
        raise DecodeError(f"sample {key!r}: {column!r}{error}") from error


def captions(fields: Mapping[str, Any], key: str) -> list[str]:
    """Decode the captions of a sample, at least one, as `text`. Missing and empty ones are left out.

    They are the column `captions`, otherwise `txt`, otherwise `caption`. A column is a text or a list of texts; in the file
    `txt` of a tar, every line is a caption, as CLIP_benchmark writes them.
    """
    named = {**_record(fields, key), **fields}
    found = next((named[name] for name in ("captions", "txt", "caption") if name in named), None)
    if isinstance(found, bytes):
        found = text_of(found, f"sample {key!r}: 'txt'").splitlines()
    found = found if isinstance(found, list) else [found]
    texts = list(filter(None, (_text(item, "captions", key) for item in found)))
    if not texts:
        raise DecodeError(
            f"sample {key!r} has no captions: all are missing or empty; pack it with --captions COLUMN "
            '(json {"captions": [...]}, or txt with a caption per line)'
        )
    return texts


def label(fields: Mapping[str, Any], column: str, key: str) -> int:
    """Decode the class of a sample, a number of at least 0.

    Args:
        fields: Fields of the sample.
        column: Name of a field (`cls`), or otherwise of an entry of the `json`.
        key: Name of the sample, for messages.
    """
    value = field_of(fields, column, key)
    if isinstance(value, bytes | float | Decimal):  # whole numbers of a column with gaps are floats
        value = text_of(value, f"sample {key!r}: {column!r}")
    if isinstance(value, str) and len(digits := value.strip()) <= limits.CLASS_DIGITS and digits.isdecimal():
        value = int(digits)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise DecodeError(f"sample {key!r}: {column!r} is {reprlib.repr(value)}, not a class number of at least 0")
    return value


def field_of(fields: Mapping[str, Any], column: str, key: str) -> Any:
    """Return a field of a sample, or otherwise an entry of its `json`. Raises DecodeError if it has neither."""
    if column in fields:
        return fields[column]
    record = _record(fields, key)
    if column not in record:
        names = sorted(set(fields) - {"json"}) + [f"json[{name}]" for name in sorted(record)]
        raise DecodeError(f"sample {key!r} has no field {column!r}; it has {', '.join(names[:20]) or 'no field'}")
    return record[column]


def _record(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    record = fields.get("json", {})
    text = record if isinstance(record, bytes | str) else ""
    if len(text) > limits.JSON:
        raise DecodeError(f"sample {key!r}: its json has {limits.over('JSON', len(text), limits.JSON)} bytes")
    try:
        record = json.loads(text) if text is record else record
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"sample {key!r}: its json cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise DecodeError(f"sample {key!r}: its json is not an object of named values")
    return record
