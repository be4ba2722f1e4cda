"""Install the metrics so that `evaluate.load("saliency_miou")` works without a namespace, in any folder and offline."""

import inspect
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from saliency_bench import registry
from saliency_bench.errors import UserError
from saliency_bench.publishing.vendoring import has_module, metric_files, siblings_of
from saliency_bench.utils.files import write_text

# Parameters of evaluate's private function that writes a module into its cache.
EXPECTED = (
    "local_path",
    "local_imports",
    "additional_files",
    "dynamic_modules_path",
    "module_namespace",
    "name",
    "download_mode",
)


@dataclass(frozen=True)
class Installed:
    """An installed metric. `changed` is False if the same code was already installed."""

    name: str
    path: str
    changed: bool


def install_metrics(names: Iterable[str] = ()) -> list[Installed]:
    """Copy metrics into the module cache of evaluate, HF_MODULES_CACHE.

    If there are several copies of a metric, evaluate uses the one whose main script was modified last. The most recent
    installation is therefore used, regardless of its version.

    Args:
        names: Names of the metrics, or () for all.

    Raises:
        UserError: A metric is unknown, or this version of evaluate has a different cache layout.
    """
    names = list(names) or [name for name in registry.names("metrics") if has_module(name)]
    texts = {name: metric_files(name) for name in names}
    _check_evaluate()
    return [_install(name, files) for name, files in texts.items()]


def _check_evaluate() -> None:
    """Raise UserError if this version of evaluate has a different cache layout."""
    import evaluate
    from evaluate import loading

    create = getattr(loading, "_create_importable_file", None)
    if create is None or tuple(inspect.signature(create).parameters) != EXPECTED:
        raise UserError(
            f"the cache layout of evaluate {evaluate.__version__} is not supported; run `pip install "
            "evaluate==0.4.6`, or load a metric by the path of its folder"
        )


def _install(name: str, texts: dict[str, str]) -> Installed:
    from evaluate import loading

    folder_of_metric = Path(loading.init_dynamic_modules(), "metrics", f"evaluate-metric--{name}")
    used = _in_use(folder_of_metric, name)
    folder = folder_of_metric / _cached(name, texts)
    stale = [path for path in folder.glob("*.py") if path.name in texts and path.read_text("utf-8") != texts[path.name]]
    for path in stale:  # evaluate's hash ignores comments, and evaluate never overwrites a file
        write_text(path, texts[path.name])
    if _in_use(folder_of_metric, name) != folder:
        newest = max(path.stat().st_mtime for path in folder_of_metric.glob(f"*/{name}.py"))
        now = max(time.time(), newest + 1)
        os.utime(folder / f"{name}.py", (now, now))
    return Installed(name, str(folder), changed=used != folder or bool(stale))


def _in_use(folder_of_metric: Path, name: str) -> Path | None:
    """Return the newest copy of a metric, which evaluate uses.

    Return None if there is no copy, or if two copies are equally new.
    """
    times = sorted((main.stat().st_mtime, main.parent) for main in folder_of_metric.glob(f"*/{name}.py"))
    if not times or (len(times) > 1 and times[-1][0] == times[-2][0]):
        return None
    return times[-1][1]


def _cached(name: str, texts: dict[str, str]) -> str:
    """Unless they exist, write the files into evaluate's cache. Return the name of their folder, which is a hash."""
    from datasets import DownloadMode
    from evaluate import loading

    with TemporaryDirectory() as temporary:
        source = Path(temporary)
        for file, text in texts.items():
            (source / file).write_text(text, encoding="utf-8")
        siblings = siblings_of(texts[f"{name}.py"])
        _, code = loading._create_importable_file(
            local_path=str(source / f"{name}.py"),
            local_imports=[(sibling, str(source / f"{sibling}.py")) for sibling in siblings],
            additional_files=[],
            dynamic_modules_path=loading.init_dynamic_modules(),
            module_namespace="metrics",
            name=f"evaluate-metric/{name}",
            download_mode=DownloadMode.REUSE_DATASET_IF_EXISTS,
        )
    return code
