"""Schema of a suite's YAML file, which lists datasets, models, runs and tables.

    datasets  x  models  x  a run's explainers and metrics  ->  one run folder per (dataset, model, settings)
    tables    rows and columns of these scores, with the paper's numbers

This module imports neither torch nor pandas. `python -m saliency_bench suite --schema` prints the JSON schema for
editors.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from saliency_bench import registry
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.spec import RunSpec, check_names
from saliency_bench.utils.files import read_bytes
from saliency_bench.utils.messages import complain
from saliency_bench.utils.plain_yaml import parse_yaml

Axis = Literal["dataset", "model", "explainer", "variant", "value"]
Family = Literal["resnet", "vgg", "vit", "convnext", "inception"]
Scalar = str | int | float | bool
PictureAxis = Literal["dataset", "model", "explainer", "image", "view"]
CROWD = "crowd"  # value of `against` for a correlation with people's answers
# Settings of a run that the suite fills in. They are not allowed in `settings`.
RESERVED = ("dataset", "model", "explainers", "metrics", "out", "other_model", "other_label")
# Settings that extend a run or do not change scores. Runs that differ only in these settings share a folder.
FREE = ("explainers", "metrics", "maps", "out", "limit", "batch_size", "device", "keep_maps", "strict")


class Strict(BaseModel):
    """Base class of the immutable models of this schema. They reject unknown keys, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatasetEntry(Strict):
    """A dataset of a suite.

    Attributes:
        name: Value of `--dataset`.
        folder: Folder below --data. Defaults to the name. If it is set, the dataset is loaded only from this folder.
            Set it if the dataset can be built with different options.
        build: Command that builds the dataset, without --out.
        settings: Settings that apply to all runs on the dataset, such as label_map.
    """

    name: str
    folder: str = ""
    build: str = ""
    settings: dict[str, Any] = {}


class TrainingSpec(Strict):
    """Options for `saliency-bench train`. The defaults are the recipe of Zhang et al. (2023)."""

    epochs: Annotated[int, Field(ge=1)] = 30
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    batch_size: Annotated[int, Field(ge=1)] = 32
    size: Annotated[int, Field(ge=8)] = 224
    seed: int = 0
    limit: Annotated[int, Field(ge=1)] | None = None
    activation: Literal["softmax", "sigmoid"] = "softmax"
    precision: Literal["fp32", "bf16"] = "fp32"


class ModelEntry(Strict):
    """A model of a suite.

    Attributes:
        name: A Hub id, a folder or torchvision:NAME.
        family: Type of the small network that replaces the model in a smoke test.
        train: Options with which the model is trained on each dataset. If they are missing, the model is used
            unchanged.
    """

    name: str
    family: Family
    train: TrainingSpec | None = None


class OtherEntry(Strict):
    """The second classifier of false-positive metrics: a copy of the run's model, trained to predict another column."""

    label: str


class RunEntry(Strict):
    """Runs of all listed datasets with all listed models, with the same explainers, metrics and settings.

    Attributes:
        datasets: Names of datasets.
        models: Names of models.
        explainers: Explainers, in the same syntax as on the command line, such as `rise:masks=8000`.
        metrics: Metrics in addition to the metrics of the tables that use this run.
        other: The second classifier, for metrics that need one.
        settings: Other settings of `saliency-bench run`.
    """

    datasets: tuple[str, ...] = Field(min_length=1)
    models: tuple[str, ...] = Field(min_length=1)
    explainers: tuple[str, ...] = Field(min_length=1)
    metrics: tuple[str, ...] = ()
    other: OtherEntry | None = None
    settings: dict[str, Any] = {}


