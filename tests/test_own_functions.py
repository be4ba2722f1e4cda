"""Any callable is an explainer: its name and the version that its code makes, through run, report and results."""

from functools import partial

import pytest
import torch

import saliency_bench as sb
from saliency_bench.errors import UserError
from saliency_bench.explainer import as_explainer
from saliency_bench.leaderboard.schema import of_run, read_submission


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


OWN = {
    "brightness": brightness, "weighted": weighted, "Edges": Edges(2), "powered": closed_over(3),
    "<lambda>": lambda classifier, images, target: images[:, 0],
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    return sb.run(
        dataset=str(shapes), model=str(resnet), explainers=list(OWN.values()), metrics=["saliency_miou"], limit=4,
        batch_size=4, out=tmp_path_factory.mktemp("runs") / "own", device="cpu", progress=False,
    )  # fmt: skip


def test_run_report_and_results_name_every_own_function(done, tmp_path):
    assert [cell["explainer"] for cell in done.summary["cells"]] == list(OWN)
    page = done.report.read_text()
    assert "A Python function" in page
    assert "<lambda>" not in page  # it is no tag of the page
    assert "&lt;lambda&gt;" in page
    folder = of_run(done.folder, "ada").write(tmp_path)[0].parent
    cells = read_submission(folder).result.cells
    assert [cell.explainer for cell in cells] == list(OWN)
    versions = [cell.explainer_version for cell in cells]
    assert all(isinstance(version, str) and len(version) == 16 for version in versions)
    assert len(set(versions)) == len(OWN)
    assert cells[1].explainer_options == {"channel": 0, "scale": "tensor([2., 3., 4.])"}


def test_the_version_is_that_of_the_code_and_of_what_it_holds():
    def version(thing):
        return as_explainer(thing).version

    assert version(brightness) == version(brightness)
    assert version(closed_over(2)) == version(closed_over(2)) != version(closed_over(3))
    assert version(Edges(1)) == version(Edges(1)) != version(Edges(2))
    assert version(partial(weighted, channel=1)) == version(partial(weighted, channel=1))
    assert version(partial(weighted, channel=1)) != version(partial(weighted, channel=2)) != version(weighted)


def test_what_is_bound_to_a_function_is_among_its_options():
    explainer = as_explainer(partial(weighted, channel=2))
    assert explainer.name == "weighted"
    assert dict(explainer.options)["channel"] == 2
    images = torch.rand(2, 3, 4, 4)
    maps = explainer(torch.nn.Identity(), images, sb.targets.one_hot([0, 1], 3))
    torch.testing.assert_close(maps, images[:, 2] * 4)


def test_a_dict_in_the_place_of_a_list_is_refused(shapes, resnet, tmp_path):
    with pytest.raises(UserError, match=r"explainers must be a list.*rise:masks=1000"):
        sb.run(dataset=str(shapes), model=str(resnet), explainers={"rise": {"masks": 5}}, metrics=["saliency_miou"],
               out=tmp_path / "run", device="cpu", progress=False)  # fmt: skip
    assert not (tmp_path / "run").exists()
