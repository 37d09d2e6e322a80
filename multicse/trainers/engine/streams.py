"""The streams of a run: their readers, and the samples that these skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from multicse.data.stream import Reader
from multicse.trainers.engine.hosts import Host, from_all_ranks
from multicse.trainers.recipe import Recipe

SKIPPED_LISTED = 10_000
"""Maximum number of skipped samples per stream that rank 0 lists with key and reason."""


class Streams:
    """Streams that a method uses. Entered as a context manager, they are read from their positions, by the readers it gives.

    Args:
        recipe: Recipe.
        host: Host of the loop.
        tokenize: Function from texts and their largest length to token tensors.
    """

    def __init__(self, recipe: Recipe, host: Host, tokenize: Callable[..., dict[str, Tensor]]) -> None:
        self.recipe, self.host, self.tokenize = recipe, host, tokenize
        self.shards = {name: recipe.shards(name) for name in recipe.streams}
        self.readers: dict[str, Reader] = {}
        self.positions: dict[str, dict[str, Any]] = {}
        """State of the reader of each stream, from which it begins."""
        self.skipped: dict[str, list[tuple[str, str]]] = {name: [] for name in recipe.streams}
        """Key and reason of the first `SKIPPED_LISTED` samples of each stream that rank 0 skipped."""
        self.skips = dict.fromkeys(recipe.streams, 0)
        """Samples that this rank skipped; rank 0 also counts the samples of all ranks before a resume."""

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.recipe.steps(self.shards[self.recipe.lead].samples)

    def __enter__(self) -> dict[str, Reader]:
        used = {name for streams in self.recipe.method.updates().values() for name in streams}
        self.readers.update({name: self._reader(name).__enter__() for name in self.recipe.streams if name in used})
        return self.readers

    def __exit__(self, *_: object) -> None:
        for reader in self.readers.values():
            reader.close()

    def _reader(self, name: str) -> Reader:
        config: Any = self.recipe.streams[name]
        return Reader(
            config,
            name,
            self.shards[name],
            seed=self.recipe.run.seed,
            rank=self.host.rank,
            world_size=self.host.world_size,
            tokenize=partial(self.tokenize, max_length=config.max_length) if config.texts else None,
            batches=self.steps * self.recipe.run.gradient_accumulation_steps,
            inline=self.host.inline,
            streams=len(self.recipe.streams),
            device=self.host.device,
            **self.positions.get(name, {}),
        )

    def count_skipped(self) -> None:
        """Add the skipped samples of the readers to the counts and the list, and empty the readers' lists."""
        for name, reader in self.readers.items():
            self.skips[name] += len(reader.skipped)
            if self.host.rank == 0:
                self.skipped[name] += reader.skipped[: max(0, SKIPPED_LISTED - len(self.skipped[name]))]
            reader.skipped = []

    def state_dict(self) -> dict[str, Any]:
        """Return the positions in all segments, and the skipped samples of all ranks; a collective."""
        self.count_skipped()
        mine = {name: reader.state_dict() for name, reader in self.readers.items()}
        ranks, skips = zip(*from_all_ranks((mine, self.skips), self.host), strict=True)
        for name, state in mine.items():
            state["position"] = {segment: at for rank in ranks for segment, at in rank[name]["position"].items()}
        total = {name: sum(rank[name] for rank in skips) for name in self.skips}
        return {"positions": mine, "skipped": self.skipped, "skips": total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the positions on any number of ranks, and the skipped samples on rank 0."""
        self.positions = state["positions"]
        if self.host.rank == 0:
            self.skipped, self.skips = state["skipped"], state["skips"]
