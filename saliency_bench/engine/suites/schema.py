"""What a suite's YAML file says: datasets, models, runs, and the tables that are made of them.

    datasets  x  models  x  a run's explainers and metrics  ->  one folder per (dataset, model, settings)
    tables    rows and columns of such scores, with the figures that the paper prints

Nothing here imports torch. `python -m saliency_bench suite --schema` prints the JSON schema for editors.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from saliency_bench import registry
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.spec import RunSpec, check_names
from saliency_bench.utils.files import parse_yaml

Axis = Literal["dataset", "model", "explainer", "variant", "value"]
Family = Literal["resnet", "vgg", "vit", "convnext", "inception"]
Scalar = str | int | float | bool
LARGEST = 2**20  # bytes of a file
# What the lists of a run say, and `settings` may not say again.
TAKEN = ("dataset", "model", "explainers", "metrics", "out", "other_model", "other_label")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatasetEntry(Strict):
    """name: what `--dataset` takes. folder: in --data, which is then the only place where it is looked for, as of a
    dataset that is built in several ways; by default its name. build: the command that makes it, without --out, for
    those that have to be built. settings: of all runs on it, such as label_map."""

    name: str
    folder: str = ""
    build: str = ""
    settings: dict[str, Any] = {}


class Training(Strict):
    """The options of `saliency-bench train`; P0's recipe by default."""

    epochs: Annotated[int, Field(ge=1)] = 30
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    batch_size: Annotated[int, Field(ge=1)] = 32
    size: Annotated[int, Field(ge=8)] = 224
    seed: int = 0
    limit: Annotated[int, Field(ge=1)] | None = None
    activation: Literal["softmax", "sigmoid"] = "softmax"
    precision: Literal["fp32", "bf16"] = "fp32"


class ModelEntry(Strict):
    """name: a Hub id, folder or torchvision:NAME. train: how it is trained on each dataset; without, it is used as it
    is. family: of the small network that stands for it under --smoke."""

    name: str
    family: Family
    train: Training | None = None


class OtherEntry(Strict):
    """The second classifier of false-positive metrics: the same kind of model, trained for another column."""

    label: str


class RunEntry(Strict):
    """Every dataset with every model, all explained and scored alike.

    Explainers are written as on the command line, `rise:masks=8000`. The metrics are those of the tables that read this
    run, and `metrics` besides. settings: those of `saliency-bench run` but for these lists.
    """

    datasets: tuple[str, ...] = Field(min_length=1)
    models: tuple[str, ...] = Field(min_length=1)
    explainers: tuple[str, ...] = Field(min_length=1)
    metrics: tuple[str, ...] = ()
    other: OtherEntry | None = None
    settings: dict[str, Any] = {}


class Value(Strict):
    """What a number of a table is: the mean score of a metric or of one of its parts; the correlation of two metrics
    over the axes in `over`; the accuracy of the classifier; or, with `crowd`, the area under the accuracy of people by
    the answers that --answers gives.

    part: the name of a part; with *, as in `0.05 training *`, the mean of all parts that fit. transform: a change of
    the images under which the accuracy is, one of saliency_consistency's. run: that of the table's runs which has it,
    where not all do. scale: what it is multiplied with to be the paper's.
    """

    metric: str = ""
    part: str | None = None
    against: str = ""
    accuracy: Literal["", "top1", "top5"] = ""
    crowd: bool = False
    transform: str = ""
    run: str = ""
    scale: float = 1.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(map(bool, (self.metric, self.accuracy, self.crowd))) != 1 or (self.against and not self.metric):
            raise ValueError("a value needs either metric (with against, for a correlation), accuracy or crowd")
        if self.part and not self.metric:
            raise ValueError("part goes with metric")
        if self.transform and not self.accuracy:
            raise ValueError("transform goes with accuracy, not with a metric")
        return self


class Note(Strict):
    """What is to be known of some of the paper's figures. where: {axis: names}; all that fit are meant."""

    note: str
    where: dict[Axis, tuple[str, ...]] = {}


