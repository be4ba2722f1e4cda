"""Shared fixtures of the tests of builders."""

from functools import cache

import pytest

from saliency_bench.hub_builders import _examples


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Return example(name, count, side, built), which writes a source and returns (source, built(name, source)).

    The source lies two levels below a folder of its own. Both are made once per file.
    """

    @cache
    def write(name, count, side, built):
        source = _examples.write(name, tmp_path_factory.mktemp("example") / "downloads" / "source", count, side)
        return source, built(name, source)

    return write
