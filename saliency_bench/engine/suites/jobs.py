"""The runs that a suite's tables need: one per dataset, model and settings, each with its folder under --out.

OUT/models/DATASET/MODEL-HASH    a network that the suite trains
OUT/runs/DATASET-MODEL-HASH      a run; runs of the same settings share one, whichever table asks for them
OUT/tables/TABLE.md .csv .tex .json    OUT/suite.html
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from saliency_bench import options
from saliency_bench.engine.suites.crowd import Crowd
from saliency_bench.engine.suites.schema import (
    DatasetEntry,
    ModelEntry,
    RunEntry,
    Suite,
    Training,
    filled,
    settings_of,
)
from saliency_bench.errors import UserError, unknown
from saliency_bench.spec import RunSpec
from saliency_bench.utils.hashing import hash_of

AXES = ("dataset", "model", "explainer", "metric")


@dataclass(frozen=True)
class Choice:
    """What of a suite is run, and how.

    data: folder that holds built datasets by name. select: {axis: names}, all where an axis is missing. limit, device,
    batch_size: of all runs; None: as the suite or `saliency-bench run` says. crowd: answers of people, if any.
    """

    out: Path
    data: Path = Path()
    select: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limit: int | None = None
    device: str | None = None
    batch_size: int | None = None
    smoke: bool = False
    train_only: bool = False
    crowd: Crowd = field(default_factory=Crowd)

    def takes(self, axis: str, *names: str) -> bool:
        """Whether something of these names is selected."""
        wanted = self.select.get(axis)
        return wanted is None or any(name in wanted for name in names)


@dataclass(frozen=True)
class Network:
    """A network that is trained. start: a Hub id, folder or config.json. label: the column it is trained for."""

    dataset: str
    start: str
    label: str
    recipe: Training
    out: Path

    @property
    def is_done(self) -> bool:
        return (self.out / "model.safetensors").is_file() and not self.state.exists()

    @property
    def state(self) -> Path:
        """What a training leaves between two epochs."""
        return self.out.with_name(f"{self.out.name}.training.pt")


@dataclass(frozen=True)
class Job:
    """A run. name: of the run in the suite; dataset, model: theirs. networks: trained first. build: the command that
    makes the dataset; "" where there is none. transforms: under which a table asks for the classifier's accuracy."""

    name: str
    dataset: str
    model: str
    spec: RunSpec
    networks: tuple[Network, ...] = ()
    build: str = ""
    transforms: tuple[str, ...] = ()

    @property
    def accuracies(self) -> Path:
        """The file of the accuracies under transforms."""
        return self.folder.parent.parent / "accuracies" / f"{self.folder.name}.json"

    @property
    def folder(self) -> Path:
        return Path(self.spec.out)


