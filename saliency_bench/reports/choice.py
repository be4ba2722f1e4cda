"""Sentences and page of `choose`, both made of choice.json and the folder of its run alone."""

from math import ceil
from typing import Any

from saliency_bench.analysis.verdict import listed
from saliency_bench.reports.choice_cards import cards_of
from saliency_bench.reports.samples import sample_groups
from saliency_bench.reports.templates import render
from saliency_bench.reports.words import (
    count,
    number,
    percent,
    percent_interval,
    signed,
    signed_interval,
)
from saliency_bench.results.cell import RARE
from saliency_bench.results.reliability import Reliability
from saliency_bench.results.run_folder import RunData

SHOWN = 0.005  # a lead below it is not worth a number
MINUTES = 120  # more are given as hours
MOST_NAMED = 6  # candidates named in a sentence
MOST_IMAGES = 1_000_000  # that a sentence says would be needed
PER_KIND = 2  # photographs that are best, worst and most disputed
DOES_NOT_DEPEND = "does not depend"


def sentences(content: dict[str, Any]) -> list[str]:
    """Return the answers: of each question what to take, then what each of its metrics says."""
    lines = []
    for question in content["questions"]:
        lines += [headline(question, content), *reliability_lines(question, content),
                  *(metric_line(answer, question, content) for answer in _answers(question, content))]  # fmt: skip
    named = {question["recommended"] for question in content["questions"]} - {None}
    if len(named) > 1:
        lines.append("The questions have different answers; take the one you ask, an average would answer none.")
    if excluded := content["survive_random_weights"]:
        lines.append(f"Left out, as their maps stay the same when all weights are random: {listed(excluded)}.")
    lines += not_counted(content)
    silent = list(dict.fromkeys(question["silent"] for question in content["questions"] if question["silent"]))
    return [*lines, f"This does not say {'; nor '.join(silent)}."] if silent else lines


def not_counted(content: dict[str, Any]) -> list[str]:
    """Return which candidates do not count: those with the maps of another one, and those for which was no time."""
    lines = [f"{listed([twin for twin, other in content['twins'].items() if other == kept])} and {kept} give the same "
             f"maps here and count once, as {kept}." for kept in dict.fromkeys(content["twins"].values())]  # fmt: skip
    if slow := content["too_slow"]:
        minutes = ceil(content["within_for_all"] / 60)
        enough = f"{minutes}m" if minutes <= MINUTES else f"{ceil(minutes / 60)}h"
        lines.append(f"Not tried for lack of time: {_some(slow)}; --within {enough} would try all.")
    return lines


def headline(question: dict[str, Any], content: dict[str, Any]) -> str:
    """Return what to take for a question, or why nothing can be said."""
    about, answers = question["about"], _answers(question, content)
    if name := question["recommended"]:
        return f"For {about}: {name} ({_passes(name, content)}){_alike(question, content)}."
    outcomes = {answer["outcome"] for answer in answers}
    if name := question["not_shown"]:
        return f"For {about} nothing is recommended: {name} leads, but is not itself shown to beat every baseline."
    if "method" in outcomes:
        leaders = [f"{answer['left'][0]} by {_metric(answer)}" for answer in answers if answer["outcome"] == "method"]
        return (
            f"For {about} the metrics disagree: {listed(leaders)}. Which one counts depends on what you want to know; "
            "an average would answer neither."
        )
    if outcomes == {"baseline"}:
        best = listed(list(dict.fromkeys(answer["left"][0] for answer in answers)))
        beats = "is shown to beat" if any(set(answer["left"]) - _baselines(content) for answer in answers) else "beats"
        return f"For {about}: no method {beats} {best} here, so this dataset cannot tell you which to take."
    seen = f"For {about} nothing can be said from {count(max(answer['images'] for answer in answers))} images"
    needed = [answer["images_at_least"] for answer in answers]
    known = [images for images in needed if images and content["dataset"]["images"] < images <= MOST_IMAGES]
    return f"{seen}: a dataset of at least about {rounded(min(known))} is needed." if known else f"{seen}."


def reliability_lines(question: dict[str, Any], content: dict[str, Any]) -> list[str]:
    """Return the reliability of the recommended maps if they average random draws, and that of equally good ones."""
    known = content.get("reliability", {})
    names = [name for name in (question["recommended"], *question["as_good"]) if name in known]
    return [f"Reliability of the maps of {name}: {Reliability.model_validate(known[name])}." for name in names]


