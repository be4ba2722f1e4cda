"""`choose`: select an explainer for a network and a dataset."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any

import datasets
import torch

from saliency_bench import __version__, notebook_views, registry
from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.layers import cam_layer
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.misfits import check_fits
from saliency_bench.compute.preflight import check_settings, check_writable
from saliency_bench.compute.python_objects import describe, modes_kept
from saliency_bench.compute.reading import group_names
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.report.choice_page import headline, page_text, sentences
from saliency_bench.read.statistics.clusters import cluster_names
from saliency_bench.recipes.choosing.answers import answer_of, question_answer
from saliency_bench.recipes.choosing.candidates import Candidate, candidate_of, candidates, costs, seconds_per_pass
from saliency_bench.recipes.choosing.copying import elsewhere, load_call, setup, with_imports
from saliency_bench.recipes.choosing.laboratory import RUN, RunLaboratory
from saliency_bench.recipes.choosing.questions import QUESTIONS, ChoiceQuestion, metrics_of, questions_of
from saliency_bench.recipes.choosing.rounds import FINALISTS, FIRST, Budget, Narrowing, RoundScores, ranking
from saliency_bench.spec import PythonObject, RunSpec, takes_settings
from saliency_bench.target_weights import one_hot
from saliency_bench.types import Images, Maps, Target
from saliency_bench.utils.durations import seconds_of
from saliency_bench.utils.files import read_json, write_json, write_text
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import counted
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import step, without_bars
from saliency_bench.utils.provenance import provenance
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.untouched import untouched

FORMAT = 1
CHOICE, COSTS, PAGE = "choice.json", "costs.json", "choice.html"
WITHIN, MARGIN = "30m", 0.02
LATER = 64, 200  # minimum (if available) and maximum number of held-out images
# A candidate is included if its first two rounds fit within a quarter of the time. If this excludes every explainer,
# explainers are included if their first round fits within half of the time.
ROUNDS_FOR_ALL, SHARE = 2, 0.25
ROUNDS_AT_LEAST, SHARE_AT_MOST = 1, 0.5
SAME_ON = 2  # number of images for which the maps of candidates with equal scores are compared


@dataclass(frozen=True, repr=False)
class Choice:
    """Result of `choose`. Printing it shows the output of the command.

    Attributes:
        folder: Output folder.
        content: Content of choice.json.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def page(self) -> Path:
        """Return the path of the page."""
        return self.folder / PAGE

    @property
    def run(self) -> Path:
        """Return the folder of the run that contains the scores."""
        return self.folder / RUN

    @property
    def recommended(self) -> dict[str, str | None]:
        """Return a dictionary that maps the name of each question to its recommended explainer, or to None."""
        return {question["name"]: question["recommended"] for question in self.content["questions"]}

    @property
    def lines(self) -> list[str]:
        """Return the answers as sentences."""
        return sentences(self.content)

    def explainer(self, question: str | None = None) -> Explainer:
        """Return the recommended explainer.

        Args:
            question: Name of a question in `recommended`. Defaults to the first question that has a recommendation.

        Raises:
            UserError: No explainer is recommended, or the question was not part of the choice.
        """
        if question is not None and question not in self.recommended:
            raise unknown("question", question, self.recommended)
        questions = [item for item in self.content["questions"] if question in (None, item["name"])]
        for item in questions:
            if item["recommended"]:
                return as_explainer(item["recommended"])
        raise UserError(" ".join(headline(item, self.content) for item in questions))

    def __repr__(self) -> str:
        return "\n".join([*self.lines, f"page: {self.page}"])

    def _repr_html_(self) -> str:
        return notebook_views.facts("choice", {"": " ".join(self.lines), "page": str(self.page)})


