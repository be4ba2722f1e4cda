"""Test the meaning of logits (softmax, sigmoid, one logit), and runs on datasets without known labels."""

import json
import os
from operator import itemgetter

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from checkpoints import TINY, small_checkpoint
from PIL import Image
from refusals import refused
from run_order import in_run_order
from torch import nn
from transformers import ResNetConfig

import saliency_bench as sb
from saliency_bench.arguments import parser_of
from saliency_bench.compute.fitting import loss_of
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.compute.scoring.transforms import TRANSFORMS
from saliency_bench.push_scripts import _shared
from saliency_bench.push_scripts import run as command
from saliency_bench.read.accuracy import average_precision, mean_average_precision
from saliency_bench.target_weights import no_probabilities, probabilities, recognised, score

SIDE = 12


class Means(nn.Module):
    """Network whose logits are a linear function of the mean colour of the picture."""

    def __init__(self, classes):
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, classes)
        nn.init.normal_(self.head.weight, std=20)

    def forward(self, images):
        return self.head(self.convolution(images).relu().mean(dim=(2, 3)))


def classifier(classes, **options):
    return sb.load_classifier(Means(classes), mean=(0, 0, 0), std=(1, 1, 1), device="cpu", **options)


def pictures():
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)) for _ in range(7)]


def dataset(names=None, numbers=None, **columns):
    """Return a dataset of pictures with the columns of a test."""
    content = {"image": pictures(), "image_id": [f"i{number}" for number in range(7)], **columns}
    features = {"image": datasets.Image(), "image_id": datasets.Value("string")}
    for name, values in columns.items():
        is_list = isinstance(values[0], list)
        features[name] = datasets.List(datasets.Value("string")) if is_list else datasets.Value("string")
    if names is not None:
        content["label"] = numbers
        features["label"] = datasets.ClassLabel(names=names)
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


@pytest.fixture
def saved(tmp_path):
    """Return a function saved(names, numbers, **columns) -> folder of a dataset for a run."""

    def save(*given, **columns):
        datasets.DatasetDict({"test": dataset(*given, **columns)}).save_to_disk(tmp_path / "data")
        return str(tmp_path / "data")

    return save


def run(data, model, out, **settings):
    base = {"explainers": ["gradient"], "metrics": ["saliency_deletion:steps=2"], "batch_size": 4, "device": "cpu"}
    return sb.run(dataset=data, model=model, out=out, progress=False, **base | settings)


def predictions(result):
    """Return the predictions sorted by image id, which is the order of the dataset's rows."""
    return sorted(pq.read_table(result.folder / "predictions.parquet").to_pylist(), key=itemgetter("image_id"))


def scores(result):
    """Return {image id: value}, sorted by image id."""
    rows = sorted(result.records(), key=itemgetter("image_id"))
    return {row["image_id"]: row["value"] for row in rows if row["part"] is None}


def test_probabilities_and_recognition_match_hand_values():
    logits = torch.tensor([[0.0, 2.0], [float("inf"), 0.0], [float("nan"), 0.0]])
    e = np.exp(2)
    assert probabilities(logits[:1]).flatten().tolist() == pytest.approx([1 / (1 + e), e / (1 + e)])
    assert probabilities(logits[:1], "sigmoid").flatten().tolist() == pytest.approx([0.5, e / (1 + e)])
    assert no_probabilities(logits).tolist() == [False, True, True]
    assert no_probabilities(logits, "sigmoid").tolist() == [False, False, True]
    contrast = score(logits[:1], torch.tensor([[1.0, -1.0]]), "probability", classifier(2, activation="sigmoid"))
    assert contrast.item() == pytest.approx(0.5 - e / (1 + e))
    refused(r"softmax of one logit.*activation='sigmoid'", probabilities, logits[:, :1])
    refused(r"'sofmax'.*softmax", probabilities, logits, "sofmax")
    p = np.array([[0.6, 0.4, 0.6], [0.2, 0.3, 0.1]])
    right = np.array([[False, True, True], [False, True, False]])
    assert recognised(p, right).tolist() == [False, True]  # the first of equal probabilities is the top class
    assert recognised(p, right, "sigmoid").tolist() == [True, False]