def metric_line(answer: dict[str, Any], question: dict[str, Any], content: dict[str, Any]) -> str:
    """Return what a metric says."""
    by, outcome = f"By {_metric(answer)}", answer["outcome"]
    if outcome == "nothing":
        return f"{by}: no candidate has scores."
    leader = answer["left"][0]
    if outcome == "baseline":
        methods = [name for name in answer["left"] if name not in _baselines(content)]
        verb = f"no method is shown to beat {leader}" if methods else f"every method is behind {leader}"
        return f"{by}: {verb}, a baseline that ignores the network.{_needed(answer, content) if methods else ''}"
    if outcome == "open":
        return (
            f"{by}: {leader} leads{_later(answer, leader)}, but is not shown to beat "
            f"{listed(answer['unbeaten_baselines'])}.{_needed(answer, content)}"
        )
    name = question["recommended"] if question["recommended"] in answer["left"] else leader
    text = f"{by}: {name}{_later(answer, name)}{_behind(answer)}."
    if name not in answer["beat_baselines"]:
        text += " It is not itself shown to beat every baseline."
    if others := [other for other in answer["left"] if other != name]:
        apart = _needed(answer, content) if answer["ended"] != "those left are alike" else (
            f" No difference among them exceeds {content['margin']:g}."
        )  # fmt: skip
        text += f" Not distinguishable from it: {_some(others)}.{apart}"
    return text


def _later(answer: dict[str, Any], name: str) -> str:
    """Return how good a candidate is on images that did not decide, beside the baselines."""
    if name not in answer["later"]:
        return ""
    result = answer["later"][name]
    ends = "" if result["low"] is None else f" [{number(result['low'])}, {number(result['high'])}]"
    ends += f" ({RARE})" * result["rare"]
    lower = "" if answer["higher_is_better"] else ", lower is better"
    others = [f"{other} {number(answer['later'][other]['value'])}" for other in ("random", "centre")
              if other in answer["later"] and other != name]  # fmt: skip
    beside = f"; {', '.join(others)}" if others else ""
    return f" with {number(result['value'])}{ends} on {count(result['n'])} images that did not decide{lower}{beside}"


def _behind(answer: dict[str, Any]) -> str:
    """Return how many candidates are behind the best, and by how much at least."""
    behind = [dropped["behind"] for dropped in answer["dropped"]]
    if not behind:
        return ""
    are = "other is" if len(behind) == 1 else "others are"
    least = "" if min(behind) < SHOWN else f" by at least {min(behind):.2g}"
    if answer["by_sign"]:
        least = ", worse on more images than they are better"
    return f". {len(behind)} {are} behind the best{least}"


def _needed(answer: dict[str, Any], content: dict[str, Any]) -> str:
    """Return how many images would tell, if differences stay as they are."""
    needed, there = answer["images_needed"], content["dataset"]["images"]
    if needed is None or needed > MOST_IMAGES:
        least = answer["images_at_least"]
        if least is not None and there < least <= MOST_IMAGES:
            return f" It would take {rounded(least)} images at the very least to tell; there are {count(there)}."
        return " The images so far show no difference that more of them would confirm."
    if needed <= there:
        more = f"would tell, of {count(there)}: give it more time (--within)."
    else:
        more = f"would be needed to tell; there are {count(there)}."
    return f" About {rounded(needed)} images{_between(answer)} {more}"


def _between(answer: dict[str, Any]) -> str:
    """Return the range of images needed if the differences so far are off by up to two standard errors."""
    least, most = answer["images_at_least"], answer["images_at_most"]
    low = rounded(least) if least is not None else "fewer"
    high = rounded(most) if most is not None and most <= MOST_IMAGES else "any number"
    return f" (from {low} to {high}, as far as is known)"


def rounded(images: int) -> str:
    """Return a number of images rounded to two digits; it is known less precisely than that."""
    return count(int(float(f"{images:.2g}")))


