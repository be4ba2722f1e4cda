"""Nothing a test does touches the caches of the person who runs it."""

import datasets
import pytest


@pytest.fixture(scope="session")
def _caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def own_caches(_caches, monkeypatch):
    """`datasets` reads its environment when imported, so its settings are changed where it keeps them."""
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(_caches / "saliency-bench"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", _caches / "datasets")