def test_activation_follows_checkpoint_config(tmp_path):
    def checkpoint(name, **config):
        return str(small_checkpoint(tmp_path / name, **config))

    several = checkpoint("several", num_labels=3, problem_type="multi_label_classification")
    assert sb.load_classifier(several, device="cpu").activation == "sigmoid"
    assert sb.load_classifier(several, device="cpu", activation="softmax").activation == "softmax"
    for problem in (None, "single_label_classification"):
        one = sb.load_classifier(checkpoint(f"one {problem}", num_labels=3, problem_type=problem), device="cpu")
        assert (one.activation, one.assumed) == ("softmax", False)
    single = checkpoint("single", num_labels=1)
    refused(r"single logit.*activation=sigmoid", sb.load_classifier, single, device="cpu")
    loaded = sb.load_classifier(single, device="cpu", activation="sigmoid")
    images = torch.rand(2, 3, 32, 32)
    logit = loaded.model(loaded.normalised(images)).logits
    assert torch.equal(loaded(images), torch.cat([-logit, logit], dim=1))
    assert loaded.labels == ["LABEL_0", "LABEL_1"]
    plain = classifier(3)
    assert (plain.activation, plain.assumed) == ("softmax", True)
    refused(r"single logit.*activation=sigmoid", classifier(1), torch.rand(1, 3, 8, 8))


def test_sigmoid_run_scores_sigmoid_probabilities(saved, tmp_path):
    data = saved(list("abc"), [index % 3 for index in range(7)])
    model = classifier(3, activation="sigmoid")
    metrics = ["saliency_deletion:steps=1", "saliency_roae:exposure=0.0"]
    result = run(data, model, tmp_path / "run", metrics=metrics)
    rows = result.records().to_list()
    images = model.prepare([{"image": picture} for picture in pictures()]).images
    with torch.no_grad():
        p = model(images).double().sigmoid().numpy()
        black = model(torch.zeros_like(images)).double().sigmoid().numpy()
    values = {(row["image_id"], row["metric"]): row["value"] for row in rows if row["part"] is None}
    for index in range(7):
        own = index, index % 3
        assert values[f"i{index}", "saliency_deletion"] == pytest.approx((p[own] + black[own]) / 2, abs=1e-5)
        assert values[f"i{index}", "saliency_roae"] == float(p[own] > 0.5)
    about = result.summary["model"]
    assert (about["activation"], about["activation_assumed"]) == ("sigmoid", False)
    assert about["accuracy_kind"] == "mean average precision"
    found = predictions(result)
    assert [row["confidence"] for row in found] == pytest.approx(p.max(axis=1).tolist(), abs=1e-6)
    assert [row["target_confidence"] for row in found] == pytest.approx([p[i, i % 3] for i in range(7)], abs=1e-6)
    assert [row["correct"] for row in found] == [bool(p[i, i % 3] > 0.5) for i in range(7)]
    assert json.loads((result.folder / "run.json").read_text())["identity"]["activation"] == "sigmoid"


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_confidence_sums_groups_and_subtracts_contrasts(saved, tmp_path, activation):
    data, model = saved(), classifier(4, activation=activation)
    images = model.prepare([{"image": picture} for picture in pictures()]).images
    with torch.no_grad():
        logits = model(images).double()
    p = (logits.sigmoid() if activation == "sigmoid" else logits.softmax(dim=1)).tolist()
    lines = ["1|2,", "0,3", "1|3,0|2", "2,", "3,1", "0|1|2|3,", "1,0"]
    targets = tmp_path / "targets.csv"
    targets.write_text("image_id,target,against\n" + "".join(f"i{i},{line}\n" for i, line in enumerate(lines)))
    by_hand = [p[0][1] + p[0][2], p[1][0] - p[1][3], p[2][1] + p[2][3] - p[2][0] - p[2][2], p[3][2], p[4][3] - p[4][1]]
    by_hand += [sum(p[5]), p[6][1] - p[6][0]]
    ordered = [sorted(row, reverse=True) for row in p]
    expected = {str(targets): by_hand, "predicted": [row[0] for row in ordered],
                "contrast:second": [row[0] - row[1] for row in ordered]}  # fmt: skip
    for number, (target, values) in enumerate(expected.items()):
        found = predictions(run(data, model, tmp_path / f"run{number}", target=target))
        assert [row["target_confidence"] for row in found] == pytest.approx(values, abs=1e-6)


SHAPES = ["circle", "square"]


class OneLogit(Means):
    """`Means` with a single logit that is negative for three pictures. `shape` is the shape of the output."""

    def __init__(self, shape=(-1, 1)):
        super().__init__(1)
        self.shape = shape
        with torch.no_grad():
            self.head.bias -= super().forward(stacked()).sort(dim=0).values[2:4].mean()

    def forward(self, images):
        return super().forward(images).view(self.shape)


def stacked():
    return torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 for picture in pictures()])


def one_logit(labels=None, network=None, **options):
    network = network or OneLogit()
    return sb.load_classifier(network, mean=0, std=1, device="cpu", activation="sigmoid", labels=labels, **options)


