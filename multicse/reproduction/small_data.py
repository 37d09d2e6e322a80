"""Download the public data of the small scale: ``python reproduction/prepare.py small``.

`small_sources.toml` names each file at a fixed commit, with the licence as its source states it. Files are checked against
the object names that git has for them at that commit. Complete files are not downloaded again.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import sys
import tarfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

from braceexpand import braceexpand
from pydantic import TypeAdapter

from multicse.data.errors import DataError
from multicse.data.limits import cache_path
from multicse.reproduction.sources.small import MAKERS, emoji_names

RAW, ARCHIVES = "https://raw.githubusercontent.com", "https://codeload.github.com"
TIMEOUT = 60
"""Timeout in seconds of a server that does not respond."""


@dataclass(frozen=True)
class Download:
    """Files of a public repository at one commit."""

    repository: str
    commit: str
    licence: str
    digest: str
    files: tuple[str, ...] = ()
    """Paths; of an archive, patterns of paths. Empty: the images of `emoji_names`."""
    archive: bool = False
    """Download the archive of the repository instead of single files, if there are many."""

    def paths(self) -> list[str]:
        """Return the paths of files to download one by one."""
        return [path for pattern in self.files for path in braceexpand(pattern)] or list(emoji_names())


def read_downloads() -> dict[str, Download]:
    """Return the downloads of `small_sources.toml` by name."""
    text = Path(__file__).with_name("small_sources.toml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Download]).validate_python(tomllib.loads(text))


def default_folder() -> Path:
    """Return the default folder of the data of the small scale."""
    return cache_path("small-data", "1")


def main(out: Path | None, server: str | None) -> int:
    """Download missing files, write the datasets with progress on standard error, and print their folder.

    Args:
        out: Folder of the datasets; downloads are kept in its folder ``downloads``. If None, `default_folder`.
        server: URL of a mirror of GitHub with the same paths. If None, GitHub.

    Returns:
        Exit code 0.
    """
    out, downloads = out or default_folder(), read_downloads()
    out.mkdir(parents=True, exist_ok=True)
    licences = (f"{one.repository} at {one.commit[:12]}: {one.licence}\n" for one in downloads.values())
    (out / "LICENCES.txt").write_text("".join(licences), encoding="utf-8")
    for number, (name, download) in enumerate(downloads.items(), start=1):
        _show(f"{number} of {len(downloads)}: {download.repository} ({download.licence})")
        if not (out / "downloads" / name).is_dir():
            fetch(download, out / "downloads" / name, server)
    for name, make in MAKERS.items():
        place, half = out / name, out / f"{name}.partial"
        if not place.exists():
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            make(out / "downloads", half)
            half.rename(place)
        _show(f"{place}: {sum(file.stat().st_size for file in place.rglob('*') if file.is_file()) / 1e6:.1f} MB")
    print(out)
    return 0


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def fetch(download: Download, folder: Path, server: str | None) -> None:
    """Download files into a folder, which is created only when they are complete and checked.

    Args:
        download: Files to download.
        folder: Folder to create.
        server: URL of a mirror of GitHub with the same paths. If None, GitHub.

    Raises:
        DataError: If a file cannot be downloaded, or the digest differs.
    """
    half = folder.with_name(f"{folder.name}.partial")
    half.mkdir(parents=True, exist_ok=True)
    if download.archive:
        place = f"{server or ARCHIVES}/{download.repository}/tar.gz/{download.commit}"
        try:
            with _opened(place) as stream, tarfile.open(fileobj=stream, mode="r|gz") as archive:
                for member in archive:
                    path = member.name.partition("/")[2]
                    wanted = any(fnmatch.fnmatch(path, pattern) for pattern in download.files)
                    if member.isreg() and wanted and ".." not in Path(path).parts:
                        _save(archive.extractfile(member), half / path)
        except (tarfile.TarError, EOFError, zlib.error, HTTPException, OSError) as error:
            raise DataError(f"{place}: the download was interrupted ({error}); run the command again") from error
    else:
        base = f"{server or RAW}/{download.repository}/{download.commit}"
        missing = [path for path in download.paths() if not (half / path).is_file()]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: _save_url(f"{base}/{urllib.parse.quote(path)}", half / path), missing))
    if (found := digest(half)) != download.digest:
        shutil.rmtree(half)
        raise DataError(
            f"the files of {download.repository} at {download.commit} have the digest {found} instead of {download.digest} "
            "and were deleted. Run the command again, without --server if you specified one"
        )
    half.rename(folder)


def _opened(url: str) -> HTTPResponse:
    try:
        stream: HTTPResponse = urllib.request.urlopen(url, timeout=TIMEOUT)
    except (urllib.error.URLError, TimeoutError) as error:
        raise DataError(f"{url} cannot be downloaded ({error}); run the command again to continue") from error
    return stream


def _save_url(url: str, place: Path) -> None:
    """Download a file, which is created only when it is complete."""
    try:
        stream = _opened(url)
        _save(stream, place, stream.headers["Content-Length"])
    except (HTTPException, OSError) as error:
        raise DataError(f"{url}: the download was interrupted ({error}); run the command again to continue") from error


def _save(stream: IO[bytes] | None, place: Path, size: str | None = None) -> None:
    """Write a file, which is created only when it is complete."""
    assert stream is not None
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_name(f"{place.name}.partial")
    with stream, half.open("wb") as file:
        shutil.copyfileobj(stream, file)
    # Python reports a closed connection only if all is read at once.
    if size is not None and half.stat().st_size != int(size):
        raise OSError(f"{half.stat().st_size} of {size} bytes")
    half.rename(place)


def digest(folder: Path) -> str:
    """Return the SHA-256 of the lines "OBJECT PATH" of all files, with git object names."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    lines = (f"{object_name(files[path].read_bytes())} {path}\n" for path in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def object_name(content: bytes) -> str:
    """Return the git object name of the content of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
