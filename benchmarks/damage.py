"""Random damage of files: of any file, of tars, and of the content of samples."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from PIL import Image

Damage = Callable[[bytes, np.random.Generator], bytes]
BLOCK = 512
T = TypeVar("T")


def pick(rng: np.random.Generator, items: Sequence[T]) -> T:
    """Return a random item."""
    return items[int(rng.integers(len(items)))]


# ---- any file


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace some bytes."""
    content = bytearray(data)
    for place in rng.integers(len(content), size=int(rng.integers(1, 6))):
        content[place] ^= int(rng.integers(1, 256))
    return bytes(content)


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut the file at a random byte."""
    return data[: int(rng.integers(len(data)))]


def zeroed(data: bytes, rng: np.random.Generator) -> bytes:
    """Write zeros over a part of the file, as after a disk error."""
    place, length = int(rng.integers(len(data))), int(rng.choice([1, 16, BLOCK, 4 * BLOCK]))
    return data[:place] + bytes(len(data[place : place + length])) + data[place + length :]


def lengthened(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert random bytes in the middle or at the end."""
    place = len(data) if rng.random() < 0.5 else int(rng.integers(len(data)))
    more = rng.bytes(int(rng.choice([1, 100, 3 * BLOCK])))
    return data[:place] + more + data[place:]


def emptied(data: bytes, rng: np.random.Generator) -> bytes:
    """Remove the content."""
    return b""


ANY: list[Damage] = [flipped, flipped, cut, zeroed, lengthened, emptied]


# ---- tables and texts, as other programs write them


def line_ends(data: bytes, rng: np.random.Generator) -> bytes:
    """Use the line ends of Windows or old Macs."""
    return data.replace(b"\n", pick(rng, [b"\r\n", b"\r"]))