def logits_of(network):
    """Return the logit of each picture and its gradient, summed over channels, computed directly with the network."""
    images = stacked().requires_grad_()
    z = network(images).flatten()
    return z.detach().numpy(), torch.autograd.grad(z.sum(), images)[0].sum(dim=1).numpy()


@pytest.mark.parametrize(
    ("labels", "names"), [(None, ["0", "1"]), (["square"], ["not square", "square"]), (SHAPES, SHAPES)]
)
def test_single_logit_explains_the_likelier_class(labels, names):
    model = one_logit(labels)
    z, gradient = logits_of(model.model)
    assert (z > 0).sum() == 4
    for picture, logit, of_logit in zip(pictures(), z, gradient, strict=True):
        found = sb.explain(picture, model, "gradient", reduction="sum")
        p = 1 / (1 + np.exp(-logit))
        assert (found.prediction, found.target) == (names[int(logit > 0)],) * 2
        assert found.probability == pytest.approx(max(p, 1 - p), abs=1e-6)
        np.testing.assert_allclose(found.map, np.sign(logit) * of_logit, rtol=1e-5, atol=1e-7)
        first, *others = (sb.explain(picture, model, "gradient", reduction="sum", target=target).map
                          for target in (names[0], 0, torch.tensor([[-1.0]])))  # fmt: skip
        np.testing.assert_allclose(first, -of_logit, rtol=1e-5, atol=1e-7)
        assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(("labels", "names", "targets"), [
    (None, SHAPES, ("label", "predicted", "contrast:second")),  # assumed to be the classes of the dataset, in order
    (["square"], ["not square", "square"], ("contrast:second",)),
    (SHAPES, SHAPES, ("label",)),
])  # fmt: skip
def test_single_logit_run_matches_values_computed_by_hand(saved, tmp_path, labels, names, targets, caplog):
    truth = np.array([0, 1, 0, 1, 0, 1, 0])
    data, model = saved(SHAPES, truth.tolist()), one_logit(labels)
    z, _ = logits_of(model.model)
    p, positive = 1 / (1 + np.exp(-z)), z > 0
    right = positive == (truth == 1)
    black = torch.sigmoid(model.model(torch.zeros(1, 3, SIDE, SIDE))).item()
    metrics = ["saliency_deletion:steps=1", "saliency_roae:exposure=0.0", "saliency_class_sensitivity"]
    for target in targets:
        result = run(data, model, tmp_path / target.replace(":", ""), metrics=metrics, target=target)
        rows = predictions(result)
        assert [row["logits"] for row in rows] == [pytest.approx([-logit, logit], rel=1e-4) for logit in z]
        assert [row["prediction"] for row in rows] == positive.astype(int).tolist()
        assert [row["confidence"] for row in rows] == pytest.approx(np.maximum(p, 1 - p).tolist(), abs=1e-5)
        assert [row["correct"] for row in rows] == right.tolist()
        about = result.summary["model"]
        assert about["accuracy"]["value"] == pytest.approx(right.mean())
        assert (about["accuracy_kind"], about["activation"], about["classes"]) == ("accuracy", "binary", 2)
        asked = truth if target == "label" else positive.astype(int)
        found = {(row["image_id"], row["metric"]): row for row in result.records() if row["part"] is None}
        for index in range(7):
            deletion = found[f"i{index}", "saliency_deletion"]
            name, other = names[asked[index]], names[1 - asked[index]]
            assert deletion["target"] == (name if target != "contrast:second" else f"{name} - {other}")
            assert deletion["prediction"] == names[int(positive[index])]
            ends = np.array([p[index], black])
            ends = ends if asked[index] else 1 - ends
            ends = 2 * ends - 1 if target == "contrast:second" else ends
            assert deletion["value"] == pytest.approx(ends.mean(), abs=1e-5)
            assert found[f"i{index}", "saliency_roae"]["value"] == right[index]
            # Maps for and against a logit have opposite signs, so |gradient| is the same.
            assert found[f"i{index}", "saliency_class_sensitivity"]["value"] == pytest.approx(1)
    line = "has no class names: a positive logit is assumed to mean square, a negative one circle"
    assert sum(line in message for message in caplog.messages) == 3 * (labels is None)
    assert ("classes in the order" in str(result)) == (labels is None)
    assert ("has no class names" in result.report.read_text()) == (labels is None)


