"""Compare `predicted-by:MODEL` with a target file of the same classes. MODEL is a model or a run of the model."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from checkpoints import small_checkpoint
from refusals import refused

import saliency_bench as sb
from saliency_bench.compute.loading import predicted_by
from saliency_bench.compute.targets.label_maps import same_classes

METRICS = ["saliency_miou", "saliency_insertion:steps=4"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    data = str(sb.build("shapes-xai", folder / "shapes", size=32, count=60, progress=False))
    names = sb.load_dataset(data, split="test").features["label"].names
    own = small_checkpoint(folder / "model", names, spread=50)  # predictions differ from picture to picture
    other = small_checkpoint(folder / "other", names[::-1], seed=1, spread=50)
    return folder, data, str(own), str(other)


def run(world, out, model=None, **settings):
    folder, data, own, _ = world
    chosen = {"explainers": ["gradcam", "gradient"], "metrics": METRICS, "batch_size": 4, "split": "train"} | settings
    return sb.run(dataset=data, model=model or own, out=folder / out, device="cpu", progress=False, **chosen)


def values(result):
    return [(cell.explainer, cell.metric, cell.value) for cell in result.cells]


def ids(result):
    return [cell.cell_id for cell in result.cells]


def targets_of(result):
    return [row["target"] for row in result.records()]


@pytest.mark.slow
def test_predicted_by_matches_equivalent_target_file(world):
    folder, _, _, other = world
    of_other = run(world, "of-other", model=other, target="predicted", limit=12)
    named = pq.read_table(of_other.folder / "records.parquet", columns=["image_id", "prediction"]).to_pylist()
    lines = sorted({f"{row['image_id']},{row['prediction']}" for row in named})
    assert len({line.partition(",")[2] for line in lines}) > 1
    (folder / "classes.csv").write_text("\n".join(["image_id,target", *lines]) + "\n")
    expected = run(world, "by-file", target=str(folder / "classes.csv"), limit=12)
    by_model = run(world, "by-model", target=f"predicted-by:{other}", limit=12)
    by_run = run(world, "by-run", target=f"predicted-by:{of_other.folder}", limit=12)
    assert values(by_model) == values(by_run) == values(expected)
    assert values(run(world, "own", target="predicted", limit=12)) != values(expected)
    assert set(targets_of(by_model)) == {row["prediction"] for row in named}
    assert ids(by_model) == ids(by_run)
    assert not set(ids(by_model)) & set(ids(expected))
    assert ids(run(world, "fewer", target=f"predicted-by:{other}", limit=4)) == ids(by_model)
    assert by_model.summary["target"] == "predicted-by:folder:other"


def test_predicted_by_itself_equals_predicted(world, tmp_path, capfd):
    itself = run(world, "itself", target=f"predicted-by:{world[2]}", limit=4, explainers=["random"])
    assert itself.summary["target"] == "predicted"
    capfd.readouterr()
    run(world, tmp_path / "run", target=f"predicted-by:{world[3]}")
    assert capfd.readouterr().err == ""  # without progress, no bar is shown


@pytest.mark.slow
def test_predicted_by_falls_back_to_smaller_batches(world, monkeypatch):
    """Halve a batch if memory runs out, and split it into single images if the model raises an error, as in a run."""
    expected = run(world, "all-at-once", target=f"predicted-by:{world[3]}", limit=8, explainers=["gradcam"])
    for name, error in (("halves", MemoryError("out of memory")), ("one-by-one", RuntimeError("one, please"))):
        sizes = []

        def load(path, texts, is_required, error=error, sizes=sizes, **options):
            classifier = sb.load_classifier(path, **options)
            forward = classifier.forward

            def picky(images):
                sizes.append(len(images))
                if len(images) > 1:
                    raise error
                return forward(images)

            classifier.forward = picky
            return classifier

        monkeypatch.setattr(predicted_by, "load_with_texts", load)
        got = run(world, name, target=f"predicted-by:{world[3]}", limit=8, explainers=["gradcam"])
        assert {1, 4} <= set(sizes)
        assert values(got) == values(expected)


@pytest.mark.parametrize("by_file", [True, False])
def test_other_class_order_changes_the_targets(world, tmp_path, by_file):
    """Use pictures without labels, for which label maps do not matter."""
    _, data, own, other = world
    pictures = sb.load_dataset(data, split="train").remove_columns("label")
    names = sb.load_classifier(own).labels
    network = torch.nn.Sequential(torch.nn.Conv2d(3, len(names), 5), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    (tmp_path / "t.csv").write_text("image_id,target\n" + "".join(f"{i},{names[0]}\n" for i in pictures["image_id"]))
    target = str(tmp_path / "t.csv") if by_file else f"predicted-by:{other}"

    def go(out, labels):
        model = sb.load_classifier(network, mean=0.5, std=0.5, size=32, labels=labels)
        return sb.run(dataset=pictures, model=model, target=target, explainers=["gradient"], limit=4, device="cpu",
                      metrics=["saliency_energy"], out=tmp_path / out, progress=False)  # fmt: skip

    first, moved = ids(go("first", names)), names[1:] + names[:1]
    refused("first contains a run with a different target", go, "first", moved)
    assert set(first).isdisjoint(ids(go("moved", moved)))


def test_predicted_by_run_matches_classes_in_other_order(world, tmp_path, caplog):
    """The network has no class names, so it has the names of the dataset."""
    names = sb.load_classifier(world[2]).labels
    torch.manual_seed(2)
    last = torch.nn.Conv2d(3, len(names), 5)
    network = torch.nn.Sequential(last, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    common = {"mean": 0.5, "std": 0.01, "size": 32}
    order = [3, 0, 2, 1, *range(4, len(names))]
    moved = torch.nn.Sequential(torch.nn.Conv2d(3, len(names), 5), *list(network)[1:])
    moved[0].load_state_dict({key: value[order] for key, value in last.state_dict().items()})
    shuffled = sb.load_classifier(moved, labels=[names[place] for place in order], **common)
    usual = sb.load_classifier(network, **common)
    chosen = {"limit": 8, "explainers": ["gradient"], "metrics": ["saliency_miou"]}
    named = run(world, tmp_path / "named", model=shuffled, target="predicted", **chosen)
    got = run(world, tmp_path / "got", model=usual, target=f"predicted-by:{named.folder}", **chosen)
    predicted = run(world, tmp_path / "predicted", model=usual, target="predicted", **chosen)
    assert targets_of(got) == targets_of(predicted)
    assert len(set(targets_of(got))) > 1
    assert "class names" not in caplog.text.replace("has no class names", "")


def test_predicted_by_run_never_opens_the_stored_model(world, tmp_path, monkeypatch):
    """The model name in the run is a path chosen by the author of the run."""
    names = sb.load_classifier(world[3]).labels
    folder = str(small_checkpoint(tmp_path / "model", names, seed=1, spread=50))
    chosen = {"limit": 4, "explainers": ["random"]}
    named = run(world, tmp_path / "named", model=folder, target="predicted", **chosen)
    expected = run(world, tmp_path / "expected", target=f"predicted-by:{named.folder}", **chosen)
    small_checkpoint(tmp_path / "model", ["x", "y"], seed=4)
    monkeypatch.setattr(predicted_by, "load_with_texts", None)
    assert values(run(world, tmp_path / "run", target=f"predicted-by:{named.folder}", **chosen)) == values(expected)


def test_predicted_by_rejects_other_or_fewer_images(world):
    short = run(world, "short", model=world[3], target="predicted", limit=4, explainers=["random"])
    for settings, words in (
        ({"target": f"predicted-by:{short.folder}"}, r"short has no prediction for .* images"),
        ({"target": f"predicted-by:{short.folder}", "split": "test"}, "is a run on different data"),
        ({"target": "predicted-by:"}, "names no model"),
        ({"target": "predicted-bye"}, "predicted-by:MODEL"),
    ):
        refused(words, run, world, "none", **settings)
    assert not (world[0] / "none").exists()


@pytest.mark.parametrize(("logits", "words"), [
    (None, "has no column logits"),
    (["1", "2"], "column logits is not list"),
    (pa.array([[1.0, 2], [1]], pa.list_(pa.float32())), "logits of 'b' are not 2 numbers"),
    (pa.array([None, [1, float("nan")]], pa.list_(pa.float32())), "logits of 'b' are not 2 numbers"),
    (pa.array([[1, None], [1, 2]], pa.list_(pa.float32())), "logits of 'a' are not 2 numbers"),
])  # fmt: skip
def test_invalid_stored_logits_are_rejected(logits, words, tmp_path):
    columns = {"image_id": ["a", "b"]} | ({} if logits is None else {"logits": logits})
    pq.write_table(pa.table(columns), tmp_path / "predictions.parquet")
    refused(words, list, predicted_by._stored_logits(tmp_path / "predictions.parquet"))


def test_same_classes_matches_by_name_or_number(caplog):
    assert same_classes(["a b", "c"], 2, ["C", "A_b"], 2, "m") == [1, 0]
    assert same_classes(None, 2, ["C", "A_b"], 2, "m") == [0, 1]
    assert same_classes(["LABEL_0", "LABEL_1"], 2, ["C", "A_b"], 2, "m") == [0, 1]
    refused("3 classes and the model 2", same_classes, None, 3, ["a", "b"], 2, "m")
    refused("such as d", same_classes, ["a", "d"], 2, ["a", "b"], 2, "m")
    assert predicted_by._places(None, 2, ["a", "b"], 2, "runs/x") == [0, 1]
    assert "runs/x has no class names: its class 0 is assumed to be class 0 of the model" in caplog.text
