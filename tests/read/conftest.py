"""Share a written run, its page and a network between the tests of this folder."""

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Write the run that `make_run` writes by default; tests that change a run copy it first."""
    from test_reporting import make_run

    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def page(folder):
    from test_reporting import page_of

    return page_of(folder)


@pytest.fixture(scope="session")
def model():
    """Return a network that classifies images by the colours of their visible pixels."""
    import torch

    from saliency_bench import load_classifier, registry

    torch.manual_seed(1)
    layers = torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    names = list(registry.load("hub_builders", "shapes-xai").OBJECTS)
    return load_classifier(torch.nn.Sequential(*layers), mean=0.5, std=0.05, labels=names, device="cpu")
