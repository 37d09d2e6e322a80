"""Tables of the papers: checks of every row without data, an interrupted and resumed table, and rendering."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy import stats
from sentence_transformers import SentenceTransformer

from multicse.data.word_vectors import write_vectors
from multicse.evaluation.load import load_model
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.sts import lee
from multicse.pipelines import multicse, sgbert, visualcse
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.reproduction import reproduce
from multicse.reproduction.tables import evidence, runs, small
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.render import judged, render, verdicts
from multicse.reproduction.tables.table import Claim, Row, Table, Values
from multicse.reproduction.tables.variants import in_variants
from multicse.trainers.engine import deliver
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.engine.run import Run
from multicse.trainers.recipe import Recipe
from tests.worlds import example


def run(table: Table, paper: str, scale: runs.Scale, rows: Any, seeds: Any, say: Any = lambda line: None) -> Values:
    """Return the values of every row."""
    return runs.values_of(rows, runs.columns_of(table, scale), runs.results(table, paper, scale, rows, seeds, say))


def distinct_rows(paper: str) -> list[Row]:
    """Return each row once, since tables share rows."""
    rows = [row for table in reproduce.tables_of(paper).values() for row in table.rows]
    return list({(row.recipe, json.dumps(dict(row.changes), default=str), row.model): row for row in rows}.values())


@pytest.mark.parametrize("paper", reproduce.PAPERS)
def test_every_row_of_every_table(paper: str) -> None:
    for key, table in reproduce.tables_of(paper).items():
        labels = [row.label for row in table.rows]
        assert len(set(labels)) == len(labels), key
        assert len(table.names) in (0, len(table.columns)), key
        assert table.reference is None or any(label.startswith(table.reference) for label in labels), key
        assert {row.reference for row in table.rows} <= {None, *labels}, key
        for row in table.rows:
            assert sum(kind is not None for kind in (row.recipe, row.model, row.lacks)) == 1, (key, row.label)
            for numbers in (row.paper, row.sd):
                assert len(numbers) in (0, len(table.columns) + table.average), (key, row.label)
    for row in distinct_rows(paper):
        if row.recipe is not None:
            check_settings(runs.recipe_of(row))


def test_coverage_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "papers" / "coverage.md"
    assert written.read_text(encoding="utf-8") == reproduce.coverage()


def test_pages_contain_the_stored_results() -> None:
    """Every stored number names its run, commit and data."""
    docs = Path(__file__).parents[2] / "docs"
    names = ("results/results.md", "dev/small-scale.md", "tutorials/new-language.md")
    pages = {docs / name: (docs / name).read_text(encoding="utf-8") for name in names}
    assert {page: reproduce.rendered(page)[0] for page in pages} == pages
    stored = {file.name: file for file in (docs / "results").glob("*.json")}
    marked = {Path(name).name for text in pages.values() for name in reproduce.MARKED.findall(text)}
    linked = re.findall(r"\]\(../results/(\S+\.json)\)", (docs / "dev" / "performance.md").read_text(encoding="utf-8"))
    assert set(stored) == marked | set(linked)
    for file in stored.values():
        for result in json.loads(file.read_text(encoding="utf-8")).get("results", ()):
            assert {"scores", "commit"} < set(result)
            assert "recipe" not in result or {"seed", "run", "identity", "data", "rates"} < set(result)


def test_pages_say_what_rows_are_not() -> None:
    """Rows of the small scale name their encoder, untrained winners are marked, and several commits are listed."""
    result = {"scores": {"lee": 1.0}, "commit": "a" * 40}
    kept = {"paper": "sgbert", "table": "T1", "mini": True, "seeds": [1, 2], "columns": ["lee"]}
    results = [
        {**result, "label": "BERT-base SG", "best_step": 0},
        {**result, "label": "BERT-base SG", "best_step": 5},
        {**result, "label": "SimCSE", "best_step": 0, "commit": "b" * 40},
        {**result, "label": "BERT's attention", "best_step": 7},
    ]
    marks = reproduce._marks(kept | {"results": results})
    assert marks == {"BERT-base SG": " [small-bert-en, best step 0: 1 of 2]", "SimCSE": " [best step 0]"}
    lines = reproduce._explained(kept | {"results": results})
    assert [line.partition(":")[0] for line in lines] == [
        "[small-bert-en]",
        "[best step 0]",
        "Measured with several commits",
    ]
    assert "2 of 3 trained rows" in lines[1] and lines[2].endswith("aaaaaaaa, except bbbbbbbb: 'SimCSE'.")


def test_the_steps_on_the_page_are_those_of_the_stored_runs() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results"
    page = " ".join((folder / "results.md").read_text().split())
    form = (
        r"as (\d+) steps of SimCSE \(CLIP's table: as (\d+) steps of CLIP; TSDAE's and MoCoUTRL's: as (\d+) steps of SimCSE;"
    )
    ((most, clip, longer),) = re.findall(form, page)
    for paper, label, steps in (
        ("nonlingcse", "SimCSE", most),
        ("clip", "CLIP", clip),
        ("tsdae", "SimCSE", longer),
        ("mocoutrl", "SimCSE", longer),
    ):
        results = json.loads((folder / f"evidence-{paper}.json").read_text())["results"]
        assert {result["steps"] for result in results if result["label"] == label} == {int(steps)}


def smallest(recipe: Recipe, offline: Offline) -> Recipe:
    return recipe.replace("run.max_steps", 2).replace("evaluation.eval_steps", 2)


def test_missing_data_is_reported_with_the_command_that_provides_it(tmp_path: Path) -> None:
    models = ("google-bert/bert-base-uncased", f"{SMALL_ENCODER}@last2+flow:shards/stsb-sentences")
    rows = (Row("BERT", "simcse/bert-base"), *(Row(model, model=model) for model in models))
    table = Table("none", ("stsb-dev",), rows)
    reported = "\n".join(runs.missing(table, "sgbert", runs.Scale(tmp_path, tmp_path / "data"), rows))
    for part in (str(tmp_path / "data"), "encoder.path", "prepare.py wiki1m", "prepare.py stsb-sentences", "hf download"):
        assert part in reported


@pytest.mark.usefixtures("tracking_uri")
def test_an_interrupted_table_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(small.OWN, "sgbert", smallest)
    rows = (Row("untuned", model="google-bert/bert-base-uncased"), Row("SimCSE", "simcse/smoke"))
    table = Table("a small one", ("stsb-dev", "sickr"), rows, mini=("lee",), reference="untuned")
    scale = runs.Scale(tmp_path, tmp_path, mini=True)
    fitted: list[int] = []
    train = Run.train

    def counted(self: Run, *arguments: Any, **more: Any) -> None:
        fitted.extend([] if "summary" in self.record else [self.recipe.run.seed])
        train(self, *arguments, **more)

    monkeypatch.setattr(Run, "train", counted)
    monkeypatch.setattr(deliver, "draw_figures", lambda *_: None)  # they take longer than the training

    def stop(line: str) -> None:
        if "seed 2" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(table, "sgbert", scale, rows, (1, 2), stop)
    values = run(table, "sgbert", scale, rows, (1, 2))
    assert fitted == [1, 2]
    assert run(table, "sgbert", scale, rows, (1, 2)) == values
    assert fitted == [1, 2]
    stored = [json.loads(file.read_text()) for file in (tmp_path / "results").iterdir()]
    (second,) = (content for content in stored if content.get("seed") == 2)
    assert {"identity", "commit", "data", "provenance"} <= set(second)
    export = SentenceTransformer(second["model"])
    pairs = lee("lee").pairs
    a, b = (export.encode(list(side), normalize_embeddings=True) for side in (pairs.first, pairs.second))
    assert values["SimCSE"]["lee"][1] == pytest.approx(100 * stats.spearmanr((a * b).sum(1), pairs.gold)[0], abs=1e-3)


def test_a_rendered_table() -> None:
    rows = (
        Row("a", "x", paper=(1.0, 2.0, 1.5), sd=(0.1, None, 0.2)),
        Row("b", "y", paper=(3.0, None, None)),
        Row("c", lacks="not published"),
    )
    values: Values = {
        "a": {"mr": [1.0, 2.0], "cr": [4.0, 4.5]},
        "b": {"mr": [3.0, 5.0], "cr": [6.0, 6.7]},
        "c": {"mr": [], "cr": []},
    }
    table = Table("t", ("mr", "cr"), rows, average=True, reference="a")
    lines = [line.split() for line in render(table, ("mr", "cr"), rows, values).splitlines()]
    assert lines[2] == ["a", "ours", *["1.50", "±", "0.71", "4.25", "±", "0.35", "2.88", "±", "0.53"]]
    assert lines[3] == ["paper", *["1.00", "±", "0.10", "2.00", "1.50", "±", "0.20"]]
    assert lines[4] == ["difference", "+0.50", "+2.25", "+1.38"]
    p = [f"{stats.ttest_rel(values['a'][name], values['b'][name]).pvalue:.2g}" for name in ("mr", "cr")]
    assert lines[8][:3] == ["p", *p]
    assert lines[9] == ["c", "-", "-", "-"]
    small = {label: dict(zip(("a", "b"), by_column.values(), strict=True)) for label, by_column in values.items()}
    stands_in = [line.split() for line in render(table, ("a", "b"), rows, small).splitlines()]
    assert stands_in[1:] == lines[1:]  # all but the heads


def test_verdicts_of_claims() -> None:
    """By scipy, with p times the number of claims that are not smaller (Holm)."""
    seeds = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    a, b, c, d = (list(mean + seeds * sd) for mean, sd in ((50, 0.3), (52, 0.2), (49, 0.2), (50.1, -0.4)))
    rows = (*(Row(label, "x") for label in "abcd"), Row("w", model="y"), Row("e", "x"))
    claims = (*(Claim(f"{row} beats a", row, "a") for row in "bcd"), Claim("b beats w", "b", "w"), Claim("none", "e", "a"))
    table = Table("t", ("mr", "cr"), rows, claims=claims)
    measured = {"a": a, "b": b, "c": c, "d": d, "w": [51.0], "e": []}
    values: Values = {label: {"mr": several, "cr": several} for label, several in measured.items()}
    lines = verdicts(judged(table, ("mr", "cr"), values)).splitlines()[2:6]
    p = [*(stats.ttest_rel(a, other).pvalue for other in (b, c, d)), stats.ttest_1samp(b, 51.0).pvalue]
    corrected = [min(1, max(sum(r >= q for r in p) * q for q in p if q <= one)) for one in p]
    words = ("confirmed", "contradicted", "inconclusive", "confirmed")
    for line, value, verdict in zip(lines, corrected, words, strict=True):
        assert re.search(rf" {value:.2g} +- +(-|[01].[0-9]+) +{verdict}$", line)
    interval = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert f"+2.00  {interval.low:+.2f} to {interval.high:+.2f}" in lines[0]
    known = stats.ttest_1samp(b, 51.0).confidence_interval(0.95)
    assert f"+1.00  {known.low - 51:+.2f} to {known.high - 51:+.2f}" in lines[3]


@pytest.fixture(scope="module")
def mini(datasets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[runs.Scale]:
    """Pack the data of the small scale once, without training word vectors, which takes minutes."""

    def one_word(sentences: list[str], folder: str, **settings: Any) -> Path:
        return write_vectors(folder, ["a"], np.ones((1, 9)))

    with mock.patch("multicse.reproduction.tables.offline.train_vectors", one_word):
        yield runs.Scale(tmp_path_factory.mktemp("mini"), datasets, mini=True)


@pytest.mark.parametrize("paper", reproduce.PAPERS)
def test_every_row_at_the_small_scale(paper: str, mini: runs.Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """All data of the rows is available, and their settings fit the small encoder, on a GPU, too."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("MULTICSE_DISTILBERT", SMALL_ENCODER)
    tables, rows = reproduce.tables_of(paper), distinct_rows(paper)
    assert runs.missing(next(iter(tables.values())), paper, mini, rows) == []
    for row in rows:
        if row.recipe is not None:
            recipe = runs.scaled(row, paper, mini)
            check_settings(recipe)
            check_settings(runs.scaled(row, paper, replace(mini, gpus=1)))
            assert 0 < (recipe.run.max_steps or 1) <= 300, row.label


