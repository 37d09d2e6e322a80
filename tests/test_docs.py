"""Files of the repository, links, and the tests of docs/papers/errata.md that the documentation names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from docs import hooks
from multicse.commands import registry
from multicse.commands.run import VERBS
from multicse.trainers.method import bibtex

ROOT = Path(__file__).resolve().parents[1]
HISTORY = {"log.md", "decisions.md"}
"""Pages whose paths are those of their date."""
ROOT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*ROOT_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]
INVENTED = ("x", "X", "PIPELINE", "esimcse")
"""Names that stand for a file of the reader's."""
CODE = ("data", "models", "evaluation", "trainers", "tune_spaces", "pipelines", "reproduction", "benchmarks")
ROOMS = (*CODE, "tests", "docs", "examples")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Links to files, and to headings as GitHub names them."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        place, _, heading = target.partition("#")
        file = page.parent / place if place else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.stem)
def test_files_exist(page: Path) -> None:
    found = re.findall(rf"(?<![\w/.])(?:{'|'.join(ROOMS)})/[\w/-]+\.(?:py|md)\b", page.read_text())
    assert [path for path in found if not (ROOT / path).exists() and Path(path).stem not in INVENTED] == []
    modules = re.findall(r"-m (benchmarks\.[\w.]+)", page.read_text())
    assert [name for name in modules if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()] == []


