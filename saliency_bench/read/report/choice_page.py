"""Sentences and page of `choose`, which are generated from choice.json and the folder of its run."""

from math import ceil
from typing import Any

from saliency_bench.read.analysis.sequential import ALIKE, NO_TIME, ONE_LEFT
from saliency_bench.read.analysis.verdict import listed
from saliency_bench.read.cell import RARE
from saliency_bench.read.finished_run import Run
from saliency_bench.read.report.choice_cards import cards_of
from saliency_bench.read.report.sample_pictures import sample_groups
from saliency_bench.read.report.templates import render
from saliency_bench.read.report.words import count, number, percent, percent_interval, signed, signed_interval
from saliency_bench.read.statistics.reliability import Reliability
from saliency_bench.utils.messages import counted

SHOWN = 0.005  # smallest lead that is printed as a number
MINUTES = 120  # longer times are printed as hours
MOST_NAMED = 6  # candidates named in a sentence
MOST_IMAGES = 1_000_000  # largest number of images that a sentence recommends
PER_KIND = 2  # photographs in each of the groups best, worst and most disputed
DOES_NOT_DEPEND = "does not depend"
LABELS = {"centre": "the centre spot", "random": "random maps", "edges": "edge maps"}


def sentences(content: dict[str, Any]) -> list[str]:
    """Return sentences with the recommendation for each question, the result of each metric, and the images needed."""
    lines = []
    for question in content["questions"]:
        lines += [headline(question, content), *question_lines(question, content)]
    named = {question["recommended"] for question in content["questions"]} - {None}
    if len(named) > 1:
        lines.append(
            "The recommendation depends on the question; pick the question that matters to you instead of averaging "
            "over the questions."
        )
    if excluded := content["survive_random_weights"]:
        lines.append(f"Excluded, because their maps stay the same when all weights are random: {listed(excluded)}.")
    lines += not_counted(content)
    silent = list(dict.fromkeys(question["silent"] for question in content["questions"] if question["silent"]))
    return [*lines, f"This does not show {'; nor '.join(silent)}."] if silent else lines


def not_counted(content: dict[str, Any]) -> list[str]:
    """Return sentences about candidates that are not counted: duplicates, and those for which there was no time."""
    lines = [f"{listed([twin for twin, other in content['twins'].items() if other == kept])} and {kept} have the same "
             f"maps here and are counted once, as {kept}."
             for kept in dict.fromkeys(content["twins"].values())]  # fmt: skip
    if slow := content["too_slow"]:
        minutes = ceil(content["within_for_all"] / 60)
        enough = f"{minutes}m" if minutes <= MINUTES else f"{ceil(minutes / 60)}h"
        lines.append(f"Not tried for lack of time: {_some(slow)}; use --within {enough} to try all.")
    return lines


def headline(question: dict[str, Any], content: dict[str, Any]) -> str:
    """Return the recommendation for a question, or the reason why there is none."""
    about, answers = question["about"], _answers(question, content)
    shown = [answer for answer in answers if answer["outcome"] == "method"]
    if name := question["recommended"]:
        by = f", on {listed([_metric(answer, content) for answer in shown])} alone" if len(shown) < len(answers) else ""
        return f"For {about}: {name} ({_passes(name, content)}){by}{_alike(question, content)}."
    if name := question["not_shown"]:
        return f"For {about}, nothing is recommended: {name} is not beaten, but is not shown to beat every baseline."
    if shown:
        leaders = [f"{_methods(answer)[0]} on {_metric(answer, content)}"
                   for answer in answers if answer["outcome"] in ("method", "open")]  # fmt: skip
        return (
            f"For {about}, the metrics disagree: {listed(leaders)}. Choose the metric that fits your purpose; do not "
            "average them."
        )
    outcomes = {answer["outcome"] for answer in answers}
    if outcomes == {"nothing"}:
        return f"For {about}, no conclusion is possible, because no candidate has scores."
    if outcomes == {"baseline"}:
        best = listed(list(dict.fromkeys(_label(answer["left"][0]) for answer in answers)))
        verdict = f"no method is shown to beat {best}"
        if all(_beats_all(answer, content) for answer in answers):
            verdict = f"{_verb(best, 'beat')} every method tried"
        elif any(map(_leader_is_beaten, answers)):
            verdict = "no method is shown to beat every baseline"
        return f"For {about}, nothing is recommended: {verdict}, so these images cannot show which method to use."
    there = content["dataset"]["images"]
    seen = f"For {about}, {counted(max(answer['images'] for answer in answers), 'image')} are too few for a conclusion"
    needed = [answer["images_at_least"] for answer in answers]
    known = [images for images in needed if images and there < images <= MOST_IMAGES]
    return (
        f"{seen}: a dataset of at least about {_rounded(min(known), there)} images is needed." if known else f"{seen}."
    )


