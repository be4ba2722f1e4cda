"""Types for the settings of a run. With them, type checkers and editors report errors such as `sb.run(data_set=...)`.

The fields are those of `spec.RunSpec`, which documents them. A test compares the two. Python objects may be passed
instead of names and files.
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
    """Settings that `run` and `template` share: the samples and their targets."""

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
    """Required settings of every run."""

    dataset: "File | datasets.Dataset | datasets.DatasetDict"
    model: "File | torch.nn.Module | Any"
    metrics: "str | Metric | Callable[..., Any] | Sequence[str | Metric | Callable[..., Any]]"
    out: File


class RunSettings(_Needed, SampleSettings, total=False):
    """Settings of `run`. It also needs explainers or maps."""

    explainers: "str | Explainer | Callable[..., Any] | Sequence[str | Explainer | Callable[..., Any]]"
    maps: Mapping[str, Any] | Sequence[str] | str
    other_model: "File | torch.nn.Module | Any | None"
    other_label: str | None
