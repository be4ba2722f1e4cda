"""The runs that a suite's tables need, as RunSpecs.

There is one run per dataset, model and settings, each in its own folder.

OUT/models/DATASET/MODEL-HASH    a network that the suite trains
OUT/runs/DATASET-MODEL-HASH      a run; tables that need a run with the same settings share its folder
OUT/tables/TABLE.md .csv .tex .json    OUT/suite.html
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from saliency_bench import options
from saliency_bench.errors import UserError, unknown
from saliency_bench.read.analysis.order_agreement import Answers
from saliency_bench.recipes.suites.suite_schema import (
    CROWD,
    DatasetEntry,
    ModelEntry,
    RunEntry,
    Suite,
    TrainingSpec,
    fill,
    identity_of,
)
from saliency_bench.spec import PREDICTED_BY, RunSpec
from saliency_bench.user_files import is_in_file
from saliency_bench.utils.hashing import hash_of

AXES = ("dataset", "model", "explainer", "metric")
DRAWINGS = "drawings"  # folder of the synthetic images on which small networks are pretrained


@dataclass(frozen=True)
class SuiteChoice:
    """The selected parts of a suite and the settings of its runs.

    Attributes:
        out: Output folder.
        data: Folder with one subfolder per built dataset.
        select: {axis: selected names}. Axes without an entry are not restricted.
        limit: Maximum number of samples per run, or None for the suite's value.
        device: Device for all runs, or None for the suite's value.
        batch_size: Samples per batch in all runs, or None for the suite's value.
        smoke: Whether synthetic images and small networks replace datasets and models.
        answers: People's answers, from which values with `crowd` are computed.
    """

    out: Path
    data: Path = Path()
    select: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limit: int | None = None
    device: str | None = None
    batch_size: int | None = None
    smoke: bool = False
    answers: Sequence[Answers] = ()

    def takes(self, axis: str, text: str) -> bool:
        """Return whether a name is selected.

        Selecting `rise` also selects names with options, such as `rise:masks=1000`.
        """
        return axis not in self.select or bool({text, text.partition(":")[0]} & set(self.select[axis]))


@dataclass(frozen=True)
class Network:
    """A network to train.

    Attributes:
        dataset: The training dataset.
        start: Hub id, folder or config.json from which training starts. It may be the folder of a network trained
            earlier.
        label: The column to predict.
        recipe: Training options.
        out: Output folder.
    """

    dataset: str
    start: str
    label: str
    recipe: TrainingSpec
    out: Path

    @property
    def state(self) -> Path:
        """The file that stores the training state between two epochs."""
        return self.out.with_name(f"{self.out.name}.training.pt")

    @property
    def is_done(self) -> bool:
        """Return whether training is complete.

        If it is, the checkpoint exists and the training state has been deleted.
        """
        return (self.out / "model.safetensors").is_file() and not self.state.exists()


@dataclass(frozen=True)
class SuiteJob:
    """A run of a suite.

    Attributes:
        name: Name of the run in the suite.
        dataset: Name of the dataset in the suite.
        model: Name of the model in the suite.
        spec: Settings of the run.
        networks: Networks that must be trained first.
        build: Command that builds the dataset, or "".
        transforms: Image transforms for which tables show the classifier's accuracy.
        named_by: Folder of the run whose predictions are the targets, or None if the suite contains no such run.
    """

    name: str
    dataset: str
    model: str
    spec: RunSpec
    networks: tuple[Network, ...] = ()
    build: str = ""
    transforms: tuple[str, ...] = ()
    named_by: Path | None = None

    @property
    def folder(self) -> Path:
        """The output folder of the run."""
        return Path(self.spec.out)

    @property
    def accuracies(self) -> Path:
        """The file with the accuracies under transforms."""
        return self.folder.parent.parent / "accuracies" / f"{self.folder.name}.json"


def selection(conditions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse conditions such as "dataset=pet-xai explainer=gradcam" into {axis: names}."""
    names: dict[str, tuple[str, ...]] = {}
    for condition in " ".join(conditions).split():
        axis, equals, name = condition.partition("=")
        if not equals or not name:
            raise UserError(f"--select requires AXIS=NAME, such as dataset=pet-xai, not {condition!r}")
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
        names[axis] = (*names.get(axis, ()), name)
    return names


def metrics_of(suite: Suite, tables: Iterable[str], run: str) -> list[str]:
    """Return the metrics of a run in command-line syntax.

    Metrics that the tables need come before metrics listed for the run.
    """
    texts = [text for text in _texts_for(suite, tables, run, "metric", "against") if text != CROWD]
    return list(dict.fromkeys([*texts, *suite.runs[run].metrics]))


def _texts_for(suite: Suite, tables: Iterable[str], run: str, *fields: str) -> Iterator[str]:
    """Yield the values of these fields for everything that tables read from a run.

    Variants and duplicates are included.
    """
    for table in (suite.items[name] for name in tables):
        for variant in table.variants.values() or ({},):
            for value in table.values.values():
                if run in table.runs and value.run in ("", run):
                    yield from (fill(getattr(value, name), variant) for name in fields if getattr(value, name))


