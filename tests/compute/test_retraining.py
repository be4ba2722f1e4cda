"""Test retraining metrics against a second implementation, and the results after a kill."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import datasets
import evaluate
import numpy as np
import pytest
import torch
from checkpoints import small_checkpoint
from PIL import ImageFile
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench.compute import fitting
from saliency_bench.compute.ordering import first_rows
from saliency_bench.compute.retraining import map_exposures as span_files
from saliency_bench.compute.retraining.tasks import Task, anew, start_from
from saliency_bench.compute.scoring.retraining import (
    RetrainingProtocol,
    changed,
    first_exposures,
    part_names,
    retrained_area,
    right_answers,
)
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.compute.training import train
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.maps import top_pixels
from saliency_bench.read.statistics.exposures import EXPOSURES
from saliency_bench.utils.files import save_arrays
from saliency_bench.utils.seeds import random_bits, seed_of

RECIPE = "trainings=1,epochs=2,images=24,batch_size=8,learning_rate=0.01"
METRICS = [f"saliency_roar:{RECIPE}", f"saliency_kar:{RECIPE},test=clean,exposures=[0,0.3,1]"]


@pytest.mark.parametrize("keeps", ["top", "rest"])
def test_only_replaced_pixels_take_the_colour(keeps):
    images, colour = torch.rand(3, 3, 6, 7), torch.tensor([0.1, 0.2, 0.3])
    maps = np.round(np.random.default_rng(0).normal(size=(3, 6, 7)).astype(np.float32), 1)  # with ties
    maps[2] = 0
    first = torch.from_numpy(first_exposures(maps))
    for number, exposure in enumerate(EXPOSURES):
        top = torch.from_numpy(top_pixels(maps, np.full(3, round(exposure * 42))))
        stays = (top if keeps == "top" else ~top)[:, None]
        expected = torch.where(stays, images, colour.view(1, 3, 1, 1))
        assert torch.equal(changed(images, first, number, keeps, colour), expected), exposure
    assert torch.equal(changed(images, None, 0, "rest", colour), images)
    assert torch.equal(changed(images, None, len(EXPOSURES) - 1, "rest", colour)[1, :, 2, 3], colour)
    for exposure in (0, len(EXPOSURES) - 1):  # tasks without maps give the same pictures
        task = Task.make("gradcam", exposure, 1, RetrainingProtocol(keeps, "clean", 2, 2, 0.01, 8, None))
        assert task.explainer is None
        expected = changed(images, first, exposure, keeps, colour)
        assert torch.equal(changed(images, None, task.exposure, task.protocol.keeps, colour), expected)


def test_task_key_covers_every_setting_of_the_training():
    """Metrics that differ only in the test, the number of trainings or the exposures share their trainings."""
    protocol = RetrainingProtocol("rest", "clean", 2, 2, 0.01, 8, None)
    others = {"keeps": "top", "epochs": 3, "learning_rate": 0.02, "batch_size": 4, "images": 9, "initial": "a" * 64,
              "test": "modified", "trainings": 3, "exposures": (0.0, 1.0)}  # fmt: skip
    assert set(others) == set(vars(protocol))
    explainers = [sb.load_explainer(name) for name in ("gradcam", "edges")]
    changes = [replace(protocol, **{name: value}) for name, value in others.items()]
    tasks = [Task.make(explainers[0], 1, 1, one) for one in (protocol, *changes)]
    tasks += [Task.make(explainers[1], 1, 1, protocol), Task.make(explainers[0], 2, 1, protocol),
              Task.make(explainers[0], 1, 2, protocol)]  # fmt: skip
    keys = [task.key for task in tasks]
    assert [keys.index(key) for key in keys] == [*range(7), 0, 0, 0, 10, 11, 12]


def test_damaged_span_of_maps_is_not_read(tmp_path):
    path = tmp_path / "000000.npz"
    first = np.random.default_rng(0).integers(0, 9, (4, 100)).astype(np.uint8)
    assert span_files._read(path, 4) is None
    save_arrays(path, first=first)
    assert np.array_equal(span_files._read(path, 4), first)
    assert span_files._read(path, 5) is None
    content = path.read_bytes()
    for damaged in (content[:-30], content[:60], content[:150] + b"\x00" + content[151:], b""):
        path.write_bytes(damaged)
        assert span_files._read(path, 4) is None


def test_score_is_area_under_mean_accuracy_of_trainings():
    answers = np.random.default_rng(1).integers(-1, 3, size=(20, 18))
    labels = np.eye(3, dtype=bool)[np.random.default_rng(2).integers(0, 3, size=20)]
    values = right_answers(answers, labels)
    scores = retrained_area(values, {"trainings": 2})
    assert len(part_names({"trainings": 2}, None)) == 18
    for row in range(20):
        accuracies = []
        for exposure in range(9):
            two = answers[row, 2 * exposure : 2 * exposure + 2]
            accuracies.append(np.nan if -1 in two else sum(labels[row, answer] for answer in two) / 2)
        expected = sum(
            (right - left) * (accuracies[index] + accuracies[index + 1]) / 2
            for index, (left, right) in enumerate(pairwise(EXPOSURES))
        )
        assert np.isnan(expected) if -1 in answers[row] else scores[row] == pytest.approx(expected, abs=1e-12)
    assert part_names({"trainings": 2}, None)[:3] == ["0 training 1", "0 training 2", "0.05 training 1"]


@pytest.fixture(scope="module")
def run(shapes, resnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("retrained") / "run"
    return sb.run(dataset=shapes, model=resnet, explainers=["gradcam"], metrics=[*METRICS, "saliency_pointing_game"],
                  out=out, batch_size=16, progress=False)  # fmt: skip


def outcomes(folder: Path) -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in folder.glob("retraining/*/outcomes/*.json")}


def test_controls_are_scored_only_by_retraining_metrics(run):
    by_metric: dict[str, list[str]] = {}
    for cell in run.cells:
        by_metric.setdefault(cell.metric, []).append(cell.explainer_text)
    both = ["gradcam", "random", "blurred(gradcam,sigma=0.1)"]
    assert by_metric == {"saliency_roar": both, "saliency_kar": both, "saliency_pointing_game": ["gradcam"]}
    assert not list(run.folder.glob("retraining/*/gathered"))
    assert not list(run.folder.glob("retraining/*/states/*"))
    # three explainers at 7 exposures and at 30 %; no pixels and all pixels replaced
    assert len(outcomes(run.folder)) == 3 * (7 + 1) + 2
    for metric in ("saliency_roar", "saliency_kar"):
        for end in ("0 training 1", "1 training 1"):
            assert len({cell.parts[end].value for cell in run.cells if cell.metric == metric}) == 1


def literal(shapes, resnet, exposure, keeps, test, *, epochs=2, size=8, images=24, rate=0.01, base=None):
    """Return {image: class predicted by a retrained network} for Grad-CAM, following the documentation literally.

    `base` is a folder with the initial weights of all layers except the last.
    """
    own = sb.load_classifier(resnet)
    found = {}
    for split in ("train", "validation", "test"):
        rows = sb.load_dataset(shapes, split=split)
        if split == "train":
            rows = first_rows(rows, images, 0, fingerprint(rows))
        prepared = own.prepare(rows[:])
        pictures, labels = prepared.images.clone(), prepared.labels
        found[split] = pictures, labels, prepared.ids
    colour = found["train"][0].double().mean((0, 2, 3)).float()
    for split, (pictures, _, ids) in found.items():
        if split == "test" and test == "clean":
            continue
        for start in range(0, len(pictures), 16):
            part = slice(start, start + 16)
            with torch.no_grad():
                predicted = own(pictures[part]).argmax(1)
            target = sb.targets.one_hot(predicted, own(pictures[:1]).shape[1])
            seeds = [seed_of(0, one, "explain") for one in ids[part]]
            maps = sb.load_explainer("gradcam")(own, pictures[part], target, seeds=seeds).numpy()
            top = torch.from_numpy(top_pixels(maps, np.full(len(maps), round(exposure * maps[0].size))))
            replaced = top if keeps == "rest" else ~top
            for channel in range(3):
                pictures[part][:, channel][replaced] = colour[channel]
    torch.manual_seed(seed_of(0, "retraining weights", 1))
    network = type(own.model)(own.model.config)
    if base is not None:
        network.resnet.load_state_dict(type(network).from_pretrained(base).resnet.state_dict())
    mean, std = own.mean, own.std
    adam = torch.optim.Adam(network.parameters(), lr=rate)
    best, chosen = -1.0, None
    for epoch in range(epochs):
        seed = seed_of(seed_of(0, "retraining", 1), "epoch", epoch)
        network.train()
        pictures, labels, _ = found["train"]
        order = np.argsort(random_bits(seed, len(pictures)), kind="stable")
        for start in range(0, len(order), size):
            part = order[start : start + size]
            loss = nn.functional.cross_entropy(network((pictures[part] - mean) / std).logits, labels[part])
            adam.zero_grad()
            loss.backward()
            adam.step()
        network.eval()
        pictures, labels, _ = found["validation"]
        with torch.no_grad():
            answers = torch.cat([network((part - mean) / std).logits.argmax(1) for part in pictures.split(size)])
        accuracy = float((answers == labels).double().mean())
        if accuracy > best:
            best, chosen = accuracy, {key: value.clone() for key, value in network.state_dict().items()}
    network.load_state_dict(chosen)
    pictures, _, ids = found["test"]
    with torch.no_grad():
        answers = network.eval()((pictures - mean) / std).logits.argmax(1).tolist()
    return dict(zip(ids, answers, strict=True))


@pytest.mark.slow
def test_networks_train_on_training_split_of_folder_or_memory(shapes, resnet, tmp_path, capsys):
    splits = datasets.DatasetDict({name: sb.load_dataset(shapes, name) for name in ("train", "validation", "test")})
    for name, dataset in (("folder", shapes), ("memory", splits)):
        sb.run(dataset=dataset, model=resnet, explainers=["random"], out=tmp_path / name, batch_size=16, progress=False,
               metrics=["saliency_roar:trainings=1,epochs=1,images=24,batch_size=8,exposures=[0,1]"])  # fmt: skip
    assert capsys.readouterr().err.count("2 training runs on 24 images") == 2
    assert outcomes(tmp_path / "memory") == outcomes(tmp_path / "folder")


@pytest.mark.slow
def test_epochs_decode_no_images(shapes, resnet, tmp_path, monkeypatch):
    decoded, prepare = [], ImageFile.ImageFile.load_prepare
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", lambda image: (decoded.append(image.size), prepare(image)))
    counts = []
    for number, epochs in enumerate((1, 1, 4)):  # the first run computes fingerprints, which are cached
        decoded.clear()
        sb.run(dataset=shapes, model=resnet, explainers=["random"], out=tmp_path / f"{number}", limit=8, progress=False,
               metrics=[f"saliency_roar:trainings=1,epochs={epochs},images=24,exposures=[0,1]"])  # fmt: skip
        counts.append(len(decoded))
    assert counts[1] == counts[2] > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("exposure", "keeps", "test", "metric"),
    [(0.3, "top", "clean", "saliency_kar"), (0.0, "rest", "modified", "saliency_roar"),
     (0.2, "rest", "modified", "saliency_roar")],
)  # fmt: skip
def test_training_matches_literal_implementation(run, shapes, resnet, exposure, keeps, test, metric):
    answers = literal(shapes, resnet, exposure, keeps, test)
    assert exposure == 0 or len(set(answers.values())) > 1  # otherwise other images might give the same answers
    rows = [row for row in run.records().to_list() if row["metric"] == metric and row["explainer"] == "gradcam"]
    check_answers(rows, f"{exposure:g} training 1", answers, shapes)


def check_answers(rows, part, answers, shapes):
    """Check that the values of a part state whether a network's predictions equal the labels."""
    labels = {row["image_id"]: row["label"] for row in sb.load_dataset(shapes).select_columns(["image_id", "label"])}
    values = {row["image_id"]: row["value"] for row in rows if row["part"] == part}
    assert values == {one: float(answer == labels[one]) for one, answer in answers.items()}


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    """Return (folder of a model trained with `train`, folder of the six-class weights that it started from)."""
    place = tmp_path_factory.mktemp("trained")
    small_checkpoint(place / "base", seed=5, num_labels=6)
    settings = {"dataset": str(shapes), "epochs": 1, "size": 32, "limit": 16, "progress": False}
    return train(**settings, model=str(place / "base"), out=place / "own"), place / "base"


