"""A template for maps that are made elsewhere: what to explain, in which frame; and the scoring of what came back.

OUT/samples.csv     image_id, file (of its map), label, target in words, plus and minus: classes of the model
OUT/template.json   dataset, model, size of the prepared frame: `Template`
OUT/example.py      makes maps with a small method of its own, to be replaced
OUT/README.md       what to do
OUT/images/         the prepared frames, if asked for
"""

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from jinja2 import Template as Text
from PIL import Image
from pydantic import Field, ValidationError

from saliency_bench.data.names import list_datasets
from saliency_bench.engine.context import RunContext, check_counts, load_context
from saliency_bench.engine.precomputed import explainer_of, file_of, refuse, wants_more
from saliency_bench.engine.run import Run, finish, metrics_of
from saliency_bench.errors import UserError
from saliency_bench.metric import Metric, list_metrics, load_metric
from saliency_bench.results.cell import Count, Hash, StrictModel, field_line
from saliency_bench.target import no_probabilities
from saliency_bench.utils.devices import device_of
from saliency_bench.utils.files import write_json, write_text, write_with
from saliency_bench.utils.overlays import eight_bit
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import bar

TEMPLATE, SAMPLES, MAPS = "template.json", "samples.csv", "maps"
COLUMNS = ("image_id", "file", "label", "target", "plus", "minus")
IMAGES = ("png", "npy")


class Template(StrictModel):
    """`template.json`. dataset, model, target, label_map: as `run` takes them; size: (H, W) of the prepared frame."""

    format: Literal[1] = 1
    dataset: str
    split: str
    fingerprint: Hash
    model: str
    digest: Hash
    geometry: str
    size: Annotated[list[int], Field(min_length=2, max_length=2)]
    target: str
    label_map: str | None
    limit: int | None
    seed: int
    samples: Count


def template(
    dataset: str,
    model: str,
    out: str | Path,
    *,
    split: str = "test",
    target: str = "label",
    label_map: str | Path | None = None,
    limit: int | None = None,
    images: str | None = None,
    seed: int = 0,
    batch_size: int = 16,
    device: str | None = None,
    progress: bool = True,
) -> Path:
    """Write what is needed to make maps elsewhere into the new folder `out`, and return it.

    dataset, model, split, target, label_map, limit, seed: as for `run`. images: "png" (8 bits per channel) or "npy"
    (float32 (3, H, W) in [0, 1], to the last bit what the classifier gets) to have the prepared frames written too.
    Raises: UserError for what `run` would refuse, an `out` that is not empty, a model without a fixed frame.
    """
    out = Path(out)
    if images not in (None, *IMAGES):
        raise UserError(f"images='{images}' is neither png nor npy")
    check_counts(batch_size, limit)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out")
    context = load_context(dataset, model, split, target, label_map, batch_size, seed, device_of(device), out)
    count = min(limit or len(context.rows), len(context.rows))
    rows, size = _samples(context, count, images, progress)
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out / SAMPLES, table.getvalue())
    told = Template(
        dataset=_place(dataset),
        split=split,
        fingerprint=context.identity["fingerprint"],
        model=_place(model),
        digest=context.classifier.digest,
        geometry=str(context.classifier.geometry),
        size=list(size),
        target=_place(target) if context.rule.by_id is not None else target,
        label_map=None if label_map is None else str(Path(label_map).resolve()),
        limit=limit,
        seed=seed,
        samples=len(rows),
    )
    for name, source in (("README.md", "template.md.j2"), ("example.py", "template.py.j2")):
        text = Text(Path(__file__).with_name(source).read_text(encoding="utf-8"), keep_trailing_newline=True)
        write_text(out / name, text.render(**told.model_dump(), images=images))
    write_json(out / TEMPLATE, told.model_dump(mode="json"))  # last: a folder that has it is whole
    return out