def question_lines(question: dict[str, Any], content: dict[str, Any]) -> list[str]:
    """Return lines about the reliability, about each metric, and about the number of images needed."""
    answers = _answers(question, content)
    missing: dict[str, list[str]] = {}
    for answer in answers:
        if text := _missing(answer, content):
            missing.setdefault(text, []).append(_metric(answer, content))
    lines = [*reliability_lines(question, content), *(metric_line(answer, question, content) for answer in answers)]
    return lines + [f"On {listed(metrics)}, {text}." for text, metrics in missing.items()]


def reliability_lines(question: dict[str, Any], content: dict[str, Any]) -> list[str]:
    """Return lines about the reliability of recommended and equally good explainers that average random draws."""
    known = content.get("reliability", {})
    names = [name for name in (question["recommended"], *question["as_good"]) if name in known]
    return [f"Reliability of the maps of {name}: {Reliability.model_validate(known[name])}." for name in names]


def metric_line(answer: dict[str, Any], question: dict[str, Any], content: dict[str, Any]) -> str:
    """Return the result of a metric in one sentence."""
    by, outcome = f"On {_metric(answer, content)}", answer["outcome"]
    if outcome == "nothing":
        return f"{by}: no candidate has scores."
    if outcome == "baseline":
        return f"{by}: {_baseline_leads(answer, content)}{_later(answer, answer['left'][0], content)}."
    methods = _methods(answer)
    if outcome == "open":
        leader = methods[0]
        return (
            f"{by}: {leader} led on the {counted(answer['images'], 'image')} of the race, but is not shown to beat "
            f"{_unbeaten(answer, leader)}{_later(answer, leader, content)}."
        )
    name = question["recommended"] if question["recommended"] in methods else methods[0]
    unbeaten = f", not shown to beat {_unbeaten(answer, name)}" if name not in answer["beat_baselines"] else ""
    others = [other for other in methods if other != name]
    alike = f"; not distinguishable from it: {_some(others)}" if others else ""
    return f"{by}: {name}{unbeaten}{_later(answer, name, content)}{_behind(answer)}{alike}."


def _baseline_leads(answer: dict[str, Any], content: dict[str, Any]) -> str:
    """Return a sentence about a metric on which the best candidate is a baseline."""
    leader = answer["left"][0]
    if _beats_all(answer, content):
        return f"{_verb(_label(leader), 'beat')} every method tried, although baselines ignore the network"
    if _leader_is_beaten(answer):
        return f"{_label(leader)} led, and no method is shown to beat every baseline"
    return f"no method is shown to beat {_label(leader)}, a baseline that ignores the network"


def _leader_is_beaten(answer: dict[str, Any]) -> bool:
    """Return whether a method is shown to beat the leading baseline, although no method beats every baseline."""
    return any(answer["left"][0] not in answer["not_shown_to_beat"][name] for name in _methods(answer))