class Value(Strict):
    """A quantity in a table: the score of a metric, an accuracy, an area under people's accuracy, or a count.

    Attributes:
        metric: Show the mean score of this metric.
        part: Instead of the score, show this part of the metric. With *, as in `0.05 training *`, show the mean of all
            matching parts.
        against: Show the correlation between `metric` and this second metric, or `crowd`, across the axes in `over`.
        correlation: Type of correlation coefficient.
        clever_hans: Instead of the correlation, show the fraction of samples that `analyse --what clever-hans` selects.
            `metric` is then the localisation metric and `against` the faithfulness metric.
        accuracy: Instead of a metric, show the accuracy of the classifier.
        crowd: Instead of a metric, show the area under people's accuracy, computed from the answers in --answers.
        exposure: Instead of the area, show people's accuracy at this exposure.
        judgements: Compute the area from this number of judgements per image, drawn at random from all judgements.
        count: Instead of the area, show the number of images or people whose mean exposure at the first correct answer
            lies in `bin`.
        bin: Lower and upper bound of the mean exposure, such as "0.1 0.2". The lower bound is excluded.
        size: Show the number of classes, images or masks in the dataset, or the number of images of its rarest or
            commonest class, over all splits. A table with only sizes and texts needs no run.
        text: {dataset: text from the paper}.
        transform: Transform of saliency_consistency that is applied to the images before the accuracy is measured.
        run: Name of the run that provides the value, if not all runs of the table do.
        scale: Factor that converts the value into the paper's unit.
    """

    metric: str = ""
    part: str | None = None
    against: str = ""
    correlation: Literal["pearson", "spearman", "kendall"] = "pearson"
    clever_hans: bool = False
    accuracy: Literal["", "top1", "top5"] = ""
    crowd: bool = False
    exposure: str = ""
    judgements: str = ""
    count: Literal["", "image", "person"] = ""
    bin: str = ""
    size: Literal["", "classes", "images", "masks", "rarest", "commonest"] = ""
    text: dict[str, str] = {}
    transform: str = ""
    run: str = ""
    scale: float = 1.0

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        kinds = self.metric, self.accuracy, self.crowd, self.size, self.text
        if sum(map(bool, kinds)) != 1 or (self.against and not self.metric):
            raise ValueError(
                "a value needs exactly one of the keys `metric` (with `against`, for a correlation), `accuracy`, "
                "`crowd`, `size` and `text`"
            )
        if any((self.exposure, self.judgements, self.count)) and not (self.crowd or self.against == CROWD):
            raise ValueError("the keys `exposure`, `judgements` and `count` require the key `crowd`")
        if bool(self.count) != bool(self.bin):
            raise ValueError('the keys `count` and `bin` must be used together, as in count: image, bin: "0.1 0.2"')
        if self.clever_hans and self.against in ("", CROWD):
            raise ValueError("the key `clever_hans` needs two metrics: a localisation metric (`metric`) and a "
                             "faithfulness metric (`against`)")  # fmt: skip
        if self.part and not self.metric:
            raise ValueError("the key `part` requires the key `metric`")
        if self.transform and not self.accuracy:
            raise ValueError("the key `transform` requires the key `accuracy` and cannot be used with a metric")
        return self

    @property
    def has_explainer(self) -> bool:
        """Return whether the value depends on an explainer."""
        return not (self.accuracy or self.count or self.size or self.text)

    @property
    def is_count(self) -> bool:
        """Return whether the value is an integer."""
        return bool(self.count or self.size)


class Note(Strict):
    """A remark on some of the paper's numbers. `where` selects these numbers by their names on the axes."""

    note: str
    where: dict[Axis, tuple[str, ...]] = {}


class Decision(Strict):
    """A statement in the paper, or a gap in it, and the choice that the suite makes.

    Attributes:
        about: Names of datasets, models, explainers or metrics. If empty, the decision is about the whole suite.
        paper: What the paper states.
        run: What the suite does.
    """

    about: tuple[str, ...] = ()
    paper: str
    run: str


