"""Datasets of the small scale from the downloads of `small_sources.toml`; each function writes one folder."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shutil import ignore_patterns

from multicse.data.errors import DataError

STS = {
    "12": ("STS12-en-test", "test-gold"),
    "13": ("STS13-en-test", "test-gs"),
    "14": ("STS14-en-test", "sts-en-test-gs-2014"),
}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPEAKERS = ("george", "jackson", "nicolas", "theo", "yweweler")
"""Speakers of FSDD that the tables use."""
PER_PREMISE = 4
"""Maximum number of triples per premise."""


def senteval(downloads: Path, out: Path) -> None:
    """Copy the STS sets and the seven transfer tasks in SentEval's layout.

    Args:
        downloads: Folder of all downloads.
        out: Folder to write to.
    """
    for name in ("senteval", "senteval-transfer"):
        shutil.copytree(downloads / name / "SentEval" / "data", out, ignore=ignore_patterns("SNLI"), dirs_exist_ok=True)


def sts(downloads: Path, out: Path) -> None:
    """Write the STS sets as raw text: pairs that have a score."""
    header = ("dataset", "subset", "row", "score", "sentence1", "sentence2")
    base = downloads / "sts" / "data" / "downstream" / "STS"
    for year, parts in STS.items():
        rows = []
        for file in sorted(base.joinpath(*parts).glob("STS.input.*.txt"), key=lambda file: file.name.lower()):
            subset = file.name.removeprefix("STS.input.").removesuffix(".txt")
            scores = _read(file.with_name(f"STS.gs.{subset}.txt"))
            pairs = _read(file)
            for number, (pair, score) in enumerate(zip(pairs, scores, strict=True)):
                if score.strip():
                    rows.append((f"STS{year}", subset, str(number), score.strip(), *pair.split("\t")[:2]))
        _write(out / f"STS{year}.raw.tsv", header, rows)
    for part in ("dev", "test", "train"):
        fields = [line.split("\t") for line in _read(base / "STSBenchmark" / "stsbenchmark" / f"sts-{part}.csv")]
        rows = [(f"STSB-{part}", f"{row[0]}/{row[1]}/{row[2]}", *row[3:7]) for row in fields]
        _write(out / f"STSB.{part}.raw.tsv", header, rows)
    for part in ("train", "trial"):
        sick = [("SICK", part, *(row[i] for i in (0, 3, 1, 2))) for row in _sick_rows(downloads, part)]
        _write(out / f"SICK.{part}.raw.tsv", header, sick)


def _sick_rows(downloads: Path, part: str) -> list[list[str]]:
    """Return the rows of a split of SICK: id, two sentences, relatedness, entailment."""
    file = downloads / "sick" / "data" / "sts" / "sick2014" / f"SICK_{part}.txt"
    return [line.split("\t") for line in _read(file)[1:]]


def stsb_multi(downloads: Path, out: Path) -> None:
    """Write STS-B in other languages as compressed TSV files."""
    for file in sorted((downloads / "stsb_multi" / "data").iterdir()):
        with file.open(encoding="utf-8", newline="") as lines:
            _write(out / f"{file.stem}.tsv.gz", ("sentence1", "sentence2", "score"), list(csv.reader(lines)))


def nli(downloads: Path, out: Path) -> None:
    """Write pairs, and triples of premise, entailment and contradiction of five sources."""
    pairs = []
    for part in ("dev", "train"):
        rows = table(downloads / "cad" / "NLI" / "all_combined" / f"{part}.tsv")
        own = [(row["sentence1"], row["sentence2"], row["gold_label"]) for row in rows]
        _write(out / f"cad_{part}.tsv.gz", ("premise", "hypothesis", "label"), own)
        pairs += own
    snli = downloads / "senteval-transfer" / "SentEval" / "data" / "downstream" / "SNLI"
    for part in ("dev", "test"):
        columns = [_read(snli / f"{name}.{part}") for name in ("s1", "s2", "labels")]
        pairs += zip(*columns, strict=True)
    pairs += [(row["prem"], row["hyp"], row["label"]) for row in table(downloads / "taxinli" / "taxinli10k.tsv")]
    for part in ("train", "trial"):
        pairs += [(row[1], row[2], row[4].strip().lower()) for row in _sick_rows(downloads, part)]
    by_premise: dict[str, dict[str, dict[str, None]]] = {}
    for premise, hypothesis, label in pairs:
        by_premise.setdefault(premise.strip(), {}).setdefault(label.strip().lower(), {})[hypothesis.strip()] = None
    triples = [
        (premise, *texts)
        for premise, found in by_premise.items()
        for texts in list(zip(found.get("entailment", ()), found.get("contradiction", ()), strict=False))[:PER_PREMISE]
    ]
    random.Random(0).shuffle(triples)
    with gzip.open(out / "nli_triples.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("sent0", "sent1", "hard_neg"), *triples])


def text_unlabeled(downloads: Path, out: Path) -> None:
    """Write sentences of Wikipedia, one per line, and WikiSplit's pairs."""
    from multicse.data.offline.sentences import wiki_sentences  # imports gensim

    pairs = []
    for part in ("tune", "validation", "test"):
        for line in _read(downloads / "wikisplit" / f"{part}.tsv"):
            whole, _, halves = line.partition("\t")
            first, _, second = halves.partition("<::::>")
            pairs.append((part, *(text.strip() for text in (whole, first, second))))
    _write(out / "wikisplit_pairs.en.tsv.gz", ("split", "complex", "simple1", "simple2"), pairs)
    lines = _read(downloads / "wiki" / "data" / "wiki1m_for_simcse.txt")[:-1]  # the last line is cut
    texts = [line.strip() for line in lines] + [text for pair in pairs for text in pair[1:]] + wiki_sentences()
    sentences = [text for text in dict.fromkeys(texts) if text]
    random.Random(0).shuffle(sentences)
    with gzip.open(out / "wiki_combined.en.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(sentences) + "\n")


def multi30k(downloads: Path, out: Path) -> None:
    """Write the five English captions of each training image of Flickr30K."""
    folder = downloads / "multi30k" / "data" / "task2"
    names = _read(folder / "image_splits" / "train_images.txt")
    columns = [_read(folder / "raw" / f"train.{n}.en.gz") for n in range(1, 6)]
    rows = list(zip((name.partition("#")[0] for name in names), *columns, strict=True))
    _write(out / "captions5.train.en.tsv.gz", ("image", *(f"c{n}" for n in range(1, 6))), rows)


def clotho(downloads: Path, out: Path) -> None:
    """Write the five captions of each audio clip of Clotho, from tables that also have them in Korean."""
    names = ("file_name", *(f"caption_{n}" for n in range(1, 6)))
    for part in ("development", "evaluation"):
        place = downloads / "clotho" / f"clotho_captions_{part}.csv"
        with place.open(encoding="cp949", newline="") as file:
            rows = [[row[name] for name in names] for row in csv.DictReader(file)]
        _write(out / f"clotho_captions_{part}.tsv.gz", names, rows)


def prompts(downloads: Path, out: Path) -> None:
    """Write the class names and templates of ImageNet in CLIP's notebook."""
    from multicse.reproduction.sources.texts import imagenet_prompts  # imports pandas

    notebook = downloads / "clip" / "notebooks" / "Prompt_Engineering_for_ImageNet.ipynb"
    (out / "imagenet.json").write_text("".join(imagenet_prompts(notebook)), encoding="utf-8")


def word_vectors(downloads: Path, out: Path) -> None:
    """Write a thousand vectors of word2vec in its text format."""
    text = (downloads / "word2vec" / "data" / "wordvecs1000.js").read_text(encoding="utf-8")
    vectors: dict[str, list[float]] = json.loads(re.sub(r",\s*}", "}", text[text.index("{") : text.rindex("}") + 1]))
    width = len(next(iter(vectors.values())))
    lines = [f"{len(vectors)} {width}", *(f"{word} {' '.join(map(repr, row))}" for word, row in vectors.items())]
    with gzip.open(out / "googlenews_word2vec_1000x300.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def fsdd(downloads: Path, out: Path) -> None:
    """Write the spoken digits of five speakers as lossless FLAC."""
    import soundfile

    rows, clips = [], []
    for file in sorted((downloads / "fsdd" / "recordings").iterdir()):
        digit, speaker, _ = file.stem.split("_")
        if speaker in SPEAKERS:
            samples, rate = soundfile.read(file, dtype="int16")
            flac = io.BytesIO()
            soundfile.write(flac, samples, rate, format="FLAC")
            clips.append((f"{file.stem}.flac", flac.getvalue()))
            rows.append((f"{file.stem}.flac", digit, speaker))
    _tar(out / "fsdd_flac.tar", clips)
    _write(out / "fsdd.tsv", ("file", "digit", "speaker"), rows)


def coco_mini(downloads: Path, out: Path) -> None:
    """Write images of COCO with their captions and licences."""
    folder = downloads / "coco"
    for part in ("train", "val"):
        given = json.loads((folder / "annotations" / f"captions_{part}2017.json").read_text(encoding="utf-8"))
        captions: dict[int, list[str]] = {}
        for one in given["annotations"]:
            captions.setdefault(one["image_id"], []).append(" ".join(one["caption"].split()))
        files = {file.name: file for file in (folder / f"{part}2017").iterdir()}
        rows = [one for one in given["images"] if one["file_name"] in files and len(captions.get(one["id"], ())) >= 5]
        _tar(out / f"coco_mini_{part}.tar", ((one["file_name"], files[one["file_name"]].read_bytes()) for one in rows))
        lines = [
            {"file": one["file_name"], "captions": captions[one["id"]][:5], "license_id": one["license"]} for one in rows
        ]
        (out / f"captions_{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def cifar10(downloads: Path, out: Path) -> None:
    """Write 500 training images of each class in five shards, and 100 test images of each class."""
    chosen = []
    for number, name in enumerate(CLASSES):
        chosen += [(number, file) for file in sorted((downloads / "cifar10" / "train" / name).iterdir())[:500]]
    random.Random(0).shuffle(chosen)
    for shard in range(5):
        samples = []
        for place, (number, file) in enumerate(chosen[1000 * shard : 1000 * (shard + 1)]):
            name = f"s{shard}_{place:05d}"
            samples += [(f"{name}.jpg", file.read_bytes()), (f"{name}.cls", str(number).encode())]
        _tar(out / f"cifar10-train-{shard:05d}.tar", samples)
    tests = (file for name in CLASSES for file in sorted((downloads / "cifar10" / "test" / name).iterdir())[:100])
    _tar(out / "cifar10-test-subset.tar", ((f"test/{file.parent.name}/{file.name}", file.read_bytes()) for file in tests))


def emoji(downloads: Path, out: Path) -> None:
    """Write emojis of 64 pixels on white with their English names."""
    from PIL import Image

    names, images = emoji_names(), []
    for path in names:
        image = Image.open(downloads / "emoji" / path).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        content = io.BytesIO()
        Image.alpha_composite(white, image).convert("RGB").resize((64, 64), Image.Resampling.LANCZOS).save(content, "PNG")
        images.append((Path(path).name, content.getvalue()))
    _tar(out / "noto_emoji_64px.tar", images)
    lines = [{"file": Path(path).name, "names": {"en": name}} for path, name in names.items()]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (out / "emoji_names.jsonl").write_text(text, encoding="utf-8")


def emoji_names() -> dict[str, str]:
    """Return paths in the Noto repository and English names of emojis up to version 15, without flags and skin tones."""
    try:
        from emoji import EMOJI_DATA
    except ImportError as error:
        raise DataError("the names of emojis need the package emoji: pip install emoji") from error
    found = {}
    for text, record in EMOJI_DATA.items():
        codes = [ord(letter) for letter in text if letter != "\ufe0f"]
        other = any(0x1F3FB <= code <= 0x1F3FF or 0x1F1E6 <= code <= 0x1F1FF or code >= 0xE0020 for code in codes)
        if record["status"] == 2 and record["E"] <= 15 and not other:  # 2: fully qualified
            path = f"png/128/emoji_u{'_'.join(f'{code:04x}' for code in codes)}.png"
            found[path] = record["en"].strip(":").replace("_", " ")
    return dict(sorted(found.items()))


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    make.__name__: make
    for make in (
        *(senteval, sts, stsb_multi, nli, text_unlabeled, multi30k, clotho, prompts, word_vectors),
        *(fsdd, coco_mini, cifar10, emoji),
    )
}
"""Functions that write a folder, by its name."""


def _write(place: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a TSV without quoting, compressed if its name ends in .gz; tabs and line ends in texts become spaces."""
    text = "".join(
        "\t".join(" ".join(re.split(r"[\t\r\n]", cell)).strip() for cell in row) + "\n" for row in (header, *rows)
    )
    place.write_bytes(gzip.compress(text.encode()) if place.suffix == ".gz" else text.encode())


def _read(file: Path) -> list[str]:
    """Return the lines of a text file, optionally .gz; only line feeds separate lines."""
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8", "replace")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def table(file: Path) -> list[dict[str, str]]:
    """Return the rows of a TSV with a header, without quoting."""
    return list(csv.DictReader(_read(file), delimiter="\t", quoting=csv.QUOTE_NONE))


def _tar(place: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write an archive of files by name, with equal bytes on every machine."""
    with tarfile.open(place, "w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