def _alike(question: dict[str, Any], content: dict[str, Any]) -> str:
    """Return the methods that may be as good as the recommended one, and which of them costs less."""
    others = question["as_good"]
    if not others:
        return ""
    passes = {candidate["name"]: candidate["passes"] for candidate in content["candidates"]}
    cheapest = min(others, key=lambda name: passes[name])
    cheaper = f"; the cheapest of these is {cheapest} ({_passes(cheapest, content)})"
    is_cheaper = 0 < passes[cheapest] < passes[question["recommended"]]
    return f"; not distinguishable from {_some(others)}{cheaper if is_cheaper else ''}"


def _some(names: list[str]) -> str:
    """List names, of many the first."""
    if len(names) <= MOST_NAMED:
        return listed(names)
    return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"


def _metric(answer: dict[str, Any]) -> str:
    """Return the name of a metric without its options."""
    return answer["metric"].partition(":")[0]


def _answers(question: dict[str, Any], content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of the metrics of a question."""
    return [answer for answer in content["metrics"] if answer["metric"] in question["metrics"]]


def _baselines(content: dict[str, Any]) -> set[str]:
    """Return the candidates that ignore the network."""
    return {candidate["name"] for candidate in content["candidates"] if candidate["baseline"]}


def _passes(name: str, content: dict[str, Any]) -> str:
    """Return what a map costs."""
    passes = next(candidate["passes"] for candidate in content["candidates"] if candidate["name"] == name)
    return (
        "cost not known" if not passes else "one pass an image" if passes == 1 else f"{count(passes)} passes an image"
    )


# --- The page ---


def page_text(content: dict[str, Any], run: RunData) -> str:
    """Return the page of a choice as HTML: `content` is that of choice.json, `run` has its scores and photographs."""
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
    """Return [(explainers, why they were not tried)]."""
    names: dict[str, list[str]] = {}
    for name, reason in not_tried.items():
        names.setdefault(reason, []).append(name)
    return [(", ".join(of_reason), reason) for reason, of_reason in names.items()]


def _question_view(question: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return a question with the table of its finalists and baselines."""
    answers = _answers(question, content)
    names = dict.fromkeys(name for answer in answers for name in answer["later"])
    order = [name for answer in answers for name in answer["left"]]
    ranked = sorted(names, key=lambda name: (name in _baselines(content),
                                             order.index(name) if name in order else len(order)))  # fmt: skip
    return {
        "headline": headline(question, content),
        "lines": [*reliability_lines(question, content),
                  *(metric_line(answer, question, content) for answer in answers)],
        "about": question["about"],
        "answers": answers,
        "rows": [
            {"name": name, "baseline": name in _baselines(content), "recommended": name == question["recommended"],
             "passes": _passes(name, content) if name not in _baselines(content) else "no pass",
             "cells": [_cell(answer["later"].get(name)) for answer in answers]}
            for name in ranked
        ],
    }  # fmt: skip


def _cell(result: dict[str, Any] | None) -> dict[str, str]:
    """Return the texts of a cell: mean, interval, and how far the leader is ahead."""
    if result is None:
        return {"value": number(None), "interval": "", "ahead": ""}
    ends = "" if result["low"] is None else f"[{number(result['low'])}, {number(result['high'])}]"
    ends += f" {RARE}" * result["rare"]
    lead = result.get("winner_ahead")
    ahead = ""
    if lead is not None:
        ahead = f"the best leads by {signed(lead['value'])} {signed_interval(lead['low'], lead['high'])}"
    return {"value": number(result["value"]), "interval": ends, "ahead": ahead}


def _lanes(answer: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the picture of a race: each candidate as long as it was asked for images."""
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
        "ended": answer["ended"],
        "rows": [
            {"name": name, "images": end, "kind": kind, "share": round(100 * end / whole, 2),
             "baseline": name in _baselines(content)}
            for name, end, kind in ends
        ],
    }  # fmt: skip


def _photographs(run: RunData, winners: list[str], content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return six samples with the maps of the winner, the runner-up and `random`."""
    ranked = [name for answer in content["metrics"] for name in [*answer["left"], *answer["later"]]]
    methods = [name for name in dict.fromkeys([*winners, *ranked]) if name not in _baselines(content)]
    wanted = [*methods[: max(2, len(set(winners)))], "random"]
    return [
        sample | {"kind": group["kind"],
                  "overlays": [item for name in wanted for item in sample["overlays"] if item["name"] == name]}
        for group in sample_groups(run)
        for sample in group["samples"][:PER_KIND]
    ]  # fmt: skip
