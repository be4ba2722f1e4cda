"""Tests that the papers page agrees with the suite files and the declarations, which are read here a second time."""

import re

import pytest
import yaml
from site_pages import site_page

from saliency_bench import registry
from saliency_bench.bound_metric import list_metrics, registered_metric
from saliency_bench.recipes.suites.suite_schema import suite_files

# a suite that does not belong to a paper
FILES = {name: path for name, path in suite_files().items() if name != "reference"}
PAPERS = {"p0": "ZHANG_2023", "p1": "LI_2020", "p2": "LU_2021", "p3": "ELISHA_2025"}  # citation keys of the metrics


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    """Return {paper: {heading: rows of its table, each a list of cells}} of the page that the site includes."""
    folder = tmp_path_factory.mktemp("page")
    site_page("papers").write(folder)
    text = (folder / "papers.md").read_text(encoding="utf-8")
    by_paper = {}
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        headings = re.split(r"^### (.+)$", part, flags=re.M)
        by_paper[part[:2].lower()] = {
            name: [cells(line) for line in table.splitlines() if line.startswith("| ")][2:]
            for name, table in zip(headings[1::2], headings[2::2], strict=True)
        }
    return by_paper


def cells(line):
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("name", FILES)
def test_page_lists_every_item_with_command_and_figures(sections, name):
    content = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    items = content["tables"] | content.get("pictures", {})
    rows = {row[0].strip("`"): row for row in sections[name]["Items"]}
    assert list(rows) == list(items)
    for item, about in items.items():
        _, title, command, runs, status, why = rows[item]
        assert title == about["title"]
        figures = [figure for row in about.get("figures", []) for figure in row if figure is not None]
        assert command == f"`saliency-bench suite {item} --data datasets --out suites{' --compare' if figures else ''}`"
        assert (f"{len(figures)} published numbers" in status) == bool(figures)
        people = any(
            value.get("crowd") or value.get("against") == "crowd" for value in about.get("values", {}).values()
        )
        assert ("people's answers" in status) == people
        assert why == " ".join(" ".join(note["note"].split()) for note in about.get("notes", []))
        shown = about.get("show", {}) if item in content.get("pictures", {}) else {}
        texts = [
            value[key] for value in about.get("values", {}).values() for key in ("metric", "against") if key in value
        ]
        if runs.startswith("none"):
            assert not texts
            continue
        for run in about["runs"]:
            entry = content["runs"][run]
            for axis in ("dataset", "model", "explainer"):
                for each in entry[f"{axis}s"]:
                    assert each not in shown.get(axis, [each]) or each in runs
        for text in texts:
            assert text == "crowd" or text.partition("{")[0] in runs


@pytest.mark.parametrize("name", FILES)
def test_page_lists_decisions_and_dataset_counts(sections, name):
    content = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    settings = next(rows for heading, rows in sections[name].items() if heading.startswith("Settings"))
    for decision in content["decisions"]:
        for about in decision.get("about") or [""]:
            assert any(row[0] == about and decision["paper"] in row[1] and decision["run"].rstrip(".") in row[2]
                       for row in settings), decision  # fmt: skip
    datasets = {row[0].strip("`"): row for row in sections[name]["Datasets"]}
    assert list(datasets) == list(content["datasets"])
    for dataset, entry in content["datasets"].items():
        builder = registry.load("hub_builders", entry["name"])
        out = f"datasets/{entry.get('folder', entry['name'])}"  # where --data datasets looks for the folder
        assert datasets[dataset][1] == f"`{' '.join(entry['build'].split())} --source DIR --out {out}`"
        assert all(str(count) in datasets[dataset][2] for count in builder.PAPER_COUNTS.values())
        assert datasets[dataset][3].startswith("yes" if builder.REDISTRIBUTE else "no")


@pytest.mark.parametrize("name", PAPERS)
def test_page_lists_every_metric_of_a_paper(sections, name):
    from saliency_bench.metrics import _papers

    paper = getattr(_papers, PAPERS[name])
    expected = {metric for metric in list_metrics() if registered_metric(metric).declaration.paper == paper}
    rows = {row[0].strip("`"): row for row in sections[name]["Metrics"]}
    assert expected <= rows.keys()
    for metric, row in rows.items():
        assert row[1] == str(registered_metric(metric).declaration.version)
