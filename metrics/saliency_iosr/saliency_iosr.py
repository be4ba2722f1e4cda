"""`evaluate` module: share of the salient area that lies in the mask. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_iosr


class SaliencyIosr(MapShell, evaluate.Metric):
    """Mean over samples of the share of the salient area, {map > threshold * max map}, that lies in the mask."""

    function = staticmethod(saliency_iosr)
