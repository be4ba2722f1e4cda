"""Score saliency maps during training: a few images after each epoch, logged with the loss.

    trainer.add_callback(trainer_callback(trainer, dataset="shapes"))                # of transformers.Trainer
    Trainer(callbacks=[lightning_callback(dataset="shapes", mean=0.5, std=0.25)])    # of lightning or pytorch_lightning

Values such as "saliency/saliency_miou/gradcam" are logged by the trainer: TensorBoard, trackio, Weights and Biases. The
scores come from `sb.run` on the first process; training is not affected.
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
LOAD = [name for name in signature(load_classifier).parameters if name != "model"]  # what `load` may hold


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
    """Return {"saliency/METRIC/EXPLAINER": mean score} of a network in its current state.

    Args:
        model: the network; its modes do not change.
        dataset: see `run`.
        explainers: see `run`.
        metrics: see `run`.
        limit: number of images, always the same images.
        load: arguments of `load_classifier`, such as {"mean": 0.5, "std": 0.25}, for a network without a known
            normalisation.
        **settings: other settings of `run`, such as `split`.

    Raises:
        UserError: `run` or `load_classifier` refuses something.
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
    """Raise UserError for arguments of `scores_of` that it would refuse after the first epoch."""
    for name in ("model", "out", "progress"):
        if name in options:
            raise UserError(f"{name} is given by the callback; leave it out")
    settings = {"explainers": EXPLAINERS, "metrics": METRICS} | options
    load = settings.pop("load", None) or {}
    if not isinstance(load, dict):
        raise UserError(f'load must be a dict, such as {{"mean": 0.5, "std": 0.25}}; got {load!r}')
    check_names("load", load, LOAD)
    for name in options:
        if name in LOAD and name not in RunSpec.model_fields:
            raise UserError(f'{name} is an argument of loading the model, not of a run; give load={{"{name}": ...}}')
    describe({"dataset": dataset, "model": "as it is after the epoch", "out": "a temporary folder", **settings})
    if isinstance(dataset, str):
        check_dataset(dataset)


def _check_model(model: Any, load: dict[str, Any] | None, how_to_give: str) -> None:
    """Raise UserError for a model that `scores_of` would refuse after the first epoch.

    Args:
        model: the network before its training.
        load: see `scores_of`.
        how_to_give: code to suggest if mean and std are missing.
    """
    try:
        with modes_kept({"model": model}):
            load_classifier(model, **load or {})
    except UserError as error:
        raise UserError(str(error).replace(HOW_TO_GIVE, f"give the callback {how_to_give}")) from error


def trainer_callback(trainer: Any, dataset: Any, **options: Any) -> Any:
    """Return a callback for a `transformers.Trainer` that logs `scores_of` its model after each epoch.

    Args:
        trainer: trainer whose `log` gets the scores.
        dataset: see `run`.
        **options: options of `scores_of`.

    Raises:
        UserError: `run` would refuse the dataset or an option, or `load_classifier` the model.
    """
    _check(dataset, options)
    _check_model(trainer.model, options.get("load"), 'load={"mean": ..., "std": ...}')
    from transformers import TrainerCallback

    class SaliencyCallback(TrainerCallback):
        """Callback that logs scores of saliency maps after each epoch."""

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Score the model and log it, on the first process."""
            if state.is_world_process_zero:
                should_log = control.should_log
                trainer.log(scores_of(kwargs["model"], dataset, **options))
                control.should_log = should_log  # `log` marks the epoch's loss as logged, although it comes later

    return SaliencyCallback()


def _lightning() -> Any:
    """Return the package of Lightning by either of its names; trainers of both accept callbacks of the other.

    Raises:
        UserError: None is installed.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if find_spec(name.partition(".")[0]) is not None:
            return import_module(name)
    raise UserError("Lightning is not installed: pip install lightning")


def _network_of(module: Any, name: str) -> Any:
    """Return the attribute of a module that holds its network, or with "" the module itself.

    Raises:
        UserError: The module has no such attribute.
    """
    if name and not hasattr(module, name):
        raise unknown("network", name, [child for child, _ in module.named_children()], owner=type(module).__name__)
    return getattr(module, name) if name else module


def lightning_callback(dataset: Any, *, network: str = "", **options: Any) -> Any:
    """Return a callback for Lightning that logs `scores_of` the module after each epoch of training.

    Args:
        dataset: see `run`.
        network: the attribute of the module that holds the network; "": the module itself is called.
        **options: options of `scores_of`; `mean` and `std` are short for `load`.

    Raises:
        UserError: Lightning is not installed, or `run` would refuse the dataset or an option; when training begins, the
            module has no such network, or `load_classifier` refuses it.
    """
    short = {key: options.pop(key) for key in ("mean", "std") if key in options}
    _check(dataset, options)
    load = short | (options.pop("load", None) or {})
    Callback: Any = _lightning().Callback  # noqa: N806

    class SaliencyCallback(Callback):
        """Callback that logs scores of saliency maps after each epoch."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Raise UserError for errors that would otherwise occur after the first epoch."""
            _check_model(_network_of(pl_module, network), load, "mean=..., std=...")

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """Score the network and log it, on the first process."""
            if trainer.is_global_zero:
                model = _network_of(pl_module, network)
                pl_module.log_dict(scores_of(model, dataset, load=load, **options), rank_zero_only=True)

    return SaliencyCallback()
