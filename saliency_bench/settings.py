"""The settings of a run as type checkers and editors see them: `sb.run(data_set=...)` is an error before it runs.

The fields are those of `spec.RunSpec`, which says what they mean; a test compares the two. In the place of names and
files there may be Python objects.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import datasets
    import torch

    from saliency_bench.bound_explainer import Explainer
    from saliency_bench.bound_metric import Metric

File = str | PathLike[str]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class SampleSettings(TypedDict, total=False):
    """Which samples are looked at, and what is asked of them: what `run` and `template` have in common."""

    split: str
    target: File
    label_column: str
    prompts: "File | Sequence[str] | Mapping[str, str | Sequence[str]] | None"
    label_map: File | Mapping[Any, Any] | None
    groups: File | Mapping[Any, Any] | None
    activation: Literal["softmax", "sigmoid"] | None
    only: str | Sequence[str] | None
    mask_values: str | float | Sequence[str | float] | None
    limit: int | None
    batch_size: int
    seed: int
    precision: Precision | None
    channels_last: bool | None
    compile: bool | None
    keep_maps: bool
    strict: bool
    device: "str | torch.device | None"


class _Needed(TypedDict):
    """What every run must be given."""

    dataset: "File | datasets.Dataset | datasets.DatasetDict"
    model: "File | torch.nn.Module | Any"
    metrics: "str | Metric | Callable[..., Any] | Sequence[str | Metric | Callable[..., Any]]"
    out: File


class RunSettings(_Needed, SampleSettings, total=False):
    """What `run` takes; it also needs explainers, or maps in their place."""

    explainers: "str | Explainer | Callable[..., Any] | Sequence[str | Explainer | Callable[..., Any]]"
    maps: Mapping[str, Any] | Sequence[str] | str
    other_model: "File | torch.nn.Module | Any | None"
    other_label: str | None