@pytest.mark.parametrize("key", reproduce.tables_of("evidence"))
def test_evidence_at_the_small_scale(key: str, mini: runs.Scale) -> None:
    """Rows differ, and no row has more compute than SimCSE."""
    table = reproduce.tables_of("evidence")[key]
    found = {row.label: evidence.mini(runs.recipe_of(row), mini.offline) for row in table.rows if row.recipe}
    for recipe in found.values():
        assert recipe.evaluation.select
        if recipe.paper not in ("gclsr", "cyclip", "mocoutrl") and key != "distilbert":
            steps = evidence.TUNED_STEPS if "minilm" in str(recipe.flat()["encoder.path"]).lower() else evidence.STEPS
            assert recipe.run.max_steps == pytest.approx(steps * evidence.share_of_contrast(recipe), abs=1)
        if key == "distilbert":  # only the data and the encoder are not the paper's
            settings = (recipe, sgbert.bert_base())
            kept = [
                {k: v for k, v in one.flat().items() if re.match(r"method\.(?!loss|positive)|optim|run\.epochs", k)}
                for one in settings
            ]
            assert kept[0] == kept[1] and (recipe.run.max_steps, recipe.evaluation.eval_steps) == (None, 50)
    assert len({recipe.replace("name", "x").identity() for recipe in found.values()}) == len(found)
    assert {claim.row for claim in table.claims} | {claim.against for claim in table.claims} <= {r.label for r in table.rows}