def selection(conditions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """{axis: names} of texts such as "dataset=pet-xai explainer=gradcam". Raises: UserError for anything else."""
    found: dict[str, tuple[str, ...]] = {}
    for condition in " ".join(conditions).split():
        axis, equals, name = condition.partition("=")
        if not equals or not name:
            raise UserError(f"--select takes AXIS=NAME, such as dataset=pet-xai, not {condition!r}")
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
        found[axis] = (*found.get(axis, ()), name)
    return found


def metrics_of(suite: Suite, tables: Iterable[str], run: str) -> list[str]:
    """The metrics that these tables ask of a run, and its own, as the command line writes them."""
    found = _asked(suite, tables, run, "metric", "against")
    return list(dict.fromkeys([*found, *suite.runs[run].metrics]))


def transforms_of(suite: Suite, tables: Iterable[str], run: str) -> tuple[str, ...]:
    """The transforms under which these tables ask for the accuracy of a run's classifier."""
    return tuple(dict.fromkeys(_asked(suite, tables, run, "transform")))


def _asked(suite: Suite, tables: Iterable[str], run: str, *fields: str) -> list[str]:
    """What the values of these tables have in these fields and take from this run."""
    return [
        filled(text, variant)
        for table in (suite.tables[name] for name in tables)
        if run in table.runs
        for variant in (table.variants.values() or ({},))
        for value in table.values.values()
        for text in (getattr(value, name) for name in fields)
        if text and value.run in ("", run)
    ]


def jobs_of(suite: Suite, tables: Iterable[str], choice: Choice) -> list[Job]:
    """The runs of these tables, in the order of the file. Raises: UserError where nothing is selected."""
    tables = list(tables)
    named: dict[str, Iterable[str]] = {
        "dataset": suite.datasets,
        "model": suite.models,
        "explainer": [text for run in suite.runs.values() for text in run.explainers],
        "metric": [text for run in suite.runs for text in metrics_of(suite, tables, run)],
    }
    for axis, known in named.items():
        bare = [] if axis in ("dataset", "model") else [text.partition(":")[0] for text in known]
        for name in choice.select.get(axis, ()):
            if name not in known and name not in bare:
                raise unknown(axis, name, dict.fromkeys([*known, *bare]))
    found = []
    for name, run in suite.runs.items():
        if not any(name in suite.tables[table].runs for table in tables):
            continue
        metrics = [text for text in metrics_of(suite, tables, name) if _is_taken(choice, "metric", text)]
        explainers = [text for text in run.explainers if _is_taken(choice, "explainer", text)]
        for dataset in run.datasets:
            for model in run.models:
                if metrics and explainers and choice.takes("dataset", dataset) and choice.takes("model", model):
                    job = _job(suite, choice, name, dataset, model, explainers, metrics)
                    found.append(replace(job, transforms=transforms_of(suite, tables, name)))
    if not found:
        raise UserError("--select leaves nothing of these tables; see the names with --plan")
    return found


def _is_taken(choice: Choice, axis: str, text: str) -> bool:
    return choice.takes(axis, text, text.partition(":")[0])


def _job(
    suite: Suite, choice: Choice, name: str, dataset: str, model: str, explainers: list[str], metrics: list[str]
) -> Job:
    run, of_dataset = suite.runs[name], suite.datasets[dataset]
    place = data_of(of_dataset, dataset, choice)
    settings = of_dataset.settings | run.settings
    networks = _networks(suite, choice, run, dataset, model, str(settings.get("label_column", "label")))
    settings |= {"dataset": place, "model": str(networks[0].out) if networks else suite.models[model].name}
    if run.other is not None:
        settings |= {"other_model": str(networks[1].out), "other_label": run.other.label}
    limit = choice.limit
    if choice.smoke:
        settings.pop("label_map", None)  # the small networks are trained for the classes of the drawn pictures
        limit = limit or suite.smoke.limit
        explainers, metrics = (smoked(suite, texts) for texts in (explainers, metrics))
    chosen = {"limit": limit, "device": choice.device, "batch_size": choice.batch_size}
    settings |= {key: value for key, value in chosen.items() if value is not None}
    spec = RunSpec.read(settings | {"explainers": explainers, "metrics": metrics, "out": "-"})
    # Folders of the same name may lie anywhere: what counts is what the suite calls them. A run that the suite itself
    # limits is another one than that of all samples.
    entry = suite.models[model]
    key = settings_of(spec) | {"dataset": [dataset, of_dataset.name, of_dataset.folder],
                               "model": [model, *([] if networks else [entry.name])],
                               "networks": [one.out.name for one in networks]}  # fmt: skip
    if "limit" in run.settings:
        key |= {"limit": run.settings["limit"]}
    if networks:
        key.pop("other_model")
    folder = choice.out / "runs" / f"{_slug(dataset)}-{_slug(model)}-{hash_of(key)[:8]}"
    build = of_dataset.build and f"{of_dataset.build} --out {choice.data / (of_dataset.folder or of_dataset.name)}"
    return Job(name, dataset, model, spec.model_copy(update={"out": str(folder)}), networks, build)


def _networks(suite: Suite, choice: Choice, run: RunEntry, dataset: str, model: str, label: str) -> tuple[Network, ...]:
    """The networks that a run needs trained: its model and, where it has one, the other."""
    entry = suite.models[model]
    recipe = entry.train if not choice.smoke else suite.smoke.recipe
    if recipe is None:
        if run.other is not None:
            raise UserError(
                f"the run compares model {model} with one trained for {run.other.label}, so add train to {model}"
            )
        return ()
    start = str(config_of(choice, entry)) if choice.smoke else entry.name
    made = []
    for column in [label] if run.other is None else [label, run.other.label]:
        key = hash_of([entry.family if choice.smoke else start, dataset, column, recipe.model_dump()])[:8]
        out = choice.out / "models" / _slug(dataset) / f"{_slug(model)}-{key}"
        made.append(Network(data_of(suite.datasets[dataset], dataset, choice), start, column, recipe, out))
    return tuple(made)


def data_of(entry: DatasetEntry, name: str, choice: Choice) -> str:
    """What --dataset is given: the folder in --data, if there is one or there must be, else the name."""
    if choice.smoke:
        return str(choice.out / "data" / _slug(name))
    folder = choice.data / (entry.folder or entry.name)
    return str(folder) if entry.folder or folder.is_dir() else entry.name


def config_of(choice: Choice, entry: ModelEntry) -> Path:
    """Of the small network that stands for a model under --smoke."""
    return choice.out / "data" / "networks" / entry.family / "config.json"


def smoked(suite: Suite, texts: Iterable[str]) -> list[str]:
    """Explainers or metrics with the small options of the suite."""
    return list(dict.fromkeys(smoked_text(suite, text) for text in texts))


def smoked_text(suite: Suite, text: str) -> str:
    name, chosen = options.parse(text)
    return name + options.differing((chosen | suite.smoke.options.get(name, {})).items(), {})


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "run"