def test_consistency_skips_transforms_that_flip_single_logit(saved, tmp_path):
    data, model = saved(), one_logit()
    settings = {"target": "predicted", "metrics": ["saliency_consistency"]}
    rows = pq.read_table(run(data, model, tmp_path / "run", **settings).folder / "records.parquet").to_pylist()
    got = {(row["image_id"], row["part"]): row["value"] is not None for row in rows if row["part"]}
    with torch.no_grad():
        side = model.model(stacked())[:, 0] > 0
        kept = {name: (model.model(way.there(stacked()))[:, 0] > 0) == side for name, way in TRANSFORMS.items()}
    assert got == {(f"i{index}", name): bool(same[index]) for name, same in kept.items() for index in range(7)}
    assert len(set(got.values())) == 2


@pytest.mark.parametrize(("labels", "label_map", "members"), [
    (["square"], None, [[0], [1], [0]]),
    (["square"], {"square": "square"}, [[0], [1], [0]]),
    (["square"], {"circle": "square", "square": "not square"}, [[1], [0], [0]]),
    (["square"], {"star": None}, [[0], [1], []]),
    (None, {"circle": 0, "square": 1, "star": 0}, [[0], [1], [0]]),
])  # fmt: skip
def test_single_logit_maps_other_labels_to_negative_class(saved, tmp_path, labels, label_map, members):
    data = saved([*SHAPES, "star"], [0, 1, 2, 1, 0, 2, 0])
    result = run(data, one_logit(labels), tmp_path / "run", label_map=label_map)
    assert json.loads((result.folder / "run.json").read_text())["identity"]["labels"] == members


