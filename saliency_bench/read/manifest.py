"""`run.json`, the manifest of a run's folder: the settings, the identity that all cells share, and the cells."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from saliency_bench.errors import UserError
from saliency_bench.read import MANIFEST as MANIFEST
from saliency_bench.read import has_parts
from saliency_bench.read.cell import CellKey, StrictModel, field_line
from saliency_bench.read.identity import PARTNERS, Identity
from saliency_bench.read.network_answers import TOLERANCE, NetworkAnswers, Role, joined
from saliency_bench.registry import is_named
from saliency_bench.spec import ARRAYS, PythonObject, RunSpec, one_after_the_other, variable
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

FORMAT: Final = 5
NAMED = {"fingerprint": "dataset", "classifier": "model", "groups": "set of groups", "labels": "label map",
         "precision": "precision, memory layout or compilation"}  # fmt: skip


class Loaded(StrictModel):
    """Name of a dataset or model, and the Hub repository and commit from which it was loaded, if any."""

    id: str
    repo: str | None
    revision: str | None


class OtherIdentity(StrictModel):
    """The other model of a run, and all settings on which its predictions depend."""

    model: Loaded
    identity: Identity


class Manifest(BaseModel):
    """Content of `run.json`.

    Attributes:
        spec: Settings of the latest call of `run`; earlier calls may have had different explainers, metrics and limits.
        identity: All settings on which the scores of all calls depend.
        cells: Cells of all calls.
        dataset: Origin of the dataset in the latest call.
        model: Origin of the model in the latest call.
        class_names: Class names of the model, so that readers need not load the model; None if it has no names.
        other: The other model, if any call used one. All later calls must then use the same other model.
        answers: {role of a network: logits for fixed images}, from the first call that used the network.
        network: {part of the model: hash}, as in `Classifier.hashes`.
        objects: Python objects used as explainers or metrics in any call.
        maps: {explainer_id: NAME=PATH} of the precomputed maps used in any call.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[5] = FORMAT
    spec: RunSpec
    identity: Identity
    cells: dict[str, CellKey]
    dataset: Loaded | None = None
    model: Loaded | None = None
    class_names: list[str] | None = None
    other: OtherIdentity | None = None
    answers: dict[Role, NetworkAnswers] = {}
    network: dict[str, str] = {}
    objects: tuple[PythonObject, ...] = ()
    maps: dict[str, str] = {}

    def write(self, folder: Path) -> None:
        """Write run.json."""
        write_json(folder / MANIFEST, self.model_dump(mode="json"))

    def after(self, earlier: "Manifest | None") -> "Manifest":
        """Merge in the cells of an earlier call; for metrics in both calls, use the new range.

        Cells whose samples were combined with different partners, for example because of a different limit, are not
        comparable and are omitted.

        Raises:
            UserError: The settings of the earlier call differ. The message names the difference.
        """
        if earlier is None:
            return self
        differing = differing_settings(self.identity, earlier.identity)
        if earlier.other is not None and self.other is None:
            raise UserError(
                f"{self.spec.out} contains a run with the other model {earlier.other.model.id}; give --other-model and "
                "--other-label as before, or choose a different --out"
            )
        differing += ["--other-model"] if earlier.other and self.other != earlier.other else []
        before, now = (_asked_for(manifest.cells.values()) for manifest in (earlier, self))
        differing += [name for name in before.keys() & now.keys() if before[name] != now[name]]
        if differing:
            why = self._why_another_model(earlier) if differing[0] == NAMED["classifier"] else ""
            raise UserError(
                f"{self.spec.out} contains a run with a different {differing[0]}{why}; choose a different --out"
            )
        answers = joined(earlier.answers, self.answers, self.identity.precision, self.spec.out)
        objects = dict.fromkeys((*earlier.objects, *self.objects))
        ranges = {cell.metric_id: cell.range for cell in self.cells.values()}
        kept = {
            name: cell.model_copy(update={"range": ranges.get(cell.metric_id, cell.range)})
            for name, cell in earlier.cells.items()
            if not self._has_other_partners(cell)
        }
        maps = earlier.maps | self.maps
        joint = {"cells": kept | self.cells, "answers": answers, "network": self.network or earlier.network,
                 "objects": tuple(objects), "maps": maps}  # fmt: skip
        return self.model_copy(update=joint)

    def _why_another_model(self, earlier: "Manifest") -> str:
        """Describe for an error message how the model differs from the model of an earlier call; "" if unknown."""
        parts = ["prompts"] if self.spec.prompts != earlier.spec.prompts else []
        parts += [
            part for part in self.network.keys() & earlier.network.keys() if self.network[part] != earlier.network[part]
        ]
        words = [f"different {' and '.join(sorted(parts))}"] if parts else []
        before, now = earlier.answers.get("model"), self.answers.get("model")
        if before is not None and now is not None:
            same = before.distance(now) <= TOLERANCE
            words.append(f"{'equal' if same else 'different'} logits for fixed images")
        return f" ({', '.join(words)})" if words else ""

    def _has_other_partners(self, cell: CellKey) -> bool:
        """Return whether an earlier cell used a different partner plan from this call's cells of the same metric."""
        plans = {partners.metric_id: partners.asked_for.get(PARTNERS) for partners in self.cells.values()}
        partners = cell.asked_for.get(PARTNERS)
        return plans.get(cell.metric_id, partners) != partners

    def commands(self, cells: Iterable[CellKey]) -> str:
        """Return the commands that compute these cells in a new folder, or Python calls if Python objects are needed.

        If explainers are scored with different sets of metrics, there is one command for each set, in the order of
        `cells`.
        """
        objects = {entry.digest: entry for entry in self.objects}
        explainers: dict[str, str | PythonObject] = {}
        metrics: dict[tuple, str | PythonObject] = {}
        metrics_of: dict[str, set[tuple]] = {}
        for cell in cells:
            made = hash_of((cell.metric, json.dumps(cell.metric_options, sort_keys=True), cell.metric_version))
            known = self.maps.get(cell.explainer_id) or objects.get(cell.explainer_id)
            explainers[cell.explainer_id] = known or _name(
                cell.explainer, cell.explainer_text, cell.explainer_version, cell.explainer_id
            )
            metrics[cell.metric_id] = objects.get(made) or _name(
                cell.metric, cell.metric_text, cell.metric_version, made
            )
            metrics_of.setdefault(cell.explainer_id, set()).add(cell.metric_id)
        sets: dict[frozenset, list[str]] = {}
        for name, of_explainer in metrics_of.items():
            sets.setdefault(frozenset(of_explainer), []).append(name)
        specs = [
            self.spec.model_copy(
                update={
                    "explainers": tuple(
                        dict.fromkeys(explainers[name] for name in names if not self._are_maps(name, objects))
                    ),
                    "maps": tuple(explainers[name] for name in names if self._are_maps(name, objects)),
                    "metrics": tuple(dict.fromkeys(entry for metric, entry in metrics.items() if metric in of_set)),
                }
            )
            for of_set, names in sets.items()
        ]
        in_python = any(spec.needs_python for spec in specs)
        return one_after_the_other(spec.call() if in_python else spec.command() for spec in specs)

    def _are_maps(self, explainer_id: str, objects: Mapping[str, PythonObject]) -> bool:
        """Return whether an id belongs to precomputed maps."""
        return explainer_id in self.maps or (explainer_id in objects and objects[explainer_id].kind == ARRAYS)


