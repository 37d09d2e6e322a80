"""Convert downloaded datasets for recipes: ``python reproduction/prepare.py clotho --source Clotho``.

Without a name, the available datasets are listed.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands import read_options
from multicse.commands.pack import report
from multicse.data.errors import DataError, cli_errors, did_you_mean
from multicse.data.lexicon import write_lexicon
from multicse.data.shard_writer import Target, pack
from multicse.data.shards import MANIFEST
from multicse.reproduction import small_data
from multicse.reproduction.downloads import SOURCES, Content, Result, Source, Words

TEXTS_A_SHARD, FILES_A_SHARD = 10_000, 1_000


@dataclass(frozen=True)
class Prepare:
    """Create the shards and tables that recipes read from a dataset in its original layout."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """Name of the dataset; without it, all names are listed. With small, the data of the small scale is downloaded from
    GitHub (about 130 MB, 440 MB on disk) into a folder that `reproduce.py --scale mini` finds by itself."""
    source: Path | None = None
    """Folder of the unpacked download. Default: downloads/NAME, or where a package installs it."""
    out: Path | None = None
    """Output folder; shards/..., wos/... are written below it. Default: the current folder; for small, a cache folder."""
    server: str | None = None
    """URL of a mirror of GitHub's files, for small only."""
    overwrite: bool = False
    """Replace existing shards and tables."""

    def run(self) -> int:
        """Create and print the results whose files exist. Returns the exit code: 2 if a file is missing."""
        if self.name is None:
            width = max(map(len, SOURCES))
            print("\n".join(f"{name:<{width}}  {source.title}" for name, source in SOURCES.items()))
            print(f"{'small':<{width}}  Data of the small scale (is downloaded)")
            return 0
        if self.name == "small":
            return small_data.main(self.out, self.server)
        if self.server is not None:
            raise DataError("--server is only for the dataset small; download other datasets by hand")
        if self.name not in SOURCES:
            known = did_you_mean(self.name, [*SOURCES, "small"])
            raise DataError(f"dataset {self.name!r} not found.{known} Datasets: {', '.join([*SOURCES, 'small'])}")
        source = SOURCES[self.name]
        usual = [Path("downloads") / self.name, *map(Path, source.places)]
        folder = self.source or next((place for place in usual if place.is_dir()), usual[0])
        out = self.out or Path(".")
        missing: dict[str, None] = {}  # distinct, in order
        for result in source.results:
            place = out / result.path
            # A file, a folder with the manifest, which is written last, or a model.
            model = (place / "config.json").is_file() and (place / "model.safetensors").is_file()
            made = place.is_file() or (place / MANIFEST).is_file() or model
            root = place if result.read is None else folder
            lacking = [f"{root}/{name}" for name in result.wanted if not (root / name).exists()]
            if result.read is not None and made and not self.overwrite:
                print(f"{place} exists")
            elif lacking:
                missing |= dict.fromkeys(lacking)
            elif result.read is None:
                print(f"{place} exists and is used unchanged")
            else:
                print(_make(result, source, folder, out, self.overwrite))
        if missing:
            hint = textwrap.wrap(source.hint, 110, initial_indent="  hint       ", subsequent_indent=" " * 13)
            about = [f"  {source.title}", f"  home page  {source.home}", f"  licence    {source.licence}", *hint]
            print("\n".join([*(f"error: {place} not found" for place in missing), *about]), file=sys.stderr)
        return 2 if missing else 0


def _make(result: Result, source: Source, folder: Path, out: Path, overwrite: bool) -> str:
    """Pack or write one result of a download, and return a summary in one or two lines."""
    place, name = out / result.path, Path(result.path).name
    partial = place.with_name(f"{name}.partial")
    place.parent.mkdir(parents=True, exist_ok=True)
    found = result.content(folder)
    if isinstance(found, Content):
        target = Target(
            place,
            name.removesuffix(f"-{result.split}"),
            result.split,
            TEXTS_A_SHARD if found.files is None else FILES_A_SHARD,
            licence=source.licence,
            source=source.home,
            overwrite=overwrite,
            form=found.form,
        )
        return report(pack(found.drafts, target, found.files, found.classes))
    if isinstance(found, Words):
        return f"{place}: {write_lexicon(found.senses, place, found.language):,} words"
    if hasattr(found, "save_pretrained"):
        shutil.rmtree(partial, ignore_errors=True)
        found.save_pretrained(partial)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        return f"{place}: a model"
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        count = sum(bool(file.write(f"{line}\n")) for line in found)
    os.replace(partial, place)
    return f"{place}: {count:,} lines"


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line. Returns 2 if a file is missing; invalid input ends with exit code 2."""
    arguments: Prepare = read_options(Prepare, argv, description=__doc__)
    return arguments.run()


if __name__ == "__main__":
    sys.exit(main())
