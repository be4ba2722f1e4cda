"""A small run that tests submit to boards."""

import pytest

import saliency_bench as sb


@pytest.fixture(scope="session")
def run(tmp_path_factory, shapes, resnet):
    return sb.run(
        dataset=str(shapes), model=str(resnet), explainers=["random", "centre"], metrics=["saliency_miou"], limit=12,
        batch_size=8, out=tmp_path_factory.mktemp("runs") / "first", device="cpu", progress=False,
    ).folder  # fmt: skip