class TableSpec(Strict):
    """A table of a paper.

    Attributes:
        title: Title of the table.
        runs: Names of the runs whose scores the table shows.
        rows: Axes of the rows. Names on the first axis change slowest.
        columns: Axes of the columns.
        over: Axes over which numbers are averaged (or correlated), with equal weights.
        values: {name in the table: quantity}.
        variants: {name in the table: {placeholder: value}}. `{k}` in a metric, part or transform of a value, as in
            `saliency_correctness:k={k}`, is replaced by the value of each variant.
        show: {axis: names in the paper's order}. Other names of the runs, such as baselines, come after them.
        figures: The paper's numbers for the names in `show`, as one list per row. Missing numbers are null.
        notes: Remarks on the paper's numbers.
        t_test: Explainer that is compared with each other explainer in a paired t-test, as in the paper.
        plot: Type of plot, or "" for none.
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
    t_test: str = ""
    plot: Literal["", "points", "lines"] = "points"
    places: ClassVar[str] = "rows, columns or over"

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        """Check that each axis is used at most once, and that every axis with several names is used."""
        axes = self.axes
        if len(set(axes)) < len(axes):
            raise ValueError(f"each axis may be used only once in {self.places}")
        if "value" in self.over:
            raise ValueError("the key `over` cannot contain the axis `value`")
        if len(self.values) > 1 and "value" not in axes:
            raise ValueError("a table with several values must have the axis `value` in `rows` or `columns`")
        if bool(self.variants) != ("variant" in axes):
            raise ValueError("the key `variants` and the axis `variant` must be used together: set both or neither")
        return self

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return all axes of the table."""
        return self.rows + self.columns + self.over

    @property
    def has_explainer(self) -> bool:
        """Return whether any value in the table depends on an explainer."""
        return any(value.has_explainer for value in self.values.values())

    def needs(self, **names: str) -> bool:
        """Return whether the table needs the runs with these names. A table needs all of its runs."""
        return True

    @property
    def needs_runs(self) -> bool:
        """Return whether the table shows anything other than texts and dataset sizes."""
        return not all(value.size or value.text for value in self.values.values())

    def shows(self, axis: str, name: str) -> bool:
        """Return whether the paper's table contains this name on an axis. The suite adds other names."""
        return all(axis != shown_axis or name in names for shown_axis, names in self.show.items())


class ViewSpec(Strict):
    """Content of a cell of a picture, for one image.

    Attributes:
        kind: `picture`: the image. `mask`: the image inside its mask. `map`: the map. `top`: only the pixels
            with the highest map values. `rest`: the image without these pixels. `region`: the pixels with
            values above the midpoint of the map's range. `pasted`: the image with the region of its partner pasted in,
            for the pairs of saliency_correctness and saliency_confidence. `inverse`: the image with its partner pasted
            in, except for this region.
        reference: Values that replace all other pixels in `top`, `rest` and `region`.
        share: Fraction of the pixels for `top` and `rest`.
        target: Target of the map, if it is not the run's target. `contrast` is the most likely class minus the
            runner-up of its group. `false positive` is the most likely class that is not in the image.
        other: Whether to explain the run's other model, for the column that it was trained to predict.
        without: Whether to show the image from which the object was removed (the image_without_object column).
        partner: Whether to show the partner image, explained for the partner's class, instead of the image.
        scores: Whether to show the picture's `values` below the cell. By default, they are shown only below maps that
            explain the run's target.
    """

    kind: Literal["picture", "mask", "map", "top", "rest", "region", "pasted", "inverse"] = "map"
    reference: Literal["black", "blur", "mean"] = "black"
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    target: Literal["", "most likely", "least likely", "contrast", "class against group", "group", "false positive"] = (
        ""
    )
    other: bool = False
    without: bool = False
    partner: bool = False
    scores: bool | None = None

    @property
    def has_scores(self) -> bool:
        """Return whether the picture's `values` are shown below the view."""
        return self.kind == "map" and not self.target and not self.partner if self.scores is None else self.scores


