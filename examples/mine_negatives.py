"""Mine hard negatives with a model: ``python examples/mine_negatives.py MODEL PAIRS FOLDER``.

Every pair gets the most similar text of another pair whose cosine is at most 95 % of its own; more similar texts may be
positives. Train on the triples with
--streams.text.shards FOLDER --streams.text.columns sent0 sent1 hard_neg --method.supervised True.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multicse.data.errors import DataError, cli_errors
from multicse.data.shard_writer import Target, UnpackedSample, pack
from multicse.data.shards import RawSample, read
from multicse.data.streams.text import TextStream
from multicse.evaluation.encoders.encoder import load_encoder

COLUMNS = ("sent0", "sent1", "hard_neg")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", help="folder of a sentence-transformers model, such as the export of a run")
    made.add_argument("pairs", help="shards or a table, as in streams.text.shards")
    made.add_argument("out", type=Path, help="folder of the new shards")
    made.add_argument("--columns", nargs=2, default=COLUMNS[:2], help="fields with a text and its positive")
    made.add_argument("--negatives", type=int, default=1, help="negatives per pair; each gives one triple")
    made.add_argument("--margin", type=float, default=0.05, help="largest cosine: (1 - margin) times that of the pair")
    made.add_argument("--overwrite", action="store_true", help="replace existing shards in the folder")
    return made


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    given = parser().parse_args(argv)
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    stream = TextStream(shards=given.pairs, columns=tuple(given.columns))
    shards = stream.open()
    stream.check(shards)
    samples = [sample for shard in shards.shards for sample in read(shard, range(shard.samples))]
    texts = [stream.sentences(sample) for sample in samples if isinstance(sample, RawSample)]
    if bad := [sample for sample in samples if not isinstance(sample, RawSample)]:
        text = f"{len(bad)} of {len(samples)} pairs cannot be read; the first is {bad[0].key}: {bad[0].reason}"
        if not texts:
            raise DataError(f"{given.pairs}: {text}")
        print(text, file=sys.stderr)

    def triples() -> Iterator[UnpackedSample]:  # starts after `pack` has checked the folder
        mined: Any = mine_hard_negatives(
            Dataset.from_dict(dict(zip(COLUMNS, zip(*texts, strict=True), strict=False))),
            load_encoder(given.model).model,
            num_negatives=given.negatives,
            relative_margin=given.margin,
            range_max=100,  # pairs without a negative among the 100 most similar texts are left out
            verbose=False,
        )
        if not len(mined):
            raise DataError(f"no pair has a negative with --margin {given.margin:g}; give a smaller margin")
        for row in mined:
            triple = dict(zip(COLUMNS, row.values(), strict=True))
            yield UnpackedSample({"json": json.dumps(triple, ensure_ascii=False).encode()})

    target = Target(
        given.out,
        given.out.resolve().name,
        licence=shards.licence,
        language=shards.languages[0] if len(shards.languages) == 1 else "",
        source=f"{shards.source}; negatives mined with {Path(given.model).name}",
        overwrite=given.overwrite,
    )
    made = pack(triples(), target)
    print(f"{made.record['nsamples']:,} triples in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