def test_compute_of_a_step_in_tokens() -> None:
    """64 sentences of 32 tokens twice, 48 digits of 16 patches and [CLS] twice; a teacher's layers forward alone."""
    digits = 48 * 2 * 17 * 3 / (64 * 2 * 32 * 3)
    assert evidence.share_of_contrast(visualcse.demo()) == pytest.approx(1 / (1 + digits))
    shares = {name: evidence.share_of_contrast(multicse.small(name)) for name in ("text", "guidance", "synonyms", "images")}
    assert shares == pytest.approx({"text": 1, "guidance": 6 / 7, "synonyms": 6 / 9, "images": 1 / (1 + digits)})
    assert evidence.share_of_contrast(sgbert.demo()) == pytest.approx(6 / 4)
    assert evidence.share_of_contrast(example("simcsepp").demo()) == pytest.approx(6 / 9)  # a third pass, without dropout
    layers, softmax = 2 * (4 * 192 * 192 + 2 * 192 * 384), 8000 * 192  # weights of the small encoder
    assert evidence.share_of_contrast(example("tsdae").demo()) == pytest.approx(2 / (0.4 + 1 + softmax / layers))
    assert evidence.share_of_contrast(example("uml").demo()) == pytest.approx(1 / (1 + digits / 2))  # one view


