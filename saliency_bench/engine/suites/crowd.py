"""Numbers of a suite that people give: how soon they name what an explainer's map shows of a picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saliency_bench.analysis.agreement import Answers, crowd_auc, read_answers
from saliency_bench.analysis.tables import finite_or_none
from saliency_bench.results.cell import Interval
from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.run_folder import RunData


@dataclass(frozen=True)
class Crowd:
    """Answers of people; the pictures tell of which dataset they are."""

    answers: Sequence[Answers] = ()

    @classmethod
    def read(cls, files: Iterable[Path]) -> "Crowd":
        """Raises: UserError for a file that is none of the format of `analysis.agreement`."""
        return cls([read_answers(path) for path in files])

    def area(self, run: RunData, explainer: str) -> Interval | str:
        """`saliency_crowd_auc` of an explainer on the pictures of a run; or why there is none."""
        firsts: dict[str, list[float]] = {}
        for given in self.answers:
            for image_id, own in given.judgements.get(explainer, {}).items():
                if image_id in run.position:
                    firsts.setdefault(image_id, []).extend(own)
        if not firsts:
            return "no answers of people about these images (--answers)"
        ids = sorted(firsts)
        codes = cluster_codes(ids, [run.groups[run.position[one]] for one in ids])
        found = crowd_auc([np.array(firsts[one]) for one in ids], codes, run.summary.get("seed", 0))
        value, low, high = map(finite_or_none, found[:3])
        return Interval(value=value, low=low, high=high, n=len(ids), clusters=found.clusters)
