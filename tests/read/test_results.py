"""Tests of the schema of published results, and of one-line errors that name the file and the field."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

import saliency_bench as sb
from saliency_bench.board import submission_schema as results
from saliency_bench.board.checks import read_checked
from saliency_bench.board.submission import of_run
from saliency_bench.read.public_names import public_name, public_spec
from saliency_bench.spec import RunSpec
from saliency_bench.utils.hashing import hash_of


def brightness(classifier, images, target):
    return images.mean(dim=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory, shapes, resnet):
    return sb.run(
        dataset=str(shapes), model=str(resnet), explainers=["random", brightness], metrics=["saliency_miou"], limit=12,
        batch_size=8, out=tmp_path_factory.mktemp("runs") / "first", device="cpu", progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def submission(run):
    return of_run(run.folder, "ada", "first try")


@pytest.fixture
def folder(submission, tmp_path):
    return submission.write(tmp_path)[0].parent


def change(folder, edit):
    """Edit result.json by hand."""
    path = folder / "result.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_submission_round_trips(submission, folder):
    assert read_checked(folder).result == submission.result
    assert pq.read_table(folder / "records.parquet").to_pylist() == submission.records.to_pylist()
    assert folder.name.startswith("ada-")
    assert folder.parent.name.startswith("folder-tiny-")


def test_result_matches_run(run, submission):
    result = submission.result
    for told, cell in zip(result.cells, run.summary["cells"], strict=True):
        for key in ("cell_id", "value", "low", "high", "n", "explainer_version"):
            assert getattr(told, key) == cell[key], key
    assert result.cells[1].explainer == "brightness"
    assert isinstance(result.cells[1].explainer_version, str)  # a hash of its code
    assert result.dataset.fingerprint == run.summary["dataset"]["fingerprint"]
    assert len(submission.records) == 24
    assert result.note == "first try"
    assert result.peak_memory == json.loads((run.folder / "timings.json").read_text())["peak_memory"]


def test_result_contains_no_local_folders(run, submission, shapes, resnet):
    text = submission.result.model_dump_json()
    assert str(shapes.parent) not in text
    assert str(resnet.parent) not in text
    assert set(submission.records["dataset"].to_pylist()) == {submission.result.dataset.id} == {"shapes-xai"}
    assert submission.result.model.id == "folder:tiny"
    recorded = f"folder:{submission.result.model.digest[:16]}"  # independent of the name of the folder
    assert set(submission.records["model"].to_pylist()) == {recorded}


def test_public_names_omit_local_paths(tmp_path):
    assert public_name("microsoft/resnet-18", local=False) == "microsoft/resnet-18"
    assert public_name("demo/resnet", local=True) == "folder:resnet"
    for name in ("saliency-bench/pet-xai", "torchvision:resnet18", "module:Sequential", "shapes-xai"):
        assert public_name(name) == name
    assert public_name(str(tmp_path)) == f"folder:{tmp_path.name}"
    assert public_name("../secret/place/model") == "folder:model"
    own = {"dataset": "pets", "model": "net", "target": "t.csv", "groups": "groups.json", "out": "my runs/first"}
    settings = {name: f"/home/ada/{last}" for name, last in own.items()}
    spec = RunSpec.read(settings | {"explainers": ["random"], "metrics": ["saliency_miou"]})
    spec = public_spec(spec, "pet-xai", "folder:net")
    named = {"dataset": "pet-xai", "model": "folder:net", "target": "t.csv", "groups": "groups.json", "out": "first"}
    assert {name: getattr(spec, name) for name in named} == named
    assert "/" not in spec.command()


def test_cell_id_can_be_recomputed_from_result(run, submission):
    """Compute the id again from run.json and the definition of the hash."""
    plan = json.loads((run.folder / "run.json").read_text())
    setting = {key: value for key, value in plan["identity"].items()
               if key not in {"groups", "activation", "label_column"}}  # fmt: skip
    cell = submission.result.cells[0]
    metric = [cell.metric, json.dumps(cell.metric_options, sort_keys=True), cell.metric_version]
    assert cell.cell_id == hash_of(setting, ["random", "{}", cell.explainer_version], metric)


def test_class_groups_change_only_ids_of_their_metrics(submission, folder):
    groups = "0123456789abcdef"

    def ask(content):
        first = content["cells"][0]
        metric = [first["metric"], json.dumps(first["metric_options"], sort_keys=True), first["metric_version"]]
        setting = {key: value for key, value in content["setting"].items()
                   if key not in {"groups", "activation", "label_column"}}  # fmt: skip
        content["setting"]["groups"] = groups
        first["cell_id"] = hash_of(setting, ["random", "{}", first["explainer_version"]], metric, groups)

    change(folder, ask)
    cells = results.read_result(folder / "result.json").cells
    assert cells[0].cell_id != submission.result.cells[0].cell_id
    assert cells[1].cell_id == submission.result.cells[1].cell_id


@pytest.mark.parametrize(("edit", "words"), [
    (lambda c: c.update(format=1), "format: Input should be 3"),
    (lambda c: c.pop("submitter"), "submitter: Field required"),
    (lambda c: c.update(submitter="../x"), "submitter: String should match pattern"),
    (lambda c: c.update(surplus=1), "surplus: Extra inputs are not permitted"),
    (lambda c: c.update(cells=[]), "cells: List should have at least 1 item"),
    (lambda c: c["cells"][0].update(value="0.9"), "cells.0.value: Input should be a valid number"),
    (lambda c: c["cells"][0].update(n=13), "cells.0.n is 13, but dataset.used is 12"),
    (lambda c: c["cells"][0].update(explainer="gradcam"), "cells.0.cell_id is "),
    (lambda c: c["setting"].update(seed=1), "cells.0.cell_id is "),
    (lambda c: c["setting"].update(more="x"), "setting.more: "),
    (lambda c: c["setting"].pop("seed"), "setting.seed: "),
    (lambda c: c["dataset"].update(split="train"), "dataset.split is train, but setting contains test"),
    (lambda c: c["cells"].append(c["cells"][0]), "2 times"),
    (lambda c: c.update(note="x" * 3000), "note: String should have at most 2000 characters"),
    (lambda c: c["provenance"].pop("device"), "provenance.device: Field required"),
])  # fmt: skip
def test_malformed_result_is_rejected_by_file_and_field(edit, words, folder):
    change(folder, edit)
    assert words in refused(f"^{re.escape(str(folder / 'result.json'))}: ", read_checked, folder)


@pytest.mark.parametrize(("edit", "words"), [
    (lambda cell: cell.update(low=cell["low"] + 0.01), "low of cell"),
    (lambda cell: cell.update(high=None), "high of cell"),
    (lambda cell: cell.update(clusters=11), "clusters of cell"),
    (lambda cell: cell.update(median=0.5), "median of cell"),
    (lambda cell: cell.update(rank=[1, 1], unranked=None), "rank of cell"),
    (lambda cell: cell.update(unranked="sealed"), "unranked of cell"),
    (lambda cell: cell.update(scored=0.96), "scored of cell"),
    (lambda cell: cell.update(range=[0.0, 2.0]), "range of cell"),
    (lambda cell: cell.update(range=[0.2, 1.0]), "range of cell"),
    (lambda cell: cell.update(higher_is_better=False), "higher_is_better of cell"),
])  # fmt: skip
def test_result_that_disagrees_with_records_is_rejected(edit, words, folder):
    change(folder, lambda content: edit(content["cells"][0]))
    refused(words, read_checked, folder)


def rewrite(folder, edit):
    path = folder / "records.parquet"
    pq.write_table(edit(pq.read_table(path)), path)


def changed(table, column, values):
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(values, table.schema.field(column).type))


@pytest.mark.parametrize(("edit", "words"), [
    (lambda t: t.drop_columns(["reason"]), 'column "reason" must be string'),
    (lambda t: t.append_column("extra", [[1] * len(t)]), 'unknown column "extra"'),
    (lambda t: t.set_column(14, "value", [["1"] * len(t)]), 'column "value" must be double'),
    (lambda t: t.slice(1), "has 23 rows, but must have 24: one row for each"),
    (lambda t: pa.concat_tables([t, t]), "has 48 rows"),
    (lambda t: pa.concat_tables([t] * 102), "has 2,448 rows"),
    (lambda t: changed(t, "cell_id", [id[::-1] for id in t["cell_id"].to_pylist()]), "is not in result.json"),
    (lambda t: changed(t, "image_id", ["same"] * len(t)), "the file has 1 images, but dataset.used is"),
    (lambda t: changed(t, "image_id", [None] * len(t)), "image_id must not be null"),
    (lambda t: changed(t, "explainer", ["gradcam"] * len(t)), "explainer of cell"),
    (lambda t: changed(t, "model", ["other"] * len(t)), "model of cell"),
    (lambda t: changed(t, "value", [np.inf] * len(t)), "value must be finite"),
    (lambda t: changed(t, "value", [0.9] * len(t)), "is 0.9, but result.json states"),
    (lambda t: changed(t, "label", ["x" * 5000] * len(t)), 'column "label" contains a string of more than 2,000 bytes'),
])  # fmt: skip
def test_malformed_records_are_rejected_by_file_and_column(edit, words, folder):
    rewrite(folder, edit)
    assert words in refused("^" + re.escape(str(folder / "records.parquet")), read_checked, folder)


@pytest.mark.parametrize("name", ["result.json", "records.parquet"])
@pytest.mark.parametrize("content", [None, b"", b"\x80\x04K\x01.", b"PAR1" * 20])
def test_invalid_json_or_parquet_is_rejected(name, content, folder):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    refused(name, read_checked, folder)


def test_json_schema_is_available():
    schema = results.json_schema()
    assert schema["properties"]["format"]["const"] == results.FORMAT
    assert "cell_id" in schema["$defs"]["CellResult"]["required"]
    json.dumps(schema)


def test_submission_can_be_reduced_to_selected_cells(submission, tmp_path):
    first = submission.result.cells[0].cell_id
    part = submission.only({first})
    assert [cell.cell_id for cell in part.result.cells] == [first]
    assert set(part.records["cell_id"].to_pylist()) == {first}
    assert part.result.folder != submission.result.folder
    refused("not the folder of a finished run", of_run, tmp_path, "ada")
