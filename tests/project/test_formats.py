"""Tests that the page of formats describes all files and fields that exist."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from refusals import refused
from run_order import in_run_order

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.board import submission_schema, template
from saliency_bench.board.index import INDEX
from saliency_bench.read import manifest, parts, records, stored_maps, summary
from saliency_bench.read.cell import CellResult
from saliency_bench.utils.files import read_json, write_json

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def section(page, heading):
    """Return the rows of the table below a heading as [{names in the first column}, other columns]."""
    text = page.partition(f"# {heading}\n")[2].partition("\n#")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", first), *(cell.strip() for cell in others)) for first, *others in rows]


@pytest.fixture(scope="module")
def run(shapes, resnet, tmp_path_factory):
    return sb.run(dataset=str(shapes), model=str(resnet), explainers=["smoothgrad:samples=2"],
                  metrics=["saliency_miou"], limit=4, keep_maps=True, device="cpu",
                  out=tmp_path_factory.mktemp("run") / "run", progress=False)  # fmt: skip


def test_documented_format_numbers_match_the_code(page, run):
    stated = {name: number for names, number, *_ in section(page, "The folder of a run") for name in names}
    assert stated["run.json"] == str(manifest.FORMAT) == str(read_json(run.folder / "run.json")["format"])
    assert stated["summary.json"] == stated["records.parquet"] == stated["predictions.parquet"] == str(summary.FORMAT)
    assert (stated["reliability.parquet"], stated["maps/"]) == (str(summary.FORMAT), str(parts.FORMAT))
    others = {names[0]: number for names, number, *_ in section(page, "Other files")}
    assert others == {"result.json": str(submission_schema.FORMAT), "template.json": str(template.FORMAT), INDEX: "–"}


def test_page_names_every_file_of_a_run(page, run):
    stated = {name.rstrip("/") for names, *_ in section(page, "The folder of a run") for name in names}
    assert {path.name for path in run.folder.iterdir() if path.name != ".lock"} == stated


TYPES = {"string": "string", "double": "double", "int64": "int64", "bool": "bool",
         "list of int64": "list<item: int64>", "list of float": "list<item: float>"}  # fmt: skip


@pytest.mark.parametrize(("name", "columns"), [
    ("records.parquet", records.SCHEMA), ("predictions.parquet", records.PREDICTIONS),
    ("reliability.parquet", records.RELIABILITY),
])  # fmt: skip
def test_documented_columns_match_the_files(name, columns, page, run):
    stated = {column: TYPES[kind] for names, kind, _ in section(page, f"`{name}`") for column in names}
    assert stated == {field.name: str(field.type).replace("element", "item") for field in columns}
    assert set(stated) <= set(pq.read_schema(run.folder / name).names)


def test_documented_map_columns_match_the_files(page, run):
    kinds = TYPES | {"float": "float", "lists of half": "list<item: list<item: halffloat>>"}
    stated = {column: kinds[kind] for names, kind, _ in section(page, "`maps/`") for column in names}
    assert stated == {field.name: str(field.type) for field in stored_maps.SCHEMA}
    (path,) = (run.folder / "maps").rglob("*.parquet")
    assert set(pq.read_schema(path).names) == set(stated)


def test_rows_are_in_the_documented_order(page, run, shapes):
    assert "groups are sorted by a hash of seed, dataset and group" in " ".join(page.split())
    ids = in_run_order(sb.load_dataset(str(shapes), split="test"))["image_id"][:4]
    assert [row["image_id"] for row in run.predictions()] == ids
    assert [row["image_id"] for row in run.records()] == ids


def test_documented_summary_keys_match_the_files(page, run):
    stated = [name for names, _ in section(page, "`summary.json`") for name in names]
    assert sorted(stated) == sorted(read_json(run.folder / "summary.json"))
    about = page.partition("The fields of a cell:\n\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", about)) == set(CellResult.model_fields) == set(run.summary["cells"][0])


def test_unknown_format_is_rejected(run, tmp_path):
    for path in run.folder.iterdir():
        if path.is_file() and path.name != ".lock":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in ("summary.json", "run.json"):
        content = read_json(run.folder / name)
        write_json(tmp_path / name, content | {"format": content["format"] + 1})
        refused(rf"{name}.* format {content['format'] + 1}", sb.load_run, tmp_path)
        write_json(tmp_path / name, content)
    assert sb.load_run(tmp_path).cells == run.cells


def test_frozen_names_exist(page):
    frozen = page.partition("## What may change")[2]
    names = re.findall(r"`sb\.(\w+)`", frozen)
    assert len(names) > 20
    assert [name for name in names if not hasattr(sb, name)] == []
    commands = re.findall(r"`([a-z]+)`", frozen.partition("Frozen commands")[2].partition("\n\n")[0])
    assert len(commands) > 10
    assert set(commands) <= set(registry.names("push_scripts"))
    assert set(re.findall(r"`(saliency_bench\.\w+)`", frozen)) == set(registry.GROUPS.values())
