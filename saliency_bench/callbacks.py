"""Callbacks that score the saliency maps of a few images after each training epoch, and log the scores with the loss.

    trainer.add_callback(trainer_callback(trainer, dataset="shapes"))                # for transformers.Trainer
    Trainer(callbacks=[lightning_callback(dataset="shapes", mean=0.5, std=0.25)])    # lightning or pytorch_lightning

The trainer logs values such as "saliency/saliency_miou/gradcam" to TensorBoard, trackio or Weights and Biases. The
scores are computed by `sb.run` on the first process. Training is not affected.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.model_objects import HOW_TO_GIVE
from saliency_bench.compute.preflight import check_dataset
from saliency_bench.compute.python_objects import describe, modes_kept
from saliency_bench.compute.run import run
from saliency_bench.errors import UserError, unknown
from saliency_bench.options import check_names
from saliency_bench.spec import RunSpec

EXPLAINERS = ("gradcam", "random")
METRICS = ("saliency_miou", "saliency_insertion")
LOAD = [name for name in signature(load_classifier).parameters if name != "model"]  # allowed keys of `load`


def scores_of(
    model: nn.Module,
    dataset: Any,
    *,
    explainers: Sequence[Any] = EXPLAINERS,
    metrics: Sequence[Any] = METRICS,
    limit: int = 32,
    load: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, float]:
    """Return {"saliency/METRIC/EXPLAINER": mean score} for a network in its current state.

    Args:
        model: Network. Its training and evaluation modes are not changed.
        dataset: See `run`.
        explainers: See `run`.
        metrics: See `run`.
        limit: Number of images. The same images are used in each call.
        load: Arguments for `load_classifier`, such as {"mean": 0.5, "std": 0.25}, which are needed if the network's
            normalisation is unknown.
        **settings: Other settings of `run`, such as `split`.

    Raises:
        UserError: `run` or `load_classifier` raises an error.
    """
    with modes_kept({"model": model}), TemporaryDirectory() as folder:
        classifier = load_classifier(model, **load or {})
        done = run(
            dataset=dataset, model=classifier, explainers=explainers, metrics=metrics, limit=limit, out=folder,
            progress=False, **settings,
        )  # fmt: skip
    return {
        f"saliency/{cell.metric_text}/{cell.explainer_text}": cell.value
        for cell in done.cells
        if cell.value is not None
    }


def _check(dataset: Any, options: dict[str, Any]) -> None:
    """Raise UserError for invalid arguments of `scores_of`.

    Without this check, they would fail after the first epoch.
    """
    for name in ("model", "out", "progress"):
        if name in options:
            raise UserError(f"{name} is set by the callback; remove this argument")
    settings = {"explainers": EXPLAINERS, "metrics": METRICS} | options
    load = settings.pop("load", None) or {}
    if not isinstance(load, dict):
        raise UserError(f'load must be a dict, such as {{"mean": 0.5, "std": 0.25}}; got {load!r}')
    check_names("load", load, LOAD)
    for name in options:
        if name in LOAD and name not in RunSpec.model_fields:
            raise UserError(f'{name} is an argument for loading the model, not for a run; use load={{"{name}": ...}}')
    describe({"dataset": dataset, "model": "as it is after the epoch", "out": "a temporary folder", **settings})
    if isinstance(dataset, str):
        check_dataset(dataset)


def _check_model(model: Any, load: dict[str, Any] | None, how_to_give: str) -> None:
    """Raise UserError for an unsupported model. Without this check, it would fail after the first epoch.

    Args:
        model: Network before training.
        load: See `scores_of`.
        how_to_give: Code that the error suggests if mean and std are missing.
    """
    try:
        with modes_kept({"model": model}):
            load_classifier(model, **load or {})
    except UserError as error:
        raise UserError(str(error).replace(HOW_TO_GIVE, f"pass {how_to_give} to the callback")) from error


def trainer_callback(trainer: Any, dataset: Any, **options: Any) -> Any:
    """Return a callback for a `transformers.Trainer`. It logs the model's `scores_of` after each epoch.

    Args:
        trainer: Trainer whose `log` method receives the scores.
        dataset: See `run`.
        **options: Other arguments for `scores_of`.

    Raises:
        UserError: The dataset, an option or the model is invalid.
    """
    _check(dataset, options)
    _check_model(trainer.model, options.get("load"), 'load={"mean": ..., "std": ...}')
    from transformers import TrainerCallback

    class SaliencyCallback(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                should_log = control.should_log
                trainer.log(scores_of(kwargs["model"], dataset, **options))
                control.should_log = should_log  # otherwise the epoch's loss would not be logged

    return SaliencyCallback()


def _lightning() -> Any:
    """Import Lightning, which may be installed as `lightning` or as `pytorch_lightning`.

    Each package's trainer accepts callbacks written for the other package.

    Raises:
        UserError: Neither package is installed.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if find_spec(name.partition(".")[0]) is not None:
            return import_module(name)
    raise UserError("Lightning is not installed; run `pip install lightning`")


def _network_of(module: Any, name: str) -> Any:
    """Return the attribute `name` of a module. If `name` is empty, return the module itself.

    Raises:
        UserError: The module has no attribute of this name.
    """
    if name and not hasattr(module, name):
        raise unknown("network", name, [child for child, _ in module.named_children()], owner=type(module).__name__)
    return getattr(module, name) if name else module


def lightning_callback(dataset: Any, *, network: str = "", **options: Any) -> Any:
    """Return a callback for Lightning. It logs the network's `scores_of` after each training epoch.

    Args:
        dataset: See `run`.
        network: Attribute of the module that contains the network, or "" if the module itself is the network.
        **options: Other arguments for `scores_of`. `mean` and `std` may also be passed; they are added to `load`.

    Raises:
        UserError: Lightning is not installed, or the dataset or an option is invalid. If the module has no such
            attribute or the network is not supported, the error is raised at the start of training.
    """
    short = {key: options.pop(key) for key in ("mean", "std") if key in options}
    _check(dataset, options)
    load = short | (options.pop("load", None) or {})
    Callback: Any = _lightning().Callback  # noqa: N806

    class SaliencyCallback(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Check the network before training. An unsupported network would otherwise fail after the first epoch."""
            _check_model(_network_of(pl_module, network), load, "mean=..., std=...")

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                model = _network_of(pl_module, network)
                pl_module.log_dict(scores_of(model, dataset, load=load, **options), rank_zero_only=True)

    return SaliencyCallback()
