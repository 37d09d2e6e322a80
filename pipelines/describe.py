"""What is in these shards, and are they whole: ``python pipelines/describe.py shards/wiki --verify``."""

from __future__ import annotations

import re
import reprlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data import tables
from multicse.data.errors import DataError, cli_errors
from multicse.data.pack import BLANK
from multicse.data.shard_urls import TEXT_TABLES, expand, parent, table_kind
from multicse.data.shard_writer import left_out_lines
from multicse.data.shards import BadSample, Manifest, Shard, ShardSet, read, read_manifest, scan, size_and_sha256


@dataclass(frozen=True)
class Arguments:
    """Show a shard set (counts, fields, samples, checks against its dataset.json) or a recipe (PAPER:RECIPE).

    Any setting of the recipe can follow, as for the pipeline itself (python pipelines/visualcse.py demo --help). Exit code 1
    when the shards are not what their dataset.json says.
    """

    what: tyro.conf.Positional[str]
    """Shards (a folder, a brace range, URLs joined by ::), or a recipe like visualcse:demo."""
    samples: int = 3
    """How many samples to show."""
    verify: bool = False
    """Read everything: count again, and compare sizes and sha256."""


def describe_shards(urls: str, samples: int = 3) -> str:
    """Counts, fields, licence and the first samples of a shard set. Raises DataError as `ShardSet.open`."""
    shards = ShardSet.open(urls)
    size = f"{sum(shard.bytes for shard in shards.shards) / 1e6:,.1f} MB"
    lines = [
        f"{shards.name or urls}: {shards.samples:,} samples in {len(shards.shards)} shards, {size}",
        f"  fields   {', '.join(shards.fields) or 'unknown'}",
        f"  licence  {shards.licence or 'unknown'}",
        f"  source   {shards.source or 'unknown'}",
    ]
    if shards.classes:
        shown = ", ".join(f"{number} {name}" for number, name in enumerate(shards.classes[:12]))
        lines.append(f"  classes  {len(shards.classes)}: {shown}{', ...' if len(shards.classes) > 12 else ''}")
    manifests = (read_manifest(folder) for folder in dict.fromkeys(parent(shard.url) for shard in shards.shards))
    lines += [f"  {line}" for found in manifests if found for line in _left_out(found)]
    for shard in shards.shards:
        if table_kind(shard.url) in TEXT_TABLES and (blank := tables.blank(shard.url))[0]:
            lines += [f"  {line}" for line in left_out_lines({BLANK: (blank[0], f"{shard.url}, line {blank[1]}")})]
    lines += ["", *_first(shards, samples)]
    return "\n".join(lines).rstrip()


def _left_out(manifest: Manifest) -> list[str]:
    """What a `dataset.json` says of files that were left out, as far as it is the entry that packing writes."""
    try:
        return left_out_lines(manifest.record.get("left_out") or {})
    except (AttributeError, TypeError, ValueError):
        return [f"left_out is not understood: {reprlib.repr(manifest.record['left_out'])}"]


