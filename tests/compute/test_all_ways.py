"""Compare scores from every documented interface: all pairs of interfaces, sample by sample, and their cell ids.

A "way" is a run (on the command line or in Python; from names, folders, objects or the Hub) or a component called
directly (`evaluate`, `score_samples`, submitted maps). Ways that pass the same batches through the
network give bit-identical scores.
"""

import json
import shutil
from functools import cache
from pathlib import Path

import evaluate
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from local_hub import LocalHub
from refusals import refused
from run_order import in_run_order
from torch import nn
from transformers import AutoModelForImageClassification

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.board.template import read_template, score_maps
from saliency_bench.bound_metric import load_metric
from saliency_bench.cli import main
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.utils.seeds import seed_of

# One of each type: deterministic, seeded per sample, based on a feature map, seeded once per run, a baseline without
# random draws, and a baseline with random draws.
EXPLAINERS = ("gradient", "smoothgrad:samples=3", "gradcam", "rise:masks=16", "centre", "random")
MASKS = ("saliency_miou", "saliency_pointing_game")
CURVES = ("saliency_insertion", "saliency_deletion:reference=noise,steps=8")
EXPLAIN = ("saliency_class_sensitivity", "saliency_max_sensitivity:draws=2", "saliency_ccs:reference=noise")
METRICS = (*MASKS, *CURVES, *EXPLAIN)
LIMIT, BATCH, SEED = 6, 4, 5
CLOSE = 1e-5  # because the last digits differ
SUBMITTED = EXPLAINERS[::3]  # submitted maps are files, so two explainers suffice

Scores = dict[tuple[str, str], dict[str, float | None]]


