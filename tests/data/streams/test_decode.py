"""Decoding of bytes to images, waveforms, texts and classes, and the error of every bad sample."""

from __future__ import annotations

import io
import json
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


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_image_formats_give_the_pixels(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    found = decode.image(stored(smooth(), kind, **options), key="a")
    assert found.mode == "RGB" and found.size == (40, 30)
    difference = np.abs(np.asarray(found).astype(int) - np.asarray(smooth()).astype(int))
    assert difference.mean() < 3 if kind == "JPEG" else difference.max() == 0


def test_the_background_of_transparency_is_white() -> None:
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[..., 0] = 200
    rgba[0, :, 3], rgba[1, 0, 3], rgba[1, 1, 3] = 0, 255, 51  # 51 / 255: a fifth of red on four fifths of white
    found = np.asarray(decode.image(stored(Image.fromarray(rgba), "PNG"), key="a"))
    np.testing.assert_array_equal(found[0], [[255, 255, 255]] * 2)
    np.testing.assert_array_equal(found[1, 0], [200, 0, 0])
    np.testing.assert_allclose(found[1, 1], [244, 204, 204], atol=1)


def test_gray_16_bit_gray_and_cmyk() -> None:
    deep = Image.fromarray(np.array([[0, 128 * 256, 65535]], np.uint16))
    np.testing.assert_array_equal(np.asarray(decode.image(stored(deep, "PNG"), key="a"))[0, :, 0], [0, 128, 255])
    assert decode.image(stored(smooth().convert("L"), "PNG"), key="a").mode == "RGB"
    content = io.BytesIO()
    deep.save(content, "PNG", transparency=0)  # black pixels are transparent, on white
    np.testing.assert_array_equal(np.asarray(decode.image(content.getvalue(), key="a"))[0, :, 0], [255, 128, 255])
    cmyk = np.asarray(decode.image(stored(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), key="a"))
    np.testing.assert_allclose(cmyk[4, 4], [255, 0, 0], atol=4)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_equals_pillows(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = stored(smooth(), "PNG", exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(np.asarray(decode.image(data, "a")), np.asarray(ImageOps.exif_transpose(image)))


TEXT_AS_RESOLUTION = b"Exif\0\0II*\0" + struct.pack("<IHHHIHH", 8, 2, 0x112, 3, 1, 6, 0)
TEXT_AS_RESOLUTION += struct.pack("<HHI4sI", 0x11A, 2, 4, b"abc\0", 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [TEXT_AS_RESOLUTION, b"Exif\0\0garbage garbage!", b"Exif\0\0\0\x08\0\2\1\x12"])
def test_unreadable_exif_data_do_not_make_an_image_bad(kind: str, exif: bytes) -> None:
    """The orientation is applied if it can be read."""
    options = {"lossless": True} if kind == "WEBP" else {}
    found = np.asarray(decode.image(stored(smooth(), kind, exif=exif, **options), "a"))
    expected = smooth().rotate(-90, expand=True) if exif is TEXT_AS_RESOLUTION else smooth()
    assert np.abs(found.astype(int) - np.asarray(expected)).mean() < (3 if kind == "JPEG" else 1e-9)


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
    exif = Image.Exif()
    exif[0x0112] = 3
    data = stored(smooth(), "PNG", exif=exif)
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


def test_transparency_of_a_palette_and_the_first_picture_of_an_animation() -> None:
    palette = smooth().quantize(16)
    found = decode.image(stored(palette, "PNG", transparency=palette.getpixel((1, 1))), "a")
    assert found.getpixel((1, 1)) == (255, 255, 255) and found.getpixel((39, 29)) != (255, 255, 255)
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("red", "lime")]
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        animation = stored(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert decode.image(animation, "a").getpixel((3, 3)) == (255, 0, 0)


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


# ---- fields


def test_text() -> None:
    record = json.dumps({"sent0": " A\tman \n walks. ", "sent1": "Grüße", "n": 3, "list": ["a"]}).encode()
    fields = {"txt": "\ufeffhello\r\n".encode(), "json": record}
    assert decode.text(fields, ["txt"], key="a") == ["hello"]
    assert decode.text(fields, ["sent0", "sent1", "txt"], key="a") == ["A man walks.", "Grüße", "hello"]
    assert decode.text(fields, ["n"], key="a") == ["3"]
    for column in ("hard", "list"):
        with pytest.raises(DecodeError, match=f"'{column}'"):
            decode.text(fields, [column], key="a")


@pytest.mark.parametrize(
    "fields",
    [
        {"txt": b" \n\t"},
        {"txt": b"\xff\xfe"},
        {},
        {"json": b"{"},
        {"json": b"[" * 100_000},
        {"json": b"[1]"},
        {"json": b'{"txt": "half \\ud800"}'},
        {"json": b'{"\\ud800": 1}'},
        {"json": b'{"txt": ' + b"9" * 5000 + b"}"},
        {"json": b'{"txt": "a", "more": "' + b"x" * 2**20 + b'"}'},
        {"txt": b"x" * 10_000_000},
    ],
)
def test_bad_texts(fields: dict[str, bytes]) -> None:
    with pytest.raises(DecodeError, match="sample 'a'") as error:
        decode.text(fields, ["txt"], key="a")
    str(error.value).encode()


def test_label() -> None:
    assert decode.label({"cls": b"7\n"}, "cls", key="a") == 7
    assert decode.label({"json": b'{"speaker": 12}'}, "speaker", key="a") == 12
    for bad in (b"dog", b"-1", b"1.5", b"", b"9" * 30, b"9" * 5000):
        with pytest.raises(DecodeError, match="'cls'"):
            decode.label({"cls": bad}, "cls", key="a")
    for fields in ({"json": b'{"cls": true}'}, {"jpg": b""}):
        with pytest.raises(DecodeError, match="'cls'"):
            decode.label(fields, "cls", key="a")