def _samples(context: RunContext, count: int, images: str | None, progress: bool) -> tuple[list[dict], tuple[int, int]]:
    """(the rows of samples.csv, the size of the prepared frame)."""
    rows: list[dict] = []
    sizes: set[tuple[int, int]] = set()
    names = context.classifier.labels
    chunks = range(-(-count // context.batch_size))
    for number, _ in bar(
        ((number, None) for number in chunks), shown=progress, desc="samples", unit="batch", total=len(chunks)
    ):
        chunk = context.chunk(number)
        if (batch := chunk.batch) is None:  # a run leaves out what cannot be read as well
            continue
        sizes.add((batch.images.shape[2], batch.images.shape[3]))
        logits, left_out = torch.empty(len(batch.ids), 0), np.zeros(len(batch.ids), dtype=bool)
        if context.rule.asks_classifier:
            with torch.no_grad():
                logits = context.classifier(batch.images).cpu()
            left_out = no_probabilities(logits)
        for index, (position, image_id) in enumerate(zip(chunk.readable, batch.ids, strict=True)):
            if number * context.batch_size + position >= count:
                break
            if left_out[index]:  # by a run as well
                continue
            label = int(batch.labels[index])
            sides = context.rule.terms(image_id, label, logits[index].numpy(), context.members)
            file = file_of(image_id, len(rows))
            told = {"image_id": image_id, "file": file, "label": context.names[label], "target": sides.text(names)}
            rows.append(told | {"plus": "|".join(map(str, sides.plus)), "minus": "|".join(map(str, sides.minus))})
            if images:
                _write_frame(context.out / "images" / file, batch.images[index], images)
    if len(sizes) > 1 or (
        context.classifier.geometry.crop is None and isinstance(context.classifier.geometry.resize, int)
    ):
        raise UserError(
            f"{context.classifier.id} has no fixed frame, so maps have no fixed size; give a model that has one"
        )
    return rows, sizes.pop()


def _write_frame(path: Path, image: torch.Tensor, kind: str) -> None:
    if kind == "npy":
        write_with(path, lambda temporary: _save(temporary, image.cpu().numpy()))
    else:
        picture = Image.fromarray(eight_bit(image))
        write_with(path.with_suffix(".png"), lambda temporary: picture.save(temporary, format="png"))


def _save(path: Path, values: np.ndarray) -> None:
    with path.open("wb") as file:  # numpy adds an ending to the name of a path
        np.save(file, values, allow_pickle=False)


def _place(name: str) -> str:
    """A folder or file of this machine is named so that it is found from any other folder."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and str(name) not in list_datasets() else str(name)


def read_template(folder: str | Path) -> tuple[Template, dict[str, str]]:
    """(what template.json says, {image id: the file of its map}). Raises: UserError that names file and field."""
    folder = Path(folder)
    try:
        told = Template.model_validate_json((folder / TEMPLATE).read_text(encoding="utf-8"))
        text = (folder / SAMPLES).read_text(encoding="utf-8")
    except ValidationError as error:
        raise UserError(f"{folder / TEMPLATE}: {field_line(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder} is no template ({error}); make one with `saliency-bench template`") from error
    rows = list(csv.DictReader(io.StringIO(text)))
    if any(None in row.values() or set(row) != set(COLUMNS) for row in rows) or len(rows) != told.samples:
        raise UserError(f"{folder / SAMPLES} is not as it was written; make the template again")
    files = {row["image_id"]: file_of(row["image_id"], place) for place, row in enumerate(rows)}
    if len(files) < len(rows):
        raise UserError(f"{folder / SAMPLES} names an image twice; make the template again")
    return told, files


def score_maps(
    maps: str | Path,
    name: str,
    *,
    template: str | Path | None = None,
    metrics: str | Metric | Sequence[str | Metric] | None = None,
    out: str | Path | None = None,
    partial: bool = False,
    batch_size: int = 16,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """Score maps that were made elsewhere as a run scores those of its explainers, with the same metrics and chunks.

    maps: a filled-in template (maps in its folder `maps` or its file `maps.parquet`), or, with `template`, a folder of
    .npy files or a Parquet file (`own_maps`). name: of the method. metrics: default all that need one map per image.
    out: of the run; default a folder beside the maps, named after method and maps. partial: images without a map are
    left out and counted.
    Raises: UserError of `own_maps` and `run`, or where dataset or model are not those of the template.
    """
    begun = time.time(), time.perf_counter()
    maps, folder = Path(maps), Path(maps if template is None else template)
    told, files = read_template(folder)
    source = maps if template is not None else next(
        (place for place in (maps / MAPS, maps / f"{MAPS}.parquet") if place.exists()), maps / MAPS
    )  # fmt: skip
    if not source.exists():
        raise UserError(f"there are no maps: {source} does not exist (nor {MAPS}.parquet beside it)")
    check_counts(batch_size, told.limit)
    if metrics is None:
        scorers = [metric for metric in map(load_metric, list_metrics()) if not wants_more(metric)]
    else:
        scorers = metrics_of(metrics)
    refuse(scorers, name)
    height, width = told.size
    method = explainer_of(name, source, files, (height, width), told.seed, partial)
    chosen = source.parent / f"scored-{name}-{method.version}" if out is None else Path(out)
    accelerator = accelerator_on(device)
    context = load_context(told.dataset, told.model, told.split, told.target, told.label_map, batch_size, told.seed,
                     accelerator.device, chosen)  # fmt: skip
    if metrics is None and context.groups is None:
        scorers = [metric for metric in scorers if "groups" not in metric.needs]
    for what, now, then in (("dataset", context.identity["fingerprint"], told.fingerprint),
                            ("model", context.classifier.digest, told.digest)):  # fmt: skip
        if now != then:
            raise UserError(f"the {what} is no longer the one that {folder / TEMPLATE} was made for; make it again")
    cells = [context.cell(method, metric) for metric in scorers]
    command = f"saliency_bench.run ({method} is maps made elsewhere)"
    return finish(context, cells, told.limit, accelerator, command, progress, begun)
