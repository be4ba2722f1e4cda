"""Cards at the top of the page of `choose`: the leading candidate on each metric, and the verdict."""

from typing import Any

from saliency_bench.read.cell import Interval


def cards_of(question: dict[str, Any], content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a card for each metric of a question in choice.json."""
    return [
        _card(answer, question, content) for answer in content["metrics"] if answer["metric"] in question["metrics"]
    ]


def _card(answer: dict[str, Any], question: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return a card with the score of the recommended candidate, or of the leader if that candidate was dropped."""
    baselines = {candidate["name"] for candidate in content["candidates"] if candidate["baseline"]}
    left, outcome = answer["left"], answer["outcome"]
    card = {"name": answer["metric"].partition(":")[0], "higher_is_better": answer["higher_is_better"]}
    if outcome == "nothing" or not left:
        return card | {"explainer": "", "later": None, "verdict": "no scores", "is_good": False}
    methods = [name for name in left if name not in baselines]
    leader = methods[0] if methods and outcome != "baseline" else left[0]
    name = question["recommended"] if question["recommended"] in methods and outcome == "method" else leader
    is_good = outcome == "method" and name in answer["beat_baselines"]
    if outcome == "baseline":
        verdict = "a baseline; no method is shown to beat it"
    elif not is_good:
        verdict = "not shown to beat every baseline"
    else:
        others = len(methods) - 1
        verdict = f"not distinguishable from {others} {'other' if others == 1 else 'others'}" if others else "best"
    later = answer["later"].get(name)
    interval = later and Interval.model_validate({key: later[key] for key in ("value", "low", "high", "n", "clusters")})
    return card | {"explainer": name, "later": interval, "verdict": verdict, "is_good": is_good}