class Images(Strict):
    """The images of a picture, listed by id or in a file, or selected by a rule.

    Attributes:
        ids: Ids of the images.
        file: A file with an id per line, or a CSV file with an image_id column.
        rule: `first`: the first images of each run. `per class`: the first images of each class. `lowest`, `highest`:
            the images with the lowest or highest score for the picture's first value, averaged over its explainers and
            oriented so that higher is better. `disputed`: the images with the widest spread of this score. `clever
            hans`: samples that `analyse --what clever-hans` selects for the picture's first explainer. The first value
            must then be a localisation metric and the second a faithfulness metric. `false positive`: images whose
            most probable absent class has p > 0.5 and is the class of a sample that `clever hans` selects.
        count: Number of images. For `per class`, the number of images per class.
    """

    ids: tuple[str, ...] = ()
    file: str = ""
    rule: Literal["first", "per class", "lowest", "highest", "disputed", "clever hans", "false positive"] = "first"
    count: Annotated[int, Field(ge=1)] = 3


class PictureSpec(Strict):
    """A picture of a paper, which shows images from runs in rows and columns.

    Attributes:
        title: Title of the picture.
        runs: Names of the runs whose images the picture shows.
        rows: Axes of the rows. Names on the first axis change slowest.
        columns: Axes of the columns.
        views: {name of a view: content of the view}.
        values: {label below a map: quantity whose value for the sample is shown}.
        images: The images to show.
        show: {axis: names}. Only these datasets, models and explainers are shown, in this order.
    """

    title: str
    runs: tuple[str, ...] = Field(min_length=1)
    rows: tuple[PictureAxis, ...] = Field(min_length=1)
    columns: tuple[PictureAxis, ...] = Field(min_length=1)
    views: dict[str, ViewSpec] = Field(min_length=1)
    values: dict[str, Value] = {}
    images: Images = Images()
    show: dict[PictureAxis, tuple[str, ...]] = {}
    variants: ClassVar[dict[str, dict[str, Scalar]]] = {}  # only tables have variants
    has_explainer: ClassVar[bool] = True
    needs_runs: ClassVar[bool] = True
    places: ClassVar[str] = "rows or columns"

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        """Check that each axis is used at most once and that values are scores of samples."""
        axes = self.axes
        if len(set(axes)) < len(axes):
            raise ValueError(f"each axis may be used only once in {self.places}")
        if any(not value.metric or value.part or value.against for value in self.values.values()):
            raise ValueError(
                "a value of a picture must be the score of a metric; use the key `metric`, without the keys `part` "
                "and `against`"
            )
        if len(self.views) > 1 and "view" not in axes:
            raise ValueError("a picture with several views must have the axis `view` in `rows` or `columns`")
        return self

    @property
    def axes(self) -> tuple[PictureAxis, ...]:
        """Return all axes of the picture."""
        return self.rows + self.columns

    def needs(self, **names: str) -> bool:
        """Return whether the picture has cells that show the run with these names, {axis: name}."""
        return all(name in self.show.get(axis, (name,)) for axis, name in names.items())  # type: ignore[call-overload]


class Smoke(Strict):
    """Replacements for datasets and models in a smoke test: synthetic images, small networks and few training steps.

    A network is pretrained on synthetic images that all datasets share, and then trained on each dataset.

    Attributes:
        size: Side of the images in pixels.
        drawings: Number of synthetic images for pretraining. They have the same classes as the datasets.
        passes: Number of epochs of pretraining.
        count: Number of images in each dataset.
        limit: Number of samples in each run.
        epochs: Number of epochs of training on a dataset.
        options: {explainer or metric: {option: value}}. These options replace those in runs and tables.
    """

    size: Annotated[int, Field(ge=32)] = 32
    drawings: Annotated[int, Field(ge=30)] = 1600
    passes: Annotated[int, Field(ge=1)] = 16
    count: Annotated[int, Field(ge=30)] = 60
    limit: Annotated[int, Field(ge=1)] = 10
    epochs: Annotated[int, Field(ge=1)] = 1
    options: dict[str, dict[str, Scalar]] = {}

    @property
    def recipe(self) -> TrainingSpec:
        """Return the options for training the small networks on a dataset."""
        return TrainingSpec(epochs=self.epochs, learning_rate=1e-4, batch_size=8, size=self.size)

    def pretraining(self, name: str) -> TrainingSpec:
        """Return the options for pretraining the small network of this model. Each model gets a different seed."""
        from saliency_bench.utils.seeds import seed_of  # imports numpy, which listing suites does not need

        seed = seed_of("smoke", name) % 1000
        return TrainingSpec(epochs=self.passes, learning_rate=0.003, batch_size=16, size=self.size, seed=seed)


