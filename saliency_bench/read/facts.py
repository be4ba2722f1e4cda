"""Schema of the parts of a summary, other than cells, that the page of a run displays. Summaries are not trusted."""

from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from saliency_bench.errors import UserError
from saliency_bench.read.cell import Count, Interval, StrictModel, field_line
from saliency_bench.read.statistics.reliability import Reliability


class Facts(StrictModel):
    """Base class of the models below. Additional fields are allowed and ignored."""

    model_config = ConfigDict(extra="ignore")


class DatasetFacts(Facts):
    """The dataset of a run."""

    id: str
    title: str | None = None
    repo: str | None = None
    revision: str | None = None
    split: str
    fingerprint: str
    samples: Count
    used: Count
    classes: Count


class ModelFacts(Facts):
    """The classifier of a run."""

    id: str
    repo: str | None = None
    revision: str | None = None
    digest: str
    geometry: str
    classes: Count | None = None
    activation: str | None = None
    activation_assumed: bool = False
    accuracy: Interval
    accuracy_kind: str = ""
    top5: Interval | None = None
    no_accuracy: str | None = None
    no_class: Count = 0
    classes_by_position: bool = False


class OtherModelFacts(ModelFacts):
    """The second classifier of a run."""

    label_column: str


class OnlyFacts(Facts):
    """The samples that `--only` selected."""

    conditions: list[str]
    samples: Count


class MaskFacts(Facts):
    """Facts about the masks of a run."""

    usable: Count
    mean_share: float | None
    left_out: dict[str, Count]


class GroupFacts(Facts):
    """The groups of classes of a run."""

    name: str
    identity: str


class ProvenanceFacts(Facts):
    """Library versions of a run."""

    libraries: dict[str, JsonValue] = Field(default_factory=dict)


class MapFacts(Facts):
    """Facts about the maps of an explainer."""

    cells: list[Count] | None
    negative: bool


class SummaryFacts(Facts):
    """summary.json without its cells and comparisons."""

    dataset: DatasetFacts
    model: ModelFacts
    other_model: OtherModelFacts | None = None
    only: OnlyFacts | None = None
    masks: MaskFacts
    target: str
    groups: GroupFacts | None = None
    precision: str
    seed: int
    batch_size: Annotated[int, Field(ge=1)]
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    faults: dict[str, Count]
    misfits: dict[str, str] = Field(default_factory=dict)
    maps: dict[str, MapFacts] = Field(default_factory=dict)
    reliability: dict[str, Reliability] = Field(default_factory=dict)
    halved_chunks: Count
    command: str
    provenance: ProvenanceFacts


class Timings(Facts):
    """timings.json: times of the last call of `run` in seconds, and peak memory of its main process in bytes."""

    seconds: float | None = None
    peak_memory: Count | None = None
    waiting_for_data: float | None = None
    explainers: dict[str, float] = Field(default_factory=dict)


def check_facts(content: dict, kind: type[Facts]) -> None:
    """Raise a UserError that names the first invalid field."""
    try:
        kind.model_validate(content)
    except ValidationError as error:
        raise UserError(field_line(error)) from error