@takes_settings("maps", "keep_maps", "strict")
@untouched()
def choose(
    *,
    for_: str | Sequence[str] = (),
    within: str | float | None = WITHIN,
    margin: float = MARGIN,
    explainers: Any = None,
    metrics: Any = None,
    batch_size: int = FIRST,
    progress: bool = True,
    **settings: Any,
) -> Choice:
    """Select the best explainer for a network and a dataset, and write the answer, the evidence and a page.

    All candidates are scored on a few images. Then, candidates that are beaten are dropped, and the others are scored
    on more images. The statistical test remains valid although it is repeated as scores arrive
    (`read/analysis/sequential.py`). At most half of the images are used for the decision; the reported scores are those
    on the other images. A method whose maps do not change when the network's weights are randomised is never
    recommended.

    Args:
        for_: Questions to answer: "alignment" (which needs masks), "faithfulness", "debugging" or "stability". By
            default, the first two are answered, or only "faithfulness" if the dataset has no masks.
        within: Time limit, based on costs measured at the start: "30m", "2h", a number of seconds, or None for no
            limit.
        margin: Largest difference in scores that counts as negligible. A candidate within this margin of the best is
            not dropped.
        explainers: Candidates. By default, all suitable explainers are candidates, with a few settings each. Baselines
            are always added.
        metrics: Metrics that replace the questions' metrics.
        batch_size: Samples per batch, except that the first round has a single batch of 8.
        progress: Whether to show progress bars and a line per round.
        **settings: SETTINGS

    Calling the function again with the same `out` resumes the choice. With more time, images or candidates, the results
    are extended.

    Raises:
        UserError: There is a problem that the caller can fix.
    """
    request = _Request(
        names=[for_] if isinstance(for_, str) else list(for_),
        within=seconds_of(within),
        margin=margin,
        explainers=_list(explainers),
        metrics=_list(metrics),
    )
    if not 0 <= margin < 1:
        raise UserError(f"margin (--margin) must be at least 0 and below 1; got {margin:g}")
    questions_of(
        request.names, [as_metric(metric) for metric in request.metrics], has_masks=True
    )  # before loading data or network
    with modes_kept(settings):
        return _choose(request, settings | {"batch_size": batch_size}, progress)


@dataclass(frozen=True)
class _Request:
    """Arguments of `choose` that are not run settings."""

    names: Sequence[str]
    within: float | None
    margin: float
    explainers: Sequence[Any]
    metrics: Sequence[Any]


@dataclass(frozen=True)
class _Field:
    """The candidates and their costs.

    Attributes:
        chosen: Candidates that can finish the first round within the time limit.
        not_tried: {candidate that is not tried: reason}.
        too_slow: Candidates whose first rounds take too long.
        within_for_all: Seconds needed to try all candidates.
        maps: {candidate: passes per map}.
        scoring: {(candidate, metric): passes per score}.
        budget: Time budget.
    """

    chosen: list[Candidate]
    not_tried: dict[str, str]
    too_slow: set[str]
    within_for_all: float
    maps: dict[str, int]
    scoring: dict[tuple[str, str], int]
    budget: Budget

    @property
    def baselines(self) -> frozenset[str]:
        """Return the candidates that ignore the network."""
        return frozenset(candidate.name for candidate in self.chosen if candidate.baseline)


