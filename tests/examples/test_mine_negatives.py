"""Test mining of hard negatives, as triples for the text stream."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from multicse.data.shard_writer import Target, UnpackedSample, pack
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams.text import TextStream
from multicse.models.config import EncoderConfig
from tests.worlds import WORDS, example

mine_negatives = example("mine_negatives")
COLUMNS = mine_negatives.COLUMNS


def test_mined_triples_equal_a_loop_over_all_cosines(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentence_transformers import SentenceTransformer

    rng = np.random.default_rng(0)
    texts = list(dict.fromkeys(" ".join(rng.choice(WORDS, 6)) for _ in range(40)))
    pairs = list(zip(texts[:20], texts[20:], strict=True))
    drafts = [UnpackedSample({"json": json.dumps(dict(zip(COLUMNS, pair, strict=False))).encode()}) for pair in pairs]
    pack(drafts, Target(tmp_path / "pairs", "pairs", licence="CC0-1.0", language="sw"))
    EncoderConfig(path=str(place / "encoder")).load(()).save(str(tmp_path / "model"))

    def run(pairs: Path, out: Path) -> int:
        code: int = mine_negatives.main([str(tmp_path / "model"), str(pairs), str(out), "--margin", "0.001"])
        return code

    assert run(tmp_path / "pairs", tmp_path / "mined") == 0

    first, second = (SentenceTransformer(str(tmp_path / "model")).encode(side) for side in (texts[:20], texts[20:]))
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second))
    cosines, want = first @ second.T, set()
    for i, pair in enumerate(pairs):
        allowed = [j for j in range(20) if j != i and cosines[i, j] <= cosines[i, i] * 0.999]
        if allowed:
            want.add((*pair, pairs[max(allowed, key=lambda j: cosines[i, j])][1]))

    stream = TextStream(shards=str(tmp_path / "mined"), columns=COLUMNS)
    shards = ShardSet.open(stream.shards)
    stream.check(shards)
    samples = [sample for shard in shards.shards for sample in read(shard, range(shard.samples))]
    assert {tuple(stream.sentences(sample)) for sample in samples if isinstance(sample, RawSample)} == want
    assert (
        len(want) > 5
        and (shards.licence, shards.languages) == ("CC0-1.0", ("sw",))
        and f"{len(want)} triples" in capsys.readouterr().out
    )
    with monkeypatch.context() as patch:  # existing shards are kept, and this is found before the pairs are mined
        patch.setattr("sentence_transformers.util.mine_hard_negatives", pytest.fail)
        assert run(tmp_path / "pairs", tmp_path / "mined") == 2