def _samples(shard: Shard, count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Key and fields of the first samples of a shard, in its order. Raises DataError at the first that cannot be read."""
    for sample in read(shard, range(min(count, shard.samples))):
        if isinstance(sample, BadSample):
            raise DataError(f"sample {sample.key}: {sample.reason}")
        yield sample.key, sample.fields


def _first(shards: ShardSet, count: int) -> Iterator[str]:
    """The first samples for the eye: texts shortened, sizes of all else."""
    for shard in shards.shards:
        try:
            for key, fields in _samples(shard, count):
                yield f"  {shard.name}/{key}"
                for name, data in fields.items():
                    yield f"    {name:5} {_render_field(name, data)}"
                count -= 1
        except DataError as error:
            yield f"  {shard.name} cannot be read on: {error}"
        if not count:
            return


def _render_field(name: str, data: bytes) -> str:
    if name not in ("txt", "json", "cls"):
        return f"{len(data):,} bytes"
    text = re.sub(r"\s+", " ", data.decode("utf-8", "replace").strip())
    return text if len(text) <= 100 else text[:97] + "..."


def verify(urls: str) -> list[str]:
    """Read every shard and compare it with its `dataset.json`: the differences, none when all is well.

    Raises:
        DataError: shards that cannot be opened at all.
    """
    wrong: list[str] = []
    found, whole = expand(urls)
    places = defaultdict[str, list[str]](list)
    for url in found:
        places[url.rpartition("/")[0]].append(url)
    for folder, here in places.items():
        manifest = read_manifest(folder)
        if manifest is None:
            wrong.append(f"{folder}: no dataset.json to compare with")
            continue
        for url in here:
            name = url.rpartition("/")[2]
            if name not in manifest.shards:
                wrong.append(f"{name} is not listed in dataset.json")
            else:
                wrong += [f"{name}: {text}" for text in _differences(manifest.shards[name])]
        if folder in whole:
            present = set(here)
            wrong += [
                f"{name} is listed in dataset.json, but is missing"
                for name, shard in manifest.shards.items()
                if shard.url not in present
            ]
        listed = sum(shard.samples for shard in manifest.shards.values())
        if manifest.record.get("nsamples", listed) != listed:
            wrong.append(f"dataset.json says {manifest.record['nsamples']} samples, its shards have {listed}")
    return wrong


def _differences(shard: Shard) -> Iterator[str]:
    size, digest = size_and_sha256(shard.url)
    if shard.bytes not in (-1, size):
        yield f"{size:,} bytes, dataset.json says {shard.bytes:,}"
    count, names = 0, set[str]()
    try:
        whole = scan(shard.url)
        for _, fields in _samples(whole, whole.samples):
            count += 1
            names |= set(fields)
    except DataError as error:
        yield f"cannot be read after {count:,} samples: {error}"
    if count != shard.samples:
        yield f"{count:,} samples, dataset.json says {shard.samples:,}"
    if shard.fields and names != set(shard.fields):
        yield f"fields {', '.join(sorted(names))}, dataset.json says {', '.join(shard.fields)}"
    if shard.sha256 not in (None, digest):
        yield f"sha256 {digest[:12]}..., dataset.json says {str(shard.sha256)[:12]}..."


def describe_recipe(paper: str, name: str, changes: Sequence[str] = ()) -> str:
    """Describe what a recipe would do: samples of its streams, steps, parameters, and what it would run on.

    Args:
        paper: Pipeline, or the file of one.
        name: Recipe of that pipeline.
        changes: Options of the pipeline that change the recipe.

    Raises:
        ValueError: If there is no such pipeline, recipe or input.
    """
    from multicse.pipelines.api import prepare
    from multicse.pipelines.cli import parse
    from multicse.pipelines.registry import load
    from multicse.trainers.engine.checkpoint import build_method
    from multicse.trainers.engine.cluster import hardware, quiet

    quiet()
    recipe = prepare(parse(load(paper).RECIPES, "", [name, *changes]))
    samples = {stream: recipe.shards(stream).samples for stream in recipe.streams}
    lines = [f"{recipe.name} (identity {recipe.identity()})"]
    lines += [f"  {stream:10}  {samples[stream]:,} samples of {recipe.streams[stream].shards}" for stream in samples]
    sizes = [(weight.numel(), weight.requires_grad) for weight in build_method(recipe).parameters()]
    trained, frozen = (sum(size for size, learns in sizes if learns is one) for one in (True, False))
    lines.append(f"  steps       {recipe.steps(samples[recipe.lead]):,}")
    lines.append(f"  parameters  {trained:,} trained, {frozen:,} frozen")
    lines += [f"  {name:10}  {text}" for name, text in hardware(recipe)]
    return "\n".join(lines)


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 1 when shards differ from their dataset.json, 2 when the input was bad."""
    arguments, rest = tyro.cli(Arguments, args=argv, return_unknown_args=True)
    if recipe := re.fullmatch(r"([a-z_]\w*):([\w-]+)", arguments.what):
        if arguments.verify or arguments.samples != Arguments.samples:
            raise DataError(f"--samples and --verify are for shards, and {arguments.what} is a recipe; leave them out")
        print(describe_recipe(recipe[1], recipe[2], rest))
        return 0
    if rest:
        raise DataError(f"{' '.join(rest)}: options of recipes (PAPER:RECIPE), and {arguments.what} is none")
    wrong = verify(arguments.what) if arguments.verify else []
    if not wrong:
        print(describe_shards(arguments.what, arguments.samples))
    for line in wrong:
        print(f"differs: {line}", file=sys.stderr)
    if arguments.verify and not wrong:
        print("\nverified: counts, sizes, fields and sha256 are those of dataset.json")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
