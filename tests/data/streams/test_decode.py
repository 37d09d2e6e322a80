"""Decoding of bytes to images and waveforms, and the error of every bad sample."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from multicse.data import limits
from multicse.data.errors import DecodeError
from multicse.data.streams import decode
from tests.worlds import sound


def stored(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def smooth(width: int = 40, height: int = 30) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


LOSSLESS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100}, "PNG": {}, "WEBP": {"lossless": True}}
DEEP = Image.fromarray(np.array([[0, 128 * 256, 65535]], np.uint16))
RED = np.array([[[200, 0, 0, 0], [200, 0, 0, 255], [200, 0, 0, 51]]], np.uint8)  # a fifth of red on four fifths of white
PALETTE = smooth().quantize(16)
HOLE = PALETTE.getpixel((1, 1))
IN_HOLE = (np.asarray(PALETTE) == HOLE)[..., None]
FRAMES = [Image.new("RGB", (6, 6), colour) for colour in ("red", "lime")]
MORE: dict[str, Any] = {"save_all": True, "append_images": FRAMES[1:]}
ORIENTED = [stored(smooth(), "PNG", exif=turned(number)) for number in range(1, 9)]
PICTURES: dict[str, tuple[bytes, Any]] = {
    **{kind: (stored(smooth(), kind, **options), pixels(smooth())) for kind, options in LOSSLESS.items()},
    "gray": (stored(smooth().convert("L"), "PNG"), pixels(smooth().convert("L"))),
    "16 bits": (stored(DEEP, "PNG"), [[[0] * 3, [128] * 3, [255] * 3]]),
    "16 bits, transparent black": (stored(DEEP, "PNG", transparency=0), [[[255] * 3, [128] * 3, [255] * 3]]),
    "CMYK": (stored(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), pixels(Image.new("RGB", (8, 8), "red"))),
    "transparent": (stored(Image.fromarray(RED), "PNG"), [[[255] * 3, [200, 0, 0], [244, 204, 204]]]),
    "palette": (stored(PALETTE, "PNG", transparency=HOLE), np.where(IN_HOLE, 255, pixels(PALETTE))),
    "animated PNG": (stored(FRAMES[0], "PNG", **MORE), pixels(FRAMES[0])),
    "animated WEBP": (stored(FRAMES[0], "WEBP", lossless=True, **MORE), pixels(FRAMES[0])),
    **{
        f"orientation {number}": (content, pixels(ImageOps.exif_transpose(Image.open(io.BytesIO(content)))))
        for number, content in enumerate(ORIENTED, 1)
    },
}
NEARLY = {"JPEG": 12, "CMYK": 4, "transparent": 1}


@pytest.mark.parametrize("name", PICTURES)
def test_pixels(name: str) -> None:
    """Upright, on white, scaled to 8 bits; of an animation the first image."""
    content, expected = PICTURES[name]
    found = decode.image(content, key="a")
    assert found.mode == "RGB"
    np.testing.assert_allclose(np.asarray(found).astype(int), expected, atol=NEARLY.get(name, 0), rtol=0)


TEXT_AS_RESOLUTION = b"Exif\0\0II*\0" + struct.pack("<IHHHIHH", 8, 2, 0x112, 3, 1, 6, 0)
TEXT_AS_RESOLUTION += struct.pack("<HHI4sI", 0x11A, 2, 4, b"abc\0", 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [TEXT_AS_RESOLUTION, b"Exif\0\0garbage garbage!", b"Exif\0\0\0\x08\0\2\1\x12"])
def test_unreadable_exif_data_do_not_make_an_image_bad(kind: str, exif: bytes) -> None:
    """The orientation is applied if it can be read."""
    found = pixels(decode.image(stored(smooth(), kind, exif=exif, **LOSSLESS[kind]), "a"))
    expected = smooth().rotate(-90, expand=True) if exif is TEXT_AS_RESOLUTION else smooth()
    np.testing.assert_allclose(found, pixels(expected), atol=12 if kind == "JPEG" else 0, rtol=0)


@pytest.mark.parametrize(
    "odd",
    [
        chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"a" * 2**21)),
        chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"a" * 2**21)),
        chunk(b"tEXt", b"Raw profile type exif\0\nexif\n      10\nzzzz"),
        chunk(b"zTXt", b"Comment\0\0no zlib"),
        chunk(b"tEXt", b"Comment\0hello")[:-1] + b"x",
    ],
    ids=["profile", "comment", "raw-exif", "no-zlib", "checksum"],
)
@pytest.mark.parametrize("at_end", [False, True])
def test_unreadable_text_chunks_do_not_make_an_image_bad(odd: bytes, at_end: bool) -> None:
    data = stored(smooth(), "PNG", exif=turned(3))
    place = len(data) - 12 if at_end else 33
    found = decode.image(data[:place] + odd + data[place:], "a")
    np.testing.assert_array_equal(np.asarray(found), np.asarray(smooth().rotate(180)))
    damaged = bytearray(data[:place] + odd + data[place:])
    damaged[damaged.index(b"IDAT") + 20] ^= 255
    with pytest.raises(DecodeError, match="damaged"):
        decode.image(bytes(damaged), "a")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (stored(smooth(), "GIF"), "a GIF"),
        (stored(smooth(), "TIFF"), "a TIFF image"),
        (stored(smooth(), "BMP"), "a BMP image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC image"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1", "an AVIF image"),
        (b"<!DOCTYPE html>\n<html>", "a web page"),
        (b"\0\0\0\x20ftypM4A \0\0\0\0", "m4a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_of_other_kinds_are_named(data: bytes, named: str) -> None:
    for read in (lambda: decode.image(data, "a/7"), lambda: decode.audio(data, "wav", 8000, "a/7")):
        with pytest.raises(DecodeError, match=f"'a/7': it is .*{named}.* convert it"):
            read()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_cut_short_pictures(kind: str, share: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = stored(noise, kind)
    with pytest.raises(DecodeError, match="'a/7'"):
        decode.image(data[: int(len(data) * share)], key="a/7")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bomb_is_refused_from_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    for side in (10_000, 50_000, 60_000):  # for the first one Pillow only warns
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
        with pytest.raises(DecodeError, match="89,478,485"):
            decode.image(bomb, key="a")
    monkeypatch.setattr(limits, "PIXELS", 1200)
    assert decode.image(stored(smooth(), "PNG"), key="a").size == (40, 30)
    monkeypatch.setattr(limits, "PIXELS", 1199)
    with pytest.raises(DecodeError, match="1,199 pixels"):
        decode.image(stored(smooth(), "PNG"), key="a")


# ---- audio


def tone(rate: int, seconds: float, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


@pytest.mark.parametrize("kind", decode.SOUNDS)
def test_audio_formats_preserve_a_tone(kind: str) -> None:
    wave = tone(16000, 1.0)
    found = decode.audio(sound(wave, 16000, kind), kind, rate=16000, key="a")
    assert found.dtype == np.float32 and found.ndim == 1
    assert abs(len(found) - 16000) <= (2400 if kind == "mp3" else 0)
    if kind in ("wav", "flac"):
        np.testing.assert_allclose(found, wave, atol=1 / 32768)
    spectrum = np.abs(np.fft.rfft(found[2000:12000]))  # in the middle: lossy formats fade in
    assert spectrum.argmax() * 16000 / 10000 == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(found[2000:12000] ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.03)


def test_bad_audio() -> None:
    wave = tone(8000, 0.1)
    flac = sound(np.random.default_rng(0).normal(0, 0.1, 40000).astype(np.float32), 8000, "flac")
    for data, named in (
        (sound(np.zeros(0, np.float32), 8000, "wav"), "empty at 8000"),
        (sound(np.where(np.arange(800) == 17, np.nan, wave), 8000, "wav", subtype="FLOAT"), "not finite"),
        (sound(np.zeros(500_000, np.int16), 1, "wav"), "1 samples per second"),  # half a megabyte that would be huge
        (b"", "damaged"),
        (b"no sound at all", "damaged"),
        (flac[:20], "damaged"),
        (flac[: len(flac) // 2], "cut short|damaged"),
    ):
        with pytest.raises(DecodeError, match=f"'a/7'.*({named})"):
            decode.audio(data, "flac", rate=8000, key="a/7")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.97])
@pytest.mark.parametrize("kind", [*decode.SOUNDS, "rf64", "aiff", "au", "caf", "w64", "nist"])
def test_audio_that_is_cut_short_is_refused(kind: str, share: float) -> None:
    """It is also refused if only the start is needed."""
    data = sound(np.random.default_rng(0).normal(0, 0.1, 32000).astype(np.float32), 16000, kind)
    tagged = b"ID3\4\0\0\0\0\1\0" + bytes(128) + data if kind == "mp3" else data
    for whole in (data, tagged):
        assert len(decode.audio(whole, kind, 16000, "a", samples=100)) > 100
        for samples in (None,) if kind == "flac" else (None, 100):  # a FLAC must be read to its end
            with pytest.raises(DecodeError, match=r"'a/7'.*(cut short|damaged|empty)"):
                decode.audio(whole[: int(len(whole) * share)], kind, 16000, "a/7", samples)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_without_its_last_page_is_refused(subtype: str) -> None:
    data = sound(np.random.default_rng(0).normal(0, 0.1, 64000).astype(np.float32), 16000, "ogg", subtype=subtype)
    pages = [place.start() for place in re.finditer(b"OggS", data)]
    assert len(pages) > 4 and len(decode.audio(data, "ogg", 16000, "a")) == 64000
    for place in pages[2:]:
        with pytest.raises(DecodeError, match=r"'a/7'.*(cut short|damaged)"):
            decode.audio(data[:place], "ogg", 16000, "a/7")


@pytest.mark.parametrize(
    ("riff", "size"),
    [(0, 0), (2**32 - 1, 0), (2**32 - 1, 2**32 - 1), (2**31 - 2**12 + 36, 2**31 - 2**12)],
    ids=["zero", "ffmpeg-old", "ffmpeg", "sox"],
)
def test_a_wav_of_unknown_length_is_read(riff: int, size: int) -> None:
    """Encoders write such headers to a pipe; in a header that is right otherwise, a size of 0 means that it is empty."""
    data = sound(tone(16000, 1.0), 16000, "wav")
    place = data.index(b"data") + 4
    piped = data[:4] + struct.pack("<I", riff) + data[8:place] + struct.pack("<I", size) + data[place + 4 :]
    np.testing.assert_array_equal(decode.audio(piped, "wav", 16000, "a"), decode.audio(data, "wav", 16000, "a"))
    with pytest.raises(DecodeError, match="empty"):
        decode.audio(piped[: place + 4], "wav", 16000, "a")
    with pytest.raises(DecodeError, match="empty"):
        decode.audio(data[:place] + bytes(4) + data[place + 4 :], "wav", 16000, "a")


def test_a_flac_of_unknown_length_is_read() -> None:
    data = bytearray(sound(tone(16000, 1.0), 16000, "flac"))
    whole = decode.audio(bytes(data), "flac", 16000, "a")
    data[21] &= 0xF0
    data[22:42] = bytes(20)  # number of samples and their MD5
    for samples in (None, 100, 16000, 20000):
        found = decode.audio(bytes(data), "flac", 16000, "a", samples)
        assert len(found) >= min(samples or 16000, 16000)
        np.testing.assert_array_equal(found, whole[: len(found)])
    with pytest.raises(DecodeError, match="damaged"):
        decode.audio(bytes(data[: len(data) // 2]), "flac", 16000, "a")


def test_floats_far_above_full_scale_are_refused() -> None:
    """A mix may be louder than 1; integers that are stored as floats are detected by their peak."""
    wave = tone(16000, 0.5)
    for subtype in ("FLOAT", "DOUBLE"):
        loud = decode.audio(sound(wave * 4, 16000, "wav", subtype=subtype), "wav", 16000, "a")
        np.testing.assert_allclose(loud, wave * 4, atol=1e-6)
        with pytest.raises(DecodeError, match=r"'a/7'.*peak of 16,38.*divide them by 32,768"):
            decode.audio(sound(wave * 32767, 16000, "wav", subtype=subtype), "wav", 16000, "a/7")


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "DOUBLE", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM"])
def test_encodings_of_wav(subtype: str) -> None:
    """Test six channels at 96 kHz."""
    wave = tone(96000, 0.5)
    channels = 2 if "ADPCM" in subtype else 6
    data = sound(np.repeat(wave[:, None], channels, 1), 96000, "wav", subtype=subtype)
    found = decode.audio(data, "wav", 96000, "a")[: len(wave)]
    assert np.sqrt(np.mean((found - wave) ** 2)) < 0.02


def test_audio_decompression_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    silence = sound(np.zeros((60000, 2), np.float32), 8000, "flac")
    assert len(silence) < 2000
    monkeypatch.setattr(limits, "SOUND_VALUES", 120_000)
    assert len(decode.audio(silence, "flac", 8000, "a")) == 60000
    monkeypatch.setattr(limits, "SOUND_VALUES", 119_999)
    with pytest.raises(DecodeError, match="119,999"):
        decode.audio(silence, "flac", 8000, "a")


@pytest.mark.parametrize("extension", ["wav", "flac"])
def test_only_the_start_of_audio(extension: str) -> None:
    """The start equals the start of the complete clip, and the rest is not decoded."""
    noise = np.random.default_rng(0).normal(0, 0.1, 90_000).astype(np.float32)
    for rate in (8000, 16000, 11025):
        whole = decode.audio(sound(noise, 16000, extension), extension, rate, "a")
        part = decode.audio(sound(noise, 16000, extension), extension, rate, "a", samples=3000)
        assert 3000 <= len(part) < len(whole) / 2
        np.testing.assert_allclose(part[:3000], whole[:3000], atol=1e-6)