ABC, SEVEN, THINGS = list("abc"), [0, 1, 2, 0, 1, 2, 0], [f"thing {number}" for number in range(6)]
SQUARES, PLANTS = (SHAPES, [0, 1, 0, 1, 0, 1, 0]), (["horse", "potted plant"], [0, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize(("data", "columns", "model", "settings", "words"), [
    # classes that one logit cannot represent
    (SQUARES, {}, lambda: one_logit(["quad"]), {}, r"does not have the dataset's classes.*not quad, quad; use"),
    (SQUARES, {}, lambda: one_logit(["square"]), {"label_map": {"circle": 0, "square": None}},
     "no class to square, which is class 1"),
    (SQUARES, {}, one_logit, {"label_map": {"square": 0}}, "no entry for circle"),
    (SQUARES, {}, lambda: one_logit(ABC), {}, "one logit but has 3 class names"),
    (SQUARES, {"labels": [SHAPES, *[["circle"]] * 6]}, lambda: one_logit(["square"]), {},
     r"does not have the dataset's classes \(circle\)"),
    # settings that need known labels
    (PLANTS, {}, lambda: classifier(6, labels=THINGS), {}, "--target predicted"),
    (PLANTS, {}, lambda: classifier(6, labels=THINGS), {"target": "predicted", "metrics": ["saliency_roae"]},
     "saliency_roae needs labels"),
    (PLANTS, {}, lambda: classifier(6, labels=THINGS),
     {"target": "predicted", "label_map": {"horse": "thing 9"}}, "potted plant|thing 9"),
    ((), {}, lambda: classifier(3), {"target": "predicted", "only": ["correct"]}, "--only correct needs labels"),
    # conditions that are never true, and unknown columns
    *(((ABC, SEVEN), {"source": ["hand"] * 7}, lambda: classifier(3), {"only": [only]}, words) for only, words in (
        ("right", "--only.*correct, masked or COLUMN=VALUE, not 'right'"), ("sours=hand", "'sours'.*source"),
        ("source=hant", "'hant'.*hand"), ("label=d", "value of label 'd'"))),
    ((ABC, SEVEN), {"scene": ["sea"] * 7}, lambda: classifier(3), {"label_column": "scenes"}, r"'scenes'.*scene"),
    ((ABC, SEVEN), {}, lambda: classifier(3), {"label_column": "image"}, "neither class labels nor text"),
])  # fmt: skip
def test_invalid_settings_are_rejected_before_writing(saved, tmp_path, data, columns, model, settings, words):
    refused(words, run, saved(*data, **columns), model(), tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_multi_label_single_logit_has_no_negative_class(saved, tmp_path):
    several = [["circle", "square"], ["circle"], ["square"], ["circle"], ["square"], ["circle"], ["square"]]
    data = saved(SHAPES, [1, 0, 1, 0, 1, 0, 1], labels=several)
    model = one_logit(["square"])
    result = run(data, model, tmp_path / "run", label_map={"circle": None, "square": "square"})
    truth = np.array([["square" in names] for names in several])
    by_hand = mean_average_precision(logits_of(model.model)[0][:, None], truth, np.arange(7), 0)
    about = result.summary["model"]
    assert (about["accuracy"]["value"], about["accuracy_kind"]) == (by_hand.value, "mean average precision")


def test_single_logit_of_other_shape_needs_logits_function():
    images = torch.rand(2, 3, SIDE, SIDE)
    plain = one_logit()(images)
    assert torch.equal(one_logit(network=OneLogit((-1,)), logits=lambda out: out[:, None])(images), plain)
    pixels = OneLogit((-1, 1, 1, 1))
    fix = r"\(2, 1, 1, 1\) instead of logits.*logits=lambda out: out.mean\(\(2, 3\)\)"
    refused(fix, one_logit(network=pixels), images)
    assert torch.equal(one_logit(network=pixels, logits=lambda out: out.mean((2, 3)))(images), plain)
    softmax = sb.load_classifier(OneLogit(), mean=0, std=1, device="cpu", activation="softmax")
    refused(r"single logit.*activation=sigmoid", softmax, images)
    refused(r"2 logits but has 1 class names \(square", classifier(2, labels=["square"]), images)
    refused("ends in a sigmoid", one_logit(network=nn.Sequential(OneLogit(), nn.Sigmoid())), images)


class Absent(Means):
    """`Means` with five classes, two of which are masked out."""

    def __init__(self, logit):
        super().__init__(5)
        self.logit = logit

    def forward(self, images):
        return super().forward(images).masked_fill(torch.tensor([False, True, False, False, True]), self.logit)


@pytest.mark.sample(2)
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("target", ["label", "predicted", "contrast:second"])
def test_minus_infinity_logits_do_not_affect_other_classes(saved, tmp_path, activation, target, caplog):
    data = saved(list("abcde"), [0, 2, 3, 0, 2, 3, 0])
    settings = {
        "explainers": ["gradient", "rise:masks=20,cells=3"],
        "metrics": ["saliency_deletion:steps=1", "saliency_roae:exposure=0.0", "saliency_single_deletion",
                    "saliency_cdrop", "saliency_ccs", "saliency_max_sensitivity:draws=2", "saliency_randomisation"],
        "target": target, "activation": activation, "groups": {"all": list("01234")},
    }  # fmt: skip
    infinite, finite = (
        run(data, sb.load_classifier(Absent(logit), mean=0, std=1, device="cpu"), tmp_path / str(logit), **settings)
        for logit in (-torch.inf, -1e4)
    )
    assert not [message for message in caplog.messages if "finite logits" in message]
    columns = itemgetter("image_id", "explainer", "metric", "part", "target", "reason")
    rows, others = ({columns(row): row["value"] for row in result.records()} for result in (infinite, finite))
    assert rows == {key: value if value is None else pytest.approx(value, abs=1e-5) for key, value in others.items()}
    assert sum(value is not None for value in rows.values()) > len(rows) / 2
    accuracy = infinite.summary["model"]["accuracy"]
    assert accuracy == finite.summary["model"]["accuracy"]
    assert accuracy["value"] is not None


def test_class_with_infinite_logit_is_not_explained(saved, tmp_path):
    data = saved(list("abcde"), [0, 1, 2, 3, 4, 0, 2])
    model = sb.load_classifier(Absent(-torch.inf), mean=0, std=1, device="cpu")
    settings = {"explainers": ["gradient", "occlusion:window=4,stride=4"]}
    result = run(data, model, tmp_path / "run", **settings)
    for row in result.records():
        assert (
            (row["value"] is None) == ("infinite logit" in (row["reason"] or "")) == (row["image_id"] in ("i1", "i4"))
        )
    refused(r"image i[14]: .*infinite logit", run, data, model, tmp_path / "strict", strict=True, **settings)
    refused("for 1 is infinite", sb.explain, pictures()[0], model, "gradient", target=1)
    images = model.prepare([{"image": picture} for picture in pictures()]).images
    target = {"target": [0, 1, 2, 3, 4, 0, 2]}
    refused(r"image 1: .*infinite logit", score_samples, "saliency_deletion", images, model, "gradient", **target)


def test_mean_average_precision_matches_scikit_learn():
    average_precision_score = pytest.importorskip("sklearn.metrics").average_precision_score
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 5, (40, 4)).astype(float)  # with ties
    truth = generator.random((40, 4)) < [0.5, 0.2, 0.9, 0.0]
    expected = np.mean([average_precision_score(truth[:, k], scores[:, k]) for k in range(3)])  # class 3: no images
    for given in (scores, np.where(scores == 0, -np.inf, scores)):
        found = mean_average_precision(given, truth, np.arange(40), 0)
        assert found.value == pytest.approx(expected)
        assert found.low < found.value < found.high
        assert found.n == 40
        assert average_precision(given, truth) == pytest.approx(expected)
    assert np.isnan(average_precision(scores, np.zeros_like(truth)))
    rare = np.arange(40)[:, None] < [20, 1, 0]  # class 1 is missing from many draws, and class 2 from all
    found = mean_average_precision(rare.astype(float), rare, np.arange(40), 0)
    assert (found.value, found.low, found.high) == (1, 1, 1)


def test_multi_label_loss_ignores_minus_infinity():
    logits, labels = torch.tensor([[0.3, -torch.inf], [-2.0, -torch.inf]]), torch.tensor([[1.0, 0], [0, 0]])
    loss = loss_of(logits.requires_grad_(), labels)
    assert loss.item() == pytest.approx((np.log1p(np.exp(-0.3)) + np.log1p(np.exp(-2.0))) / 4)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    words = "a logit of minus infinity for the class of a training image.*unmask the class"
    for labels in (torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])):
        refused(words, loss_of, torch.tensor([[0.5, -torch.inf], [0.5, -torch.inf]]), labels)


