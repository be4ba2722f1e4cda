"""Load the `evaluate` modules of this repository from their folders."""

import sys
from functools import cache
from itertools import count

from saliency_bench import registry

NUMBERS = count()  # unload packages, because Python would reuse a package of the same name from the first file's folder


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