def blank_line(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert a blank line."""
    lines = data.split(b"\n")
    lines.insert(int(rng.integers(1, len(lines))), pick(rng, [b"", b" "]))
    return b"\n".join(lines)


def marked(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert a byte order mark."""
    return b"\xef\xbb\xbf" + data


def rewritten(data: bytes, rng: np.random.Generator) -> bytes:
    """Write a CSV in another dialect, optionally with the line that specifies the separator for Excel."""
    delimiter, end = pick(rng, [",", ";", "|", "\t"]), pick(rng, ["\n", "\r\n", "\r"])
    new = io.StringIO()
    quoting: Any = pick(rng, [csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC])
    rows = csv.reader(io.StringIO(data.decode()))
    csv.writer(new, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(rows)
    return ((f"sep={delimiter}{end}" if rng.random() < 0.3 else "") + new.getvalue()).encode()


def stray_mark(data: bytes, rng: np.random.Generator) -> bytes:
    """Append an inch mark to the number of a row."""
    lines = data.split(b"\n")
    lines[int(rng.integers(1, len(lines) - 1))] += b'"'
    return b"\n".join(lines)


def quoted_cells(data: bytes, rng: np.random.Generator) -> bytes:
    """Quote all cells of a TSV."""
    rows = [line.split(b"\t") for line in data.split(b"\n")[:-1]]
    return b"".join(b'"' + b'"\t"'.join(row) + b'"\n' for row in rows)


def binary_texts(data: bytes, rng: np.random.Generator) -> bytes:
    """Store the texts of a Parquet file as bytes."""
    return _with_texts(data, lambda texts: pa.array(texts).cast(pa.binary()))


def utf16(data: bytes, rng: np.random.Generator) -> bytes:
    """Encode a text as UTF-16 without the mark that names it."""
    return data.decode().encode(pick(rng, ["utf-16-le", "utf-16-be"]))


def marked_utf16(data: bytes, rng: np.random.Generator) -> bytes:
    """Encode a text as UTF-16 with a mark, as spreadsheets do."""
    return data.decode().encode("utf-16")


def no_text(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace the text in a line of JSON lines by another value, or by a text with a zero byte."""
    lines = data.split(b"\n")
    place = int(rng.integers(len(lines) - 1))
    value = pick(rng, [["a", "b"], {"a": "b"}, True, None, float("nan"), float("inf"), "a\0b", "\ud800"])
    lines[place] = json.dumps({**json.loads(lines[place]), "txt": value}).encode()
    return b"\n".join(lines)


def zero_in_text(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert a zero byte into a line after the first."""
    lines = data.split(b"\n")
    place = int(rng.integers(1, len(lines) - 1))
    lines[place] = lines[place][:3] + b"\0" + lines[place][3:]
    return b"\n".join(lines)


def lists(data: bytes, rng: np.random.Generator) -> bytes:
    """Store the texts of a Parquet file as lists of texts."""
    return _with_texts(data, lambda texts: pa.array([[text] for text in texts]))


def _with_texts(data: bytes, column: Callable[[list[str]], pa.Array]) -> bytes:
    table, new = pq.read_table(io.BytesIO(data)), io.BytesIO()
    pq.write_table(table.set_column(0, "txt", column(table["txt"].to_pylist())), new, row_group_size=9)
    return new.getvalue()


SAME: set[Damage] = {line_ends, blank_line, marked, rewritten, stray_mark, binary_texts, marked_utf16}
"""Changes after which the same samples must be read."""
NOTICED: set[Damage] = {utf16, no_text, zero_in_text, lists, quoted_cells}
"""Damage that must cause an error or a bad sample."""
TABLE: dict[str, list[Damage]] = {
    "csv": [line_ends, blank_line, marked, rewritten, stray_mark, utf16, marked_utf16, zero_in_text],
    "tsv": [line_ends, blank_line, marked, stray_mark, quoted_cells, utf16, marked_utf16, zero_in_text],
    "txt": [line_ends, blank_line, marked, utf16, marked_utf16, zero_in_text],
    "jsonl": [line_ends, blank_line, marked, utf16, marked_utf16, no_text],
    "parquet": [binary_texts, lists],
    "arrow": [],
}


# ---- tar


def header(name: str, size: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a tar header with any size and a correct checksum."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[124 : 124 + len(size)] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _between(data: bytes, rng: np.random.Generator, what: bytes) -> bytes:
    """Insert `what` before a member."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        place = pick(rng, [member.offset for member in tar])
    return data[:place] + what + data[place:]


def odd_size(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert a member with a negative, absurd or unreadable size."""
    sizes = [b"\xff" * 12, b"\xff" * 11 + b"\x00", b"\x80" + b"\x7f" * 11, b"77777777777\0", b"-0000001000\0", b"9" * 12]
    return _between(data, rng, header("x.txt", pick(rng, sizes)))


def odd_extension(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert extended headers (pax, GNU) that are huge, invalid, of negative sizes, or repeated."""
    kind = pick(rng, [b"x", b"g", b"L", b"K", b"X"])
    contents = [
        b"1" * 2**16,
        b"11 size=-5\n",
        b"30 size=99999999999999999999999\n"[:32],
        b"0 path=a\n",
        b"99999999 path=a\n",
        b"\xff" * 700,
        b"9 note=x\n" * 1000,
        rng.bytes(600),
        b"1" * 2**21,
        b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
    ]
    if kind == b"L":  # most other contents would be valid names of files that belong to no sample
        contents = [b"\xff" * 700, b"1" * 2**16, b"1" * 2**21]
    content = pick(rng, contents)
    one = header("ext", b"%011o\0" % len(content), kind) + content + bytes(-len(content) % BLOCK)
    return _between(data, rng, one * int(rng.choice([1, 2, 2000 if len(content) < 1000 else 3])))


# ---- content of samples


def bad_text(rng: np.random.Generator) -> bytes:
    """Return a text that streams refuse."""
    return pick(rng, [b"", b" \n\t", b"\xff\xfe\xfa", b"a \xed\xa0\x80 b", b"x" * 10_000_000, b"\x00\xc3"])


def bad_json(rng: np.random.Generator) -> bytes:
    """Return a record of texts that streams refuse."""
    records = [
        {"sent0": "a \ud800 b", "sent1": "b \udfff", "hard_neg": "\udc00"},
        {"sent0": 3, "sent1": None, "hard_neg": []},
        {"sent0": "", "sent1": " ", "hard_neg": "\n"},
        {"sent0": "x" * 200_000, "sent1": "y" * 200_000, "hard_neg": "z"},
        {str(number): number for number in range(300_000)},
    ]
    odd = [b"{", b"[" * 100_000, b'{"a":' * 100_000, b"[1]", b"null", b"\xff", b'{"sent0": ' + b"9" * 5000 + b"}"]
    return pick(rng, [*odd, *(json.dumps(record).encode() for record in records)])


def bad_class(rng: np.random.Generator) -> bytes:
    """Return a class number that streams refuse."""
    return pick(rng, [b"", b"-1", b"1.5", b"dog", b"9" * 20, b"9" * 5000, b"\xff", b"1" * 5_000_000])


def bad_image(rng: np.random.Generator) -> bytes:
    """Return an image that is cut, in another format, or would be huge."""
    data = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(data, "PNG")
    png = data.getvalue()
    huge = bytearray(png)
    huge[16:24] = (60_000).to_bytes(4, "big") * 2
    gif = io.BytesIO()
    Image.new("L", (4, 4)).save(gif, "GIF")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(id) run\n"
    heic, page = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", b"<!DOCTYPE html><html>404</html>"
    return pick(rng, [b"", png[:60], bytes(huge), gif.getvalue(), eps, heic, page, rng.bytes(300), flipped(png[:200], rng)])


def bad_sound(rng: np.random.Generator) -> bytes:
    """Return audio that is cut, not finite, integers as floats, or would be huge after resampling."""
    slow = io.BytesIO()
    soundfile.write(slow, np.zeros(500_000, np.int16), 1, format="WAV")
    nan = io.BytesIO()
    soundfile.write(nan, np.full(100, np.nan, np.float32), 8000, format="WAV", subtype="FLOAT")
    wide = bytearray(slow.getvalue())
    wide[22:24] = b"\xff\xff"  # channels
    loud = io.BytesIO()
    soundfile.write(loud, rng.normal(0, 5000, 800), 8000, format="WAV", subtype="FLOAT")
    short = io.BytesIO()
    soundfile.write(
        short,
        rng.normal(0, 0.1, 800),
        8000,
        format=pick(rng, ["WAV", "RF64", "FLAC", "OGG", "MP3", "AU", "CAF", "W64", "NIST"]),
    )
    others = [loud.getvalue(), short.getvalue()[: len(short.getvalue()) // 2], b"\0\0\0\x20ftypM4A \0\0\0\0"]
    return pick(rng, [b"", b"RIFF", slow.getvalue(), nan.getvalue(), bytes(wide), rng.bytes(300), *others])


def odd_image(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert metadata that cannot be read into a PNG, without a change of pixels."""
    large = zlib.compress(b"a" * 2**21)
    texts = [(b"zTXt", b"Comment\0\0" + large), (b"zTXt", b"a\0\0b"), (b"tEXt", b"Raw profile type exif\0\nexif\n 10\nzz")]
    kind, body = pick(rng, [*texts, (b"iCCP", b"icc\0\0" + large), (b"eXIf", rng.bytes(30))])
    checksum = zlib.crc32(kind + body) ^ int(rng.integers(2))
    return data[:33] + len(body).to_bytes(4) + kind + body + checksum.to_bytes(4) + data[33:]


def odd_sound(data: bytes, rng: np.random.Generator) -> bytes:
    """Remove the length from the header of a WAV, as programs write it to a pipe."""
    place, size = data.index(b"data") + 4, pick(rng, [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\xf0\xff\x7f"])
    return data[:4] + pick(rng, [bytes(4), b"\xff" * 4]) + data[8:place] + size + data[place + 4 :]


BAD_FILES = {"txt": bad_text, "json": bad_json, "cls": bad_class, "png": bad_image, "wav": bad_sound}
Member = tuple[tarfile.TarInfo, bytes]


def _repacked(data: bytes, rng: np.random.Generator, instead: Callable[[Member], Iterable[Member]]) -> bytes:
    """Replace one file of a tar by the result of `instead`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar, tarfile.open(fileobj=made, mode="w") as new:
        members = tar.getmembers()
        chosen = pick(rng, members)
        for member in members:
            file = tar.extractfile(member)
            assert file is not None  # shards contain files only
            one = member, file.read()
            for info, content in instead(one) if member is chosen else [one]:
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))
    return made.getvalue()


def bad_member(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace the content of one file of a tar by content that streams refuse; the tar is valid."""
    return _repacked(data, rng, lambda one: [(one[0], BAD_FILES[one[0].name.rpartition(".")[2]](rng))])


ODD_FILES = {"png": odd_image, "wav": odd_sound}


def odd_whole(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace one image or audio file of a tar by a valid file of unusual form with the same content."""

    def odd(one: Member) -> list[Member]:
        make = ODD_FILES.get(one[0].name.rpartition(".")[2])
        return [(one[0], make(one[1], rng) if make else one[1])]

    return _repacked(data, rng, odd)


def linked(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace one file of a tar by a link, as tar does if it contains the file already."""

    def link(one: Member) -> list[Member]:
        info = tarfile.TarInfo(one[0].name)
        info.type, info.linkname = pick(rng, [tarfile.LNKTYPE, tarfile.SYMTYPE]), "elsewhere"
        return [(info, b"")]

    return _repacked(data, rng, link)


def dotted(data: bytes, rng: np.random.Generator) -> bytes:
    """Insert a dot into the name of one file of a tar."""

    def rename(one: Member) -> list[Member]:
        stem, _, kind = one[0].name.rpartition(".")
        one[0].name = f"{stem}.v1.{kind}"
        return [one]

    return _repacked(data, rng, rename)


def compressed(data: bytes, rng: np.random.Generator) -> bytes:
    """Compress the file."""
    return gzip.compress(data) if rng.random() < 0.5 else bz2.compress(data)


def odd_members(data: bytes, rng: np.random.Generator) -> bytes:
    """Repeat one file of a tar, and add members with strange names that are not files."""
    odd = []
    for name, kind in (("../../up.txt", tarfile.SYMTYPE), ("dir", tarfile.DIRTYPE), ("a/" * 2000, tarfile.FIFOTYPE)):
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        odd.append((info, b""))
    return _repacked(data, rng, lambda one: [one, one, *odd])


TAR: list[Damage] = [*ANY, odd_size, odd_extension, odd_size, odd_extension, bad_member, bad_member, bad_member, odd_members]
TAR += [odd_whole, odd_whole, linked, dotted, compressed]
IMAGE: list[Damage] = [*ANY, odd_image, odd_image]
NOTICED |= {bad_member, linked, dotted, compressed}
SAME |= {odd_whole, odd_image}


# ---- weights


def foreign(data: bytes, rng: np.random.Generator) -> bytes:
    """Rename weights or remove some of them; replace other files by noise."""
    from safetensors.torch import load, save

    if data[8:9] != b"{":
        return rng.bytes(100)
    weights = load(data)
    if rng.random() < 0.5:
        return save({f"student.{name}": value for name, value in weights.items()}, {"format": "pt"})
    return save({name: value for i, (name, value) in enumerate(weights.items()) if i % 5}, {"format": "pt"})


MODEL: list[Damage] = [*ANY, foreign, foreign]


# ---- settings next to weights

SETTINGS: dict[str, list[Any]] = {
    "max_seq_length": [1, 3, 6, 64, 4096],
    "do_lower_case": [True, False],
    "pooling_mode": ["cls", "max", "lasttoken", "weightedmean", ["cls", "mean"]],
    "pooling_mode_cls_token": [True],
    "include_prompt": [True, False],
    "default_prompt_name": ["query", "passage", None],
    "prompts": [{"query": "the dog "}, {"query": ""}, {}],
    "similarity_fn_name": ["dot", "euclidean", "manhattan", None],
    "truncate_dim": [4],
    "processing_kwargs": [{"text": {"max_length": 4}}],
    "vocab_size": [20, 121],
    "max_position_embeddings": [8, 63],
    "auto_map": [{"AutoModel": "own.Model"}],
    "model_type": ["roberta", "own", "SparseEncoder"],
    "pad_token": [None],
    "model_max_length": [3, 5, 1000],
    "use_residual": [True],
    "bias": [False],
    "module_input_name": ["token_embeddings"],
    "activation_function": ["torch.nn.modules.activation.ReLU", "os.system"],
}
"""Settings of a sentence-transformers folder, with values that occur in other folders."""


def other_settings(data: bytes, rng: np.random.Generator) -> bytes:
    """Change some settings of a JSON file, or the order of its entries; the file stays JSON."""
    content = json.loads(data)
    if isinstance(content, list):
        places = rng.permutation(len(content))[: int(rng.integers(1, len(content) + 1))]
        return json.dumps([content[place] for place in places]).encode()
    for name in rng.choice(sorted(SETTINGS), int(rng.integers(1, 4)), replace=False).tolist():
        content[name] = pick(rng, SETTINGS[name])
    return json.dumps(content).encode()


SENTENCE_MODEL: list[Damage] = [*ANY, *[other_settings] * 8]