def _choose(request: _Request, settings: Mapping[str, Any], progress: bool) -> Choice:
    decisive = request.metrics or QUESTIONS["faithfulness"].metrics
    given = dict(settings) | {"explainers": request.explainers or ["random"], "metrics": decisive}
    check_settings({key: value for key, value in given.items() if value is not None})
    spec, objects = describe(given)
    # Which candidates are dropped depends on measured times, which differ between processes.
    if accelerator_on(spec.device).num_processes > 1:
        raise UserError("`choose` runs in a single process; run it without torchrun or accelerate launch")
    folder = Path(spec.out)
    _check_folder(folder)
    with without_bars(not progress):
        data, model, _ = load(spec, objects)
    rows, count, classifier = data.samples.rows, data.count, model.classifier
    questions = questions_of(request.names, [as_metric(metric) for metric in request.metrics], has_masks(rows))
    metrics = metrics_of(questions)
    first = FIRST * (4 if spec.only else 1)  # under `only`, some images are not explained
    if progress:
        tried = counted(len(request.explainers), "explainer") if request.explainers else "all explainers"
        step(f"saliency-bench: trying {tried} on an image")
    images = _images(data, classifier)
    field = _field(spec, classifier, images, request, metrics, first)
    # Describe the network once, because a user-defined network would be reloaded for every run.
    models = {
        name: entry for name in ("model", "other_model") if isinstance(entry := getattr(spec, name), PythonObject)
    }
    clusters = cluster_names(data.samples.ids, group_names(rows))
    laboratory = RunLaboratory(
        folder=folder,
        settings={key: value for key, value in settings.items() if key not in ("out", "limit")} | models,
        objects=objects,
        explainers={item.name: item.name if _is_named(item.explainer) else item.explainer for item in field.chosen},
        metrics={str(as_metric(metric)): metric for metric in request.metrics} or {text: text for text in metrics},
        maps=lambda name: _maps(
            classifier, images, next(item.explainer for item in field.chosen if item.name == name), spec.seed
        ),
        progress=progress,
    )
    narrowing = Narrowing(
        laboratory=laboratory,
        names=_names_by_metric(field.chosen, questions),
        baselines=field.baselines,
        images=max(1, _first(clusters, count // 2)),
        budget=field.budget,
        margin=request.margin,
        largest=max(Counter(clusters).values()),
        first=first,
    )
    narrowing.narrow()
    later = _score_later(narrowing, metrics, count)
    answers = {
        metric: answer_of(contest, field.baselines & set(narrowing.names[metric]), later)
        for metric, contest in narrowing.contests.items()
    }
    answered = [question_answer(item, [answers[name] for name in metrics_of([item])], questions) for item in questions]
    layer = _layer(classifier, images[:1])
    content = _about(data, model, spec, request, layer) | {
        "seconds": field.budget.spent,
        "candidates": [_describe(item, layer) for item in field.chosen],
        "may_decide": narrowing.images,
        "later_images": 0 if later is None else len(later.ids),
        "not_tried": field.not_tried,
        "too_slow": sorted(field.too_slow),
        "within_for_all": field.within_for_all,
        "twins": narrowing.twins,
        "questions": answered,
        "metrics": list(answers.values()),
        "rounds": [asdict(item) for item in narrowing.rounds],
        "survive_random_weights": sorted(narrowing.excluded),
        "checks": dict(sorted(laboratory.checks.items())),
        "passes": _passes(field, narrowing, later, count, metrics),
    }
    run = read_run(folder / RUN)
    names = {cell.explainer_id: cell.explainer_text for cell in run.cells}
    content["reliability"] = {names[key]: about.model_dump() for key, about in run.reliability.items() if key in names}
    write_json(folder / CHOICE, content)
    choice = Choice(folder, read_json(folder / CHOICE))
    write_text(folder / PAGE, page_text(choice.content, run))
    return choice


def _about(data: SplitTable, model: RunModel, spec: RunSpec, request: _Request, layer: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "saliency_bench": __version__,
        "command": _command(spec, request),
        "dataset": {
            "id": data.source.name,
            "split": data.spec.split,
            "images": data.count,
            "masks": has_masks(data.samples.rows),
        },
        "model": {"id": model.name, "layer": layer},
        "setup": setup(spec, model.classifier.labels),
        "device": provenance(model.classifier.device, [])["device"],
        "within": request.within,
        "margin": request.margin,
        "seed": spec.seed,
    }


def _describe(candidate: Candidate, layer: str) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "baseline": candidate.baseline,
        "passes": candidate.passes,
        "load": load_call(candidate.explainer),
        "elsewhere": {
            package: with_imports(package, line) for package, line in elsewhere(candidate.explainer, layer).items()
        },
    }


def _field(
    spec: RunSpec, classifier: Classifier, images: Images, request: _Request, metrics: Sequence[str], first: int
) -> _Field:
    """Return the candidates and their costs. A candidate is excluded if its first rounds would take too long."""
    chosen, not_tried = _candidates(classifier, images[:1], request.explainers)
    given = {str(metric): metric for metric in map(as_metric, request.metrics)}
    decisive = [given.get(name) or as_metric(name) for name in metrics]
    maps, scoring = costs(chosen, decisive, max(images.shape[2:]))
    folder = Path(spec.out)
    pace = _pace(folder, classifier, images, spec.batch_size)
    seconds = pace["seconds_per_pass"]
    budget = Budget(
        inf if request.within is None else request.within,
        {name: count * seconds for name, count in maps.items()},
        {key: count * seconds for key, count in scoring.items()},
    )
    whole = ROUNDS_FOR_ALL * first * budget.per_image({key: [item.name for item in chosen] for key in metrics}) / SHARE
    chosen, slow = _affordable(chosen, metrics, budget, first, seconds)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / COSTS, pace)  # written only after success, so that the speed is measured again after an error
    return _Field(chosen, not_tried | slow, set(slow), whole, maps, scoring, budget)


def _list(given: Any) -> list[Any]:
    """Convert None, a single item or several items to a list."""
    if given is None:
        return []
    return [given] if isinstance(given, str) or callable(given) else list(given)


def _check_folder(folder: Path) -> None:
    """Raise UserError if the folder is not empty and was not written by `choose`."""
    ours = {CHOICE, COSTS, PAGE, RUN, "randomised"}
    strange = [path.name for path in folder.glob("[!.]*") if path.name not in ours] if folder.is_dir() else []
    if strange or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} exists but was not written by `saliency-bench choose`; use a different --out")
    check_writable(folder)


