"""Templates for precomputed maps.

A template lists images and targets, so that maps can be computed without this package and then scored.

OUT/samples.csv     image_id, file (of the map), label, target (description), plus and minus (classes of the model)
OUT/template.json   settings, identity, size of the preprocessed images: `Template`
OUT/example.py      computes maps with a small method; replace it with your method
OUT/README.md       instructions
OUT/images/         the preprocessed images, on request
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final, Literal, Unpack

import numpy as np
import torch
from jinja2 import Template as Text
from PIL import Image
from pydantic import Field, ValidationError

from saliency_bench.board.published_maps import PUBLISHED, as_published, write_maps
from saliency_bench.bound_metric import Metric, as_metric, registered_metric
from saliency_bench.compute.loaded import RunModel, identity_of
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.precomputed import PrecomputedMaps, explainer_of, file_of, refuse, wants_more
from saliency_bench.compute.preflight import check_empty, check_run_folder, check_settings
from saliency_bench.compute.python_objects import describe
from saliency_bench.compute.run import compute
from saliency_bench.compute.targets.rules import RULES
from saliency_bench.data.dataset_names import list_datasets
from saliency_bench.data.loading import find
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.verdict import listed
from saliency_bench.read.cell import Count, StrictModel, field_line
from saliency_bench.read.finished_run import Run
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import NAMED, check_format
from saliency_bench.read.parts import RunStore
from saliency_bench.registry import usable_names
from saliency_bench.settings import SampleSettings
from saliency_bench.spec import RunSpec, hint, takes_settings
from saliency_bench.target_weights import no_probabilities
from saliency_bench.types import Scores
from saliency_bench.utils.csv_text import csv_text, unescaped
from saliency_bench.utils.devices import device_of
from saliency_bench.utils.files import read_json, write_json, write_text, write_with
from saliency_bench.utils.overlays import eight_bit
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import bar, without_bars
from saliency_bench.utils.untouched import untouched

FORMAT: Final = 2
TEMPLATE, SAMPLES, MAPS = "template.json", "samples.csv", "maps"
COLUMNS = ("image_id", "file", "label", "target", "plus", "minus")
IMAGES = ("png", "npy")
NOT_YET = ("explainers", "metrics", "maps", "other_model", "other_label")  # settings that a template cannot contain
Scorer = str | Metric | Callable[..., Scores]


class Template(StrictModel):
    """The content of `template.json`.

    Attributes:
        spec: Settings of the run that will score the maps, without explainers and metrics. Files and folders are full
            paths.
        identity: Identity of the dataset, the model and the target. It prevents maps from being scored on other data.
        size: Size (H, W) of the images after the classifier's preprocessing, and thus of the maps.
    """

    format: Literal[2] = FORMAT
    spec: RunSpec
    identity: Identity
    size: Annotated[list[int], Field(min_length=2, max_length=2)]
    samples: Count


@takes_settings(*NOT_YET)
@untouched()
def template(
    dataset: str,
    model: str,
    out: str | Path,
    *,
    images: str | None = None,
    progress: bool = True,
    **settings: Unpack[SampleSettings],
) -> Path:
    """Write a new folder with everything needed to compute maps without the package, and return the folder's path.

    Args:
        dataset: Dataset, as for `run`.
        model: Model, as for `run`.
        out: Output folder.
        images: Format in which the preprocessed images are written: "png" (8 bits per channel) or "npy" (float32 (3, H,
            W) in [0, 1], exactly the classifier's input). If None, the images are not written.
        progress: Whether to show a progress bar.
        **settings: SETTINGS

    Raises:
        UserError: `run` would reject the settings, `out` is not empty, the model does not resize all images to the
            same size, or a setting is a Python object, which a template cannot store.
    """
    if images not in (None, *IMAGES):
        raise UserError(f"images must be 'png' or 'npy'; got '{images}'")
    if extra := set(settings) & set(NOT_YET):
        raise UserError(f"a template cannot store the setting {extra.pop()}; remove it")
    required = {"dataset": dataset, "model": model, "out": out}
    spec, objects = describe({**required, **settings, "explainers": [], "metrics": []})
    if objects:
        raise UserError(
            f"a template can store only names and files, not Python objects "
            f"({', '.join(map(str, objects))}); pass names or files instead"
        )
    folder = Path(spec.out)
    check_settings(dict(spec))
    check_empty(folder)
    with without_bars(not progress):
        data, network, _ = load(spec, objects, device_of(spec.device))
        rows, size = _samples(data, network, images)
    identity, classifier = identity_of(data, network), network.classifier
    write_text(folder / SAMPLES, csv_text(COLUMNS, ([row.get(name) for name in COLUMNS] for row in rows)))
    content = Template(spec=_absolute(data.spec), identity=identity, size=list(size), samples=len(rows))
    words = dict(content.spec) | {"size": size, "samples": len(rows), "images": images}
    hides_masks = find(spec.dataset).hidden_masks == identity.split
    words |= {"geometry": str(classifier.geometry), "hides_masks": hides_masks}
    prompts = classifier.prompts
    words["texts"] = "" if prompts is None else f", prompts={prompts!r}"
    words["texts"] += f", labels={classifier.labels!r}" if isinstance(prompts, list) else ""
    for name, source in (("README.md", "template.md.j2"), ("example.py", "template.py.j2")):
        text = Text(Path(__file__).with_name(source).read_text(encoding="utf-8"), keep_trailing_newline=True)
        write_text(folder / name, text.render(**words))
    write_json(
        folder / TEMPLATE, content.model_dump(mode="json")
    )  # written last, so a folder with this file is complete
    return folder


def _absolute(spec: RunSpec) -> RunSpec:
    """Return the settings with absolute paths of files and folders, so that they are valid in any working directory."""
    paths = {name: value for name, value in spec if hint(name, "path") and isinstance(value, str)}
    changed: dict[str, object] = {name: _full(value) for name, value in paths.items()}
    if isinstance(spec.prompts, tuple):
        changed["prompts"] = tuple(map(_full, spec.prompts))
    return spec.model_copy(update=changed)


def _full(name: str) -> str:
    """Return the absolute path of a file or folder. Other names, such as names of datasets, are returned unchanged."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and name not in (*RULES, *list_datasets()) else name


def _samples(data: SplitTable, model: RunModel, images: str | None) -> tuple[list[dict], tuple[int, int]]:
    """Return (rows of samples.csv, size of the preprocessed images). If `images` is set, also write the images."""
    rows: list[dict] = []
    sizes: set[tuple[int, int]] = set()
    classifier, question = model.classifier, model.question
    for positions in bar(data.batches, desc="samples", unit="batch"):
        samples = data.read(classifier, positions).samples
        if samples is None:  # a run skips unreadable images too
            continue
        batch = samples.batch
        sizes.add((batch.images.shape[2], batch.images.shape[3]))
        logits, left_out = torch.empty(len(batch.ids), 0), np.zeros(len(batch.ids), dtype=bool)
        if question.rule.asks_classifier:
            with torch.no_grad():
                logits = classifier(batch.images).cpu()
            left_out = no_probabilities(logits, classifier.activation)
        for index, (position, image_id) in enumerate(zip(samples.positions, batch.ids, strict=True)):
            if position >= data.count:
                break
            if left_out[index]:  # a run skips these images too
                continue
            about = samples.rows[index]
            target = question.target_of(about, logits[index].numpy())
            file = file_of(image_id, len(rows))
            label = question.label_of(about)
            row = {"image_id": image_id, "file": file, "label": label, "target": target.text(classifier.labels)}
            rows.append(row | {"plus": "|".join(map(str, target.plus)), "minus": "|".join(map(str, target.minus))})
            if images:
                _write_frame(Path(data.spec.out) / "images" / file, batch.images[index], images)
    if len(sizes) > 1 or (classifier.geometry.crop is None and isinstance(classifier.geometry.resize, int)):
        raise UserError(
            f"{classifier.id} does not resize all images to the same size, so maps would differ in size; use a model "
            "with a fixed input size"
        )
    return rows, sizes.pop()


def _write_frame(path: Path, image: torch.Tensor, kind: str) -> None:
    if kind == "npy":
        write_with(path, lambda temporary: _save(temporary, image.cpu().numpy()))
    else:
        picture = Image.fromarray(eight_bit(image))
        write_with(path.with_suffix(".png"), lambda temporary: picture.save(temporary, format="png"))


def _save(path: Path, values: np.ndarray) -> None:
    with path.open("wb") as file:  # given a path, numpy would append a suffix
        np.save(file, values, allow_pickle=False)


def read_template(folder: str | Path) -> tuple[Template, dict[str, str]]:
    """Read a template and return (content of template.json, {image id: name of the map's file}).

    Raises:
        UserError: The folder is not a template or was changed. The message names the file and the field.
    """
    path, table = Path(folder) / TEMPLATE, Path(folder) / SAMPLES
    if not path.is_file() or not table.is_file():
        raise UserError(f"{folder} is not a template; create one with `saliency-bench template`")
    stored = read_json(path)
    check_format(path, stored, FORMAT, "create the template again")
    try:
        content = Template.model_validate_json(json.dumps(stored))
        text = table.read_text(encoding="utf-8")
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{table} cannot be read ({error}); create the template again") from error
    rows = list(csv.DictReader(io.StringIO(text)))
    if any(None in row.values() or set(row) != set(COLUMNS) for row in rows) or len(rows) != content.samples:
        raise UserError(f"{table} was changed; create the template again")
    ids = [unescaped(row["image_id"]) for row in rows]
    files = {image_id: file_of(image_id, position) for position, image_id in enumerate(ids)}
    if len(files) < len(rows):
        raise UserError(f"{table} contains an image twice; create the template again")
    return content, files


def score_maps(
    maps: str | Path,
    name: str,
    *,
    template: str | Path | None = None,
    metrics: Scorer | Sequence[Scorer] | None = None,
    out: str | Path | None = None,
    partial: bool = False,
    batch_size: int | None = None,
    device: str | None = None,
    with_maps: bool = False,
    progress: bool = True,
    say: Callable[[str], object] = lambda line: None,
) -> Run:
    """Score precomputed maps in a run, with the same metrics and batches as the maps of explainers.

    Args:
        maps: A filled-in template (with a `maps` folder or a `maps.parquet` file), or, if `template` is set, a folder
            or file of maps (`compute.maps.map_files`).
        name: Name of the method.
        template: Folder of the template. Only needed if the maps are in a different folder.
        metrics: Metrics. By default, all metrics that need only one map per image are used.
        out: Folder of the run. By default, it is created next to the maps and named after the method and the maps.
        partial: If true, skip images that have no map, and count them. If false, raise an error for them.
        batch_size: Batch size. Defaults to the batch size of the template.
        device: Device, as for `run`.
        with_maps: Whether to round the maps for publishing (`published_maps`: float16 with a scale) before they are
            scored, and to write them into the folder of the run.
        progress: Whether to show a progress bar.
        say: Function that prints a message before scoring.

    Raises:
        UserError: The maps do not match the template, `run` rejects the settings, or the dataset, the model or the
            target has changed since the template was created.
    """
    started = perf_counter()
    folder = Path(maps if template is None else template)
    content, files = read_template(folder)
    source = Path(maps) if template is not None else _maps_in(Path(maps))
    if not source.exists():
        raise UserError(f"there are no maps: {source} does not exist, and neither does {MAPS}.parquet next to it")
    scorers = _scorers(metrics)
    refuse(scorers, name)
    settings: dict[str, Any] = dict(content.spec) | {"metrics": scorers, "device": device}
    settings |= {} if batch_size is None else {"batch_size": batch_size}
    describe(settings)  # raises for invalid settings before reading the maps, which takes time
    if out is not None:
        check_run_folder(Path(out))
    needed, fix = () if partial else files, "add them, or skip these images with --partial"
    size = (content.size[0], content.size[1])
    change = as_published if with_maps else None
    method = explainer_of(name, source, files, size, content.spec.seed, needed, fix, change)
    out = source.parent / f"scored-{name}-{method.version}" if out is None else out
    spec, objects = describe(settings | {"explainers": [method], "out": out})
    accelerator = accelerator_on(spec.device)
    path = Path(spec.out).absolute()
    with without_bars(not progress):
        data, model, pairs = load(spec, objects, accelerator.device)
        if metrics is None and model.question.groups is None:
            scorers = [metric for metric in scorers if "groups" not in metric.inputs]
            data, pairs = data.with_settings(metrics=tuple(map(str, scorers))), dict.fromkeys(pairs, scorers)
        store = RunStore(path, identity_of(data, model))
        for entry, value in store.identity:
            if value != getattr(content.identity, entry):
                setting = NAMED.get(entry, entry)
                raise UserError(
                    f"the {setting} has changed since {folder / TEMPLATE} was created; create the template again"
                )
        say(f"{name}: scoring {data.count} maps with {listed(map(str, scorers))}, writing results to {store.out}")
        done = compute(store, data, model, pairs, accelerator, started)
    if with_maps:
        assert isinstance(method.function, PrecomputedMaps)
        write_maps(done.folder / PUBLISHED, name, method.function.items())
    return done


def _maps_in(folder: Path) -> Path:
    """Return where a template's maps are: in its folder of maps or in its Parquet file."""
    return next((path for path in (folder / MAPS, folder / f"{MAPS}.parquet") if path.exists()), folder / MAPS)


def _scorers(metrics: Scorer | Sequence[Scorer] | None) -> list[Metric]:
    """Return the given metrics. By default, return all metrics that need only one map per image."""
    if metrics is None:
        return [metric for metric in map(registered_metric, usable_names("metrics")) if not wants_more(metric)]
    return [as_metric(metric) for metric in ([metrics] if isinstance(metrics, str) or callable(metrics) else metrics)]
