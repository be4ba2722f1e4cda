"""Child processes for benchmarks that kill or stress the package, forked from a server that has imported the package.

A child starts in a few milliseconds instead of ten seconds, and its failure does not affect other processes.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

IMPORTED = [
    "saliency_bench.cli",
    "saliency_bench.data.building",
    "saliency_bench.compute.run",
    "saliency_bench.recipes.suites.suite",
    "saliency_bench.compute.training",
    "saliency_bench.hub.upload",
    "saliency_bench.hub_builders.shapes_xai",
    "saliency_bench.board.submit",
    "saliency_bench.board.template",
    "saliency_bench.studies.answer_store",
    "matplotlib.pyplot",
    "torchvision",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.modeling_auto",
    "transformers.models.resnet.modeling_resnet",
    "transformers.models.vit.image_processing_vit",
]


class Children:
    """Starts child processes with separate caches."""

    def __init__(self, cache: Path, **environment: str):
        caches = {"HF_DATASETS_CACHE": "datasets", "SALIENCY_BENCH_CACHE": "saliency-bench", "HF_HOME": "hf",
                  "HF_MODULES_CACHE": "modules"}  # fmt: skip
        own = {name: str(cache / folder) for name, folder in caches.items()}
        self.environment = own | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | environment
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(IMPORTED)

    def start(self, function: Callable, settings: dict):
        """Start a function of a module with these settings in a separate process."""
        before = dict(os.environ)
        os.environ.update(self.environment)  # because the server keeps the environment that it was started with
        try:
            child = self.context.Process(target=function, kwargs=settings)
            child.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        return child

    def to_the_end(self, function: Callable, settings: dict) -> None:
        child = self.start(function, settings)
        child.join(300)
        child.kill()
        child.join()
        if child.exitcode != 0:
            raise RuntimeError(f"{function.__name__} in {Path.cwd()} ended with exit code {child.exitcode}")

    def killed_at(self, moment: Callable[[], bool], delay: float, function: Callable, settings: dict) -> bool:
        """Kill a child `delay` seconds after `moment()` is first true. Return False if the child had already ended."""
        child = self.start(function, settings)
        while child.is_alive() and not moment():
            time.sleep(0.001)
        time.sleep(delay)
        child.kill()
        child.join()
        return child.exitcode == -9
