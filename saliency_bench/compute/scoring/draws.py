"""Provide the seeds of samples that are scored outside a run: explicit seeds, or seeds derived from image ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from saliency_bench.errors import UserError
from saliency_bench.utils.seeds import seed_of


@dataclass(frozen=True)
class Draws:
    """Seeds of samples. They are either explicit, or derived from image ids and the seed of a run."""

    samples: tuple[int | str, ...]
    run: int | None = None

    @classmethod
    def given(
        cls, count: int, seeds: Sequence[int] | None = None, image_ids: Sequence[str] | None = None, run: int = 0
    ) -> "Draws":
        """Return a `Draws` for the given seeds or ids. By default, the seeds are 0 to count-1.

        Raises:
            UserError: The number of seeds or ids differs from `count`.
        """
        if seeds is not None and image_ids is not None:
            raise UserError(
                "pass seeds or image_ids, but not both: in a run, the seed of an image is derived from its id"
            )
        given = seeds if image_ids is None else image_ids
        given = range(count) if given is None else given
        if isinstance(given, str) or len(given) != count:
            kind = "seed" if image_ids is None else "image id"
            raise UserError(f"pass one {kind} for each of the {count} images")
        return cls(tuple(given)) if image_ids is None else cls(tuple(map(str, image_ids)), run)

    def __getitem__(self, part: slice) -> "Draws":
        return Draws(self.samples[part], self.run)

    def seed(self, sample: int, purpose: str) -> int:
        """Return the seed of a sample's random draws for a purpose."""
        given = self.samples[sample]
        return int(given) if self.run is None else seed_of(self.run, given, purpose)

    def seeds(self, purpose: str) -> list[int]:
        """Return the seeds of all samples for a purpose."""
        return [self.seed(sample, purpose) for sample in range(len(self.samples))]
