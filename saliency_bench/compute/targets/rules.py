"""Choose the class that each map explains. The rule is set by `--target label | predicted | contrast:second | FILE`.

The rule `predicted-by:MODEL` needs a second model, so this rule is created by a run
(`compute/loading/predicted_by.py`).
"""

import csv
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.label_maps import Members, index_of
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError, one_line
from saliency_bench.spec import TARGETS
from saliency_bench.types import Target
from saliency_bench.utils.csv_text import csv_rows
from saliency_bench.utils.files import read_bytes
from saliency_bench.utils.hashing import hash_of

RULES = TARGETS


@dataclass(frozen=True)
class TargetRule:
    """Rule that chooses the class that each map explains.

    Attributes:
        name: Name for display.
        identity: String that identifies the rule in cell ids. It contains the name of the rule (with the identity of
            the groups, if there are any), or hashes of a file's content and of the classes that the file refers to.
        by_id: {image id: target} from a file, or from the predictions of another model.
        groups: Groups from which "contrast:second" chooses the runner-up.
    """

    name: str
    identity: str
    by_id: dict[str, TargetTerms] | None = None
    groups: ClassGroups | None = None

    @property
    def asks_classifier(self) -> bool:
        """Return whether the target depends on the logits."""
        return self.by_id is None and self.name != "label"

    def has_target(self, image_id: str, label: int | None, members: Members | None) -> bool:
        """Return whether a sample has a target.

        Args:
            image_id: Id of the sample. A target file must contain the id.
            label: Label of the sample. The rule "label" needs a class of the model for the label.
            members: The model's classes for each label.
        """
        if self.by_id is not None:
            return image_id in self.by_id
        return self.name != "label" or (label is not None and members is not None and bool(members[label]))

    def terms(self, image_id: str, label: int | None, logits: np.ndarray, members: Members | None) -> TargetTerms:
        """Choose the target of a sample. Only the rule "label" uses `label` and `members`."""
        if self.by_id is not None:
            if image_id not in self.by_id:
                raise UserError(f"the target {self.name} names no class for image {image_id}")
            return self.by_id[image_id]
        if self.name == "label":
            assert label is not None
            assert members is not None
            if not members[label]:
                raise UserError(
                    f"image {image_id}: the model has no class for its label; restrict the run with --only label=NAME "
                    "or --only masked, or use --target predicted"
                )
            return TargetTerms(tuple(members[label]))
        ordered = ordered_classes(logits)
        if self.name == "predicted":
            return TargetTerms((ordered[0],))
        runner_up = None if self.groups is None else self.groups.runner_up(ordered[0], logits)
        return TargetTerms((ordered[0],), (ordered[1] if runner_up is None else runner_up,))


def ordered_classes(logits: np.ndarray) -> list[int]:
    """Return the two most probable classes. In a tie, the class with the lower number comes first."""
    return [int(index) for index in np.argsort(-logits, kind="stable")[:2]]


def check_ids(rule: TargetRule, ids: list[str]) -> None:
    """Raise UserError if the target file lacks an image of the dataset."""
    if rule.by_id is not None and (missing := [image_id for image_id in ids if image_id not in rule.by_id]):
        raise UserError(
            f"the target file {rule.name} has no row for image {missing[0]} ({len(missing)} in all); add the missing "
            "rows"
        )


def check_known(rule: TargetRule, ids: list[str]) -> None:
    """Raise UserError if the target file contains an image that is not in the split."""
    if others := sorted((rule.by_id or {}).keys() - set(ids)):
        raise UserError(
            f"the target file {rule.name} has rows for images that the split does not have: "
            f"{one_line(others[0], 100)} ({len(others)} in all); correct the ids, or delete these rows"
        )


def load_rule(text: str, names: list[str] | None, classes: int, groups: ClassGroups | None = None) -> TargetRule:
    """Load a rule by name, or from a CSV file with the columns "image_id", "target" and, for contrasts, "against".

    "contrast:second" contrasts the predicted class with the runner-up of its group. It uses the runner-up of all
    classes if there are no groups, or if the predicted class has no group or is alone in its group. Entries of a file
    are names or numbers of the model's classes. Several classes joined by "|" form a group.

    Args:
        text: Name or file.
        names: Names of the model's classes.
        classes: Number of the model's classes.
        groups: Groups of the model's classes.

    Raises:
        UserError: The rule is unknown, or the file has an error.
    """
    if text == "contrast:second" and groups is not None:
        return TargetRule(text, f"{text} {groups.identity}", groups=groups)
    if text in RULES:
        return TargetRule(text, text)
    path = Path(text)
    if not path.is_file():
        raise UserError(f"target '{text}' is neither a rule ({', '.join(RULES)}) nor a CSV file")
    try:
        content = read_bytes(path)
        rows = csv_rows(content.decode("utf-8-sig"))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"the target file {text} cannot be read as CSV: {one_line(error)}") from error
    if not rows or not {"image_id", "target"} <= set(rows[0]):
        raise UserError(f"the target file {text} needs a header with image_id,target (and against, for contrasts)")

    named: dict[str, int] = {}  # class names in the file; models may order them differently

    def members(entry: str | None) -> tuple[int, ...]:
        parts = [part.strip() for part in (entry or "").split("|") if part.strip()]
        indices = [index_of(part, names, classes) for part in parts]
        named.update((part, index) for part, index in zip(parts, indices, strict=True) if part != str(index))
        return tuple(indices)

    by_id: dict[str, TargetTerms] = {}
    for row in rows:
        terms = TargetTerms(members(row["target"]), members(row.get("against")))
        if both := set(terms.plus) & set(terms.minus):
            raise UserError(
                f"the target file {text} lists class {min(both)} both as target and as against for image "
                f"{row['image_id']}; "
                "remove the class from one of the two columns"
            )
        if by_id.setdefault(row["image_id"], terms) != terms:
            image = one_line(row["image_id"], 100)
            raise UserError(f"the target file {text} has two targets for image {image}; keep one")
    if empty := [image_id for image_id, terms in by_id.items() if not terms.plus]:
        raise UserError(f"the target file {text} names no class for image {one_line(empty[0], 100)}; add its class")
    identity = blake2b(content, digest_size=16).hexdigest()
    return TargetRule(path.name, f"{identity} {hash_of(named)}" if named else identity, by_id)


def stack(terms: list[TargetTerms], classes: int) -> Target:
    """Stack the targets of samples as weights (B, K)."""
    return torch.cat([term.row(classes) for term in terms])
