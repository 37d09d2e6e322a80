"""What is packed comes out again, the files are exactly what they promise, and every wrong input is told what is wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import webdataset
from PIL import Image

from data.offline import demo, sentences, sounds
from data.pack import Draft, Output, pack
from data.shards import RawSample, ShardSet, read
from data.streams import decode
from data.streams.decode import audio, image
from pipelines import describe
from pipelines import pack as command

ROOT = Path(__file__).resolve().parents[2]
LINES = [f"Sentence number {i} is about things." for i in range(25)]


def samples(folder: Path) -> list[RawSample]:
    found = [s for shard in ShardSet.open(str(folder)).shards for s in read(shard, range(shard.samples))]
    return [s for s in found if isinstance(s, RawSample)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def png(color: int = 0) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (4, 4), (color, 0, 0)).save(data, "PNG")
    return data.getvalue()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "wiki.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join([*LINES, "  ", "Ünï ḉode 漢字"]).encode())
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    for i, (name, extension) in enumerate([("dog", "png"), ("cat", "PNG"), ("cat/deep", "png"), ("bird.s", "jpeg")]):
        for j in range(3):
            path = folder / name / f"my pic.{j}.{extension}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(10 * i + j))
    (folder / ".DS_Store").write_bytes(b"")
    return folder


def run(*arguments: object) -> int:
    return command.main([str(argument) for argument in arguments])


# -------------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize("zipped", [False, True])
def test_text(tmp_path: Path, text: Path, zipped: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if zipped:
        text = tmp_path / "wiki.txt.gz"
        text.write_bytes(gzip.compress((tmp_path / "wiki.txt").read_bytes()))
    out = tmp_path / "out"
    more = ["--name", "wiki", "--shard-size", 10, "--licence", "CC0-1.0", "--source", "me"]
    assert run("text", text, "--out", out, *more) == 0
    printed = capsys.readouterr().out
    assert "26 samples in 3 shards" in printed and "27 empty or missing samples dropped" in printed
    assert sorted(files(out)) == ["dataset.json", *(f"wiki-train-{i:06d}.tar" for i in range(3))]
    found = {s.key: s.fields["txt"].decode() for s in samples(out)}
    assert sorted(found.values()) == sorted([*LINES, "Ünï ḉode 漢字"])
    assert all(found[f"{2 * i:08d}"] == line for i, line in enumerate(LINES))  # the key is the line in the file, from 0
    assert list(found.values()) != [*LINES, "Ünï ḉode 漢字"]  # shuffled
    shards = ShardSet.open(str(out))
    assert [shard.samples for shard in shards.shards] == [8, 9, 9]  # filled evenly
    assert (shards.name, shards.licence, shards.source, shards.fields) == ("wiki-train", "CC0-1.0", "me", ("txt",))


def test_equal_input_and_seed_give_equal_bytes(tmp_path: Path, text: Path) -> None:
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert run("text", text, "--out", tmp_path / out, "--name", "x", "--seed", seed, "--shard-size", 7) == 0
        time.sleep(0.01)
    assert files(tmp_path / "a") == files(tmp_path / "b") != files(tmp_path / "c")
    assert {s.fields["txt"] for s in samples(tmp_path / "a")} == {s.fields["txt"] for s in samples(tmp_path / "c")}


def test_no_shuffle_keeps_the_order(tmp_path: Path, text: Path) -> None:
    assert run("text", text, "--out", tmp_path / "out", "--no-shuffle", "--shard-size", 6) == 0
    assert [s.fields["txt"].decode() for s in samples(tmp_path / "out")][:-1] == LINES


def test_sorted_classes_are_mixed(tmp_path: Path) -> None:
    drafts = (Draft({"txt": b"x"}, label=str(i // 500)) for i in range(2000))
    pack(drafts, Output(tmp_path / "out", "x", shard_size=200))
    for shard in ShardSet.open(str(tmp_path / "out")).shards:
        counts = Counter(s.fields["cls"] for s in read(shard, range(200)) if isinstance(s, RawSample))
        assert set(counts) == {b"0", b"1", b"2", b"3"} and max(counts.values()) < 80  # 50 each, sd 6


def test_memory_stays_flat(tmp_path: Path) -> None:
    """The peak of 60,000 sentences of 2 kB (120 MB) is not 100 MB above that of 600."""
    code = (
        "import resource, sys; from pathlib import Path; from data.pack import *; n = int(sys.argv[1]);"
        "pack((Draft({'txt': b'x' * 2000}) for _ in range(n)), Output(Path(sys.argv[2]), 'x', shard_size=5000));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    peaks = []
    for count in (600, 60_000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(count), str(tmp_path / str(count))], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 40


# ------------------------------------------------------------------------------------------------------------- table


def test_triples_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "nli.csv"
    path.write_text('id,sent0,sent1,hard_neg\n1,"A ""b"", c","line\nbreak",no\n2,x,y,z\n3,x,,z\n')
    assert run("table", path, "--columns", "sent0", "sent1", "hard_neg", "--out", tmp_path / "out") == 0
    found = [json.loads(s.fields["json"]) for s in sorted(samples(tmp_path / "out"), key=lambda s: s.key)]
    assert found == [
        {"sent0": 'A "b", c', "sent1": "line\nbreak", "hard_neg": "no"},
        {"sent0": "x", "sent1": "y", "hard_neg": "z"},
    ]
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["dropped"] == 1


def test_labelled_texts_from_tsv(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv.gz"
    rows = ['5\t"unbalanced', "10\ta,b", "9\tc", "9\tleft out"]
    path.write_bytes(gzip.compress("\n".join(["digit\ttext", *rows]).encode()))
    assert run("table", path, "--columns", "text", "--label", "digit", "--no-shuffle", "--out", tmp_path / "out") == 0
    found = [(s.fields["txt"].decode(), s.fields["cls"].decode()) for s in samples(tmp_path / "out")]
    assert found == [('"unbalanced', "0"), ("a,b", "2"), ("c", "1"), ("left out", "1")]  # 5, 9, 10: numbers sort as such
    assert ShardSet.open(str(tmp_path / "out")).classes == ("5", "9", "10")
    assert run("table", path, "--columns", "text", "--where", "digit=9", "--out", tmp_path / "nine") == 0
    assert sorted(s.fields["txt"] for s in samples(tmp_path / "nine")) == [b"c", b"left out"]


# --------------------------------------------------------------------------------------------------- pictures and sounds


def test_image_folder(tmp_path: Path, pictures: Path) -> None:
    assert run("images", pictures, "--out", tmp_path / "out", "--shard-size", 5) == 0
    shards, found = ShardSet.open(str(tmp_path / "out")), samples(tmp_path / "out")
    assert shards.classes == ("bird.s", "cat", "dog") and shards.fields == ("cls", "jpg", "png") and len(found) == 12
    for sample in found:
        data = sample.fields.get("png") or sample.fields["jpg"]
        red = image(data, sample.key).getpixel((0, 0))[0]  # type: ignore[index]
        assert int(sample.fields["cls"]) == {0: 2, 1: 1, 2: 1, 3: 0}[red // 10]
        assert "." not in sample.key and "my_pic" in sample.key  # the name is kept, in letters that no tar reader splits
    webdataset_keys = [s["__key__"] for shard in shards.shards for s in webdataset.WebDataset(shard.url, shardshuffle=False)]
    assert webdataset_keys == [s.key for s in found]


def test_image_folder_without_classes(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.webp").write_bytes(b"broken pictures are packed as they are: the stream judges them")
    assert run("images", tmp_path / "flat", "--out", tmp_path / "out") == 0
    assert [set(s.fields) for s in samples(tmp_path / "out")] == [{"webp"}]


@pytest.mark.parametrize("root", ["folder", "tar"])
def test_image_manifests(tmp_path: Path, pictures: Path, root: str) -> None:
    place = pictures
    if root == "tar":
        place = tmp_path / "pictures.tar"
        with tarfile.open(place, "w") as tar:
            tar.add(pictures, ".")
    rows = [{"image": "dog/my pic.0.png", "c": ["A dog.", "Some dog."]}, {"image": "cat/my pic.1.PNG", "c": "A cat."}]
    (tmp_path / "m.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"image": "dog/my pic.1.png", "c": []}])
    )
    (tmp_path / "m.tsv").write_text("image\tc\td\tk\ndog/my pic.0.png\tone\ttwo\tdog\ncat/my pic.1.PNG\tthree\t\tcat\n")
    common = ["--root", place, "--file-column", "image", "--no-shuffle", "--out"]
    assert run("images", tmp_path / "m.jsonl", "--captions", "c", *common, tmp_path / "a") == 0
    assert run("images", tmp_path / "m.tsv", "--captions", "c", "--label", "k", *common, tmp_path / "b") == 0
    assert run("images", tmp_path / "m.tsv", "--captions", "c", "d", *common, tmp_path / "c") == 0
    a, b, c = (samples(tmp_path / name) for name in "abc")
    assert [json.loads(s.fields["json"]) for s in a] == [{"captions": ["A dog.", "Some dog."]}, {"captions": ["A cat."]}]
    assert [(s.fields["txt"], s.fields["cls"]) for s in b] == [(b"one", b"1"), (b"three", b"0")]
    assert [json.loads(s.fields["json"]) for s in c] == [{"captions": ["one", "two"]}, {"captions": ["three"]}]
    for found in (a, b, c):
        assert [s.fields["png"] for s in found] == [png(0), png(11)]


def test_audio_splits_share_their_classes(tmp_path: Path) -> None:
    rows = ["file\tspeaker\tsplit"]
    for i, (speaker, split) in enumerate(
        [("zoe", "train"), ("abe", "train"), ("max", "train"), ("zoe", "test"), ("max", "test")]
    ):
        soundfile.write(tmp_path / f"{i}.flac", np.full(800, i / 10), 8000)
        rows.append(f"{i}.flac\t{speaker}\t{split}")
    (tmp_path / "m.tsv").write_text("\n".join(rows))
    audio_of = ["audio", tmp_path / "m.tsv", "--label", "speaker", "--no-shuffle"]
    assert run(*audio_of, "--where", "split=train", "--out", tmp_path / "train") == 0
    assert run(*audio_of, "--where", "split=test", "--out", tmp_path / "test", "--classes-from", tmp_path / "train") == 0
    assert ShardSet.open(str(tmp_path / "test")).classes == ("abe", "max", "zoe")
    assert [s.fields["cls"] for s in samples(tmp_path / "test")] == [b"2", b"1"]
    wave = audio(samples(tmp_path / "test")[1].fields["flac"], "flac", 8000, "x")
    np.testing.assert_allclose(wave, 0.4, atol=1e-4)


def write_wav(path: Path, value: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.full(80, value), 8000)


def test_clothos_five_caption_columns(tmp_path: Path) -> None:
    write_wav(tmp_path / "development" / "Santa Motor.wav", 0.1)
    head = ",".join(["file_name", *(f"caption_{i}" for i in range(1, 6))])
    (tmp_path / "clotho.csv").write_text(f'{head}\nSanta Motor.wav,"One, two.",B.,"Say ""hi"".",,E\n')
    columns = [f"caption_{i}" for i in range(1, 6)]
    more = ["--root", tmp_path / "development", "--file-column", "file_name", "--captions", *columns]
    assert run("audio", tmp_path / "clotho.csv", *more, "--out", tmp_path / "out") == 0
    (sample,) = samples(tmp_path / "out")
    assert json.loads(sample.fields["json"]) == {"captions": ["One, two.", "B.", 'Say "hi".', "E"]}


AUDIOCAPS = """audiocap_id,youtube_id,start_time,caption
1,-aB,30,Rain falls
2,gone,10,Nobody hears it
3,c_D,0,"A dog, then a cat"
4,-aB,30,Water drops
"""


def test_audiocaps_names_files_by_columns_misses_some_and_repeats_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "caps.csv").write_text(AUDIOCAPS)
    for name, value in (("-aB_30.wav", 0.1), ("c_D_0.wav", 0.2)):
        write_wav(tmp_path / "clips" / name, value)
    more = ["--root", tmp_path / "clips", "--file-column", "{youtube_id}_{start_time}.wav", "--captions", "caption"]
    common = ["audio", tmp_path / "caps.csv", *more, "--no-shuffle", "--out"]
    assert run(*common, tmp_path / "strict") == 2
    assert "row 3: the file 'gone_10.wav' does not exist" in (said := capsys.readouterr().err) and "--missing skip" in said
    assert run(*common, tmp_path / "rows", "--missing", "skip") == 0
    assert "1 empty or missing samples dropped" in capsys.readouterr().out
    assert [s.fields["txt"] for s in samples(tmp_path / "rows")] == [b"Rain falls", b"A dog, then a cat", b"Water drops"]
    assert run(*common, tmp_path / "clips5", "--missing", "skip", "--group") == 0
    grouped = [json.loads(s.fields["json"])["captions"] for s in samples(tmp_path / "clips5")]
    assert grouped == [["Rain falls", "Water drops"], ["A dog, then a cat"]]
    assert run(*common, tmp_path / "bad", "--file-column", "{ytid}.wav") == 2
    assert "has no column 'ytid'; it has audiocap_id" in capsys.readouterr().err


def test_musiccaps(tmp_path: Path) -> None:
    write_wav(tmp_path / "wav" / "-0Gj8.wav", 0.1)
    (tmp_path / "musiccaps.csv").write_text(
        'ytid,start_s,end_s,caption,is_audioset_eval\n-0Gj8,30,40,"Slow piano.\nNo voices, ""soft"".",True\nx,1,2,y,False\n'
    )
    more = ["--root", tmp_path / "wav", "--file-column", "{ytid}.wav", "--where", "is_audioset_eval=True"]
    assert run("audio", tmp_path / "musiccaps.csv", *more, "--captions", "caption", "--out", tmp_path / "out") == 0
    (sample,) = samples(tmp_path / "out")
    assert decode.captions(sample.fields, sample.key) == ['Slow piano. No voices, "soft".']


def test_esc50_and_urbansound(tmp_path: Path) -> None:
    rows = [("1-100-A-0.wav", 1, "dog"), ("1-137-A-32.wav", 1, "keyboard_typing"), ("2-9-A-0.wav", 2, "dog")]
    lines = ["filename,fold,target,category", *(f"{name},{fold},0,{category}" for name, fold, category in rows)]
    (tmp_path / "esc50.csv").write_text("\n".join(lines))
    for number, (name, fold, _) in enumerate(rows):
        write_wav(tmp_path / "audio" / name, number / 10)
        write_wav(tmp_path / "us8k" / f"fold{fold}" / name, number / 10)
    common = ["audio", tmp_path / "esc50.csv", "--label", "category", "--where", "fold=1", "--no-shuffle"]
    assert run(*common, "--root", tmp_path / "audio", "--file-column", "filename", "--out", tmp_path / "esc50") == 0
    assert run(*common, "--root", tmp_path / "us8k", "--file-column", "fold{fold}/{filename}", "--out", tmp_path / "us") == 0
    for folder in ("esc50", "us"):
        assert ShardSet.open(str(tmp_path / folder)).classes == ("dog", "keyboard_typing")
        assert [s.fields["cls"] for s in samples(tmp_path / folder)] == [b"0", b"1"]
    wave = audio(samples(tmp_path / "us")[1].fields["wav"], "wav", 8000, "x")
    np.testing.assert_allclose(wave, 0.1, atol=1e-4)


def test_grouped_rows_have_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_wav(tmp_path / "a.wav", 0.1)
    (tmp_path / "m.csv").write_text("file,k\na.wav,cat\na.wav,dog\n")
    assert run("audio", tmp_path / "m.csv", "--label", "k", "--group", "--out", tmp_path / "out") == 2
    assert "rows 2 and 3: a.wav has the classes 'cat' and 'dog'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ files and index


def test_the_index_says_what_is_there(tmp_path: Path, text: Path) -> None:
    run("text", text, "--out", tmp_path / "out", "--shard-size", 10, "--split", "dev")
    index = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert (index["__kind__"], index["wids_version"], index["nsamples"]) == ("wids-shard-index-v1", 1, 26)
    for entry in index["shardlist"]:
        data = (tmp_path / "out" / entry["url"]).read_bytes()
        assert (entry["filesize"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = tar.getmembers()
        assert entry["nsamples"] == len(members)
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}


def test_wids_reads_the_index(tmp_path: Path, text: Path) -> None:
    run("text", text, "--out", tmp_path / "out", "--shard-size", 10)
    wids = pytest.importorskip("wids", reason="webdataset 1.0 no longer brings the wids library along")
    found = wids.ShardListDataset(str(tmp_path / "out" / "dataset.json"), cache_dir=str(tmp_path / "cache"))
    assert [found[i][".txt"] for i in range(len(found))] == [s.fields["txt"].decode() for s in samples(tmp_path / "out")]


def test_nothing_is_overwritten_silently(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run("text", text, "--out", out, "--shard-size", 5) == 0
    before = files(out)
    assert run("text", text, "--out", out) == 2 and files(out) == before
    assert "already holds 6 shards" in (said := capsys.readouterr().err) and "--overwrite" in said
    assert run("text", text, "--out", out, "--overwrite", "--split", "dev") == 0
    assert sorted(files(out)) == ["dataset.json", "out-dev-000000.tar"]  # the old shards are not left beside the new
    (out / "precious.tar").write_bytes(b"")
    assert run("text", text, "--out", out, "--overwrite") == 2 and (out / "precious.tar").exists()


def test_a_failure_leaves_the_old_shards_alone(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    assert run("text", text, "--out", out) == 0
    before = files(out)

    def failing() -> Any:
        yield Draft({"txt": b"x"})
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        pack(failing(), Output(out, "out", overwrite=True))
    assert files(out) == before


def test_a_killed_run_leaves_nothing_and_is_cleaned_up(tmp_path: Path) -> None:
    """Killed in the middle of writing shards: no file under a final name. A second run at the same time is refused."""
    out = tmp_path / "out"
    code = (
        "import sys, time; from pathlib import Path; from data import pack\n"
        "def slow(path, samples, advance):\n"
        "    path.write_bytes(b'half a shard'); print('writing', flush=True); time.sleep(60)\n"
        "pack._write_shard = slow\n"
        "pack.pack((pack.Draft({'txt': b'x'}) for _ in range(100)), pack.Output(Path(sys.argv[1]), 'x'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        with pytest.raises(ValueError, match="another process is packing"):
            pack([Draft({"txt": b"x"})], Output(out, "x"))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(out) if not name.startswith(".")] == []
    pack([Draft({"txt": b"x"})], Output(out, "x"))
    assert sorted(os.listdir(out)) == ["dataset.json", "x-train-000000.tar"]


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("text nowhere.txt", "nowhere.txt does not exist"),
        ("text pictures", "pictures is a folder"),
        ("text latin.txt", "latin.txt, line 2: not UTF-8"),
        ("text broken.txt.gz", "broken.txt.gz cannot be read to its end"),
        ("text nogzip.txt.gz", "nogzip.txt.gz cannot be read to its end"),
        ("text empty.txt", "no sample that is not empty (2 empty or missing ones)"),
        ("text a.txt --name a/b", "--name 'a/b': letters"),
        ("text a.txt --shard-size 0", "--shard-size 0; it must be at least 1"),
        ("text a.txt --out a.txt", "--out a.txt is a file"),
        ("table a.csv --columns s0 s2", "has no column 's2'; it has s0, s1"),
        ("table ragged.csv --columns s0", "ragged.csv, line 3: 3 cells under 2 columns"),
        ("table twice.csv --columns s0", "two columns 's0'"),
        ("table quote.csv --columns s0", "quote.csv, line 2"),
        ("table latin.csv --columns s0", "not UTF-8"),
        ("table a.txt --columns s0", "is .csv, .tsv or .jsonl"),
        ("table a.csv --columns s0 --where s1", "--where 's1'; write COLUMN=VALUE"),
        ("table a.csv --columns s0 --where s1=nothing", "nothing to pack"),
        ("table bad.jsonl --columns s0", "bad.jsonl, row 2: no JSON"),
        ("images nowhere", "nowhere does not exist"),
        ("images odd", "odd/cat/x.bmp is of no known kind; allowed are .jpg, .jpeg, .png, .webp"),
        ("images mixed", "mixed: b.png lies beside the class folders"),
        ("images pictures --label x", "is a folder: --captions, --label"),
        ("images files.csv", "files.csv, row 3: the file 'gone.png' does not exist in ."),
        ("images files.csv --root nowhere", "--root nowhere does not exist"),
        ("images files.csv --root a.txt", "neither a folder nor a tar archive"),
        ("images files.csv --file-column path", "has no column 'path'; it has file, label"),
        ("images bmp.csv", "bmp.csv, row 2: x.bmp is of no known kind"),
        ("audio pictures", "is of no known kind; allowed are .wav, .flac, .ogg, .mp3"),
        ("images pictures --classes-from odd", "--classes-from odd: no dataset.json with classes"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "a.txt": b"one\ntwo\n",
        "latin.txt": "one\ncaf\u00e9\n".encode("latin-1"),
        "broken.txt.gz": gzip.compress("".join(f"line {i}\n" for i in range(9999)).encode())[:9000],
        "nogzip.txt.gz": b"plain text",
        "empty.txt": b"\n  \n",
        "a.csv": b"s0,s1\nx,y\n",
        "ragged.csv": b"s0,s1\nx,y\nx,y,z\n",
        "twice.csv": b"s0,s0\nx,y\n",
        "quote.csv": b's0,s1\n"open,y\n',
        "latin.csv": "s0\ncaf\u00e9\n".encode("latin-1"),
        "bad.jsonl": b'{"s0": "x"}\n{"s0": \n',
        "odd/cat/x.bmp": b"",
        "mixed/cat/a.png": png(),
        "mixed/b.png": png(),
        "here.png": png(),
        "files.csv": b"file,label\nhere.png,a\ngone.png,b\n",
        "bmp.csv": b"file\nx.bmp\n",
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    words = arguments.split()
    assert run(*words, *([] if "--out" in words else ["--out", "out"])) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said, said
    assert not list(Path(".").glob("out/*.tar"))


def test_a_class_that_the_first_split_has_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="class 'c' is not among the given 2 classes: a, b"):
        pack([Draft({"txt": b"x"}, label="c")], Output(tmp_path / "out", "x"), classes=("a", "b"))


def test_the_script_runs_from_the_repository(tmp_path: Path, text: Path) -> None:
    call = [sys.executable, "pipelines/pack.py", "text", str(text), "--out", str(tmp_path / "out")]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    assert "26 samples in 1 shards" in done.stdout and not done.stderr
    call = [sys.executable, "pipelines/describe.py", str(tmp_path / "out"), "--verify"]
    assert "verified" in subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout


# ---------------------------------------------------------------------------------------------------------- describe


def test_describe(tmp_path: Path, pictures: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("images", pictures, "--out", tmp_path / "images", "--shard-size", 6, "--licence", "CC0-1.0", "--no-shuffle")
    run("text", text, "--out", tmp_path / "texts", "--no-shuffle")
    capsys.readouterr()
    assert describe.main([str(tmp_path / "images"), "--samples", "7"]) == 0
    said = capsys.readouterr().out
    for expected in (
        "images-train: 12 samples in 2 shards (6 each)",
        "cls, jpg, png",
        "CC0-1.0",
        "3: 0 bird.s, 1 cat, 2 dog",
    ):
        assert expected in said
    assert "4 x 4 RGB" in said and "0 (bird.s)" in said and said.count("images-train-000001/") == 1
    assert describe.main([str(tmp_path / "texts"), "--verify"]) == 0
    assert "Sentence number 0 is about things." in (said := capsys.readouterr().out) and "verified" in said
    assert describe.main([str(tmp_path / "nowhere")]) == 2 and "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["flip", "cut", "extra", "missing", "count", "manifest"])
def test_verify_finds_every_difference(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    out = tmp_path / "out"
    run("text", text, "--out", out, "--shard-size", 9)
    shard, manifest = out / "out-train-000001.tar", out / "dataset.json"
    data, record = bytearray(shard.read_bytes()), json.loads(manifest.read_text())
    if damage == "flip":
        data[600] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        shard.write_bytes(data[:4000])
    elif damage == "extra":
        (out / "out-train-000009.tar").write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    elif damage == "count":
        record["shardlist"][1]["nsamples"] += 1
        manifest.write_text(json.dumps(record))
    else:
        manifest.unlink()
    capsys.readouterr()
    assert describe.main([str(out), "--verify"]) == 1
    said = capsys.readouterr().err
    expected = {
        "flip": "out-train-000001.tar: sha256",
        "cut": "out-train-000001.tar: 4,000 bytes, dataset.json says",
        "extra": "out-train-000009.tar is not listed",
        "missing": "out-train-000001.tar is listed in dataset.json, but is missing",
        "count": "out-train-000001.tar: 9 samples, dataset.json says 10",
        "manifest": "no dataset.json",
    }
    assert expected[damage] in said


# ------------------------------------------------------------------------------------------------------------- offline


def test_wiki_sentences() -> None:
    began = time.perf_counter()
    found = sentences.wiki_sentences()
    assert time.perf_counter() - began < 60  # about 3 s on a quiet machine
    assert 18_000 < len(found) < 22_000 and len(set(found)) == len(found)
    assert all(5 <= len(sentence.split()) <= 60 for sentence in found)
    marks = ("[[", "{{", "''", "==", "|", "\n", "<")
    assert not [sentence for sentence in found if any(mark in sentence for mark in marks)]
    assert "The capital and largest city of Angola is Luanda." in found


def test_no_rated_document_is_in_the_sentences() -> None:
    from gensim.test.utils import datapath

    rated = Path(datapath("lee.cor")).read_text(encoding="latin-1")
    assert len(rated.splitlines()) == 50
    assert not [sentence for sentence in sentences.wiki_sentences() if sentence in rated]


def test_split_sentences() -> None:
    text = 'Dr. J. R. Smith of the U.S. Army met her. "Why?" asked St. John. It was 3.5 m. 20 others came! No end'
    assert sentences.split_sentences(text) == [
        "Dr. J. R. Smith of the U.S. Army met her.",
        '"Why?" asked St. John.',
        "It was 3.5 m.",
        "20 others came!",
    ]


def test_digits() -> None:
    images, labels = demo.digits(32)
    assert images.shape == (1797, 32, 32) and images.dtype == np.uint8 and images.max() == 255
    assert Counter(labels.tolist()).keys() == set(range(10))
    centre = images[labels == 0, 12:20, 12:20].mean(), images[labels == 1, 12:20, 12:20].mean()
    assert centre[0] < centre[1] / 2  # a zero is hollow, a one is not


def test_sounds_are_told_apart_by_their_spectrum_and_shape() -> None:
    waves, labels = sounds.synth_sounds(8, 12, rate=8000, seconds=0.5, seed=3)
    again, _ = sounds.synth_sounds(8, 12, rate=8000, seconds=0.5, seed=3)
    assert waves.shape == (96, 4000) and waves.dtype == np.int16 and np.array_equal(waves, again)
    assert not np.array_equal(waves, sounds.synth_sounds(8, 12, rate=8000, seconds=0.5, seed=4)[0])
    assert len({wave.tobytes() for wave in waves}) == 96
    assert np.bincount(labels).tolist() == [12] * 8
    assert np.abs(waves.astype(int)).max(1).min() > 3000 and np.abs(waves.astype(int)).max() < 32767

    def pitch(part: np.ndarray) -> np.ndarray:  # the strongest frequency of each wave
        return np.abs(np.fft.rfft(part * np.hanning(part.shape[1]))).argmax(1)

    names = np.array(list(sounds.SOUND_CLASSES))[labels]
    rise = pitch(waves[:, -1200:-200]) - pitch(waves[:, 1000:2000])
    assert (rise[names == "sweep up"] > 10).all() and (rise[names == "sweep down"] < -10).all()
    assert (np.abs(rise[names == "sine"]) <= 1).all()
    energy = (waves.astype(float) ** 2).reshape(96, 2, 2000).sum(2)
    assert (energy[names == "noise burst"][:, 0] > 1.2 * energy[names == "noise burst"][:, 1]).all()
    assert (energy[names == "pluck"][:, 0] > 1.5 * energy[names == "pluck"][:, 1]).all()
    with pytest.raises(ValueError, match="n_classes=9; there are 8"):
        sounds.synth_sounds(9)


def test_demo_shards(tmp_path: Path) -> None:
    folders = demo.write_demo_shards(tmp_path, ["image", "audio"])
    assert [folder.name for folder in folders.values()] == ["image", "audio"] and not (tmp_path / "text").exists()
    counts = {kind: ShardSet.open(str(folder)).samples for kind, folder in folders.items()}
    assert counts == {"image": 1797, "audio": 800}
    assert all(not describe.verify(str(folder)) for folder in folders.values())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    demo.write_demo_shards(tmp_path, ["image", "audio"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before  # reused
    next((tmp_path / "audio").glob("*.tar")).unlink()
    demo.write_demo_shards(tmp_path, ["audio"])
    assert not describe.verify(str(folders["audio"]))  # made again
    with pytest.raises(ValueError, match="no offline input of kind 'video'; there are text, image, audio"):
        demo.write_demo_shards(tmp_path, ["video"])