def test_the_grid_of_clap_searches_the_weights_that_a_model_has(tmp_path: Path) -> None:
    table = reproduce.tables_of("clip")["T5a"]
    paper, small_scale = (runs.Scale(tmp_path, tmp_path, mini=mini) for mini in (False, True))
    rows = {row.label: runs.recipe_of(row) for row in table.rows}
    sizes = {label: len(runs.candidates_of(recipe, table, paper)) for label, recipe in rows.items()}
    expected = {"CLAP": 0, "CLAPs": 3, "CyCLAP": 9, "CyCLAPs": 27}
    assert sizes == {label: expected[label.partition(",")[0]] for label in rows}
    tried = runs.candidates_of(rows["CyCLAPs, repaired"], table, paper).values()
    names = ("method.i_cyclic", "method.c_cyclic", "method.captions")
    weights = {tuple(one.flat()[name] for name in names) for one in tried}
    assert weights == set(itertools.product((0.1, 0.25, 0.5), repeat=3))
    assert runs.candidates_of(rows["CyCLAPs, repaired"], table, small_scale) == {}


def test_rows_that_a_seed_changes() -> None:
    """Trained rows, supervised models and flows always; rows with a classifier if the paper specifies its seeds."""
    tables = reproduce.tables_of("sgbert")
    seeded = {
        key: {row.label for row in tables[key].rows if runs.is_seeded(row, tables[key])} for key in ("T1", "T4", "T10")
    }
    trained = {row.label for row in tables["T1"].rows if row.recipe}
    assert seeded["T1"] == trained | {f"{model} Flow" for model in ("BERT-base", "BERT-large", "SBERT-base", "SBERT-large")}
    for key in ("T4", "T10"):
        assert seeded[key] == {row.label for row in tables[key].rows if not row.lacks}
    transfer = reproduce.tables_of("gclsr")["T3"]
    assert not any(runs.is_seeded(row, transfer) for row in transfer.rows if row.model)
    figure = reproduce.tables_of("mocoutrl")["F2"]
    assert [row.label for row in figure.rows if row.model and runs.is_seeded(row, figure)] == ["DeBERTa (supervised)"]