def has_masks(rows: datasets.Dataset) -> bool:
    """Return whether a dataset has masks."""
    return "mask" in rows.column_names and rows.data.column("mask").null_count < len(rows.data)


def _candidates(classifier: Classifier, image: Images, given: Sequence[Any]) -> tuple[list[Candidate], dict[str, str]]:
    """Return (candidates including baselines, {any other explainer: reason why it is not a candidate})."""
    predicted = _predicted(classifier, image)
    if not given:
        return candidates(classifier, image, predicted)
    explainers, misfits = [], {}
    for explainer in map(as_explainer, given):
        try:
            check_fits(explainer, classifier, image, predicted)
            explainers.append(explainer)
        except UserError as error:
            misfits[str(explainer)] = one_line(error).partition(";")[0]
    if misfits and all(explainer.baseline for explainer in explainers):
        name, reason = next(iter(misfits.items()))
        raise UserError(f"{name} does not support the network: {reason}")
    names = set(map(str, explainers))
    baselines = [
        as_explainer(name)
        for name in registry.names("explainers")
        if registry.declared("explainers", name, "needs", "") == "nothing" and name not in names
    ]
    return [candidate_of(explainer, image) for explainer in [*explainers, *baselines]], misfits


def _maps(classifier: Classifier, images: Images, explainer: Explainer, seed: int) -> Maps | None:
    """Return the maps of the first images for their predicted classes, or None if the explainer raises an error."""
    images = images[:SAME_ON]
    try:
        seeds = [seed_of(seed, str(place), "explain") for place in range(len(images))]
        return explainer.seeded(seed)(classifier, images, _predicted(classifier, images), seeds=seeds)
    except Exception:  # the run reports the error
        return None


def _predicted(classifier: Classifier, images: Images) -> Target:
    with torch.no_grad():
        logits = classifier(images)
    return one_hot(logits.argmax(dim=1), logits.shape[1]).to(images)


def _affordable(
    chosen: Sequence[Candidate], metrics: Sequence[str], budget: Budget, first: int, seconds_of_pass: float
) -> tuple[list[Candidate], dict[str, str]]:
    """Return (candidates that can finish the first round in time, {name of any other candidate: what it costs}).

    Raises:
        UserError: There is not enough time for any explainer except the baselines.
    """

    def seconds(items: Sequence[Candidate], images: int) -> float:
        return images * budget.per_image({metric: [item.name for item in items] for metric in metrics})

    for rounds, share in ((ROUNDS_FOR_ALL, SHARE), (ROUNDS_AT_LEAST, SHARE_AT_MOST)):
        images, kept, slow = rounds * first, list(chosen), {}
        while seconds(kept, images) > share * budget.limit and any(not item.baseline for item in kept):
            slowest = max((item for item in kept if not item.baseline), key=lambda item: seconds([item], first))
            kept.remove(slowest)
            slow[slowest.name] = (
                f"too slow: {slowest.passes:,} passes per image, about {seconds([slowest], images):.0f} s "
                f"for {images} images"
            )
        if any(not item.baseline for item in kept):
            return kept, slow
    cheapest = min((item for item in chosen if not item.baseline), key=lambda item: seconds([item], first))
    enough = ceil(seconds([*kept, cheapest], images) / share / 60)
    raise UserError(
        f"--within {_minutes(budget.limit)} is too short for any explainer except the baselines: a pass of the "
        f"network takes {seconds_of_pass:.2g} s; use --within {enough}m, or a metric that needs fewer passes, such as "
        "--metrics saliency_insertion:steps=8"
    )


def _minutes(seconds: float) -> str:
    """Format a time in the syntax of --within, such as 90s or 30m."""
    return f"{seconds / 60:.0f}m" if seconds % 60 == 0 else f"{seconds:g}s"


def _names_by_metric(chosen: Sequence[Candidate], questions: Sequence[ChoiceQuestion]) -> dict[str, list[str]]:
    """Return {metric: names of its candidates}. Baselines are left out for metrics on which they are best by design."""
    with_baselines = {metric: any(metric in metrics_of([q]) and q.baselines for q in questions)
                      for metric in metrics_of(questions)}  # fmt: skip
    return {
        metric: [item.name for item in chosen if keeps or not item.baseline] for metric, keeps in with_baselines.items()
    }


