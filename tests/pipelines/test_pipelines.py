"""A smoke recipe through Ray Train: it trains, and leaves a model that loads."""

from __future__ import annotations

from pathlib import Path

from multicse.pipelines import parts


def test_the_shipped_encoder_is_small_and_says_where_it_comes_from() -> None:
    folder = Path(parts.SMALL_ENCODER)
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 10 * 2**20
    card = (folder / "README.md").read_text()
    for word in ("masked accuracy", "STS-B dev", "licence", "steps"):
        assert word.lower() in card.lower()
    assert not list(folder.rglob("*.bin"))
