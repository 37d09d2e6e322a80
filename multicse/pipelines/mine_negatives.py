"""Mine hard negatives with a model: ``python pipelines/mine_negatives.py --model DIR --pairs SHARDS --out FOLDER``."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

if not __package__:  # run as a file
    import _clone  # noqa: F401

from multicse.data.errors import cli_errors
from multicse.pipelines import RULES

COLUMNS = ("sent0", "sent1", "hard_neg")
"""Fields of a triple, as `streams.text.columns` reads them."""
DEPTH = 100
"""Number of most similar texts that are considered; pairs without a negative among them are left out."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Mine hard negatives: for each pair, the most similar text of another pair that is less similar than the positive.

    The triples are written as shards. Train on them with
    --streams.text.shards FOLDER --streams.text.columns sent0 sent1 hard_neg --method.supervised True.
    """

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """Folder of a sentence-transformers model, such as the export of a run."""
    pairs: Annotated[str, tyro.conf.arg(metavar="SHARDS")]
    """Packed pairs: a folder of shards, a brace range, or several of these joined by ::."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the new shards."""
    columns: tuple[str, str] = ("sent0", "sent1")
    """Fields that contain a text and its positive."""
    negatives: int = 1
    """Number of negatives per pair; each gives one triple."""
    margin: float = 0.05
    """Relative margin: the cosine of a negative is at most (1 - margin) times the cosine of the pair, since more similar
    texts may be positives."""
    overwrite: bool = False
    """Replace existing shards in the folder."""


def mine(arguments: Arguments) -> int:
    """Write the triples and return their number.

    Raises:
        ValueError: If the pairs or the model cannot be loaded, or the package datasets is not installed.
    """
    from sentence_transformers.util import mine_hard_negatives

    from multicse.data.shard_writer import Target, UnpackedSample, pack
    from multicse.data.shards import BadSample, read
    from multicse.data.streams.text import TextStream
    from multicse.evaluation.encoders.encoder import load_encoder

    try:
        from datasets import Dataset
    except ImportError as error:
        raise ValueError(f"mine_negatives needs the package datasets ({error}): pip install datasets") from None
    stream = TextStream(shards=arguments.pairs, columns=arguments.columns)
    shards = stream.open()
    stream.check(shards)
    samples = [sample for shard in shards.shards for sample in read(shard, range(shard.samples))]
    rows = [stream.sentences(sample) for sample in samples if not isinstance(sample, BadSample)]
    if bad := [sample for sample in samples if isinstance(sample, BadSample)]:
        first = f"the first is {bad[0].key}: {bad[0].reason}"
        if not rows:
            raise ValueError(f"--pairs {arguments.pairs}: none of the {len(bad)} pairs can be read; {first}")
        log.warning("%d of %d pairs are left out; %s", len(bad), len(samples), first)

    def triples() -> Iterator[UnpackedSample]:  # begins after `pack` has checked the output
        mined: Any = mine_hard_negatives(
            Dataset.from_dict(dict(zip(COLUMNS, zip(*rows, strict=True), strict=False))),
            load_encoder(arguments.model).model,
            num_negatives=arguments.negatives,
            relative_margin=arguments.margin,
            range_max=DEPTH,
            verbose=False,
        )
        for row in mined:
            triple = dict(zip(COLUMNS, row.values(), strict=True))
            yield UnpackedSample({"json": json.dumps(triple, ensure_ascii=False).encode()})

    output = Target(
        arguments.out,
        f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', shards.name).strip('-.') or 'pairs'}-mined",
        licence=shards.licence,
        language=shards.languages[0] if len(shards.languages) == 1 else "",
        source=f"{shards.source}; negatives mined with {Path(arguments.model).name}",
        overwrite=arguments.overwrite,
    )
    return int(pack(triples(), output).record["nsamples"])


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    arguments = tyro.cli(Arguments, args=argv, registry=RULES)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    count = mine(arguments)
    print(f"{count:,} triples in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
