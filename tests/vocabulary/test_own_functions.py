"""Tests of callables as explainers: their names, and the versions of their code, in runs, reports and results."""

import re
from functools import partial

import pytest
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench import composing
from saliency_bench.board.checks import read_checked
from saliency_bench.board.submission import of_run
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.read.finished_run import read_run


def brightness(classifier, images, target):
    return images.mean(dim=1)


SCALE = torch.tensor([2.0, 3.0, 4.0])


def weighted(classifier, images, target, *, channel: int = 0, scale=SCALE):
    return images[:, channel] * scale[channel]


class Edges:
    def __init__(self, step):
        self.step = step

    def __call__(self, classifier, images, target):
        return (images - images.roll(self.step, dims=3)).abs().sum(dim=1)


def closed_over(power):
    def powered(classifier, images, target):
        return images.mean(dim=1) ** power

    return powered


def sideways(start, end):
    def side(classifier, images, target):
        return torch.linspace(start, end, images.shape[3]).expand(images[:, 0].shape)

    return side


OWN = {"brightness": brightness, "weighted": weighted, "Edges": Edges(2), "powered": closed_over(3),
       "<lambda>": lambda classifier, images, target: images[:, 0]}  # fmt: skip
SIDES = sideways(1, 0), sideways(0, 1)  # functions with the same name


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    return sb.run(
        dataset=str(shapes), model=str(resnet), explainers=[*OWN.values(), *SIDES], metrics=["saliency_miou"], limit=4,
        batch_size=4, out=tmp_path_factory.mktemp("runs") / "own", device="cpu", progress=False)  # fmt: skip


def test_run_report_and_results_name_every_user_function(done, tmp_path):
    names = [*OWN, "side", "side"]
    assert [cell["explainer"] for cell in done.summary["cells"]] == names
    page = done.report.read_text()
    assert "A Python function" in page
    assert "<lambda>" not in page  # it is escaped on the page
    assert "&lt;lambda&gt;" in page
    cells = read_checked(of_run(done.folder, "ada").write(tmp_path)[0].parent).result.cells
    assert [cell.explainer for cell in cells] == names
    versions = [cell.explainer_version for cell in cells]
    assert all(isinstance(version, str) and len(version) == 16 for version in versions)
    assert len(set(versions)) == len(names)
    assert cells[1].explainer_options == {"channel": 0, "scale": "tensor([2., 3., 4.])"}


def test_functions_with_same_name_keep_separate_maps_and_times(done):
    run = read_run(done.folder)
    sides = [cell.explainer_id for cell in run.cells if cell.explainer == "side"]
    first, second = (run.examples[f"maps/{explainer_id}"] for explainer_id in sides)
    assert (first[:, :, 0] > first[:, :, -1]).all()
    assert (second[:, :, 0] < second[:, :, -1]).all()
    assert set(run.timings["explainers"]) == {row.explainer_id for row in run.table.rows}
    names = [row.name for row in run.table.rows if row.explainer_id in sides]
    assert all(re.fullmatch(r"side \(version [0-9a-f]{6}\)", name) for name in names)
    assert str(done).count("side (version ") == 2
    page = done.report.read_text(encoding="utf-8").replace("<wbr>", "")
    pictures = {name: set(re.findall(rf' src="(data:[^"]+)" alt="Map of {re.escape(name)} over', page))
                for name in names}  # fmt: skip
    assert all(pictures.values())
    assert not pictures[names[0]] & pictures[names[1]]


def test_bound_arguments_become_options():
    explainer = as_explainer(partial(weighted, channel=2))
    assert (explainer.name, dict(explainer.options)["channel"]) == ("weighted", 2)
    images = torch.rand(2, 3, 4, 4)
    maps = explainer(torch.nn.Identity(), images, sb.targets.one_hot([0, 1], 3))
    torch.testing.assert_close(maps, images[:, 2] * 4)


@pytest.mark.parametrize(("function", "why"), [
    (lambda images: images, r"it takes \(images\): too many positional arguments"),
    (lambda model, inputs, targets, labels: inputs, "missing a required argument: 'labels'"),
    (max, "its signature cannot be read"),
])  # fmt: skip
def test_incompatible_signature_is_rejected(function, why):
    refused(
        rf"must have the parameters \(classifier, images, target\), followed by options with .*{why}",
        as_explainer,
        function,
    )


@pytest.mark.parametrize(("resolve", "given", "why"), [
    (as_explainer, sb.load_metric("saliency_miou"), "miou is a metric, not an explainer; pass it as a metric"),
    (as_explainer, sb.metric(higher_is_better=True)(lambda maps, masks: maps), "is a metric, not an explainer"),
    (as_explainer, lambda maps, masks: maps, "if it is a metric, pass it as a metric"),
    (as_metric, sb.load_explainer("gradcam"), "gradcam is an explainer, not a metric; pass it as an explainer"),
    (as_metric, sb.explainer()(lambda classifier, images, target: images), "is an explainer, not a metric"),
    (as_metric, lambda classifier, images, target: images, "if it is an explainer, pass it as an explainer"),
])  # fmt: skip
def test_swapped_explainer_and_metric_are_rejected(resolve, given, why):
    refused(why, resolve, given)


def test_compatible_callables_are_accepted():
    for function in (lambda *inputs: 0, lambda c, i, t, *, seeds: 0, partial(lambda c, i, t, side: 0, side=3)):
        assert as_explainer(function).name == "<lambda>"


@pytest.mark.parametrize(("returned", "line"), [
    (lambda images: None, "^forgot returned None instead of maps"),
    (lambda images: torch.fft.fft2(images.mean(1)), "^forgot returned complex maps"),
    (lambda images: "maps", "^forgot returned str, not maps"),
    (lambda images: [[1, 2], [3]], "^forgot returned list, not maps"),
    (lambda images: images.mean(1).to_sparse(), "^forgot returned sparse maps"),
    (lambda images: images.mean(1).to("meta"), "^forgot returned maps without numbers"),
])  # fmt: skip
def test_invalid_map_is_rejected_by_explainer_name(returned, line):
    def forgot(classifier, images, target):
        return returned(images)

    refused(line, as_explainer(forgot), torch.nn.Conv2d(3, 3, 1), torch.rand(2, 3, 4, 4), torch.eye(3)[:2])


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, classifier, images, target):
        self.calls += 1
        return images.mean(dim=1) * self.calls


def test_changed_explainer_state_is_warned_about_once(shapes, resnet, tmp_path, capsys):
    settings = {"dataset": str(shapes), "model": str(resnet), "metrics": "saliency_miou", "limit": 4, "batch_size": 2,
                "device": "cpu", "progress": False}  # fmt: skip
    explainers = ["centre", Edges(2), composing.absolute(Counting()), Counting()]
    sb.run(**settings, out=tmp_path / "run", explainers=explainers)
    lines = [line for line in capsys.readouterr().err.splitlines() if "changed during the run" in line]
    assert [line.partition(" changed")[0] for line in lines] == [
        "saliency-bench: the state of absolute(Counting)", "saliency-bench: the state of Counting"]  # fmt: skip