def _beats_all(answer: dict[str, Any], content: dict[str, Any]) -> bool:
    """Return whether every method lost to the leading baseline.

    A method lost if it was dropped in the race or is clearly behind this baseline on held-out images.
    """
    candidates = {name for item in content["rounds"] for name in item["lineup"].get(answer["metric"], [])}
    methods = candidates - _baselines(content) - set(content["twins"])
    beaten = {dropped["name"] for dropped in answer["dropped"]}
    leads = {name: (answer["later"].get(name, {}).get("winner_ahead") or {}).get("low") for name in methods}
    behind = {name for name, low in leads.items() if low is not None and low > 0}
    shown = {*methods, answer["left"][0]} & set(answer["later"])
    return bool(methods) and methods <= beaten | behind and _best_shown(answer, shown) in ("", answer["left"][0])


def _later(answer: dict[str, Any], name: str, content: dict[str, Any]) -> str:
    """Return a candidate's score on held-out images, with the best score and the scores of baselines."""
    later = answer["later"]
    if name not in later:
        return ""
    result = later[name]
    ends = "" if result["low"] is None else f" [{number(result['low'])}, {number(result['high'])}]"
    ends += f" ({RARE})" * result["rare"]
    lower = "" if answer["higher_is_better"] else ", lower is better"
    usual = ["random", "centre", *answer["not_shown_to_beat"].get(name, [])]
    best = (_best_shown(answer, set(later) - without) for without in (set(), _baselines(content)))
    others = dict.fromkeys(other for other in (*best, *usual) if other in later and other != name)
    beside = "".join(f"; {other} {number(later[other]['value'])}" for other in others)
    return f" ({number(result['value'])}{ends} on {counted(result['n'], 'held-out image')}{lower}{beside})"


def _best_shown(answer: dict[str, Any], names: set[str]) -> str:
    """Return the candidate with the best score on held-out images; "" if there are no candidates."""
    sign = 1 if answer["higher_is_better"] else -1
    return max(sorted(names), key=lambda name: sign * answer["later"][name]["value"], default="")


def _behind(answer: dict[str, Any]) -> str:
    """Return text with the number of dropped candidates and a lower bound on their distance behind the best."""
    behind = [dropped["behind"] for dropped in answer["dropped"]]
    if not behind:
        return ""
    are = "other is" if len(behind) == 1 else "others are"
    least = "" if min(behind) < SHOWN else f" by at least {min(behind):.2g}"
    if answer["by_sign"]:
        each = "it scores" if len(behind) == 1 else "each of them scores"
        least = f": {each} worse more often than better"
    return f"; {len(behind)} {are} beaten{least}"


def _missing(answer: dict[str, Any], content: dict[str, Any]) -> str:
    """Describe what is needed to distinguish the remaining candidates; "" if they are distinguished.

    The number of images is estimated from the differences so far.
    """
    there, apart = content["dataset"]["images"], answer["apart"]
    if len(apart) < 2 or (answer["outcome"] == "baseline" and _beats_all(answer, content)):
        return ""
    if answer["ended"] == ALIKE:
        return f"{apart[0]} leads none of the others by more than {content['margin']:g}"
    tell = f"distinguish {apart[0]} from {listed(apart[1:])}"
    needed, least = answer["images_needed"], answer["images_at_least"]
    if needed is None or needed > MOST_IMAGES:
        if least is not None and there < least <= MOST_IMAGES:
            return f"at least about {_rounded(least, there)} images are needed to {tell}; there are {count(there)}"
        return f"even with more images, differences of this size would be too small to {tell}"
    # The race uses at most half of the images. Once these are used, more time does not help.
    if answer["ended"] == NO_TIME and needed <= min(there, 2 * content["may_decide"]):
        return f"about {rounded(needed)} of the {count(there)} images would {tell}; increase --within"
    if needed <= there:
        return f"more than {count(there)} images are needed to {tell}"
    return f"about {_rounded(needed, there)} images{_between(answer)} are needed to {tell}; there are {count(there)}"


