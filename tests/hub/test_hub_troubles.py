"""Tests of Hubs that fail, change or send wrong data: unmodified clients get correct data or a one-line error.

Each client is a separate process, because libraries read their environment when they are imported.
"""

import json
import re
import sys
import time

import pyarrow.parquet as pq
import pytest
from local_hub import FOUNDER, VISITOR
from only_evaluate import only_evaluate  # noqa: F401

from saliency_bench.bound_metric import list_metrics, load_metric
from saliency_bench.data.build_report import REPORT
from saliency_bench.hub.upload import publish
from saliency_bench.publishing.datasets import dataset_publication
from saliency_bench.publishing.metrics import metric_publication
from saliency_bench.publishing.models import model_publication

pytestmark = pytest.mark.slow
LOAD = """
import saliency_bench as sb
from saliency_bench.data.loading import fingerprint
from saliency_bench.errors import UserError
try:
    print("rows", fingerprint(sb.load_dataset("saliency-bench/pet-xai"{more})))
except UserError as error:
    print("refused:", error)
"""
CLASSIFY = """
import saliency_bench as sb
from saliency_bench.errors import UserError
try:
    print("weights", sb.load_classifier("saliency-bench/resnet-18-pet-xai").digest)
except UserError as error:
    print("refused:", error)
"""
TEST = "test-00000-of-00001.parquet"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture
def filled(hub, pets, model, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    publish(dataset_publication(pets, "saliency-bench", tmp_path), api=hub.api())
    publish(model_publication(model, "saliency-bench", api=hub.api()), api=hub.api())
    return hub


@pytest.fixture
def right(pets):
    return "rows " + json.loads((pets / REPORT).read_text())["splits"]["test"]["fingerprint"]


def lines_of(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def told(hub, code, **more):
    return lines_of(hub.python(code, user=None, **more))[-1].strip()


def load(hub, home, more=""):
    return told(hub, LOAD.format(more=more), home=home)


def test_temporary_errors_do_not_stop_loading(filled, right):
    """Test a broken connection, status 429 and a slow server."""
    filled.fault(f"GET .*{TEST}", drop_after=700)
    assert load(filled, "broken") == right
    assert len(filled.lines(f"{TEST} 200")) == 3  # HEAD, GET, GET
    filled.fault("GET .*parquet", status=429, headers={"Retry-After": "2"})
    assert load(filled, "asked to wait") == right
    filled.fault("resolve", times=99, delay=0.5)
    start = time.time()
    assert load(filled, "slow") == right
    assert time.time() - start > 3


@pytest.mark.thorough
def test_wrong_content_length_is_rejected(filled, right):
    for lie in (-300, 300):
        filled.heal()
        filled.fault(f"(GET|HEAD) .*{TEST}", times=99, lie=lie)
        home = f"lie{lie}"
        line = load(filled, home)
        assert line.startswith("refused: ")
        assert "cannot be loaded" in line or "connection to the Hub was lost" in line
        filled.heal()
        assert load(filled, home) == right  # the cache contains no wrong data
    filled.fault("GET .*model.safetensors", times=99, lie=-100)
    assert "resnet-18-pet-xai cannot be loaded from the Hub" in told(filled, CLASSIFY, home="model")
    filled.heal()
    assert told(filled, CLASSIFY, home="model").startswith("weights ")


@pytest.mark.thorough
def test_changed_file_under_pinned_revision_is_rejected(filled, right, pets, tmp_path):
    """Test that clients with the old file keep it, and that new clients get an error."""
    pinned = filled.api().dataset_info("saliency-bench/pet-xai").sha
    more = f", revision={pinned!r}"
    assert load(filled, "before", more) == right
    table = pq.read_table(pets / "data" / TEST)
    pq.write_table(table.take(list(range(len(table)))[::-1]), tmp_path / TEST)
    filled.change_in_place("datasets", "saliency-bench/pet-xai", pinned, f"data/{TEST}", (tmp_path / TEST).read_bytes())
    assert load(filled, "before", more) == right
    line = load(filled, "after", more)
    assert re.match(r"refused: .*\btest\b.*saliency-bench/pet-xai.*build_report\.json", line)


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize(("code", "order", "words"), [
    (LOAD, {"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "{repo}.*403"),
    (LOAD, {"status": 429, "headers": {"Retry-After": "1"}}, "Hub.*429"), (LOAD, {"status": 500}, "500.*{repo}"),
    (CLASSIFY, {"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "{repo}.*403"),
    (CLASSIFY, {"status": 429, "headers": {"Retry-After": "1"}}, "Hub.*429"),
    (CLASSIFY, {"status": 500}, "500.*{repo}"),
])  # fmt: skip
def test_hub_refusals_while_loading_are_one_line(code, order, words, filled):
    """Test that an error of the Hub is not reported as a wrong name."""
    repo = "saliency-bench/pet-xai" if code is LOAD else "saliency-bench/resnet-18-pet-xai"
    filled.fault(repo, times=999, message=f"you sent {FOUNDER.token}", **order)
    quick = "import time\ntime.sleep = lambda seconds: None  # the client tries again by itself\n"
    (line,) = lines_of(filled.python(quick + code.replace("{more}", "")))
    assert line.startswith("refused: ")
    assert re.search(words.format(repo=repo), line)
    assert FOUNDER.token not in line


@pytest.mark.thorough
def test_offline_run_writes_the_same_bytes(filled, tmp_path):
    """Test that a run without network writes the same bytes as before and uses the same name of the dataset."""
    line = ["run", "--dataset", "saliency-bench/pet-xai", "--model", "saliency-bench/resnet-18-pet-xai", "--explainers",
            "gradcam", "--metrics", "saliency_miou", "saliency_insertion", "--limit", "3", "--out"]  # fmt: skip
    lines_of(filled.command(*line, "online", user=None))
    asked = len(filled.asked)
    lines_of(filled.command(*line, "offline", user=None, **OFFLINE))
    assert len(filled.asked) == asked
    online, offline = (filled.root / "home" / place / "records.parquet" for place in ("online", "offline"))
    assert online.read_bytes() == offline.read_bytes()
    assert set(pq.read_table(online)["dataset"].to_pylist()) == {"pet-xai"}


def test_annotations_load_and_rejoin_from_the_hub(filled, closed, source, tmp_path):
    """Load the annotations with `datasets` alone, then join them with images, then load them again without network."""
    (tmp_path / "made").mkdir()
    publication = dataset_publication(closed, "visitor", tmp_path / "made")
    publish(publication, api=filled.api(VISITOR))
    code = f"""
import datasets
import saliency_bench as sb
from saliency_bench.data.loading import fingerprint
notes = datasets.load_dataset("visitor/pet-xai", "annotations", split="test")
assert "image" not in notes.column_names and "image_sha256" in notes.column_names
rows = sb.load_dataset("visitor/pet-xai", source={str(source)!r})
assert rows["image_id"][:] == notes["image_id"][:]
print("rows", fingerprint(rows))
"""
    wanted = "rows " + json.loads((closed / REPORT).read_text())["splits"]["test"]["fingerprint"]
    assert told(filled, code) == told(filled, code, **OFFLINE) == wanted


# Metrics without an installed package


@pytest.mark.thorough
def test_alignment_metrics_need_only_evaluate_and_numpy(hub, only_evaluate, monkeypatch):  # noqa: F811
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    names = [name for name in list_metrics() if set(load_metric(name).inputs) == {"maps", "masks"}]
    assert {"saliency_miou", "saliency_pointing_game"} < set(names)
    for name in names:
        publish(metric_publication(name, "saliency-bench"), api=hub.api())
    code = f"""
import importlib.util
import evaluate
import numpy as np
assert not [name for name in ("torch", "transformers", "saliency_bench", "scipy") if importlib.util.find_spec(name)]
maps = np.zeros((2, 8, 8), np.float32)
maps[:, 2:4, 2:4] = 1
for name in {names}:
    print(evaluate.load("saliency-bench/" + name).compute(predictions=maps, references=maps > 0))
"""
    for more in ({}, OFFLINE):
        done = hub.run([sys.executable, "-S", "-c", code], user=None, PYTHONPATH=str(only_evaluate), **more)
        assert lines_of(done) == [str({name: 1.0}) for name in names]  # a map that equals the mask is the best


@pytest.fixture(scope="module")
def spaces(tmp_path_factory):
    """Write the files of every metric's Space to separate folders."""
    root = tmp_path_factory.mktemp("spaces")
    for name in list_metrics():
        (root / name).mkdir()
        for path, content in metric_publication(name, "saliency-bench").files.items():
            (root / name / path).write_bytes(content)
    return root


@pytest.mark.thorough
def test_metric_page_scores_images(hub, spaces):
    code = """
import numpy as np
import app
import gradio as gr
mask = np.zeros((20, 20), np.uint8)
mask[5:15, 5:15] = 255
print(app.score(mask, mask), app.score(mask[::-1, ::-1] // 2, mask), app.score(*app.example()))
for wrong in ((None, mask), (mask[:10], mask), (mask, mask * 0)):
    try:
        app.score(*wrong)
    except gr.Error as error:
        print(error.message)
assert any(block.get("type") == "button" for block in app.demo.config["components"])
"""
    scores, *errors = lines_of(
        hub.run([sys.executable, "-c", code], user=None, PYTHONPATH=str(spaces / "saliency_miou"))
    )
    assert scores.split()[:2] == ["1.0000", "1.0000"]
    assert 0.1 < float(scores.split()[2]) < 0.9
    assert (errors[0], len(errors)) == ("the saliency map or the mask is missing; upload both", 3)


@pytest.mark.thorough
def test_metric_pages_have_fields_for_their_inputs(hub, spaces):
    """Test that the fields of a page follow from the arguments of the metric."""
    code = """
import runpy, sys
from pathlib import Path
for place in sorted(Path(sys.argv[1]).iterdir()):
    parts = runpy.run_path(str(place / "app.py"))["demo"].config["components"]
    assert all(part["props"]["format"] == "png" for part in parts if part["type"] == "image")  # without loss
    shown = [part["props"].get("label") or part["props"].get("value") for part in parts if part["type"] != "markdown"]
    print(place.name, "|".join(str(one).split(",")[0].split(":")[0] for one in shown if one))
"""
    asked = dict(line.split(" ", 1) for line in lines_of(hub.run([sys.executable, "-c", code, str(spaces)], user=None)))
    assert set(asked) == set(list_metrics())
    ends = "score|{}|prediction of the classifier"
    for name in asked:
        needs, end = set(load_metric(name).inputs), ends.format(name)
        if needs == {"maps", "masks"}:
            assert asked[name] == f"saliency map|mask of the same size|score|{name}"
        elif needs - {"labels"} == {"curves"}:
            assert asked[name] == f"image|saliency map|classifier|class|{end}"
        elif needs & {"other", "partners", "retrained", "first_right"}:  # a page has no fields for these inputs
            assert asked[name] == ""
        else:
            own = "class|" if needs & {"maps", "target"} else ""
            assert asked[name] == f"image|classifier|explainer|{own}{end}"


@pytest.mark.thorough
def test_classifier_metric_pages_match_the_functions(filled, spaces):
    """Compare with the functions, for an image of the classifier's size and a given or predicted class."""
    code = """
import runpy, sys
import gradio as gr
import numpy as np
from PIL import Image
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.compute.targets import one_hot
import saliency_bench as sb
curves, explained, chosen = (runpy.run_path(f"{sys.argv[1]}/saliency_{name}/app.py")
                             for name in ("insertion", "max_sensitivity", "class_sensitivity"))
dice, model = np.random.default_rng(0), "saliency-bench/resnet-18-pet-xai"
picture, saliency = (Image.fromarray(dice.integers(0, 256, shape, dtype=np.uint8)) for shape in ((32, 32, 3), (32, 32)))
classifier = sb.load_classifier(model)
images = classifier.prepare([{"image": picture}]).images
maps = sb.load_classifier(model).prepare([{"image": saliency.convert("RGB")}]).images[:, 0]
assert abs(maps.numpy() - np.asarray(saliency) / 255).max() < 1e-6
best = int(classifier(images).argmax())
other = (best + 1) % len(classifier.labels)
for number, words in ((best, ""), (other, classifier.labels[other]), (other, str(other))):
    target = one_hot([number], len(classifier.labels))
    found, seen = curves["score_curves"](picture, saliency, model, words)
    assert found == f"{load_metric('saliency_insertion')(Curves(classifier, images, target, maps))[0]:.4f}"
    assert seen.startswith(classifier.labels[best] + ": ") and (classifier.labels[number] in seen)
    found, seen = explained["score_explainer"](picture, model, "gradcam", words)
    wanted = score_samples("saliency_max_sensitivity", images, classifier, load_explainer("gradcam"), target=[number])
    assert found == f"{wanted[0]:.4f}"
found, _ = chosen["score_explainer"](picture, model, "random")
wanted = score_samples("saliency_class_sensitivity", images, classifier, load_explainer("random"))
assert found == f"{wanted[0]:.4f}"
print("right")
score, explain = curves["score_curves"], explained["score_explainer"]
for call in (lambda: score(picture, None, model, ""), lambda: score(picture, saliency.resize((9, 9)), model, ""),
             lambda: score(picture, saliency, model, "no such class"), lambda: score(picture, saliency, "/etc", ""),
             lambda: score(picture, saliency, "../x", ""), lambda: explain(None, model, "gradcam"),
             lambda: explain(picture, model, "nonsense"), lambda: explain(picture, "no/such-model", "gradcam")):
    try:
        call()
    except gr.Error as error:
        print(error.message)
"""
    right, *errors = lines_of(filled.run([sys.executable, "-c", code, str(spaces)], user=None))
    assert right == "right"
    said = ("the image or its saliency map is missing", "upload two files of the same size",
            "unknown class of the model 'no such class'", "'/etc' is not a classifier on the Hub",
            "'../x' is not a classifier on the Hub", "the image is missing", "unknown explainer 'nonsense'",
            "unknown model 'no/such-model'")  # fmt: skip
    for line, words in zip(errors, said, strict=True):
        assert words in line