class Table(Strict):
    """A table of a paper. runs: whose scores it shows.

    rows, columns: axes, the first one changes slowest. over: the axes that each number is a mean (or correlation)
    over, weighted equally. values, variants: {what the table calls it: what it is}; a name in braces in a metric, part
    or transform, as in `saliency_correctness:k={k}`, is replaced by each variant's. show: {axis: its names in the
    paper's order}; others of the runs, such as baselines, come after these; by default all, in the order of the runs.
    figures: what the paper prints of what is shown, a list per row, null where it prints nothing legible.
    """

    title: str
    runs: tuple[str, ...] = Field(min_length=1)
    rows: tuple[Axis, ...] = Field(min_length=1)
    columns: tuple[Axis, ...] = Field(min_length=1)
    over: tuple[Axis, ...] = ()
    values: dict[str, Value] = Field(min_length=1)
    variants: dict[str, dict[str, Scalar]] = {}
    show: dict[Axis, tuple[str, ...]] = {}
    figures: tuple[tuple[float | None, ...], ...] = ()
    notes: tuple[Note, ...] = ()
    plot: Literal["", "points", "lines"] = "points"

    @model_validator(mode="after")
    def _axes(self) -> Self:
        axes = [*self.rows, *self.columns, *self.over]
        if len(set(axes)) < len(axes):
            raise ValueError("an axis may stand only once, in rows, columns or over")
        if "value" in self.over:
            raise ValueError("over cannot hold the axis value")
        if len(self.values) > 1 and "value" not in axes:
            raise ValueError("with several values, rows or columns need the axis value")
        if bool(self.variants) != ("variant" in axes):
            raise ValueError("variants and the axis variant go together: give both or neither")
        return self


class Smoke(Strict):
    """What takes the place of datasets and models under --smoke: shapes-xai, small networks, few steps.

    size: side of the images. count: images of a dataset. limit: samples of a run. options: {explainer or metric:
    {option: value}}, which replace those of the runs and tables.
    """

    size: Annotated[int, Field(ge=32)] = 32
    count: Annotated[int, Field(ge=30)] = 60
    limit: Annotated[int, Field(ge=1)] = 10
    epochs: Annotated[int, Field(ge=1)] = 1
    options: dict[str, dict[str, Scalar]] = {}

    @property
    def recipe(self) -> Training:
        return Training(epochs=self.epochs, learning_rate=0.01, batch_size=8, size=self.size)


class Suite(Strict):
    """A paper's suite. names: what the paper calls datasets, models and explainers, {our name: its name}."""

    paper: str
    datasets: dict[str, DatasetEntry] = Field(min_length=1)
    models: dict[str, ModelEntry] = Field(min_length=1)
    runs: dict[str, RunEntry] = Field(min_length=1)
    tables: dict[str, Table] = Field(min_length=1)
    names: dict[str, str] = {}
    smoke: Smoke = Smoke()

    @model_validator(mode="after")
    def _references(self) -> Self:
        for name, run in self.runs.items():
            _known(f"runs.{name}.datasets", run.datasets, self.datasets)
            _known(f"runs.{name}.models", run.models, self.models)
            for settings in (run.settings, *(self.datasets[one].settings for one in run.datasets)):
                check_names(settings)
                if taken := set(settings) & set(TAKEN):
                    raise ValueError(f"runs.{name}.settings: {min(taken)} has a place of its own")
        for name, table in self.tables.items():
            _known(f"tables.{name}.runs", table.runs, self.runs)
            self._check_axes(name, table)
            if not any(value.metric for value in table.values.values()):
                for entry in table.runs:
                    if not self.runs[entry].metrics:
                        raise ValueError(f"tables.{name} asks for no metric, so runs.{entry} needs metrics of its own")
            _known(f"tables.{name}.values", [one.run for one in table.values.values() if one.run], table.runs)
        return self

    def _check_axes(self, name: str, table: Table) -> None:
        """Whether each number of a table has one place in the runs."""
        runs = [self.runs[run] for run in table.runs]
        several = {axis: {one for run in runs for one in getattr(run, f"{axis}s")} for axis in ("dataset", "model")}
        if any(not value.accuracy for value in table.values.values()):
            several["explainer"] = {one for run in runs for one in run.explainers}
        for axis, names in several.items():
            if len(names) > 1 and axis not in (*table.rows, *table.columns, *table.over):
                raise ValueError(
                    f"tables.{name}: its runs have {len(names)} names of {axis}; give rows, columns or over that axis"
                )