def _between(answer: dict[str, Any]) -> str:
    """Return the range of the number of images needed, within two standard errors of the differences so far."""
    least, most = answer["images_at_least"], answer["images_at_most"]
    if least is None:
        return ""
    span = f"at least {rounded(least)}"
    if most is not None and most <= MOST_IMAGES:
        span = f"{rounded(least)} to {rounded(most)}"
    return f" ({span} within two standard errors)"


def _rounded(images: int, there: int) -> str:
    """Return `images`, rounded unless rounding makes the number equal to `there` or smaller."""
    return count(images) if float(f"{images:.2g}") <= there < images else rounded(images)


def rounded(images: int) -> str:
    """Return a number of images rounded to two digits, because more digits would not be meaningful."""
    return count(int(float(f"{images:.2g}")))


def _alike(question: dict[str, Any], content: dict[str, Any]) -> str:
    """Return text that names the methods that may be as good as the recommended one, and the cheapest of them."""
    others = question["as_good"]
    if not others:
        return ""
    passes = {candidate["name"]: candidate["passes"] for candidate in content["candidates"]}
    cheapest = min(others, key=lambda name: passes[name])
    cheaper = f"; the cheapest of these is {cheapest} ({_passes(cheapest, content)})"
    is_cheaper = 0 < passes[cheapest] < passes[question["recommended"]]
    return f"; not distinguishable from {_some(others)}{cheaper if is_cheaper else ''}"


def _some(names: list[str]) -> str:
    if len(names) <= MOST_NAMED:
        return listed(names)
    return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"


def _metric(answer: dict[str, Any], content: dict[str, Any]) -> str:
    """Return the name of a metric, including options if another metric has the same name."""
    name = answer["metric"].partition(":")[0]
    names = [other["metric"].partition(":")[0] for other in content["metrics"]]
    return answer["metric"] if names.count(name) > 1 else name


def _methods(answer: dict[str, Any]) -> list[str]:
    """Return the remaining candidates that use the network, best first."""
    return [name for name in answer["left"] if name in answer["not_shown_to_beat"]]


def _unbeaten(answer: dict[str, Any], name: str) -> str:
    """Return the baselines that a method is not shown to beat."""
    return listed([_label(baseline) for baseline in answer["not_shown_to_beat"][name]])


def _verb(subject: str, verb: str) -> str:
    return f"{subject} {verb}" if " and " in subject or subject.endswith("maps") else f"{subject} {verb}s"


def _label(baseline: str) -> str:
    return LABELS.get(baseline, baseline)


def _answers(question: dict[str, Any], content: dict[str, Any]) -> list[dict[str, Any]]:
    return [answer for answer in content["metrics"] if answer["metric"] in question["metrics"]]


def _baselines(content: dict[str, Any]) -> set[str]:
    return {candidate["name"] for candidate in content["candidates"] if candidate["baseline"]}


def _passes(name: str, content: dict[str, Any]) -> str:
    passes = next(candidate["passes"] for candidate in content["candidates"] if candidate["name"] == name)
    return (
        "cost unknown" if not passes else "one pass per image" if passes == 1 else f"{count(passes)} passes per image"
    )


# --- The page ---


def page_text(content: dict[str, Any], run: Run) -> str:
    """Return the page of `choose` as HTML."""
    winners = [question["recommended"] for question in content["questions"] if question["recommended"]]
    return render(
        "choice.html.j2",
        styles=("report.css", "choice.css"),
        content=content,
        cards_of=cards_of,
        not_counted=not_counted(content),
        questions=[_question_view(question, content) for question in content["questions"]],
        lanes=[_lanes(answer, content) for answer in content["metrics"]],
        checks=list(content["checks"].items()),
        winners=[candidate for candidate in content["candidates"] if candidate["name"] in winners],
        photographs=_photographs(run, winners, content),
        share=content["passes"]["spent"] / max(content["passes"]["all"], 1),
        not_tried=_by_reason(content["not_tried"]),
        unchanged=DOES_NOT_DEPEND,
        accuracy=f"{percent(run.accuracy.value)} {percent_interval(run.accuracy)}".strip(),
    )