class Suite(Strict):
    """The suite of a paper: everything that its YAML file contains.

    Attributes:
        paper: Title and URL of the paper.
        datasets: {name in the suite: dataset}.
        models: {name in the suite: model}.
        runs: {name in the suite: run}.
        tables: {name in the suite: table}.
        pictures: {name in the suite: picture}.
        names: {name of a dataset, model or explainer: name in the paper}.
        decisions: Gaps in the paper, and the suite's choices for them.
        smoke: Replacements for datasets and models in a smoke test.
    """

    paper: str
    datasets: dict[str, DatasetEntry] = Field(min_length=1)
    models: dict[str, ModelEntry] = Field(min_length=1)
    runs: dict[str, RunEntry] = Field(min_length=1)
    tables: dict[str, TableSpec] = Field(min_length=1)
    pictures: dict[str, PictureSpec] = {}
    names: dict[str, str] = {}
    decisions: tuple[Decision, ...] = ()
    smoke: Smoke = Smoke()

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        """Check that every name refers to an entry, and that no two numbers belong in the same cell of a table."""
        for name, run in self.runs.items():
            _check_names(f"runs.{name}.datasets", run.datasets, self.datasets)
            _check_names(f"runs.{name}.models", run.models, self.models)
            for settings in (run.settings, *(self.datasets[dataset].settings for dataset in run.datasets)):
                check_names(settings)
                if reserved := set(settings) & set(RESERVED):
                    raise ValueError(
                        f"runs.{name}.settings: {min(reserved)} cannot be set here; the suite sets it from other keys"
                    )
        for name, table in self.tables.items():
            _check_names(f"tables.{name}.runs", table.runs, self.runs)
            self._check_places(f"tables.{name}", table)
            of_runs = [value.run for value in table.values.values() if value.run]
            _check_names(f"tables.{name}.values", of_runs, table.runs)
        for name, picture in self.pictures.items():
            _check_names(f"pictures.{name}.runs", picture.runs, self.runs)
            self._check_places(f"pictures.{name}", picture)
            if name in self.tables:
                raise ValueError(f"{name} is the name of both a table and a picture; rename one of them")
        return self

    @property
    def items(self) -> dict[str, TableSpec | PictureSpec]:
        """{name: table or picture}."""
        return {**self.tables, **self.pictures}

    def _check_places(self, where: str, item: TableSpec | PictureSpec) -> None:
        """Check that no two numbers or cells have the same position, and that the runs have something to compute."""
        runs = [self.runs[run] for run in item.runs]
        of_runs = ("model", "explainer") if item.has_explainer else ("model",)
        for axis in ("dataset", *of_runs) if item.needs_runs else ("dataset",):
            names = {text for run in runs for text in getattr(run, f"{axis}s") if item.needs(**{axis: text})}
            if len(names) > 1 and axis not in item.axes:
                raise ValueError(
                    f"{where}: the runs have {len(names)} different values of {axis}; add that axis to {item.places}"
                )
        if item.needs_runs and not any(value.metric for value in item.values.values()):
            for run in item.runs:
                if not self.runs[run].metrics:
                    raise ValueError(f"{where} shows no score of a metric, so the metrics must be listed in runs.{run}")


def _check_names(where: str, names: Iterable[str], defined: Iterable[str]) -> None:
    """Raise UserError if a name is not defined in the suite. `where` is the position of the names in the file."""
    for name in names:
        if name not in (available := list(defined)):
            raise UserError(f"{where}: {unknown('name', name, available)}")


def suite_files() -> dict[str, Path]:
    """Return {suite: path of its YAML file} for the suites of this package and of plugins."""
    files: dict[str, Path] = {}
    for path in (path for folder in registry.folders("suites") for path in sorted(folder.glob("*.yaml"))):
        if (first := files.setdefault(path.stem, path)) != path:  # from another package
            complain(f"suite {path} cannot be used: {first} has the same name; rename one of them")
    return files


