"""Target rules, which class each map explains: `--target label | predicted | contrast:second | FILE`."""

import csv
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saliency_bench import targets
from saliency_bench.errors import UserError
from saliency_bench.targets.class_groups import ClassGroups
from saliency_bench.targets.label_maps import Members, index_of
from saliency_bench.types import Target

RULES = ("label", "predicted", "contrast:second")


@dataclass(frozen=True)
class TargetTerms:
    """One sample's target: +1 on each class of `plus`, -1 on each of `minus`."""

    plus: tuple[int, ...]
    minus: tuple[int, ...] = ()

    def row(self, classes: int) -> Tensor:
        row = targets.group(self.plus, classes)
        return row - targets.group(self.minus, classes) if self.minus else row

    def text(self, names: list[str] | None) -> str:
        def side(members: tuple[int, ...]) -> str:
            return "|".join(names[m] if names else str(m) for m in members)

        return side(self.plus) + (f" - {side(self.minus)}" if self.minus else "")


@dataclass(frozen=True)
class TargetRule:
    """`name` for display, `identity` for cell ids (a hash of a file's content and of the members of groups)."""

    name: str
    identity: str
    by_id: dict[str, TargetTerms] | None = None
    groups: ClassGroups | None = None

    @property
    def asks_classifier(self) -> bool:
        """Whether the target depends on the logits."""
        return self.by_id is None and self.name != "label"

    def terms(self, image_id: str, label: int, logits: np.ndarray, members: Members) -> TargetTerms:
        if self.by_id is not None:
            if image_id not in self.by_id:
                raise UserError(f"the target file {self.name} has no row for image {image_id}")
            return self.by_id[image_id]
        if self.name == "label":
            return TargetTerms(tuple(members[label]))
        first, second = (int(index) for index in np.argsort(-logits, kind="stable")[:2])
        if self.name == "predicted":
            return TargetTerms((first,))
        runner_up = None if self.groups is None else self.groups.runner_up(first, logits)
        return TargetTerms((first,), (second if runner_up is None else runner_up,))


def check_ids(rule: TargetRule, ids: list[str]) -> None:
    """Raises: UserError for an image of the dataset that is missing in a target file."""
    if rule.by_id is not None and (missing := [image_id for image_id in ids if image_id not in rule.by_id]):
        raise UserError(f"the target file {rule.name} has no row for image {missing[0]} ({len(missing)} in all)")


def load_rule(text: str, names: list[str] | None, classes: int, groups: ClassGroups | None = None) -> TargetRule:
    """A rule by name, or a CSV file with columns image_id, target and, for contrasts, against.

    "contrast:second" is the predicted class against the runner-up of its group; against the runner-up of all classes
    where there are no groups, or the predicted class has none or is alone in its group. Entries of a file are names or
    numbers of the model's classes; several joined by "|" are a group.
    """
    if text == "contrast:second" and groups is not None:
        return TargetRule(text, f"{text} {groups.identity}", groups=groups)
    if text in RULES:
        return TargetRule(text, text)
    path = Path(text)
    if not path.is_file():
        raise UserError(f"target '{text}' is neither a rule ({', '.join(RULES)}) nor a CSV file")
    try:
        content = path.read_bytes()
        rows = list(csv.DictReader(content.decode("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"the target file {text} cannot be read as CSV: {error}") from error
    if not rows or not {"image_id", "target"} <= set(rows[0]):
        raise UserError(f"the target file {text} needs a header with image_id,target (and against, for contrasts)")

    def members(entry: str | None) -> tuple[int, ...]:
        return tuple(index_of(part, names, classes) for part in (entry or "").split("|") if part.strip())

    by_id = {row["image_id"]: TargetTerms(members(row["target"]), members(row.get("against"))) for row in rows}
    if empty := [image_id for image_id, terms in by_id.items() if not terms.plus]:
        raise UserError(f"the target file {text} names no class for image {empty[0]}")
    return TargetRule(path.name, blake2b(content, digest_size=16).hexdigest(), by_id)


def stack(terms: list[TargetTerms], classes: int) -> Target:
    """(B, K): one row per sample."""
    return torch.cat([term.row(classes) for term in terms])