def test_the_tests_of_the_errata_exist() -> None:
    """``file::test``, ``::test`` in the previous file, also in the log's fixes after a review; and names on other pages."""
    tests = {
        (file.name, name)
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    fixes = (
        (ROOT / "docs/dev/log.md")
        .read_text()
        .partition("Fixes after a review of the reproductions")[2]
        .partition("\n## ")[0]
    )
    named, file = set(), ""
    for place, name in re.findall(r"`([\w/.]*)::(test_\w+)`", (ROOT / "docs/papers/errata.md").read_text() + fixes):
        file = place or file
        assert "/" not in file or (ROOT / file).exists(), file
        named.add((Path(file).name, name))
    assert len(named) > 50 and sorted(named - tests) == []
    alone = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(alone) > 5 and sorted(alone - {name for _, name in tests}) == []
    fixed = re.findall(r"^\| (\d+) \|.*::test_\w+` \|$", fixes, re.MULTILINE)
    assert fixed == [str(number) for number in range(1, 31)]


OTHER = ("coverage", "data-sets", "errata", "multicse")
PAPERS = [page for page in PAGES if page.parent.name == "papers" and page.stem not in OTHER]


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_the_pages_of_the_papers_have_one_form(page: Path) -> None:
    titles = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    assert titles == ["Overview", "Tables", "Settings", "Data", "Unspecified in the paper", "Findings"]


def test_the_citation_has_the_papers() -> None:
    """Title, authors, year and DOI of each are those of trainers/papers.bib; the version is that of pyproject.toml."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    keys = ("jian2022nonlinguistic", "kim2021selfguided", "zhao2024language", "wang2023grouped", "zou2023mocoutrl")
    for entry, paper in zip(bibtex(keys), citation["references"], strict=True):
        fields = dict(re.findall(r"(\w+) = \{(.*)\},", entry.replace("{BERT}", "BERT").replace("{MoCoUTRL}", "MoCoUTRL")))
        authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
        ours = (paper["title"], authors, str(paper["year"]), paper.get("doi"))
        assert ours == (fields["title"], fields["author"], fields["year"], fields.get("doi"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["cff-version"], citation["version"], citation["license"]) == (
        "1.2.0",
        project["version"],
        project["license"],
    )


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """The generated parts by name, as the pages of docs/reference contain them."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = re.findall(r"^<!-- generated: (\w+) -->$", pages, re.MULTILINE)
    assert sorted(named) == sorted(hooks.PARTS)
    return {name: hooks.filled(f"<!-- generated: {name} -->") for name in named}


def test_every_command_has_its_help(reference: dict[str, str]) -> None:
    sections = re.split(r"^## ", reference["commands"], flags=re.MULTILINE)
    titles = [section.partition("\n")[0] for section in sections[1:]]
    assert sorted(titles) == sorted(["Papers", "mine", *registry.NAMES, *VERBS])
    papers = sections[1]
    assert "--recipe runs/demo" in papers and "--run.epochs" not in papers, "their settings have a page"
    (pack,) = (section for section in sections if section.startswith("pack\n"))
    assert pack.count("usage: multicse pack") == 7 and "--licence" in pack and "\x1b" not in pack
    assert str(ROOT) not in reference["commands"]


def test_the_lists_of_methods_have_every_method() -> None:
    """README's table has every pipeline and example with recipes, and the site has the pages of the papers in README."""
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("## Methods")[2].partition("\n## ")[0]
    examples = [file.stem for file in (ROOT / "examples").glob("*.py") if "RECIPES = " in file.read_text()]
    named = {name for name in (*registry.NAMES, *examples) if f"{name}.py" not in table}
    assert named == {"pretrain", "new_method", "new_modality", "new_tower"}, "tools, and examples of how to write one"
    pages = set(re.findall(r"docs/(papers/[\w-]+\.md)", table))
    site = set(re.findall(r"papers/[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert pages == site - {"papers/coverage.md", "papers/data-sets.md", "papers/errata.md"}


def test_every_setting_of_every_recipe_is_described(reference: dict[str, str]) -> None:
    """The rows of a method, or of a kind of stream, are looked up by the last name of the dotted path."""
    settings = "".join(text for name, text in reference.items() if name.startswith("settings_"))
    rows = re.findall(r"^\| `([\w.]+)` \| `.+?` \| (.+?) \| (.*) \|$", settings, re.MULTILINE)
    assert [name for name, _, meaning in rows if not meaning] == []
    described = {name: default for name, default, _ in rows}
    assert described["run.epochs"] == "`1` (> 0)" and described["evaluation.select"] == '`"stsb-dev"`'
    fields = {name.split(".")[0] + name.rpartition(".")[2] for name in described}
    for pipeline in registry.NAMES:
        for make in registry.load(pipeline).RECIPES.values():
            for path in make().flat():
                section, _, rest = path.partition(".")
                parts = rest.split(".")[section in ("streams", "optim") :]
                if section in ("run", "evaluation", "export"):
                    assert path in described
                elif parts != [""]:
                    assert any(section + part in fields for part in parts), path


def test_every_variable_of_the_environment_is_described(reference: dict[str, str]) -> None:
    page = (ROOT / "docs/reference/environment.md").read_text() + reference["limits"]
    code = "".join(file.read_text() for file in (ROOT / "multicse").rglob("*.py"))
    named = set(re.findall(r"(?:environ\.get\(|STORAGE = )\"([A-Z_]+)\"", code))
    named |= {f"MULTICSE_MAX_{name}" for name in re.findall(r"_limit\(\"(\w+)\"", code)}
    assert len(named) > 15 and sorted(name for name in named - {"PYTHONPATH"} if f"`{name}`" not in page) == []


def test_links_that_leave_the_site_show_the_file_or_become_text() -> None:
    text = "[a](../../cluster.yaml) [b](training.md#x) [c](https://x.org) [d](nowhere.md) [e](#f) [g](../dev/log.md)"
    known = {"how-to/cluster.md", "how-to/training.md", "files/cluster.yaml.md"}
    expected = "[a](../files/cluster.yaml.md) [b](training.md#x) [c](https://x.org) [d](nowhere.md) [e](#f) g"
    assert hooks.inside_the_site(text, "how-to/cluster.md", known) == expected


def test_the_site_leaves_out_columns_of_tests() -> None:
    text = "a | test |\n\n| x | test |\n|---|---|\n| `a\\|b` | `c\\|d` |\n| e | |\n\n| y | text |\n| f | g |\n"
    assert hooks.without_tests(text) == "a | test |\n\n| x |\n|---|\n| `a\\|b` |\n| e |\n\n| y | text |\n| f | g |\n"
