"""Fixture of all tests of runs."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def without_plots():
    """Write report pages without plots, because drawing takes a tenth of the time. tests/read tests the plots."""
    from saliency_bench.read.report import plots

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_row_plot", lambda rows, draw: "<svg></svg>")
        yield
