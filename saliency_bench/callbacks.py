"""Score saliency maps while a network is trained: a few images after each epoch, logged beside the loss.

    trainer.add_callback(trainer_callback(trainer, dataset="shapes"))                    # a transformers.Trainer
    Trainer(callbacks=[lightning_callback(dataset="shapes", mean=0.5, std=0.25)])        # of Lightning

What is logged, such as "saliency/saliency_miou/gradcam", goes where the trainer logs to: TensorBoard, trackio, Weights
and Biases. The scores are those of `sb.run` on the first process; training goes on as if nothing had happened.
"""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.engine.run import run

EXPLAINERS = ("gradcam", "random")
METRICS = ("saliency_miou", "saliency_insertion")


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
    """Return {"saliency/METRIC/EXPLAINER": mean score} of a network as it is now.

    Args:
        model: the network; its modes stay as they are.
        dataset: as for `run`.
        explainers: as for `run`.
        metrics: as for `run`.
        limit: images, the same ones each time.
        load: arguments of `load_classifier`, such as {"mean": 0.5, "std": 0.25}, for a network that does not know its
            normalisation.
        **settings: others of `run`, such as `split`.

    Raises:
        UserError: `run` or `load_classifier` refuses something.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        classifier = load_classifier(model, **load or {})
        with TemporaryDirectory() as folder:
            done = run(
                dataset=dataset, model=classifier, explainers=explainers, metrics=metrics, limit=limit, out=folder,
                progress=False, **settings,
            )  # fmt: skip
    finally:
        for module, mode in modes:
            module.training = mode
    return {
        f"saliency/{cell.metric_text}/{cell.explainer_text}": cell.value
        for cell in done.cells
        if cell.value is not None
    }


def trainer_callback(trainer: Any, dataset: Any, **options: Any) -> Any:
    """Return a callback for a `transformers.Trainer` that logs `scores_of` its model after each epoch.

    Args:
        trainer: whose `log` gets the scores.
        dataset: as for `run`.
        **options: of `scores_of`.
    """
    from transformers import TrainerCallback

    class SaliencyCallback(TrainerCallback):
        """Logs scores of saliency maps after each epoch."""

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Score the model and log it, on the first process."""
            if state.is_world_process_zero:
                should_log = control.should_log
                trainer.log(scores_of(kwargs["model"], dataset, **options))
                control.should_log = should_log  # `log` takes the epoch's loss for logged, which comes after this

    return SaliencyCallback()


def lightning_callback(dataset: Any, *, network: str = "", **options: Any) -> Any:
    """Return a callback for Lightning that logs `scores_of` the module after each epoch of training.

    Args:
        dataset: as for `run`.
        network: the attribute of the module that holds the network; "": the module itself is called.
        **options: of `scores_of`; `mean` and `std` are short for `load`.

    Raises:
        ImportError: Lightning is not installed.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    load = {key: options.pop(key) for key in ("mean", "std") if key in options} | options.pop("load", {})

    class SaliencyCallback(Callback):
        """Logs scores of saliency maps after each epoch."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """Score the network and log it, on the first process."""
            if trainer.is_global_zero:
                model = getattr(pl_module, network) if network else pl_module
                pl_module.log_dict(scores_of(model, dataset, load=load, **options), rank_zero_only=True)

    return SaliencyCallback()