def test_cell_ids_depend_on_activation(saved, tmp_path):
    data = saved(list("abc"), [0, 1, 2, 0, 1, 2, 0])
    network = classifier(3)
    results = [run(data, network, tmp_path / name, activation=name) for name in ("softmax", "sigmoid")]
    results.append(run(data, network, tmp_path / "assumed"))
    assert [result.summary["model"]["activation_assumed"] for result in results] == [False, False, True]
    assert (network.activation, network.assumed) == ("softmax", True)  # a run does not change the object
    softmax, sigmoid, assumed = (result.cells[0].cell_id for result in results)
    assert softmax == assumed != sigmoid
    assert results[0].records()["value"] != results[1].records()["value"]


def test_multi_label_image_is_correct_with_any_label(saved, tmp_path):
    names, several = list("abc"), [["a", "b"], ["a", "b"], ["c"], ["b", "c"], ["b", "c"], ["a"], ["b"]]
    groups = ["x", "x", "y", "z", "z", "v", "w"]
    data = saved(names, [0, 1, 2, 1, 2, 0, 1], labels=several, group=groups)
    result = run(data, classifier(3), tmp_path / "softmax", metrics=["saliency_kae:exposure=1.0"])
    rows = predictions(result)
    expected = [names[row["prediction"]] in all_of for row, all_of in zip(rows, several, strict=True)]
    assert [row["correct"] for row in rows] == expected
    assert list(scores(result).values()) == [float(x) for x in expected]
    accuracy = result.summary["model"]["accuracy"]
    assert accuracy["n"] == 5
    assert accuracy["value"] == pytest.approx(np.mean([expected[i] for i in (0, 2, 3, 5, 6)]))

    sigmoid = run(data, classifier(3, activation="sigmoid"), tmp_path / "sigmoid")
    logits = np.array([row["logits"] for row in predictions(sigmoid)])[[0, 2, 3, 5, 6]]
    truth = np.array([[name in several[i] for name in names] for i in (0, 2, 3, 5, 6)])
    by_hand = mean_average_precision(logits, truth, np.arange(5), 0)
    assert sigmoid.summary["model"]["accuracy"]["value"] == by_hand.value


def test_top5_accuracy_matches_sorted_logits(saved, tmp_path):
    names = [f"c{number}" for number in range(8)]
    labels = [0, 1, 2, 3, 4, 5, 6]
    result = run(saved(names, labels), classifier(8), tmp_path / "run")
    five = [label in np.argsort(row["logits"])[-5:] for row, label in zip(predictions(result), labels, strict=True)]
    assert 0 < np.mean(five) < 1
    assert result.summary["model"]["top5"]["value"] == pytest.approx(np.mean(five))
    few = run(str(tmp_path / "data"), classifier(8, activation="sigmoid"), tmp_path / "sigmoid")
    assert few.summary["model"]["top5"] is None


@pytest.mark.parametrize(("names", "target"), [(None, "contrast:second"), (["horse", "potted plant"], "predicted")])
def test_predicted_class_is_explained_without_labels(saved, tmp_path, names, target):
    result = run(saved(names, PLANTS[1]), classifier(6, labels=THINGS), tmp_path / "run", target=target)
    rows = result.records().to_list()
    assert all(row["target"].startswith(row["prediction"]) for row in rows)
    assert {row["label"] for row in rows} == ({None} if names is None else set(names))
    assert result.summary["cells"][0]["n"] == 7
    assert result.summary["model"]["accuracy"]["value"] is None
    assert ("label" if names is None else "horse") in result.summary["model"]["no_accuracy"]
    assert result.report.read_text()