def _name(name: str, text: str, version: int | str, digest: str) -> str | PythonObject:
    """Return an explainer or metric in a form that a run accepts: a string, or an object that describes a function."""
    if is_named(version):
        return text
    about = f"{(code := variable(name))}: {text}, code hash {version}"
    return PythonObject(kind="function", name=name, digest=digest, code=code, about=about)


def _asked_for(cells: Iterable[CellKey]) -> dict[str, str]:
    """Return {additional input of these cells' metrics: hash}, without partners."""
    return {name: content for cell in cells for name, content in cell.asked_for.items() if name != PARTNERS}


def differing_settings(first: Identity, other: Identity) -> list[str]:
    """Return readable names of the settings in which two identities differ.

    The name of a label map includes the first class that differs.
    """
    names = [NAMED.get(name, name) for name, value in first if getattr(other, name) != value]
    if NAMED["labels"] in names:
        names[names.index(NAMED["labels"])] += _first_difference(first.labels, other.labels)
    return ["split"] * ("split" in names) + names  # a different split always has a different fingerprint


def _first_difference(first: list[list[int]], other: list[list[int]]) -> str:
    """Describe the first class of the dataset that two label maps assign to different classes of the model."""
    if len(first) != len(other):
        return f" ({len(first)} dataset classes in one label map, {len(other)} in the other)"
    pairs = [(place, *pair) for place, pair in enumerate(zip(first, other, strict=True)) if pair[0] != pair[1]]
    place, here, there = pairs[0]
    words = [" and ".join(f"model class {member}" for member in members) or "no class" for members in (here, there)]
    more = f"; {len(pairs) - 1} more differ" if len(pairs) > 1 else ""
    return f" (one label map maps dataset class {place} to {words[0]}, the other to {words[1]}{more})"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a run's folder.

    Raises:
        UserError: run.json cannot be read or has a different format.
    """
    path = folder / MANIFEST
    content = read_json(path)
    check_format(path, content, FORMAT, "choose a different --out to repeat the run in a new folder")
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}; restore the file, or choose a different --out") from error


def read_earlier(folder: Path) -> Manifest | None:
    """Return the manifest of an earlier call of `run`, or None if there is none.

    If the manifest is damaged or missing but part files exist, print a message and return None. Each part file contains
    the hash of its run, so the parts that match the current settings are still used, and all others are ignored.

    Raises:
        UserError: As for `read_manifest`.
    """
    path = folder / MANIFEST
    parts_there = has_parts(folder)
    torn = parts_there and path.exists() and _is_torn(path)
    if path.exists() and not torn:
        return read_manifest(folder)
    if parts_there:
        why = "cannot be read" if torn else "is missing"
        complain(f"{path} {why} and is rebuilt from the current settings; other results in {folder} are not used")
    return None


def _is_torn(path: Path) -> bool:
    """Return whether a file is too damaged to be a manifest.

    This is the case if it is not a JSON object, or if it has the current `format` but none of the required fields.
    """
    try:
        content = read_json(path)
    except UserError:
        return True
    fields = {name for name, field in Manifest.model_fields.items() if field.is_required()}
    return not isinstance(content, dict) or (content.get("format") == FORMAT and not fields & content.keys())


def check_format(path: Path, content: object, expected: int, fix: str) -> None:
    """Raise UserError unless a file has the format that this version writes."""
    actual = content.get("format") if isinstance(content, dict) else None
    if actual != expected:
        had = "no format" if actual is None else f"format {actual}"
        raise UserError(f"{path} has {had}, but this version reads format {expected}; {fix}")