def test_rows_without_seeds_of_the_paper_have_the_seed_of_their_code() -> None:
    """GCLSR's code has seed 2, LAION's script 3407; a table with seeds has them in all rows."""
    for paper, key, label, seed in (
        ("gclsr", "T4", "64, as released", 2),
        ("clip", "T5a", "CLAP, as released", 3407),
        ("gclsr", "T2", "BERT base-flow", 0),
    ):
        table = reproduce.tables_of(paper)[key]
        (row,) = (row for row in table.rows if row.label == label)
        assert table.seeds is None and runs.seeds_of(row, None) == (seed,) and runs.seeds_of(row, (5, 6)) == (5, 6)


def test_figure_2c_shows_the_models_of_table_5b(tmp_path: Path) -> None:
    tables, scale = reproduce.tables_of("clip"), runs.Scale(tmp_path, tmp_path)
    shown, measured = (
        {
            tuple(one.identity() for one in ([recipe, *runs.candidates_of(recipe, tables[key], scale).values()]))
            for recipe in (runs.recipe_of(row) for row in tables[key].rows if not row.label.endswith("as printed"))
        }
        for key in ("F2c", "T5b")
    )
    assert shown == measured and len(shown) == 4


def test_variants_of_a_row() -> None:
    """Equal variants share a row, each is compared with the same variant, and a rejected variant shows the reason."""
    own = {"method.loss": "opt2"}
    rows = [Row("SG-OPT", "sgbert/bert-base"), Row("SG", "sgbert/bert-base", {"method.loss": "sg"}), Row("x", model="m")]
    rows += [Row("opt2", "sgbert/bert-base", own, variants=("as released", "repaired")), Row("s", "simcse/bert-base")]
    found = {row.label: row for row in in_variants(rows, "SG-OPT", ("sgbert",))}
    both, released = "as printed and repaired", "as released"
    labels = [f"{label}, {how}" for label in ("SG-OPT", "SG") for how in (both, released)]
    assert list(found) == [*labels, "x", "opt2, as released", "opt2, repaired", "s"]
    assert found["opt2, as released"].reference == "SG-OPT, as released"
    assert found["opt2, repaired"].reference == found["x"].reference == f"SG-OPT, {both}"
    assert found["opt2, as released"].changes == {**sgbert.RELEASED, **own}
    shared = in_variants([Row("x", "sgbert/bert-base", variants=("as released and repaired",))], None, ("sgbert",))
    assert [(row.label, row.recipe, row.changes) for row in shared] == [
        ("x, as released and repaired", "sgbert/bert-base", {})
    ]
    assert found["SG, as released"].recipe is None and "released code has 2b rows" in (found["SG, as released"].lacks or "")