def jobs_of(suite: Suite, tables: Iterable[str], choice: SuiteChoice) -> list[SuiteJob]:
    """Return the runs of these tables in the order of the suite's file. Raise UserError if no run is selected."""
    tables = list(tables)
    _check_selection(suite, tables, choice)
    jobs = []
    for name, run in suite.runs.items():
        items = [suite.items[table] for table in tables if name in suite.items[table].runs]
        items = [item for item in items if item.needs_runs]
        if not items:
            continue
        metrics = [text for text in metrics_of(suite, tables, name) if choice.takes("metric", text)]
        shown = [text for text in run.explainers if any(item.needs(explainer=text) for item in items)]
        explainers = [text for text in shown if choice.takes("explainer", text)]
        transforms = tuple(dict.fromkeys(_texts_for(suite, tables, name, "transform")))
        for dataset in filter(lambda dataset: choice.takes("dataset", dataset), run.datasets):
            for model in filter(lambda model: choice.takes("model", model), run.models):
                if metrics and explainers and any(item.needs(dataset=dataset, model=model) for item in items):
                    spec, networks = _spec(suite, choice, run, dataset, model, explainers, metrics)
                    build = _build_command(suite.datasets[dataset], choice)
                    jobs.append(SuiteJob(name, dataset, model, spec, networks, build, transforms))
    if not jobs and any(suite.items[table].needs_runs for table in tables):
        raise UserError("--select matches no run of these tables; run the command with --plan to list the names")
    # A run comes before the runs that use its predictions as targets.
    return sorted((_name(suite, job, jobs) for job in jobs), key=lambda job: job.named_by is not None)


def _name(suite: Suite, job: SuiteJob, jobs: Sequence[SuiteJob]) -> SuiteJob:
    """Set a job's `named_by` if the suite contains the run whose predictions are the job's targets."""
    naming = _naming_model(suite, job.dataset, suite.runs[job.name])
    same = ("split", "seed")  # with the same split and seed, the samples and their order are the same
    folders = [other.folder for other in jobs
               if (other.dataset, other.model) == (job.dataset, naming) and other.model != job.model
               and all(getattr(other.spec, name) == getattr(job.spec, name) for name in same)]  # fmt: skip
    return replace(job, named_by=folders[0]) if folders else job


def _naming_model(suite: Suite, dataset: str, run: RunEntry) -> str:
    """Return the model whose predictions are the targets, as in `target: predicted-by:vit-b`, or "" otherwise."""
    target = str((suite.datasets[dataset].settings | run.settings).get("target", ""))
    name = target.removeprefix(PREDICTED_BY)
    return name if target.startswith(PREDICTED_BY) and name in suite.models else ""


def _check_selection(suite: Suite, tables: list[str], choice: SuiteChoice) -> None:
    """Raise UserError if a selected name does not exist in the suite."""
    explainers = [text for run in suite.runs.values() for text in run.explainers]
    metrics = [text for run in suite.runs for text in metrics_of(suite, tables, run)]
    names = {
        "dataset": list(suite.datasets),
        "model": list(suite.models),
        "explainer": [*explainers, *(text.partition(":")[0] for text in explainers)],
        "metric": [*metrics, *(text.partition(":")[0] for text in metrics)],
    }
    for axis, selected in choice.select.items():
        for name in selected:
            if name not in names[axis]:
                raise unknown(axis, name, dict.fromkeys(names[axis]))


def _spec(
    suite: Suite,
    choice: SuiteChoice,
    run: RunEntry,
    dataset: str,
    model: str,
    explainers: list[str],
    metrics: list[str],
) -> tuple[RunSpec, tuple[Network, ...]]:
    """Return (settings of a run including its folder, networks that must be trained first)."""
    dataset_entry, model_entry = suite.datasets[dataset], suite.models[model]
    settings = dataset_entry.settings | run.settings
    networks = _networks(suite, choice, run, dataset, model, str(settings.get("label_column", "label")))
    settings |= {"dataset": data_of(dataset_entry, dataset, choice),
                 "model": str(networks[0].out) if networks else model_of(model_entry, choice)}  # fmt: skip
    if naming := _naming_model(suite, dataset, run):
        label, alone = str(settings.get("label_column", "label")), run.model_copy(update={"other": None})
        named = _networks(suite, choice, alone, dataset, naming, label)
        source = str(named[0].out) if named else model_of(suite.models[naming], choice)
        # For the model that predicts the targets, the target is its own prediction.
        settings |= {"target": "predicted" if naming == model else f"{PREDICTED_BY}{source}"}
        networks += named if naming != model else ()
    if run.other is not None:
        settings |= {"other_model": str(networks[1].out), "other_label": run.other.label}
    # A limit set by the suite, such as "five examples", is never raised.
    limits = [settings.get("limit"), choice.limit, suite.smoke.limit if choice.smoke and not choice.limit else None]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if choice.smoke:
        for name in ("label_map", "prompts"):  # the small networks are trained on the classes of the synthetic images
            settings.pop(name, None)
        explainers, metrics = (
            list(dict.fromkeys(smoke_text(suite, text) for text in texts)) for texts in (explainers, metrics)
        )
    overrides = {"limit": limit, "device": choice.device, "batch_size": choice.batch_size}
    settings |= {key: value for key, value in overrides.items() if value is not None}
    spec = RunSpec.read(settings | {"explainers": explainers, "metrics": metrics, "out": "-"})
    folder = choice.out / "runs" / _run_name(suite, run, dataset, model, spec, networks)
    return spec.model_copy(update={"out": str(folder)}), networks


