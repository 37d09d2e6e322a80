"""Public data of the small scale: downloads from a server, and the datasets that are created from them."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from multicse.data.errors import DataError
from multicse.reproduction import prepare, reproduce, small_data
from multicse.reproduction.small_data import Download, fetch, object_name
from multicse.reproduction.sources import small

FILES = {"a/one.txt": b"one\n", "a/two words.txt": b"two\n", "b/three.txt": b"three\n", "c.md": b"no\n"}


def archive() -> bytes:
    """Archive of a repository as created by GitHub, with a link to a path outside."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for path, text in FILES.items():
            member = tarfile.TarInfo(f"repo-1/{path}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo("repo-1/a/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../outside"
        tar.addfile(link)
    return content.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Server of `FILES` and their archive, with an error for the paths in `broken`."""

    asked: list[str]
    broken: set[str]
    cut: set[str]
    """Paths of which only half is sent."""

    def do_GET(self) -> None:
        path = self.path.removeprefix("/owner/repo/")
        self.asked.append(path)
        content = archive() if path == "tar.gz/1" else FILES.get(path.removeprefix("1/").replace("%20", " "))
        self.send_response(404 if content is None or path in self.broken else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write((content or b"")[: len(content or b"") // 2 if path in self.cut else None])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler: type[Handler] = type("Own", (Handler,), {"asked": [], "broken": set(), "cut": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}", handler
        found.shutdown()


def digest(tmp_path: Path, *paths: str) -> str:
    for path in paths:
        place = tmp_path / "expected" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(FILES[path])
    return small_data.digest(tmp_path / "expected")


def test_object_names_are_gits(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text\n")
    named = subprocess.run(["git", "hash-object", str(tmp_path / "file")], capture_output=True, text=True, check=True)
    assert object_name(b"text\n") == named.stdout.strip()


def test_an_interrupted_download_requests_the_rest(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    url, handler = server
    expected = digest(tmp_path, "a/one.txt", "a/two words.txt")
    download = Download("owner/repo", "1", "free", expected, ("a/{one,two words}.txt",))
    handler.broken = {"1/a/two%20words.txt"}
    with pytest.raises(DataError, match="run the command again to continue"):
        fetch(download, tmp_path / "got", url)
    assert not (tmp_path / "got").exists()
    handler.broken, handler.asked[:] = set(), []
    fetch(download, tmp_path / "got", url)
    assert handler.asked == ["1/a/two%20words.txt"]
    assert (tmp_path / "got" / "a" / "two words.txt").read_bytes() == b"two\n"


def test_a_connection_that_is_cut_costs_only_its_file(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    url, handler = server
    expected = digest(tmp_path, "a/one.txt", "a/two words.txt")
    download = Download("owner/repo", "1", "free", expected, ("a/{one,two words}.txt",))
    handler.cut = {"1/a/two%20words.txt"}
    with pytest.raises(DataError, match=r"interrupted .*run the command again to continue"):
        fetch(download, tmp_path / "got", url)
    handler.cut, handler.asked[:] = set(), []
    fetch(download, tmp_path / "got", url)
    assert handler.asked == ["1/a/two%20words.txt"]
    assert (tmp_path / "got" / "a" / "two words.txt").read_bytes() == FILES["a/two words.txt"]


def test_an_archive_gives_the_requested_files(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    expected = digest(tmp_path, "a/one.txt", "a/two words.txt", "b/three.txt")
    fetch(Download("owner/repo", "1", "free", expected, ("*/*.txt",), archive=True), tmp_path / "got", server[0])
    assert sorted(file.name for file in (tmp_path / "got").rglob("*.*")) == ["one.txt", "three.txt", "two words.txt"]


def test_files_of_another_content_are_refused(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    with pytest.raises(DataError, match=r"owner/repo at 1 have the digest .* were deleted"):
        fetch(Download("owner/repo", "1", "free", "0", ("c.md",)), tmp_path / "got", server[0])
    assert not list(tmp_path.iterdir())


def test_every_source_is_pinned_and_licensed() -> None:
    for name, one in small_data.read_downloads().items():
        assert len(one.commit) == 40 and len(one.digest) == 64 and one.licence, name
        assert one.archive or name == "emoji" or one.paths()


def test_prepare_and_reproduce_agree_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MULTICSE_CACHE", str(tmp_path))
    monkeypatch.delenv("MULTICSE_DATASETS", raising=False)
    assert reproduce.main(["sgbert", "T4", "--scale", "mini"]) == 2
    assert "prepare.py small" in capsys.readouterr().err
    monkeypatch.setattr(small_data, "read_downloads", dict)
    monkeypatch.setattr(small_data, "MAKERS", {"text_unlabeled": partial(made, "text")})
    assert prepare.main(["small"]) == 0
    scale = reproduce.scale_of(reproduce.Arguments("sgbert", "T4", scale="mini"))
    assert scale.data == Path(capsys.readouterr().out.strip()) and (scale.data / "text_unlabeled" / "file").is_file()


def made(text: str, downloads: Path, out: Path) -> None:
    (out / "file").write_text(text)


def test_sets_of_scored_pairs(tmp_path: Path) -> None:
    """Pairs without a score are skipped; SICK has its columns in another order."""
    base = tmp_path / "sts" / "data" / "downstream" / "STS"
    for year, parts in small.STS.items():
        folder = base.joinpath(*parts)
        folder.mkdir(parents=True)
        (folder / "STS.input.news.txt").write_text(f"a {year}\tb\nc\td \n")
        (folder / "STS.gs.news.txt").write_text("2.5\n\n")
    (base / "STSBenchmark" / "stsbenchmark").mkdir(parents=True)
    for part in ("dev", "test", "train"):
        (base / "STSBenchmark" / "stsbenchmark" / f"sts-{part}.csv").write_text('genre\tfile\tyear\t7\t1.5\t"x\ty\n')
    sick = tmp_path / "sick" / "data" / "sts" / "sick2014"
    sick.mkdir(parents=True)
    for part in ("train", "trial"):
        (sick / f"SICK_{part}.txt").write_text(f"id\tA\tB\tscore\tjudgment\n4\tp\tq \t3.2\tNEUTRAL {part}\n")
    small.sts(tmp_path, tmp_path)
    header = "dataset\tsubset\trow\tscore\tsentence1\tsentence2\n"
    assert (tmp_path / "STS13.raw.tsv").read_text() == header + "STS13\tnews\t0\t2.5\ta 13\tb\n"
    assert (tmp_path / "STSB.dev.raw.tsv").read_text() == header + 'STSB-dev\tgenre/file/year\t7\t1.5\t"x\ty\n'
    assert (tmp_path / "SICK.train.raw.tsv").read_text() == header + "SICK\ttrain\t4\t3.2\tp\tq\n"


def test_vectors_in_javascript_with_a_trailing_comma(tmp_path: Path) -> None:
    (tmp_path / "word2vec" / "data").mkdir(parents=True)
    (tmp_path / "word2vec" / "data" / "wordvecs1000.js").write_text('var wordVecs={\n"in":[0.5,-1],\n"on":[2,3],\n}')
    small.word_vectors(tmp_path, tmp_path)
    with gzip.open(tmp_path / "googlenews_word2vec_1000x300.txt.gz", "rt") as lines:
        assert lines.read() == "2 2\nin 0.5 -1\non 2 3\n"


def test_captions_in_a_table_with_korean_columns(tmp_path: Path) -> None:
    """A cell may contain commas; the other language is left out."""
    head = ",".join(["file_name", *(f"caption_{n},kor_{n}" for n in range(1, 6))])
    for part in ("development", "evaluation"):
        place = tmp_path / "clotho" / f"clotho_captions_{part}.csv"
        place.parent.mkdir(exist_ok=True)
        row = ",".join(["a.wav", *(f'"Rain, {n}  drops.",비가 온다' for n in range(5))])
        place.write_text(f"{head}\n{row}\n", encoding="cp949")
    (tmp_path / "out").mkdir()
    small.clotho(tmp_path, tmp_path / "out")
    (found,) = small.table(tmp_path / "out" / "clotho_captions_evaluation.tsv.gz")
    assert found == {"file_name": "a.wav"} | {f"caption_{n + 1}": f"Rain, {n}  drops." for n in range(5)}
