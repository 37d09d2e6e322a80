"""Show and verify shards, or show a recipe: ``python pipelines/describe.py shards/wiki --verify``."""

from __future__ import annotations

import re
import reprlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from multicse.commands import announce_imports, read_options
from multicse.data import tables
from multicse.data.errors import DataError, cli_errors
from multicse.data.pack import BLANK
from multicse.data.shard_urls import TEXT_TABLES, expand, parent, table_kind
from multicse.data.shard_writer import left_out_lines
from multicse.data.shards import BadSample, Manifest, Shard, ShardSet, read, read_manifest, scan, size_and_sha256


@dataclass(frozen=True)
class Arguments:
    """Show a set of shards (counts, fields, first samples, checks against dataset.json) or a recipe (PIPELINE:RECIPE).

    Options that change settings of the recipe can follow, as for the pipeline itself (python pipelines/visualcse.py
    demo --help). The exit code is 1 if --verify finds shards that differ from their dataset.json.
    """

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SHARDS|RECIPE")]
    """Shards (a folder, a brace range, URLs joined by ::), or a recipe such as visualcse:demo."""
    samples: int = 3
    """Number of samples to show."""
    verify: bool = False
    """Read all shards, and compare counts, fields, sizes and sha256 with dataset.json."""


def describe_shards(urls: str, samples: int = 3) -> str:
    """Describe a set of shards: counts, fields, licence and the first samples.

    Args:
        urls: Folder, brace range, or URLs joined by ``::``.
        samples: Number of samples to show.

    Raises:
        DataError: If the shards cannot be opened.
    """
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
        if table_kind(shard.url) in TEXT_TABLES and (blank := tables.table(shard.url).blank)[0]:
            lines += [f"  {line}" for line in left_out_lines({BLANK: (blank[0], f"{shard.url}, line {blank[1]}")})]
    lines += ["", *_first(shards, samples)]
    return "\n".join(lines).rstrip()


def _left_out(manifest: Manifest) -> list[str]:
    """Return lines about the files that packing left out."""
    try:
        return left_out_lines(manifest.record.get("left_out") or {})
    except (AttributeError, TypeError, ValueError):
        return [f"left_out has an unknown form: {reprlib.repr(manifest.record['left_out'])}"]


def _samples(shard: Shard, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield key and fields of the first samples of a shard; raise DataError at a sample that cannot be read."""
    for sample in read(shard, range(min(count, shard.samples))):
        if isinstance(sample, BadSample):
            raise DataError(f"sample {sample.key}: {sample.reason}")
        yield sample.key, sample.fields


def _first(shards: ShardSet, count: int) -> Iterator[str]:
    """Yield lines with the first samples: shortened texts and values, and the sizes of files."""
    for shard in shards.shards:
        try:
            for key, fields in _samples(shard, count):
                yield f"  {shard.name}/{key}"
                for name, data in fields.items():
                    yield f"    {name:5} {_render_field(name, data)}"
                count -= 1
        except DataError as error:
            yield f"  {shard.name} cannot be read further: {error}"
        if not count:
            return


def _render_field(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        if name not in ("txt", "json", "cls"):
            return f"{len(value):,} bytes"
        value = value.decode("utf-8", "replace")
    text = re.sub(r"\s+", " ", str(value).strip())
    return text if len(text) <= 100 else text[:97] + "..."


def verify_shards(urls: str) -> list[str]:
    """Compare all shards with their `dataset.json`.

    Returns:
        Differences, one line each.

    Raises:
        DataError: If shards cannot be opened.
    """
    wrong: list[str] = []
    found, whole = expand(urls)
    places = defaultdict[str, list[str]](list)
    for url in found:
        places[url.rpartition("/")[0]].append(url)
    for folder, here in places.items():
        manifest = read_manifest(folder)
        if manifest is None:
            wrong.append(f"{folder}: dataset.json not found")
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
            wrong.append(f"dataset.json lists {manifest.record['nsamples']} samples in total, but {listed} in its shards")
    return wrong


def _differences(shard: Shard) -> Iterator[str]:
    size, digest = size_and_sha256(shard.url)
    if shard.bytes not in (-1, size):
        yield f"{size:,} bytes, {shard.bytes:,} in dataset.json"
    count, names = 0, set[str]()
    try:
        whole = scan(shard.url)
        for _, fields in _samples(whole, whole.samples):
            count += 1
            names |= set(fields)
    except DataError as error:
        yield f"cannot be read after {count:,} samples: {error}"
    if count != shard.samples:
        yield f"{count:,} samples, {shard.samples:,} in dataset.json"
    if shard.fields and names != set(shard.fields):
        yield f"fields {', '.join(sorted(names))}, {', '.join(shard.fields)} in dataset.json"
    if shard.sha256 not in (None, digest):
        yield f"sha256 {digest[:12]}..., {str(shard.sha256)[:12]}... in dataset.json"


def describe_recipe(paper: str, name: str, changes: Sequence[str] = ()) -> str:
    """Describe the run of a recipe: samples of its streams, steps, parameters, hardware.

    Args:
        paper: Pipeline, or its Python file.
        name: Recipe of the pipeline.
        changes: Options that change settings of the recipe.

    Raises:
        ValueError: If the pipeline, the recipe or its input does not exist.
    """
    announce_imports()
    from multicse.commands.api import write_inputs
    from multicse.commands.cli import parse
    from multicse.commands.registry import load
    from multicse.trainers.engine.checkpoint import build_method
    from multicse.trainers.engine.cluster import hardware, quiet

    quiet()
    recipe = write_inputs(parse(load(paper).RECIPES, "", [name, *changes]))
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
    """Run the command line; the exit code is 1 if shards differ from their dataset.json."""
    arguments, rest = read_options(Arguments, argv, return_unknown_args=True)
    if recipe := re.fullmatch(r"([\w./-]+\.py|[a-z_][\w-]*):([\w-]+)", arguments.what):
        if arguments.verify or arguments.samples != Arguments.samples:
            raise DataError(f"{arguments.what} is a recipe; --samples and --verify are for shards, leave them out")
        print(describe_recipe(recipe[1], recipe[2], rest))
        return 0
    if rest:
        raise DataError(f"{' '.join(rest)}: only recipes (PIPELINE:RECIPE) take options; {arguments.what} is not a recipe")
    wrong = verify_shards(arguments.what) if arguments.verify else []
    if not wrong:
        print(describe_shards(arguments.what, arguments.samples))
    for line in wrong:
        print(f"differs: {line}", file=sys.stderr)
    if arguments.verify and not wrong:
        print("\nverified: counts, sizes, fields and sha256 match dataset.json")
    return 1 if wrong else 0