class Logits(nn.Module):
    """A transformers model as a plain module."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images).logits


class Ways:
    """Results of each way, computed on first use: {(explainer, metric): {image id: score}}, and cell ids."""

    def __init__(self, pets: Path, model: Path, folder: Path, hub: LocalHub):
        self.pets, self.model, self.folder, self.hub = pets, model, folder, hub
        self.results = cache(self._results)
        self.ids: dict[str, dict[tuple[str, str], str]] = {}
        self.classifier = sb.load_classifier(model, device="cpu")

    def _results(self, way: str) -> Scores:
        return self._run(way, **CHANGES[way](self)) if way in CHANGES else getattr(self, way)()

    # Runs

    def _run(self, way: str, **changes) -> Scores:
        settings = {"dataset": str(self.pets), "model": str(self.model), "explainers": EXPLAINERS, "metrics": METRICS}
        sb.run(**settings | changes, out=self.folder / way, limit=LIMIT, batch_size=BATCH, seed=SEED,
               device="cpu", progress=False)  # fmt: skip
        return self._read(way, self.folder / way)

    def _read(self, way: str, folder: Path) -> Scores:
        cells = json.loads((folder / "summary.json").read_text())["cells"]
        names = {cell["cell_id"]: (cell["explainer_text"], cell["metric_text"]) for cell in cells}
        self.ids[way] = {name: cell_id for cell_id, name in names.items()}
        scores: Scores = {name: {} for name in names.values()}
        for row in pq.read_table(folder / "records.parquet").to_pylist():
            if row["part"] is None:
                scores[names[row["cell_id"]]][row["image_id"]] = row["value"]
        return scores

    def command_line(self):
        words = ["run", "--dataset", self.pets, "--model", self.model, *self._words(self.folder / "command_line")]
        assert main(list(map(str, words))) == 0
        return self._read("command_line", self.folder / "command_line")

    def _words(self, out: Path) -> list:
        return ["--explainers", *EXPLAINERS, "--metrics", *METRICS, "--limit", LIMIT, "--batch-size", BATCH,
                "--seed", SEED, "--device", "cpu", "--out", out]  # fmt: skip

    def _from_the_hub(self, way: str, dataset: str, model: str) -> Scores:
        if not self.hub.store.repos:
            for words in (("dataset", self.pets), ("model", self.model, "--license", "mit")):
                done = self.hub.command("push", *words)
                assert done.returncode == 0, done.stderr
        words = ["run", "--dataset", dataset, "--model", model, *self._words(self.folder / way)]
        done = self.hub.command(*words, user=None)
        assert done.returncode == 0, done.stderr
        return self._read(way, self.folder / way)

    def pushed_and_named(self):
        return self._from_the_hub("pushed_and_named", "pet-xai", "saliency-bench/resnet-18-pet-xai")

    def pushed_and_forced(self):
        model = "hub:saliency-bench/resnet-18-pet-xai"
        return self._from_the_hub("pushed_and_forced", "hub:saliency-bench/pet-xai", model)

    # Parts

    @cache  # noqa: B019
    def batches(self):
        """Return the batches of the runs: prepared pictures, masks, labels, ids."""
        rows = in_run_order(sb.load_dataset(self.pets), SEED)
        return [self.classifier.prepare(rows.select(range(start, start + BATCH))) for start in range(0, LIMIT, BATCH)]

    def seeds(self, batch, purpose="explain"):
        return [seed_of(SEED, image_id, purpose) for image_id in batch.ids]

    def targets(self, batch):
        names = sb.load_dataset(self.pets).features["label"].names
        classes = [self.classifier.labels.index(names[label]) for label in batch.labels]
        return torch.tensor(classes)

    @cache  # noqa: B019
    def maps(self, explainer: str) -> list[np.ndarray]:
        method = sb.load_explainer(explainer).seeded(SEED)
        return [
            method(self.classifier, batch.images, sb.targets.one_hot(self.targets(batch), len(self.classifier.labels)),
                   seeds=self.seeds(batch)).numpy() for batch in self.batches()
        ]  # fmt: skip

    def _scores(self, score) -> Scores:
        """Collect the scores of score(explainer, metric, batch, maps), which returns None for unsupported pairs."""
        found: Scores = {}
        for explainer in EXPLAINERS:
            for metric in METRICS:
                for batch, maps in zip(self.batches(), self.maps(explainer), strict=True):
                    if (values := score(explainer, metric, batch, maps)) is not None:
                        own = found.setdefault((explainer, metric), {})
                        known = [None if np.isnan(value) else float(value) for value in values]  # null in records
                        own |= dict(zip(batch.ids, known, strict=True))
        return {name: dict(list(values.items())[:LIMIT]) for name, values in found.items()}

    def modules_of_evaluate(self):
        loaded = {metric: evaluate.load(str(registry.files("metrics")[load_metric(metric).name].parent))
                  for metric in METRICS}  # fmt: skip

        def score(explainer, metric, batch, maps):
            module, options = loaded[metric], dict(load_metric(metric).options)
            common = {"images": batch.images, "classifier": self.classifier, "batch_size": BATCH, "per_sample": True,
                      "image_ids": batch.ids, "seed": SEED}  # fmt: skip
            if metric in MASKS:
                inputs = {"predictions": maps, "references": batch.masks, "per_sample": True}
            elif metric in CURVES:
                inputs = common | {"predictions": maps, "references": self.targets(batch)}
            else:
                inputs = common | {"explainer": explainer}
                inputs |= {"references": self.targets(batch)} if "target" in load_metric(metric).inputs else {}
            return module.compute(**inputs, **options)["scores"]

        return self._scores(score)

    def score_samples(self):
        def score(explainer, metric, batch, maps):
            if metric in MASKS:
                return None
            target = self.targets(batch) if "target" in load_metric(metric).inputs or metric in CURVES else None
            return score_samples(metric, batch.images, self.classifier, explainer, target=target, batch_size=BATCH,
                                 image_ids=batch.ids, seed=SEED)  # fmt: skip

        return self._scores(score)

    def submitted_maps(self):
        found: Scores = {}
        blank = sb.template(str(self.pets), str(self.model), self.folder / "blank", limit=LIMIT, batch_size=BATCH,
                            seed=SEED, device="cpu", progress=False)  # fmt: skip
        files = read_template(blank)[1]
        for number, explainer in enumerate(SUBMITTED):
            out = self.folder / f"maps{number}"
            out.mkdir()
            for batch, maps in zip(self.batches(), self.maps(explainer), strict=True):
                for image_id, values in zip(batch.ids, maps, strict=True):
                    if image_id in files:
                        np.save(out / files[image_id], values)
            done = score_maps(out, "mine", template=blank, metrics=[*MASKS, *CURVES], device="cpu", progress=False)
            scores = self._read(f"submitted {explainer}", done.folder)
            found |= {(explainer, metric): values for (_, metric), values in scores.items()}
        return found


def saved(ways):
    sb.load_dataset(ways.pets).save_to_disk(ways.folder / "saved")
    return str(ways.folder / "saved")


def reloaded(ways):
    folder = Path(shutil.copytree(ways.model, ways.folder / "reloaded"))
    AutoModelForImageClassification.from_pretrained(ways.model).save_pretrained(folder)
    return str(folder)


# {way of a run in this process: changed settings}
CHANGES = {
    "names_and_folders": lambda ways: {},
    "explainer_and_metric_objects": lambda ways: {"explainers": [sb.load_explainer(name) for name in EXPLAINERS],
                                                  "metrics": [sb.load_metric(name) for name in METRICS]},
    "dataset_in_memory": lambda ways: {"dataset": sb.load_dataset(ways.pets)},
    "dataset_saved_to_disk": lambda ways: {"dataset": saved(ways)},
    "model_object": lambda ways: {"model": AutoModelForImageClassification.from_pretrained(ways.model)},
    "classifier_object": lambda ways: {"model": sb.load_classifier(ways.model, device="cpu")},
    "reloaded_model": lambda ways: {"model": reloaded(ways)},
}  # fmt: skip
RUNS = (*CHANGES, "command_line", "pushed_and_named", "pushed_and_forced")
COVERS = dict.fromkeys((*RUNS[:4], "modules_of_evaluate", *RUNS[4:-1]), METRICS) | {
    "score_samples": (*CURVES, *EXPLAIN),  # metrics without masks
    RUNS[-1]: METRICS,
    "submitted_maps": (*MASKS, *CURVES),  # metrics that need only one map per image
}


@pytest.fixture(scope="module")
def ways(pets, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    with LocalHub(folder) as hub:
        yield Ways(pets, model, folder, hub)


@pytest.mark.sample(2, 3)
@pytest.mark.parametrize("way", COVERS)
def test_every_interface_gives_identical_scores(way, ways):
    """Compare with the first way only. It covers all metrics, so two ways that equal it also equal each other."""
    expected, scores = ways.results(RUNS[0]), ways.results(way)
    explainers = SUBMITTED if way == "submitted_maps" else EXPLAINERS
    assert set(scores) == {(explainer, metric) for explainer in explainers for metric in COVERS[way]}
    assert scores == {name: expected[name] for name in scores}
    if way in RUNS:
        assert ways.ids[way] == ways.ids[RUNS[0]]
    ids = [image_id for batch in ways.batches() for image_id in batch.ids][:LIMIT]
    assert all(list(values) == ids for values in scores.values())
    known = [value for values in scores.values() for value in values.values() if value is not None]
    assert len(known) > 0.9 * len(scores) * LIMIT
    assert len(set(known)) > len(known) / 3  # scores vary


class Keeping:
    """Explainer that keeps the first map of each seed."""

    def __init__(self, text):
        self.__name__ = text.partition(":")[0] + "_kept"
        self.explainer, self.maps = sb.load_explainer(text), {}

    def __call__(self, classifier, images, target, *, seeds, seed=None):
        maps = self.explainer.seeded(seed)(classifier, images, target, seeds=seeds)
        self.maps |= {own: values.numpy() for own, values in zip(seeds, maps, strict=True) if own not in self.maps}
        return maps


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", ["smoothgrad:samples=3", "gradient_shap:samples=3", "rise:masks=8", "random"])
def test_explain_shows_the_map_of_a_run(text, shapes, resnet, tmp_path):
    kept = Keeping(text)
    run = sb.run(dataset=str(shapes), model=str(resnet), explainers=[kept], metrics=["saliency_miou"], limit=3,
                 out=tmp_path / "run", target="predicted", seed=SEED, batch_size=1, progress=False,
                 device="cpu")  # fmt: skip
    picture = {row["image_id"]: row["image"] for row in sb.load_dataset(shapes, split="test")}
    for image_id in run.predictions()["image_id"]:
        shown = sb.explain(picture[image_id], str(resnet), text, image_id=image_id, seed=SEED, device="cpu").map
        np.testing.assert_array_equal(shown, kept.maps[seed_of(SEED, image_id, "explain")])
        if not text.startswith("rise"):  # RISE uses the same masks for all images
            assert not np.array_equal(shown, sb.explain(picture[image_id], str(resnet), text, device="cpu").map)


@pytest.mark.parametrize(("given", "words"), [
    ({"seeds": [1, 2], "image_ids": ["a", "b"]}, "seeds or image_ids"),
    ({"seeds": [1]}, "one seed for each of the 2 images"),
    ({"image_ids": ["a"]}, "one image id for each of the 2 images"),
    ({"image_ids": "ab"}, "one image id for each of the 2 images"),
])  # fmt: skip
def test_wrong_number_of_seeds_or_ids_is_rejected(given, words, resnet):
    images = torch.rand(2, 3, 32, 32)
    refused(words, score_samples, "saliency_max_sensitivity", images, resnet, "gradient", **given)


@pytest.mark.slow
def test_plain_module_matches_scores_of_its_checkpoint(shapes, resnet, tmp_path):
    """Use pictures of the network's input size, because a module defines no resizing. Its cell ids differ.

    The faster copy of a bare network is fused differently from the copy of a module around the network, so the last
    digits of scores differ. The last digits of the prepared pixels also differ. `random` hashes these pixels, so its
    maps differ.
    """
    known = sb.load_classifier(resnet, device="cpu")
    mean, std = (value.flatten().tolist() for value in (known.mean, known.std))
    module = Logits(AutoModelForImageClassification.from_pretrained(resnet))
    scores = []
    for model in (str(resnet), sb.load_classifier(module, mean=mean, std=std, labels=known.labels)):
        done = sb.run(dataset=str(shapes), model=model, explainers=EXPLAINERS[:-1], metrics=METRICS,
                      limit=LIMIT, batch_size=BATCH, device="cpu", out=tmp_path / str(len(scores)),
                      progress=False)  # fmt: skip
        by_name = ["explainer", "metric", "image_id", "part"]  # cells are sorted by their ids, which differ
        scores.append(pq.read_table(done.folder / "records.parquet").to_pandas().sort_values(by_name))
    assert (scores[0]["image_id"].values == scores[1]["image_id"].values).all()
    np.testing.assert_allclose(scores[0]["value"].values, scores[1]["value"].values, rtol=CLOSE, atol=CLOSE)
    assert set(scores[0]["cell_id"]) & set(scores[1]["cell_id"]) == set()
