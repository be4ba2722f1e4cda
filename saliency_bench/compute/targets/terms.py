"""Define the target of one sample as lists of classes. Rules, metrics and records use this form."""

from dataclasses import dataclass

from torch import Tensor

from saliency_bench.compute.targets.contrasts import group


@dataclass(frozen=True)
class TargetTerms:
    """Target of one sample: weight +1 for each class in `plus`, -1 for each class in `minus`."""

    plus: tuple[int, ...]
    minus: tuple[int, ...] = ()

    def row(self, classes: int) -> Tensor:
        """Return the target (1, K)."""
        row = group(self.plus, classes)
        return row - group(self.minus, classes) if self.minus else row

    def text(self, names: list[str] | None) -> str:
        """Return the target as a string, such as "cat|dog - car", with class names if there are any."""

        def side(members: tuple[int, ...]) -> str:
            return "|".join(names[m] if names else str(m) for m in members)

        return side(self.plus) + (f" - {side(self.minus)}" if self.minus else "")