def _by_reason(not_tried: dict[str, str]) -> list[tuple[str, str]]:
    """Return [(explainers, reason why these explainers were not tried)]."""
    names: dict[str, list[str]] = {}
    for name, reason in not_tried.items():
        names.setdefault(reason, []).append(name)
    return [(", ".join(of_reason), reason) for reason, of_reason in names.items()]


def _question_view(question: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    answers = _answers(question, content)
    names = dict.fromkeys(name for answer in answers for name in answer["later"])
    order = [name for answer in answers for name in answer["left"]]
    ranked = sorted(names, key=lambda name: (name in _baselines(content),
                                             order.index(name) if name in order else len(order)))  # fmt: skip
    return {
        "headline": headline(question, content),
        "lines": question_lines(question, content),
        "about": question["about"],
        "answers": answers,
        "rows": [
            {"name": name, "baseline": name in _baselines(content), "recommended": name == question["recommended"],
             "passes": _passes(name, content) if name not in _baselines(content) else "no pass",
             "cells": [_cell(answer["later"].get(name), answer) for answer in answers]}
            for name in ranked
        ],
    }  # fmt: skip


def _cell(result: dict[str, Any] | None, answer: dict[str, Any]) -> dict[str, str]:
    """Return the text of a table cell: mean, interval, and difference from the leader of the race."""
    if result is None:
        return {"value": number(None), "interval": "", "ahead": ""}
    ends = "" if result["low"] is None else f"[{number(result['low'])}, {number(result['high'])}]"
    ends += f" {RARE}" * result["rare"]
    leader, lead, ahead = answer["left"][:1], result.get("winner_ahead"), ""
    if lead is not None:
        low, value, high = (lead[key] for key in ("low", "value", "high"))
        ahead = f"{leader[0]} leads by {signed(value)} {signed_interval(low, high)}"
        if value < 0:
            ends_ahead = (None, None) if low is None else (-high, -low)
            ahead = f"leads {leader[0]} by {signed(-value)} {signed_interval(*ends_ahead)}"
    return {"value": number(result["value"]), "interval": ends, "ahead": ahead}


def _lanes(answer: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return the bars of a race. The length of a bar is the number of images that a candidate explained."""
    images = {item["clusters"]: item["images"] for item in content["rounds"]}
    dropped = sorted(answer["dropped"], key=lambda item: -item["clusters"])
    ends = [(name, answer["images"], "left") for name in answer["left"]]
    ends += [(item["name"], images.get(item["clusters"], item["clusters"]), "dropped") for item in dropped]
    shown = {name for name, *_ in ends}
    lengths = {name: item["images"] for item in content["rounds"] for name in item["lineup"].get(answer["metric"], [])}
    shown |= set(content["twins"])
    ends += [(name, end, "excluded") for name, end in lengths.items() if name not in shown]
    whole = max((end for _, end, _ in ends), default=1)
    return {
        "metric": answer["metric"],
        "images": whole,
        "ended": "only baselines are left" if answer["ended"] == ONE_LEFT and len(answer["left"]) > 1
        else answer["ended"],
        "rows": [
            {"name": name, "images": end, "kind": kind, "share": round(100 * end / whole, 2),
             "baseline": name in _baselines(content)}
            for name, end, kind in ends
        ],
    }  # fmt: skip


def _photographs(run: Run, winners: list[str], content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return example samples with the maps of the winner, the runner-up and `random`."""
    ranked = [name for answer in content["metrics"] for name in [*answer["left"], *answer["later"]]]
    methods = [name for name in dict.fromkeys([*winners, *ranked]) if name not in _baselines(content)]
    wanted = [*methods[: max(2, len(set(winners)))], "random"]
    return [
        sample | {"kind": group["kind"],
                  "overlays": [item for name in wanted for item in sample["overlays"] if item["name"] == name]}
        for group in sample_groups(run)
        for sample in group["samples"][:PER_KIND]
    ]  # fmt: skip
