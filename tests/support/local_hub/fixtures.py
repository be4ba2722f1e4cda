"""Define the pytest fixtures of the local Hub, which tests/conftest.py imports."""

import pytest

from local_hub.hub import LocalHub


@pytest.fixture
def hub(tmp_path):
    """Start an empty Hub for one test."""
    with LocalHub(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_hub(tmp_path_factory):
    """Start a Hub for all tests of a file. Faults must not outlive the test that configures them."""
    with LocalHub(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def here(hub, tmp_path, monkeypatch):
    """Make this process a client of the Hub, with empty caches and no token."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    address = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", hub.url)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache" / "datasets")
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path / "cache" / "ours"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return hub