def list_suites() -> list[str]:
    """Return the names of all installed suites, and of their tables and pictures."""
    names: list[str] = []
    for suite, path in suite_files().items():
        try:
            names += [suite, *read_suite(path).items]
        except UserError as error:  # from another package
            complain(f"suite {suite} cannot be used: {error}")
    return names


def find_suite(name: str) -> tuple[Path, Suite, tuple[str, ...]]:
    """Load a suite, given its name, the name of one of its tables or pictures, FILE.yaml, or FILE.yaml:TABLE.

    Returns:
        The file, the suite and the names of the selected tables and pictures.

    Raises:
        UserError: The name is unknown, or the file is not a suite.
    """
    if match := re.fullmatch(r"(.+\.ya?ml)(?::(.+))?", name):
        path, table = Path(match[1]), match[2]
        suite = read_suite(path)
        if table:
            _check_names(str(path), [table], suite.items)
        return path, suite, (table,) if table else tuple(suite.items)
    for stem, path in suite_files().items():
        if name == stem or name.startswith(f"{stem}-"):
            suite = read_suite(path)
            if name == stem or name in suite.items:
                return path, suite, tuple(suite.items) if name == stem else (name,)
    registry.check_readable("suites", name)
    raise unknown("suite", name, list_suites())


def read_suite(path: Path) -> Suite:
    """Read a suite's file. If it is invalid, raise a UserError that contains the path and the first error."""
    try:
        content = parse_yaml(read_bytes(path).decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read as YAML: {one_line(error, 300)}") from error
    try:
        return Suite.model_validate(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValidationError as error:
        raise UserError(f"{path}: {_first_error(error)}") from error


MESSAGES = {  # replacements of pydantic's messages
    "too_short": "is empty",
    "missing": "is missing",
    "model_type": "must be a mapping, as in {key: value}",
    "dict_type": "must be a mapping, as in {key: value}",
    "tuple_type": "must be a list, as in [one, two]",
    "string_type": "must be a string; put the value in quotes",
}


def _first_error(error: ValidationError) -> str:
    """Describe the first error. If a key is unknown, suggest the most similar valid key."""
    errors = error.errors(include_url=False)
    # Report unknown keys first, because a misspelt key often causes a missing key.
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    *parents, key = [str(step) for step in first["loc"]] or [""]
    if first["type"] == "extra_forbidden":
        return str(unknown("key", key, _keys_at(parents), owner=".".join(parents)))
    where = ".".join([*parents, key])
    text = MESSAGES.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text if first["type"] == "value_error" else f"the file {text}"


def _keys_at(steps: Iterable[str]) -> list[str]:
    """Return the keys that are valid at a path in the file, such as ["tables", "main"]."""
    model: type[BaseModel] = Suite
    for step in steps:
        if step in model.model_fields:
            annotation = model.model_fields[step].annotation
            # In dict[str, TableSpec], tuple[Note, ...] and TrainingSpec | None, the model is a type argument.
            kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
            model = next((kind for kind in kinds if issubclass(kind, BaseModel)), model)
    return list(model.model_fields)


def fill(text: str, variant: dict[str, Scalar]) -> str:
    """Replace each `{name}` in a text with the variant's value.

    Raise UserError if the variant does not define the name.
    """

    def value(match: re.Match) -> str:
        if match[1] not in variant:
            raise unknown("variant", match[1], variant)
        given = variant[match[1]]
        return str(given).lower() if isinstance(given, bool) else str(given)

    return re.sub(r"\{(\w+)\}", value, text)


def matching_parts(part: str, names: Iterable[str]) -> list[str]:
    """Return the names of the parts that match the `part` field of a value, such as "0.05" or "0.05 training *"."""
    return [name for name in names if fnmatchcase(name, part)]


def identity_of(spec: RunSpec) -> dict[str, Any]:
    """Return the settings that determine a run's folder: all settings that are not in `FREE`."""
    return {name: value for name, value in spec if name not in FREE}
