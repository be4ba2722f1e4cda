"""pytest fixtures; tests/conftest.py imports them."""

import pytest

from local_hub.hub import LocalHub


@pytest.fixture
def hub(tmp_path):
    """A Hub with nothing on it, gone after the test."""
    with LocalHub(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_hub(tmp_path_factory):
    """A Hub for all tests of a file; they must not order faults that outlive them."""
    with LocalHub(tmp_path_factory.mktemp("hub")) as running:
        yield running
