"""Test the order of a run: whole groups, sorted by a hash.

A limit is therefore a random sample, and a longer run contains it.
"""

import shutil

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

import saliency_bench as sb
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.ordering import Order, first_rows, order_of
from saliency_bench.compute.python_objects import describe
from saliency_bench.data.loading import fingerprint
from saliency_bench.utils.seeds import seed_of

SETTINGS = {"explainers": ["gradient", "random"], "metrics": ["saliency_miou", "saliency_deletion"], "batch_size": 4,
            "device": "cpu"}  # fmt: skip
GROUPED = ["p", "q", None, "p", "r", "q", "p", None, "r", "s", None, "p"]
GROUPS = st.lists(st.none() | st.sampled_from("abcdefg"), min_size=1, max_size=40)


def literal(ids, groups, seed, content):
    """Return the order, cluster by cluster, sorted by hash."""
    left = list(range(len(ids)))
    found = []
    while left:
        hashes = {i: seed_of(seed, content, f"s{ids[i]}" if groups[i] is None else f"g{groups[i]}") for i in left}
        first = min(hashes.values())
        found += [i for i in left if hashes[i] == first]
        left = [i for i in left if hashes[i] != first]
    return found


@given(GROUPS, st.integers(0, 3))
def test_order_sorts_whole_clusters_by_hash(groups, seed):
    ids = [f"{number}" for number in range(len(groups))]
    assert order_of(ids, groups, seed, "f").positions == literal(ids, groups, seed, "f")


@given(GROUPS, st.integers(1, 45), st.integers(1, 45), st.integers(1, 5))
def test_smaller_limit_is_prefix_of_larger_limit(groups, first, second, size):
    ids = [f"{number}" for number in range(len(groups))]
    order = order_of(ids, groups, 0, "f")
    few, many = order.first(min(first, second)), order.first(max(first, second))
    assert min(first, second, len(ids)) <= few <= many <= len(ids)
    for taken, limit in ((few, min(first, second)), (many, max(first, second))):
        assert not set(order.clusters[:taken]) & set(order.clusters[taken:])  # no cluster is cut
        assert taken == len(ids) or set(order.clusters[:limit]) == set(order.clusters[:taken])  # none is unnecessary

    def chunks(count):
        return [order.positions[start : start + size] for start in range(0, count, size)]

    assert chunks(many)[: len(chunks(few))] == chunks(few)


def test_order_depends_on_seed_and_content():
    ids = [f"{number}" for number in range(1000)]
    orders = [order_of(ids, [None] * 1000, *key).positions for key in ((0, "f"), (1, "f"), (0, "g"))]
    assert len({tuple(order) for order in orders}) == 3
    assert all(abs(np.mean(order[:200]) - 499.5) < 3 * 288.7 / np.sqrt(200) for order in orders)
    assert Order([0, 1], ["a", "b"]).first(None) == 2
    for names, groups in ((["a", "b", "c"], ["b", None, "b"]), (["1", "2"], ["s2", None])):
        assert len(set(order_of(names, groups, 0, "f").clusters)) == 2  # ids are not names of groups


def in_memory(rows, groups):
    rows = rows.select(range(len(groups))).remove_columns("group")
    return rows.add_column("group", groups, feature=datasets.Value("string"))


def loaded(rows, model, out, **changes):
    return load(*describe({"dataset": rows, "model": model, "out": str(out), **SETTINGS, **changes}), "cpu")[:2]


@pytest.fixture(scope="module")
def rows(shapes):
    return sb.load_dataset(shapes)


def test_run_reads_dataset_in_hash_order(rows, resnet, tmp_path):
    data = in_memory(rows, GROUPED)
    table, model = loaded(data, resnet, tmp_path)
    expected = literal(data["image_id"], GROUPED, 0, fingerprint(data))
    read = [sample["image_id"] for batch in table.batches for sample in table.read(model.classifier, batch).rows]
    assert read == [data["image_id"][position] for position in expected]
    assert table.fingerprint == fingerprint(data)
    assert table.read(model.classifier, range(4)).samples.batch.ids == read[:4]
    for limit in range(1, 14):
        few, _ = loaded(data, resnet, tmp_path, limit=limit)
        clusters = [GROUPED[position] or position for position in expected]
        whole = next((n for n in range(limit, 12) if clusters[n] != clusters[n - 1]), 12)
        assert (few.count, len(few.batches)) == (whole, -(-whole // 4))
        assert [sample["image_id"] for sample in few.read(model.classifier, range(4)).rows] == read[:4]
    other, _ = loaded(data, resnet, tmp_path, seed=1)
    assert [sample["image_id"] for sample in other.read(model.classifier, range(4)).rows] != read[:4]
    assert other.fingerprint == table.fingerprint


def test_limited_run_samples_across_labels_with_stable_ids(shapes, rows, resnet, tmp_path):
    table, model = loaded(rows.sort("label"), resnet, tmp_path, limit=16)
    classifier = model.classifier
    assert len({sample["label"] for batch in table.batches for sample in table.read(classifier, batch).rows}) > 4
    nameless = rows.remove_columns("image_id").select(range(10))
    table, _ = loaded(nameless, resnet, tmp_path)
    samples = [sample for batch in table.batches[:3] for sample in table.read(classifier, batch).rows]
    expected = {str(position): label for position, label in enumerate(nameless["label"])}
    assert {sample["image_id"]: sample["label"] for sample in samples} == expected
    folders = shapes, shutil.copytree(shapes, tmp_path / "copy")
    first, second = (loaded(str(folder), resnet, tmp_path / "run")[0].samples.ids for folder in folders)
    assert first == second


@pytest.fixture
def start(shapes, resnet, tmp_path):
    settings = {"dataset": shapes, "model": resnet, "progress": False, **SETTINGS}
    return lambda name="run", **changes: sb.run(**settings | changes, out=tmp_path / name)


def test_limit_draws_and_reports_whole_groups(start, rows):
    data = in_memory(rows, [f"patient {number // 3}" for number in range(33)])
    done = start(dataset=data, limit=10)
    assert done.summary["dataset"]["used"] == 12
    assert all((cell["n"], cell["clusters"]) == (12, 4) for cell in done.summary["cells"])
    predictions = pq.read_table(done.folder / "predictions.parquet").to_pylist()
    patients = [row["group"] for row in predictions]
    assert patients == sorted(patients, key=patients.index)
    assert len(patients) == 12
    assert "drawn as whole groups" in done.report.read_text()
    assert "drawn as whole groups" not in start("all", dataset=data).report.read_text()


def test_only_value_beyond_limit_is_rejected(rows, resnet, tmp_path):
    first = set(loaded(rows, resnet, tmp_path, limit=2)[0].samples.rows["scene"][:2])
    other = next(scene for scene in rows.features["scene"].names if rows.features["scene"].str2int(scene) not in first)
    refused(f"unknown value of scene '{other}'", loaded, rows, resnet, tmp_path, limit=2, only=[f"scene={other}"])
    _, model = loaded(rows, resnet, tmp_path, only=[f"scene={other}"])
    assert model.question.selection is not None


def test_training_limit_keeps_whole_groups_in_dataset_order(rows):
    data = in_memory(rows, GROUPED)
    chosen = first_rows(data, 5, 0, fingerprint(data))
    order = literal(data["image_id"], GROUPED, 0, fingerprint(data))
    clusters = [GROUPED[position] or position for position in order]
    whole = next(n for n in range(5, 12) if clusters[n] != clusters[n - 1])
    assert chosen["image_id"] == [data["image_id"][position] for position in sorted(order[:whole])]
    assert first_rows(data, None, 0, "") is data