def test_score_samples_computes_accuracy_from_labels():
    labels, model = [0, 1, 2, 0, 1, 2, 0], classifier(3)
    images = model.prepare([{"image": picture} for picture in pictures()]).images
    right = (model(images).argmax(dim=1) == torch.tensor(labels)).double().tolist()
    assert 0 < sum(right) < 7
    metric = {"metric": "saliency_roae", "exposure": 0.0}
    by_score = score_samples(**metric, images=images, classifier=model, explainer="gradient", labels=labels)
    assert by_score.tolist() == right
    for name, given, words in (("roae", "target", "needs correct classes; pass labels"),
                               ("deletion", "labels", "needs no labels")):  # fmt: skip
        asked = f"saliency_{name}", images, model, "gradient"
        refused(f"saliency_{name} {words}", score_samples, *asked, **{given: labels})


def test_records_name_target_chosen_by_metric(saved, tmp_path):
    names = list("abcd")
    data, model = saved(names, [0, 1, 2, 3, 0, 1, 2]), classifier(4, labels=names)
    metrics = [f"saliency_{name}" for name in ("ccs", "cgc", "pgs", "cgs", "class_sensitivity")]
    result = run(data, model, tmp_path / "run", groups={"first": ["a", "b"], "last": ["c", "d"]}, metrics=metrics)
    records = result.records().to_list()
    for row in predictions(result):
        logits = row["logits"]
        a = int(np.argmax(logits))
        own, others = ([0, 1], [2, 3]) if a < 2 else ([2, 3], [0, 1])
        b = next(member for member in own if member != a)
        mine, theirs = ("|".join(names[k] for k in members) for members in (own, others))
        words = dict.fromkeys(("saliency_ccs", "saliency_cgc"), f"{names[a]} - {names[b]}") | {
            "saliency_pgs": mine, "saliency_cgs": f"{mine} - {theirs}",
            "saliency_class_sensitivity": f"{names[a]}, {names[int(np.argmin(logits))]}",
        }  # fmt: skip
        assert {r["metric"]: r["target"] for r in records if r["image_id"] == row["image_id"]} == words


def test_target_file_covers_only_limited_images(saved, tmp_path):
    """The batch of four is complete, although the run has a limit of three."""
    data, model = saved(list("abc"), [0, 1, 2, 0, 1, 2, 0]), classifier(3)
    file = tmp_path / "targets.csv"
    ids = in_run_order(sb.load_dataset(data))["image_id"]
    file.write_text("image_id,target\n" + "".join(f"{one},{2 - place}\n" for place, one in enumerate(ids[:3])))
    result = run(data, model, tmp_path / "run", target=str(file), limit=3)
    assert {row["image_id"]: row["target"] for row in result.records()} == dict(zip(ids[:3], "cba", strict=True))
    words = rf"no row for image {ids[3]} \(1 in all\)"
    refused(words, run, data, model, tmp_path / "run", target=str(file), limit=4)