FEWER = "saliency_kar:trainings=1,epochs=3,learning_rate=0.01,images=48,batch_size=8,exposures=[0,0.3,1]"


@pytest.fixture(scope="module")
def from_base(shapes, trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("from_base") / "run"
    return sb.run(dataset=shapes, model=str(trained[0]), explainers=["gradcam"], out=out, batch_size=16, progress=False,
                  metrics=[FEWER, f"{FEWER},initial=base"])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("initial", ["new", "base"])
def test_networks_start_from_base_or_new_weights(from_base, shapes, trained, initial):
    given = str(trained[0]), 0.3, "top", "modified"
    recipe = {"epochs": 3, "images": 48}
    both = {"new": literal(shapes, *given, **recipe), "base": literal(shapes, *given, **recipe, base=trained[1])}
    assert both["new"] != both["base"]
    rows = [row for row in from_base.records().to_list()
            if row["explainer"] == "gradcam" and json.loads(row["metric_options"])["initial"] == initial]  # fmt: skip
    check_answers(rows, "0.3 training 1", both[initial], shapes)


@pytest.mark.slow
def test_cell_ids_include_initial_weights(from_base, trained):
    cells = {cell.metric_options["initial"]: cell for cell in from_base.cells if cell.explainer == "gradcam"}
    digest = sb.load_classifier(str(trained[1]), device="cpu").digest
    assert cells["base"].asked_for["initial weights"] == digest
    assert "initial weights" not in cells["new"].asked_for
    # for each of the two: three explainers at 30 %, no pixels and all pixels replaced
    assert len(outcomes(from_base.folder)) == 2 * (3 + 2)


@pytest.mark.parametrize(("metric", "exposures"), [("saliency_kar", (0, 0.3, 1)), ("saliency_roar", EXPOSURES)])
def test_score_is_area_over_exposures_of_its_parts(metric, exposures, run):
    parts = [f"{exposure:g} training 1" for exposure in exposures]
    own = [cell for cell in run.cells if cell.metric == metric]
    assert [list(cell.parts) for cell in own] == [parts] * 3
    rows = [row for row in run.records().to_list() if row["cell_id"] in {cell.cell_id for cell in own}]
    scores = [row for row in rows if row["part"] is None]
    assert len(scores) == 3 * len({row["image_id"] for row in rows})
    for row in scores[:20]:
        one = {other["part"]: other["value"] for other in rows
               if (other["image_id"], other["cell_id"]) == (row["image_id"], row["cell_id"])}  # fmt: skip
        accuracies = [one[part] for part in parts]
        assert row["value"] == pytest.approx(np.trapezoid(accuracies, exposures), abs=1e-12)
        assert set(accuracies) <= {0.0, 1.0}


def test_fewer_exposures_reuse_existing_trainings(run, shapes, resnet, tmp_path, monkeypatch):
    shutil.copytree(run.folder, tmp_path / "run")
    before = outcomes(tmp_path / "run")
    monkeypatch.setattr(fitting.Training, "next_epoch", lambda *given: pytest.fail("a network is trained again"))
    done = sb.run(dataset=shapes, model=resnet, explainers=["gradcam"], out=tmp_path / "run", batch_size=16,
                  metrics=[f"{METRICS[0]},exposures=[0.05,0.2,1]"], progress=False)  # fmt: skip
    assert outcomes(tmp_path / "run") == before
    parts = {cell.explainer: {name: part.value for name, part in cell.parts.items()} for cell in run.cells
             if cell.metric == "saliency_roar"}  # fmt: skip
    fewer = [cell for cell in done.cells if cell.metric == "saliency_roar" and cell.metric_options.get("exposures")]
    assert len(fewer) == 3
    for cell in fewer:
        assert list(cell.parts) == ["0.05 training 1", "0.2 training 1", "1 training 1"]
        assert all(part.value == parts[cell.explainer][name] for name, part in cell.parts.items())


def test_models_without_base_weights_are_rejected(shapes, resnet, trained, tmp_path):
    scratch = shutil.copytree(trained[0], tmp_path / "scratch")
    log = json.loads((scratch / "training_log.json").read_text())
    (scratch / "training_log.json").write_text(json.dumps(log | {"base": None}))
    for model, words in ((str(resnet), "needs the folder of a model trained with `saliency-bench train`"),
                         (sb.load_classifier(str(resnet)), "initial=base needs the folder"),
                         (str(scratch), "started from random weights")):  # fmt: skip
        refused(words, sb.run, dataset=shapes, model=model, explainers=["random"], metrics=[f"{FEWER},initial=base"],
                out=tmp_path / "run", progress=False)  # fmt: skip
    base = sb.load_classifier(str(trained[1]))
    refused(
        r"a different structure .* only one of the two has 0\.bias", start_from, nn.Sequential(nn.Linear(2, 2)), base
    )


def test_invalid_training_settings_are_rejected(shapes, resnet, tmp_path):
    for given in ("[0.5]", "[0,0]", "[0.5,0.2]", "[0,0.4]", "[]"):
        words = r"exposures must be two or more of 0, 0\.05, .*; got "
        refused(words, sb.load_metric, f"saliency_roar:exposures={given}")
    for wrong in ("trainings=0", "epochs=0", "learning_rate=0.0", "images=0", "test=other"):
        refused(wrong.partition("=")[0], sb.load_metric, f"saliency_roar:{wrong}")
    rows, settings = sb.load_dataset(shapes), {"dataset": shapes, "model": resnet, "explainers": ["random"]}
    for changes, words in (
        ({"activation": "sigmoid"}, "needs a softmax"),
        ({"dataset": rows}, "needs the splits train and validation"),
        ({"maps": {"mine": np.zeros((len(rows), 32, 32))}}, "saliency_roar also needs maps of the training images"),
    ):
        refused(words, sb.run, **settings | changes, metrics=METRICS[:1], out=tmp_path / "run", progress=False)
    refused("saliency_roar trains networks on a whole dataset", score_samples, "saliency_roar",
            torch.rand(2, 3, 32, 32), resnet, "random", labels=[0, 1])  # fmt: skip


@pytest.mark.slow
def test_resumed_training_gives_the_same_outcomes(run, shapes, resnet, tmp_path, monkeypatch):
    write, written = fitting.Training.write, []

    def stopping(self, *given):
        write(self, *given)
        written.append(self)
        if len(written) in (7, 20):
            raise KeyboardInterrupt

    monkeypatch.setattr(fitting.Training, "write", stopping)
    settings = {"dataset": shapes, "model": resnet, "explainers": ["gradcam"], "metrics": METRICS[:1],
                "out": tmp_path / "run", "batch_size": 16, "progress": False}  # fmt: skip
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            sb.run(**settings)
    sb.run(**settings)
    expected, found = outcomes(run.folder), outcomes(tmp_path / "run")
    assert len(found) == 3 * 7 + 2
    assert all(expected[name] == outcome for name, outcome in found.items())
    trained = len(written)
    assert sb.run(**settings).complete
    assert len(written) == trained


def test_anew_redraws_weights_or_rejects_network():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    network[1].running_mean += 1
    torch.manual_seed(3)
    one = anew(network, "mine")
    torch.manual_seed(3)
    two = anew(network, "mine")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one[0].weight, network[0].weight)
    assert not one[1].running_mean.any()

    class Token(nn.ParameterList):
        pass

    words = "mine cannot be retrained from new weights: Token 0 has no reset_parameters"
    refused(words, anew, nn.Sequential(Token([torch.zeros(3)])), "mine")


@pytest.mark.parametrize("name", ["saliency_roar", "saliency_kar"])
def test_evaluate_module_matches_area_of_a_run(name):
    module = evaluate.load(str(Path(__file__).parents[2] / "metrics" / name))

    def area(accuracies, exposures):
        return module.compute(predictions=accuracies, references=exposures)[name]

    expected = 0.5 * (0.9 + 0.6) / 2 + 0.5 * (0.6 + 0.3) / 2
    assert area([0.9, 0.7, 0.5, 0.3], [0, 0.5, 0.5, 1]) == pytest.approx(expected)
    assert area([0.8, 0.4], [0.25, 0.75]) == pytest.approx(0.6)  # of the existing exposures, whatever their width
    right = np.random.default_rng(3).random((7, len(EXPOSURES) * 2)) < 0.7
    expected = retrained_area(right.astype(float), {"trainings": 2}).mean()
    assert area(right.mean(axis=0), np.repeat(EXPOSURES, 2)) == pytest.approx(expected, abs=1e-15, rel=0)
    with pytest.raises(ValueError, match="an accuracy must be a number from 0 to 1; got 90"):
        area([90, 80], [0, 1])
    with pytest.raises(ValueError, match="two or more exposures"):
        area([0.9, 0.8], [0, 0])