def _run_name(
    suite: Suite, run: RunEntry, dataset: str, model: str, spec: RunSpec, networks: tuple[Network, ...]
) -> str:  # fmt: skip
    """Return the name of a run's folder. The name does not depend on the values of --data and --out."""
    entry = suite.datasets[dataset]
    # The suite's names identify datasets and models, not their folders.
    key = identity_of(spec) | {
        "dataset": [dataset, entry.name, entry.folder],
        "model": [model, *([] if networks else [suite.models[model].name])],
        "networks": [network.out.name for network in networks],
    }
    if (naming := _naming_model(suite, dataset, run)) and naming != model:
        key |= {"target": f"{PREDICTED_BY}{naming}", "named by": suite.models[naming].name}
    if "limit" in run.settings:  # a run with a limit in the suite differs from the run on all samples
        key |= {"limit": run.settings["limit"]}
    if networks:
        key.pop("other_model")  # a folder below --out; `networks` identifies the model
    return f"{_slug(dataset)}-{_slug(model)}-{hash_of(key)[:8]}"


def _networks(
    suite: Suite, choice: SuiteChoice, run: RunEntry, dataset: str, model: str, label: str
) -> tuple[Network, ...]:
    """Return the networks to train for a run.

    These are the model, the other model (if any), and the networks that they start from.
    """
    entry = suite.models[model]
    recipe = entry.train if not choice.smoke else suite.smoke.recipe
    if recipe is None:
        if run.other is not None:
            raise UserError(
                f"the run compares model {model} with a copy trained for {run.other.label}; add the key `train` to the "
                f"model {model}"
            )
        return ()
    columns = [label] if run.other is None else [label, run.other.label]
    pretrained = {column: _pretrained(suite, choice, model, column) for column in columns} if choice.smoke else {}
    networks = []
    for column in columns:
        start = str(pretrained[column].out) if pretrained else model_of(entry, choice)
        of_start = pretrained[column].out.name if pretrained else entry.name  # does not depend on --out
        key = hash_of([of_start, dataset, column, recipe.model_dump()])[:8]
        out = choice.out / "models" / _slug(dataset) / f"{_slug(model)}-{key}"
        networks.append(Network(data_of(suite.datasets[dataset], dataset, choice), start, column, recipe, out))
    return (*networks, *pretrained.values())


def _pretrained(suite: Suite, choice: SuiteChoice, model: str, column: str) -> Network:
    """Return the small network that replaces the pretrained checkpoint of a model under --smoke."""
    entry = suite.models[model]
    recipe = suite.smoke.pretraining(entry.name)  # shared by models of the same name, even across suites
    key = hash_of([entry.family, suite.smoke.drawings, column, recipe.model_dump()])[:8]
    out = choice.out / "models" / "pretrained" / f"{_slug(entry.name)}-{key}"
    return Network(str(choice.out / "data" / DRAWINGS), str(smoke_config(choice, entry.name)), column, recipe, out)


def data_of(entry: DatasetEntry, name: str, choice: SuiteChoice) -> str:
    """Return the value of --dataset: the folder in --data if it exists or if the suite requires it, else the name."""
    if choice.smoke:
        return str(choice.out / "data" / _slug(name))
    folder = choice.data / (entry.folder or entry.name)
    return str(folder) if entry.folder or folder.is_dir() else entry.name


def model_of(entry: ModelEntry, choice: SuiteChoice) -> str:
    """Return the value of --model: the folder or config.json in --data if it exists, else the model's name."""
    path = choice.data / entry.name
    return str(path) if path.exists() else entry.name


def _build_command(entry: DatasetEntry, choice: SuiteChoice) -> str:
    """Return the command that builds a dataset in the folder that `data_of` returns, or "" if the suite has none."""
    return entry.build and f"{entry.build} --out {choice.data / (entry.folder or entry.name)}"


def smoke_config(choice: SuiteChoice, name: str) -> Path:
    """Return the path of the config of the small network that replaces this model in a smoke test."""
    return choice.out / "data" / "networks" / _slug(name) / "config.json"


def smoke_text(suite: Suite, text: str) -> str:
    """Return an explainer or metric with the options that are used in a smoke test."""
    if is_in_file(text):
        return text
    name, given = options.parse(text)
    return name + options.differing((given | suite.smoke.options.get(name, {})).items(), {})


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "run"