def test_a_dry_run_of_all_tables_counts_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SG-BERT's Table 10 by hand: SG-OPT in two variants and BERT-base, eight seeds each; no data is available."""
    for paper in reproduce.PAPERS:
        assert reproduce.main([paper, "all", "--dry-run", "--out", str(tmp_path / "out"), "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(not line.startswith(" ") for line in lines) == sum(len(reproduce.tables_of(p)) for p in reproduce.PAPERS)
    assert "sgbert T10: 16 runs of 2 rows, 8 evaluations of untrained models" in lines
    assert lines[lines.index("sgbert T8: nothing to run") + 1].startswith(
        "  not run: Random seed: 1 2 3 4 1234 2345 3456 7890, Evaluation step, "
    )
    assert not (tmp_path / "out").exists()


def test_a_row_that_cannot_be_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("CLEAR", "other"):
        assert reproduce.main(["gclsr", "T2", "--dry-run", "--rows", label]) == 2
        error = capsys.readouterr().err
        assert ("not published: weights of CLEAR" in error) == (label == "CLEAR")
        assert "GCLSR-base+EDA, repaired" in error.partition("Rows: ")[2] and "CLEAR" not in error.partition("Rows: ")[2]


def test_only_requested_rows_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CLEAR, which cannot be run, is in the whole table only."""

    def scored(table: Table, paper: str, scale: runs.Scale, rows: Sequence[Row], *_: Any) -> list[dict[str, Any]]:
        return [{"label": row.label, "scores": dict.fromkeys(table.columns, 1.0)} for row in rows if not row.lacks]

    monkeypatch.setattr(runs, "missing", lambda *_: [])
    monkeypatch.setattr(runs, "results", scored)
    one = "GCLSR-base+EDA, repaired"
    for given in ((), ("--rows", one)):
        assert reproduce.main(["gclsr", "T2", "--out", str(tmp_path), *given]) == 0
        printed = capsys.readouterr().out
        assert one in printed and ("CLEAR" in printed) == ("BERT" in printed) == (not given)


def test_tables_without_runs_are_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for paper, key, shown in (("sgbert", "T8", "0.01"), ("sgbert", "F2", "trainers/sgbert.py"), ("gclsr", "T1", "in words")):
        assert reproduce.main([paper, key, "--out", str(tmp_path / "new")]) == 0
        printed = capsys.readouterr().out
        assert (tmp_path / "new" / f"{paper}-{key}.txt").read_text() == printed
        assert "Nothing to run." in printed and shown in printed


def test_published_models_are_evaluated_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untrained rows, and in place of trained rows what was published, once each; on the tasks whose data is available."""
    ratings = "".join(f"A cat number {i} sleeps.\tA dog number {i % 5} sleeps.\t{i % 5}\n" for i in range(30))
    (tmp_path / "STSB.dev.raw.tsv").write_text(f"sentence1\tsentence2\tscore\n{ratings}")
    rows = (
        Row("untrained", model=f"{SMALL_ENCODER}@mean", paper=(50.0, 60.0)),
        Row("SimCSE", "simcse/bert-base", published=f"{SMALL_ENCODER}@cls", paper=(70.0, 80.0)),
        Row("SimCSE, again", "simcse/bert-base", published=f"{SMALL_ENCODER}@cls"),
        Row("ours alone", "simcse/bert-base"),
    )
    table = Table("t", ("stsb-dev", "stsb-test"), rows)
    monkeypatch.setattr(reproduce, "tables_of", lambda paper: {"T1": table})
    command = ["sgbert", "T1", "--published", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert reproduce.main(command) == 0
    kept = json.loads((tmp_path / "out" / "sgbert-T1-published.json").read_text())
    assert kept["columns"] == [table.columns[0]] and not (tmp_path / "out" / "runs").exists()
    found = {one["label"]: one["scores"][table.columns[0]] for one in kept["results"]}
    (task,) = make_tasks([table.columns[0]], tmp_path)
    wanted = {"untrained": "mean", "SimCSE": "cls"}
    assert found == pytest.approx(
        {label: task.score(load_model(f"{SMALL_ENCODER}@{how}")).metrics["spearman"] for label, how in wanted.items()}
    )
    text = (tmp_path / "out" / "sgbert-T1-published.txt").read_text()
    assert "Not evaluated, data not found: stsb-test" in text and "Nothing was trained" in text
    assert f"{found['SimCSE'] - 70:+.2f}" in text
