"""Packing of every kind of source: shards contain the same samples, and errors name the cause."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from multicse.commands import describe
from multicse.data import limits
from multicse.data.shards import ShardSet
from multicse.data.streams.decode import audio, captions, image
from tests.data.packing import LINES, png, run, samples, write_pictures, write_text


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures")


# ------------------------------------------------------------------------------------------------------------------ texts


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path / "wiki.txt")
    more = ["--name", "wiki", "--shard-size", 10, "--licence", "CC0-1.0", "--source", "me", "--language", "de"]
    assert run("text", text, "--out", tmp_path / "out", *more) == 0
    printed = capsys.readouterr().out
    assert "26 samples in 3 shards" in printed and f"27 left out: blank line; the first: {text}, line 2\n" in printed
    found = {s.key: s.fields["txt"] for s in samples(tmp_path / "out")}
    assert sorted(found.values()) == sorted([*LINES, "Ünï ḉode 漢字"])
    assert all(found[f"{2 * i:08d}"] == line for i, line in enumerate(LINES))  # the key is the line in the file, from 0
    assert list(found.values()) != [*LINES, "Ünï ḉode 漢字"]  # shuffled
    shards = ShardSet.open(str(tmp_path / "out"))
    assert [shard.samples for shard in shards.shards] == [8, 9, 9]  # filled evenly
    assert (shards.name, shards.licence, shards.source, shards.fields) == ("wiki-train", "CC0-1.0", "me", ("txt",))
    assert shards.languages == ("de",)


def test_labelled_texts_from_tsv(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv.gz"
    rows = ['5\t"unbalanced', "10\ta,b", "9\tc", "9\tleft out"]
    path.write_bytes(gzip.compress("\n".join(["digit\ttext", *rows]).encode()))
    assert run("table", path, "--columns", "text", "--label", "digit", "--no-shuffle", "--out", tmp_path / "out") == 0
    found = [(s.fields["txt"], s.fields["cls"]) for s in samples(tmp_path / "out")]
    assert found == [('"unbalanced', "0"), ("a,b", "2"), ("c", "1"), ("left out", "1")]  # 5, 9, 10: numbers sort as such
    assert ShardSet.open(str(tmp_path / "out")).classes == ("5", "9", "10")
    assert run("table", path, "--columns", "text", "--where", "digit=9", "--out", tmp_path / "nine") == 0
    assert sorted(s.fields["txt"] for s in samples(tmp_path / "nine")) == ["c", "left out"]


def test_rows_with_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "nli.csv").write_text("sent0,sent1,hard_neg\na,b,c\nd,e,\n,,\n")
    command = ("table", tmp_path / "nli.csv", "--columns", "sent0", "sent1", "hard_neg", "--no-shuffle")
    for options, kept in (((), ["c"]), (("--keep-empty",), ["c", ""])):
        assert run(*command, *options, "--out", tmp_path / f"out{len(kept)}") == 0
        found = [json.loads(s.fields["json"])["hard_neg"] for s in samples(tmp_path / f"out{len(kept)}")]
        assert found == kept


# ------------------------------------------------------------------------------------------------------- images and audio


def test_image_folder(tmp_path: Path, pictures: Path) -> None:
    assert run("images", pictures, "--out", tmp_path / "out", "--shard-size", 5) == 0
    shards, found = ShardSet.open(str(tmp_path / "out")), samples(tmp_path / "out")
    assert shards.classes == ("bird.s", "cat", "dog") and shards.fields == ("cls", "jpg", "png") and len(found) == 12
    for sample in found:
        data = sample.fields.get("png") or sample.fields["jpg"]
        red = image(data, sample.key).getpixel((0, 0))[0]  # type: ignore[index]
        assert int(sample.fields["cls"]) == {0: 2, 1: 1, 2: 1, 3: 0}[red // 10]
        assert "." not in sample.key and "my_pic" in sample.key  # the name is kept, in letters that no tar reader splits


def test_links_are_followed_and_each_file_is_found_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links to class folders and files elsewhere, to files below the folder, to the folder itself, and to nothing."""
    photos, store = tmp_path / "photos", tmp_path / "store"
    for number, name in enumerate(("photos/dog/0.png", "photos/dog/1.png", "store/cat/0.png", "store/1.png")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(png(number))
    (photos / "cat").symlink_to(store / "cat")
    (photos / "hound").symlink_to("dog")
    (photos / "dog" / "up").symlink_to(photos)
    (photos / "dog" / "outside").symlink_to(tmp_path)
    (photos / "dog" / "linked.png").symlink_to(store / "1.png")
    (photos / "dog" / "again.png").symlink_to("0.png")
    assert run("images", photos, "--no-shuffle", "--out", tmp_path / "out") == 0
    found = {(sample.fields["png"], sample.fields["cls"]) for sample in samples(tmp_path / "out")}
    assert found == {(png(0), b"1"), (png(1), b"1"), (png(2), b"0"), (png(3), b"1")} and len(samples(tmp_path / "out")) == 4
    printed = capsys.readouterr().out
    assert "3 left out: link to a folder that is read already; the first: hound" in printed
    assert "1 left out: link to a file that is read already; the first: dog/again.png" in printed
    (photos / "dog" / "gone.png").symlink_to("nothing.png")
    assert run("images", photos, "--out", tmp_path / "broken") == 2
    assert "'dog/gone.png' does not exist" in capsys.readouterr().err
    assert run("images", photos, "--missing", "skip", "--out", tmp_path / "skipped") == 0
    assert "1 left out: missing; the first: dog/gone.png" in capsys.readouterr().out


def test_folders_of_splits_are_no_classes_unless_among_others(tmp_path: Path) -> None:
    for name in ("a set/train", "vehicles/train", "vehicles/bus"):
        write_pictures(tmp_path / name)
    assert run("images", tmp_path / "a set" / "train", "--out", tmp_path / "out") == 0
    assert run("images", tmp_path / "vehicles", "--out", tmp_path / "vehicles-out") == 0
    assert ShardSet.open(str(tmp_path / "vehicles-out")).classes == ("bus", "train")


def test_what_is_left_out_is_counted_and_named(tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pictures / "metadata.jsonl").write_text('{"file_name": "dog/my pic.0.png"}\n')
    (pictures / "dog" / "cut.png").write_bytes(png()[:40])
    assert run("images", pictures, "--out", tmp_path / "strict") == 2
    assert "metadata.jsonl is of an unknown kind" in (said := capsys.readouterr().err) and "--file-column" in said
    assert run("images", pictures, "--missing", "skip", "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert describe.main([str(tmp_path / "out")]) == 0
    for text in (printed, capsys.readouterr().out):
        assert "12 samples" in text and "5 left out: hidden, or made by the system; the first: .DS_Store" in text
        assert "1 left out: of another kind; the first: metadata.jsonl" in text
        assert "1 left out: cannot be decoded; the first: dog/cut.png (sample 'cut.png': " in text


def test_a_text_that_no_stream_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a line that a small gzip file makes enormous."""
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"x" * (limits.LINE + 2)))
    (tmp_path / "c.txt").write_text("fine\n" + "x" * (limits.TEXT + 1))
    (tmp_path / "e.tsv").write_text("sent0\nfine\n" + "x" * (limits.TEXT + 1) + "\n")
    for command, named in (("text b.txt.gz", "line 1"), ("text c.txt", "line 2"), ("table e.tsv --columns sent0", "sent0")):
        kind, name, *more = command.split()
        assert run(kind, tmp_path / name, *more, "--out", tmp_path / "out") == 2
        assert name in (said := capsys.readouterr().err) and named in said
    (tmp_path / "f.txt").write_text('{"} is not JSON.\n')
    assert run("text", tmp_path / "f.txt", "--out", tmp_path / "out") == 0


def test_image_manifests(tmp_path: Path, pictures: Path) -> None:
    rows = [
        {"image": "dog/my pic.0.png", "c": ["A dog.", "Some dog."]},
        {"image": "cat/my pic.1.PNG", "c": "A cat."},
        {"image": "dog/my pic.1.png", "c": []},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "m.tsv").write_text("image\tc\td\tk\ndog/my pic.0.png\tone\ttwo\tdog\ncat/my pic.1.PNG\tthree\t\tcat\n")
    common = ["--root", pictures, "--file-column", "image", "--no-shuffle", "--out"]
    assert run("images", tmp_path / "m.jsonl", "--captions", "c", *common, tmp_path / "a") == 0
    assert run("images", tmp_path / "m.tsv", "--captions", "c", "--label", "k", *common, tmp_path / "b") == 0
    assert run("images", tmp_path / "m.tsv", "--captions", "c", "d", *common, tmp_path / "c") == 0
    a, b, c = (samples(tmp_path / name) for name in "abc")
    assert [json.loads(s.fields["json"]) for s in a] == [{"captions": ["A dog.", "Some dog."]}, {"captions": ["A cat."]}]
    assert [(s.fields["txt"], s.fields["cls"]) for s in b] == [(b"one", b"1"), (b"three", b"0")]
    assert [json.loads(s.fields["json"]) for s in c] == [{"captions": ["one", "two"]}, {"captions": ["three"]}]
    for found in (a, b, c):
        assert [s.fields["png"] for s in found] == [png(0), png(11)]


def write_wav(path: Path, value: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.full(80, value), 8000)


def test_audio_splits_share_their_classes(tmp_path: Path) -> None:
    """Also a file that two columns name, as UrbanSound8K's folds do."""
    rows = ["name\tspeaker\tsplit"]
    for i, (speaker, split) in enumerate(
        [("zoe", "train"), ("abe", "train"), ("max", "train"), ("zoe", "dev"), ("max", "dev")]
    ):
        write_wav(tmp_path / f"part-{split}" / f"{i}.wav", i / 10)
        rows.append(f"{i}\t{speaker}\t{split}")
    (tmp_path / "m.tsv").write_text("\n".join(rows))
    pack = ["audio", tmp_path / "m.tsv", "--file-column", "part-{split}/{name}.wav", "--label", "speaker", "--no-shuffle"]
    assert run(*pack, "--where", "split=train", "--out", tmp_path / "train") == 0
    assert run(*pack, "--where", "split=dev", "--out", tmp_path / "dev", "--classes-from", tmp_path / "train") == 0
    assert ShardSet.open(str(tmp_path / "dev")).classes == ("abe", "max", "zoe")
    assert [s.fields["cls"] for s in samples(tmp_path / "dev")] == [b"2", b"1"]
    np.testing.assert_allclose(audio(samples(tmp_path / "dev")[1].fields["wav"], "wav", 8000, "x"), 0.4, atol=1e-4)


AUDIOCAPS = """audiocap_id,youtube_id,start_time,caption,eval
1,-aB,30,Rain falls,True
2,gone,10,Nobody hears it,True
3,c_D,0,"A ""dog"".
Then, a cat",True
4,-aB,30,Water drops,True
5,c_D,0,left out,False
6,,,has no name,none
"""


def test_a_manifest_misses_some_files_and_repeats_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "caps.csv").write_text(AUDIOCAPS)
    for name, value in (("-aB_30.wav", 0.1), ("c_D_0.wav", 0.2)):
        write_wav(tmp_path / "clips" / name, value)
    more = ["--root", tmp_path / "clips", "--file-column", "{youtube_id}_{start_time}.wav", "--where", "eval=True"]
    common = ["audio", tmp_path / "caps.csv", *more, "--captions", "caption", "--no-shuffle", "--out"]
    assert run(*common, tmp_path / "strict") == 2
    assert "row 3: the file 'gone_10.wav'" in (said := capsys.readouterr().err) and "--missing skip" in said
    assert run(*common, tmp_path / "rows", "--missing", "skip") == 0
    assert "1 left out: missing; the first: gone_10.wav" in capsys.readouterr().out
    assert [captions(s.fields, s.key) for s in samples(tmp_path / "rows")] == [
        ["Rain falls"],
        ['A "dog". Then, a cat'],
        ["Water drops"],
    ]
    nameless = ["--root", tmp_path / "clips", "--file-column", "{youtube_id}.wav", "--where", "eval=none"]
    assert run("audio", tmp_path / "caps.csv", *nameless, "--missing", "skip", "--out", tmp_path / "none") == 2
    assert "1 left out: missing; the first: .wav" in capsys.readouterr().err  # not an error of its kind
    assert run(*common, tmp_path / "grouped", "--missing", "skip", "--group") == 0
    grouped = [json.loads(s.fields["json"])["captions"] for s in samples(tmp_path / "grouped")]
    assert grouped == [["Rain falls", "Water drops"], ['A "dog".\nThen, a cat']]

    (tmp_path / "two.csv").write_text("file,caption\nc_D_0.wav,Rain\nc_D_0.wav,\n")  # a row without a caption is counted
    more = ["--root", tmp_path / "clips", "--captions", "caption", "--file-column", "file", "--group"]
    assert run("audio", tmp_path / "two.csv", *more, "--out", tmp_path / "two") == 0
    assert "are empty; the first: " in capsys.readouterr().out