def _known(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in (there := list(known)):
            raise UserError(f"{where}: {unknown('name', name, there)}")


def suite_files() -> dict[str, Path]:
    """{suite: its file} of the suites that come with the package, by paper."""
    return {path.stem: path for folder in registry.folders("suites") for path in sorted(folder.glob("*.yaml"))}


def list_suites() -> list[str]:
    """The names of all suites that come with the package: of the papers, and of their tables."""
    return [name for suite, path in suite_files().items() for name in (suite, *read_suite(path).tables)]


def find_suite(name: str) -> tuple[Path, Suite, tuple[str, ...]]:
    """(file, suite, tables) of a suite's or a table's name, of a YAML file, or of FILE.yaml:TABLE.

    Raises: UserError for a name that is neither, or a file that is no suite.
    """
    if found := re.fullmatch(r"(.+\.ya?ml)(?::(.+))?", name):
        path, table = Path(found[1]), found[2]
        suite = read_suite(path)
        if table:
            _known(str(path), [table], suite.tables)
        return path, suite, (table,) if table else tuple(suite.tables)
    for stem, path in suite_files().items():
        if name == stem or name.startswith(f"{stem}-"):
            suite = read_suite(path)
            if name == stem or name in suite.tables:
                return path, suite, tuple(suite.tables) if name == stem else (name,)
    raise unknown("suite", name, list_suites())


def read_suite(path: Path) -> Suite:
    """Raises: UserError that names the file and the first thing in it that is wrong."""
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} is larger than {LARGEST} bytes, which no suite is")
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        text = one_line(error, 300).replace('in "<unicode string>", ', "")
        raise UserError(f"{path} cannot be read as YAML: {text}") from error
    try:
        return Suite.model_validate(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValidationError as error:
        raise UserError(f"{path}: {_line(error)}") from error


SAID = {  # instead of what pydantic says
    "too_short": "is empty",
    "missing": "is missing",
    "model_type": "must be a mapping, as in {key: value}",
    "dict_type": "must be a mapping, as in {key: value}",
    "tuple_type": "must be a list, as in [one, two]",
    "string_type": "must be text; put it into quotes",
}


def _line(error: ValidationError) -> str:
    """What is wrong first, and the key that was probably meant."""
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    where = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        *above, key = first["loc"]
        return f"{unknown('key', str(key), _keys(Suite, above), of='.'.join(map(str, above)))}"
    text = SAID.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text if first["type"] == "value_error" else f"the file {text}"


def _keys(model: Any, steps: Iterable[str | int]) -> list[str]:
    """The keys that a mapping of the file may have. steps: the way to it."""
    for step in steps:
        model = model.model_fields[step].annotation if _is_model(model) else next(_inner(model))
        model = next((one for one in _inner(model) if _is_model(one)), model) if _is_union(model) else model
    return list(model.model_fields) if _is_model(model) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _inner(kind: Any) -> Iterator[Any]:
    """The type of the values of a mapping, of the items of a tuple, of the choices of a union."""
    choices = [one for one in get_args(kind) if one is not Ellipsis]
    yield from choices[-1:] if get_origin(kind) is dict else choices


def filled(text: str, variant: dict[str, Scalar]) -> str:
    """A metric's text with the values of a variant in the place of the names in braces.

    Raises: UserError for a name that the variant has not.
    """

    def value(found: re.Match) -> str:
        if found[1] not in variant:
            raise unknown("variant", found[1], variant)
        given = variant[found[1]]
        return str(given).lower() if isinstance(given, bool) else str(given)

    return re.sub(r"\{(\w+)\}", value, text)


def parts_that_fit(part: str, names: Iterable[str]) -> list[str]:
    """The names of parts whose mean a value is, by its `part`: "0.05" or "0.05 training *"."""
    return [name for name in names if fnmatchcase(name, part)]


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """What makes a run another one than its neighbours: all but what is added to a run or leaves its scores alone."""
    free = ("explainers", "metrics", "maps", "out", "limit", "batch_size", "device", "keep_maps", "strict")
    return {name: value for name, value in spec if name not in free}
