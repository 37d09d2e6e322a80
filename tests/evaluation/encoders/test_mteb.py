"""mteb on an exported folder, without code of ours: the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.tasks.sts import PairTask, pair_task

mteb = pytest.importorskip("mteb")

SMALL_BERT = Path(__file__).resolve().parents[3] / "models" / "small-bert-en"


def local_task(pairs: PairTask) -> Any:
    """Our pairs as a task of mteb that downloads nothing."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS

    class Local(AbsTaskSTS):
        metadata = mteb.get_task("STSBenchmark").metadata.model_copy(update={"name": "LocalPairs", "superseded_by": None})

        def load_data(self, num_proc: int | None = None, *, timer: Any = None, **settings: Any) -> None:
            columns = {"sentence1": pairs.pairs.first, "sentence2": pairs.pairs.second, "score": pairs.pairs.gold}
            self.dataset = DatasetDict({"test": Dataset.from_dict({n: list(c) for n, c in columns.items()})})
            self.data_loaded = True

    return Local()


def run(model: Any, task: Any, cache: Path) -> dict[str, Any]:
    """What mteb measures, with its results written to `cache`."""
    results = mteb.evaluate(
        model, task, cache=mteb.ResultCache(cache_path=cache), show_progress_bar=False, co2_tracker=False
    )
    (scores,) = results.task_results[0].scores["test"]
    return dict(scores)


def agrees(theirs: dict[str, Any], pairs: PairTask, encoder: Any) -> None:
    ours = pairs.score(encoder).metrics
    for metric in ("spearman", "pearson"):
        for name in (metric, f"cosine_{metric}"):
            assert theirs[name] == pytest.approx(ours[metric] / 100, abs=1e-4)


def test_an_exported_folder_on_stsb(datasets: Path, tmp_path: Path) -> None:
    pairs = pair_task(datasets / "sts" / "STSB.dev.raw.tsv")
    encoder = load_encoder(SMALL_BERT, device="cpu")
    exported = SentenceTransformer(str(SMALL_BERT), device="cpu")
    agrees(run(exported, local_task(pairs), tmp_path / "export"), pairs, encoder)