@pytest.fixture
def explained(tmp_path, monkeypatch):
    """Return a function that counts the samples in the file of `seen`; a list would change the hash of its code."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return lambda: len((tmp_path / "seen").read_text())


def seen(classifier, images, target):
    with open(os.environ["SEEN"], "a") as file:
        file.write("." * len(images))
    return images.mean(dim=1)


ONLY = {
    ("correct",): lambda row: row["correct"],
    ("label=b", "label=c"): lambda row: row["label"] in (1, 2),
    ("source=hand",): lambda row: row["source"] == "hand",
    ("source=hand", "correct"): lambda row: row["source"] == "hand" and row["correct"],
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("only", ONLY, ids=str)
def test_only_limits_explained_images_and_can_be_widened(saved, tmp_path, explained, only):
    source = ["hand", "hand", "outline", "outline", "hand", "outline", "hand"]
    data, model = saved(list("abc"), [0, 1, 2, 0, 1, 2, 0], source=source), classifier(3)
    whole = run(data, model, tmp_path / "whole", explainers=["gradient", seen])
    before = explained()
    part = run(data, model, tmp_path / "part", explainers=["gradient", seen], only=only)
    fitting = [row["image_id"] for row in predictions(part) if ONLY[only](row)]
    assert 0 < len(fitting) < 7
    assert len(predictions(part)) == 7
    assert explained() - before == len(fitting)
    assert list(scores(part)) == fitting
    for image_id, value in scores(part).items():
        assert value == pytest.approx(scores(whole)[image_id], rel=1e-5)
    assert {cell["n"] for cell in part.summary["cells"]} == {len(fitting)}
    assert part.summary["only"] == {"conditions": list(only), "samples": len(fitting)}
    assert part.summary["model"]["accuracy"] == whole.summary["model"]["accuracy"]
    assert [cell.cell_id for cell in part.cells] == [cell.cell_id for cell in whole.cells]
    assert "n=" not in str(part)

    again = run(data, model, tmp_path / "part", explainers=["gradient", seen])
    assert explained() - before == 7  # the remaining results were added, and nothing was computed twice
    assert again.summary["only"] is None
    mine, theirs = again.records().to_list(), whole.records().to_list()
    assert [(row["cell_id"], row["image_id"]) for row in mine] == [(row["cell_id"], row["image_id"]) for row in theirs]
    assert [row["value"] for row in mine] == pytest.approx([row["value"] for row in theirs], rel=1e-5)
    narrow = run(data, model, tmp_path / "part", explainers=["gradient", seen], only=only)
    assert explained() - before == 7
    assert narrow.records().to_list() == part.records().to_list()


def test_only_masked_scores_images_with_masks(shapes, resnet, tmp_path):
    result = run(str(shapes), str(resnet), tmp_path / "run", only=["masked"], metrics=["saliency_miou"], limit=6)
    rows = predictions(result)
    assert list(scores(result)) == [row["image_id"] for row in rows if row["mask_share"] is not None]


def test_only_flag_can_be_repeated():
    words = "--model m --out o --only correct --only label=a label=b"
    args = parser_of("run", command).parse_args(words.split())
    assert _shared.given(args)["only"] == ["correct", "label=a", "label=b"]


def test_label_column_replaces_the_label(saved, tmp_path):
    """Use the scene instead of the object as label. The dataset's identity and its own label are preserved."""
    scene = ["sea", "sea", "wood", "sea", "wood", "wood", "sea"]
    data = saved(list("abc"), [0, 1, 2, 0, 1, 2, 0], scene=scene)
    model = classifier(2, labels=["wood", "sea"])
    result = run(data, model, tmp_path / "run", label_column="scene", only=["label=sea"])
    assert [(row["label"], row["target"]) for row in result.records().to_list()] == [("sea", "sea")] * 4
    rows = predictions(result)
    assert [row["dataset_label"] for row in rows] == list("abcabca")
    right = [["wood", "sea"][row["prediction"]] == one for row, one in zip(rows, scene, strict=True)]
    assert [row["correct"] for row in rows] == right
    other = run(data, classifier(3), tmp_path / "other")
    assert other.summary["dataset"]["fingerprint"] == result.summary["dataset"]["fingerprint"]


def test_training_uses_label_column(shapes, tmp_path):
    settings = {"label_column": "scene", "epochs": 1, "size": 32, "limit": 32, "device": "cpu", "progress": False}
    out = sb.train(dataset=str(shapes), model=ResNetConfig(**TINY), out=tmp_path / "scenes", **settings)
    trained = sb.load_classifier(str(out), device="cpu")
    assert trained.labels == sb.load_dataset(str(shapes)).features["scene"].names
    result = run(str(shapes), str(out), tmp_path / "run", label_column="scene", limit=4)
    assert result.summary["model"]["accuracy"]["n"] == 4


def test_labels_without_model_class_are_not_explained(shapes, resnet, tmp_path, capsys):
    classes = sb.load_dataset(str(shapes)).features["label"].names
    label_map = {name: [] if name == classes[0] else name for name in classes}
    settings = {"label_map": label_map, "explainers": ["centre"], "metrics": ["saliency_miou"]}
    result = run(str(shapes), str(resnet), tmp_path / "run", **settings)
    rows = {row["image_id"]: row for row in result.predictions()}
    without = {image_id for image_id, row in rows.items() if row["label"] == 0}
    assert without
    assert all((rows[image_id]["correct"] is None) == (image_id in without) for image_id in rows)
    assert {row["image_id"] for row in result.records()} == set(rows) - without
    assert result.summary["model"]["accuracy"]["n"] == len(rows) - len(without)
    assert result.summary["model"]["no_class"] == len(without)
    page = result.report.read_text(encoding="utf-8")
    assert f"images not counted, because their label is not a class of the model: {len(without)}" in page
    assert f"of the {len(rows)} samples (samples with a label that is not a class of the model: {len(without)})" in page
    line = f"{len(without)} of {len(rows)} samples show no class of the model: they are classified, but have no maps"
    assert line in capsys.readouterr().err
    predicted = run(str(shapes), str(resnet), tmp_path / "predicted", **settings, target="predicted")
    assert len(predicted.records()) == len(predicted.predictions())
    some = run(str(shapes), str(resnet), tmp_path / "some", **settings, only=[f"label={classes[1]}"])
    assert {row["label"] for row in some.records()} == {classes[1]}
    refused(classes[0], run, str(shapes), str(resnet), tmp_path / "none", **settings, only=[f"label={classes[0]}"])