def _score_later(narrowing: Narrowing, metrics: Sequence[str], count: int) -> RoundScores | None:
    """Score the best candidates of each race and all baselines on the held-out images.

    Return None if there are no held-out images.
    """
    decided = narrowing.rounds[-1]
    finalists: list[str] = []
    for contest in narrowing.contests.values():
        assert contest.scores is not None
        best = [name for name in ranking(contest, contest.scores) if name not in narrowing.baselines][:FINALISTS]
        narrowing.check([name for name in best if name not in narrowing.checked])
        # If every method was beaten, score the one that was dropped last, to show how far methods are behind the
        # baselines.
        beaten = [name for name in reversed(contest.race.dropped) if name not in narrowing.baselines][:1]
        finalists += [name for name in best or beaten if name not in narrowing.excluded]
    names = list(dict.fromkeys([*finalists, *sorted(narrowing.baselines)]))
    wanted = dict.fromkeys(metrics, names)
    more = min(count - decided.limit, min(max(decided.limit, LATER[0]), LATER[1]))
    budget = narrowing.budget
    time = (budget.limit - budget.spent) / max(budget.per_image(wanted), 1e-12) - decided.limit
    more = max(0, min(more, int(min(time, count))))
    scores = narrowing.laboratory.scores(wanted, decided.limit + more)
    budget.spend(wanted, len(scores.ids) - decided.images)
    return scores.since(decided.images) if len(scores.ids) > decided.images else None


def _pace(folder: Path, classifier: Classifier, images: Images, batch_size: int) -> dict[str, Any]:
    """Return {"of": hash of the network, "seconds_per_pass": seconds per image of a forward pass}.

    The time is measured only once and then stored, so that a resumed choice repeats the same rounds.
    """
    made_of = hash_of(classifier.digest, batch_size, str(classifier.device))
    path = folder / COSTS
    noted = read_json(path) if path.exists() else {}
    if noted.get("of") == made_of:
        return noted
    return {"of": made_of, "seconds_per_pass": seconds_per_pass(classifier, images)}


def _passes(
    field: _Field, narrowing: Narrowing, later: RoundScores | None, count: int, metrics: Sequence[str]
) -> dict[str, int]:
    """Return the number of passes used, and the number needed to score all candidates on all images."""
    counted = Budget(inf, field.maps, field.scoring)
    taking_part = [item.name for item in field.chosen if item.name not in narrowing.twins]
    whole = counted.per_image(dict.fromkeys(metrics, taking_part)) * count
    seen = 0
    for item in narrowing.rounds:
        counted.spend(item.lineup, item.images - seen)
        seen = item.images
    if later is not None:
        names = sorted({name for name, _ in later.values})
        counted.spend(dict.fromkeys(metrics, names), len(later.ids))
    return {"spent": int(counted.spent), "all": int(whole)}


def _first(names: Sequence[str], images: int) -> int:
    """Return the largest number of leading images, up to `images`, that does not split a cluster.

    `names` contains the cluster of each image.
    """
    while 0 < images < len(names) and names[images] == names[images - 1]:
        images -= 1
    return images


def _images(data: SplitTable, classifier: Classifier) -> Images:
    """Return the first images after preprocessing.

    Raises:
        UserError: None of these images can be read.
    """
    samples = data.read(classifier, data.batches[0]).samples
    if samples is None:
        raise UserError(f"the first images of {data.source.name} cannot be read")
    return samples.batch.images


def _layer(classifier: Classifier, image: Images) -> str:
    """Return the name of the layer that Grad-CAM uses, or "" if the network has no such layer."""
    try:
        return cam_layer(classifier, image)
    except UserError:
        return ""


def _command(spec: RunSpec, request: _Request) -> str:
    """Return the equivalent command line. If Python objects are used, return the Python call instead."""
    # Omit explainers and metrics that the user did not set; the spec contains them because a run requires them.
    chosen = {name for name in ("explainers", "metrics") if not getattr(request, name)}
    within, margin = request.within, request.margin
    if spec.needs_python:
        more = [f"for_={list(request.names)!r}"] * bool(request.names) + [f"within={within!r}"]
        return spec.call("choose", chosen, [*more, *[f"margin={margin!r}"] * (margin != MARGIN)])
    usual = {name for name, value in spec if value == RunSpec.model_fields[name].default}
    usual |= {"batch_size"} if spec.batch_size == FIRST else set()
    more = ["--for", *request.names] if request.names else []
    more += ["--within", "none" if within is None else f"{within:g}s"]
    return spec.command("choose", chosen | usual, [*more, *(["--margin", f"{margin:g}"] if margin != MARGIN else [])])


def _is_named(explainer: Explainer) -> bool:
    """Return whether an explainer can be specified by its name."""
    try:
        return as_explainer(str(explainer)) == explainer
    except UserError:
        return False
