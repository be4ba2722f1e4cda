"""Select metrics, and load their `evaluate` modules from the folders of this repository."""

import sys
from functools import cache
from itertools import count

from saliency_bench import load_metric, registry

NUMBERS = count()  # unload packages, because Python would reuse a package of the same name from the first file's folder


def with_different_inputs(names):
    """Return one metric for each combination of inputs, because the same code checks the inputs of all of them."""
    return [*{load_metric(name).inputs: name for name in names}.values()]


def loader(folder):
    """Yield load(name, **options) -> new object of this metric's module."""
    from evaluate.loading import evaluation_module_factory, import_main_class, init_dynamic_modules

    modules = init_dynamic_modules(f"modules_of_evaluate_{next(NUMBERS)}", str(folder / "modules"))

    @cache
    def found(name):
        made = evaluation_module_factory(str(registry.files("metrics")[name].parent), dynamic_modules_path=modules)
        return import_main_class(made.module_path), made.hash

    def load(name, **options):
        kind, digest = found(name)
        return kind(cache_dir=str(folder / "cache"), hash=digest, **options)

    yield load
    sys.path.remove(str(folder / "modules"))
