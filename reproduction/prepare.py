"""Prepare published data sets for recipes: ``python reproduction/prepare.py clotho --source Clotho``.

Without a name, the data sets are listed.
"""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import DataError, cli_errors, did_you_mean
from multicse.data.shard_writer import Output, pack
from multicse.data.shards import MANIFEST
from multicse.pipelines.pack import report
from multicse.reproduction import small_data
from multicse.reproduction.downloads import SOURCES, Content, Result, Source

TEXTS_A_SHARD, FILES_A_SHARD = 10_000, 1_000


@dataclass(frozen=True)
class Prepare:
    """Packed shards and tables, under the names that recipes have, from a data set as its makers distribute it."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """Which data set. Without: the list of them. With small: all that the small scale of the papers' tables reads; it is
    downloaded from GitHub (about 130 MB, 440 MB on disk) into a folder that `reproduce.py --scale mini` finds by itself."""
    source: Path | None = None
    """Folder of the unpacked download. Default: downloads/NAME."""
    out: Path | None = None
    """Folder below which shards/..., wos/... are written. Default: this one; of small, one in the cache."""
    server: str | None = None
    """With small: URL of a server with the same files, instead of GitHub."""
    overwrite: bool = False
    """Make again what is there."""

    def run(self) -> int:
        """Make what can be made and print it: 0, or 2 when a file is missing."""
        if self.name is None:
            width = max(map(len, SOURCES))
            print("\n".join(f"{name:<{width}}  {source.title}" for name, source in SOURCES.items()))
            print(f"{'small':<{width}}  All that the small scale reads, downloaded")
            return 0
        if self.name == "small":
            return small_data.main(self.out, self.server)
        if self.server is not None:
            raise DataError("--server is for the name small; other data sets are downloaded by hand")
        if self.name not in SOURCES:
            known = did_you_mean(self.name, [*SOURCES, "small"])
            raise DataError(f"no data set {self.name!r}.{known} There are: {', '.join([*SOURCES, 'small'])}")
        source, folder = SOURCES[self.name], self.source or Path("downloads") / self.name
        out = self.out or Path(".")
        missing: dict[str, None] = {}  # places, each once and in their order
        for result in source.results:
            place = out / result.path
            # A table, or a folder whose manifest or configuration was written last.
            made = place.is_file() or (place / MANIFEST).is_file() or (place / "config.json").is_file()
            root = place if result.read is None else folder
            lacking = [f"{root}/{name}" for name in result.wanted if not (root / name).exists()]
            if result.read is not None and made and not self.overwrite:
                print(f"{place} is there")
            elif lacking:
                missing |= dict.fromkeys(lacking)
            elif result.read is None:
                print(f"{place} is there and is read as it is")
            else:
                print(make(result, source, folder, out, self.overwrite))
        if missing:
            hint = textwrap.wrap(source.hint, 110, initial_indent="  hint       ", subsequent_indent=" " * 13)
            about = [f"  {source.title}", f"  home page  {source.home}", f"  licence    {source.licence}", *hint]
            print("\n".join([*(f"error: {place} is not there" for place in missing), *about]), file=sys.stderr)
        return 2 if missing else 0


def make(result: Result, source: Source, folder: Path, out: Path, overwrite: bool = False) -> str:
    """Pack or write one result from the download in `folder`; what was made, in a line or two.

    Raises DataError for a download that has another form.
    """
    place, name = out / result.path, Path(result.path).name
    found = result.content(folder)
    if isinstance(found, Content):
        output = Output(
            place,
            name.removesuffix(f"-{result.split}"),
            result.split,
            TEXTS_A_SHARD if found.files is None else FILES_A_SHARD,
            licence=source.licence,
            source=source.home,
            overwrite=overwrite,
            form=found.form,
        )
        return report(pack(found.drafts, output, found.files, found.classes))
    if hasattr(found, "save_pretrained"):
        found.save_pretrained(place)
        return f"{place}: a model"
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{name}.partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        count = sum(bool(file.write(f"{line}\n")) for line in found)
    os.replace(partial, place)
    return f"{place}: {count:,} lines"


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when a file is missing, or the input was bad."""
    arguments: Prepare = tyro.cli(Prepare, args=argv, description=__doc__)
    return arguments.run()


if __name__ == "__main__":
    sys.exit(main())
