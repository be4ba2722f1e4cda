"""Tests of the view of a board as pure functions of rows: addresses, filters, order, exports and plots."""

import csv
import io
import re
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saliency_bench import registry
from saliency_bench.board.known import CHECKED, CLAIMED, HIDDEN, RUN
from saliency_bench.board.view import board_plots, export
from saliency_bench.board.view.board_page import TRACK, _tracks
from saliency_bench.board.view.matrix import is_official, matrix
from saliency_bench.board.view.row_groups import PER_PAGE, choices, chosen, grouped, only_known, page_of
from saliency_bench.board.view.rows import FAMILIES, ShownRow, amount, family_of, short
from saliency_bench.board.view.state import ALWAYS, COLUMNS, FILTERS, MOST_CHOSEN, PAGES, SORTS, STATUSES, USUAL, View
from saliency_bench.read.cell import rank_text

BASELINES = ("random", "centre")


def row(explainer="gradcam", value=0.5, metric="saliency_miou", dataset="pets", model="net", **more):
    return replace(
        ShownRow(
            f"{explainer}-{metric}-{dataset}-{model}", f"{metric}-{dataset}-{model}", "", dataset, model, explainer,
            metric, family_of(metric), metric != "saliency_deletion", value, None if value is None else value - 0.1,
            None if value is None else value + 0.1, 60, 60, False, False, None, None, "", False, explainer in BASELINES,
            False, RUN, "", 16, (), (), "", False, None, None, "cpu", ("ada",),
            f"{explainer} {metric} {dataset} {model} ada",
        ),
        **more)  # fmt: skip


ROWS = [
    row(name, value, metric, dataset)
    for (name, value), metric, dataset in product(
        {"gradcam": 0.6, "rise": 0.5, "mine": None, "random": 0.2, "centre": 0.7}.items(),
        ("saliency_miou", "saliency_deletion"),
        ("pets", "shapes"),
    )
]


# Addresses

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
several = st.lists(words, max_size=4).map(tuple)
statuses = st.sets(st.sampled_from(STATUSES)).map(lambda own: tuple(filter(own.__contains__, STATUSES)))
views = st.builds(
    View, tab=st.sampled_from(list(PAGES)), dataset=several, model=several, explainer=several, family=several,
    metric=several, status=statuses,
    search=words, sort=st.sampled_from(SORTS), reverse=st.booleans(),
    columns=st.sets(st.sampled_from(list(COLUMNS))).map(
        lambda names: tuple(name for name in COLUMNS if name in names or name in ALWAYS)),
    number=st.integers(1, 99), row=words, other=words, x=words, y=words, cost=st.sampled_from(["passes", "seconds"]),
    as_list=st.booleans(),
)  # fmt: skip


def clean(view):
    """Return the view with strings that an address can contain: printable, without blanks at the ends."""
    texts = {name: printable(value) for name, value in vars(view).items() if isinstance(value, str)}
    chosen = {name: tuple(dict.fromkeys(filter(None, map(printable, getattr(view, name))))) for name in FILTERS}
    return replace(view, **texts, **chosen)


def printable(text):
    return "".join(filter(str.isprintable, text)).strip()


@given(views)
def test_address_of_a_view_restores_the_view(view):
    again = View.read("?" + clean(view).query())
    assert (again, View.read(again.query())) == (clean(view), again)


@given(st.text(max_size=300))
def test_any_address_gives_a_valid_view(text):
    view = View.read(text)
    assert view.tab in PAGES
    assert view.sort in SORTS
    assert set(ALWAYS) <= set(view.columns) <= set(COLUMNS) >= set(USUAL)
    assert view.number >= 1
    assert all(value.isprintable() for value in vars(view).values() if isinstance(value, str))


ENTRIES = st.tuples(
    st.sampled_from(["a", "b", "random", "centre"]), st.sampled_from(["saliency_miou", "saliency_deletion"]),
    st.sampled_from(STATUSES), st.floats(0, 1), st.booleans(), st.sampled_from(["q", "other"]),
)  # fmt: skip


@given(st.lists(ENTRIES, max_size=24))
def test_matrix_contains_official_rows_of_one_question(entries):
    rows = [
        row(name, value, metric, key=f"{number:02d}", question=metric + question, status=status,
            not_beaten=("random",) if tested and name in "ab" else ())
        for number, (name, metric, status, value, tested, question) in enumerate(entries)]  # fmt: skip
    found = matrix(rows, View())
    assert (found is None) == (not rows)
    metrics = [head.metric for head in found.metrics] if found else []
    assert metrics == sorted(metrics, reverse=True), "saliency_miou comes first, because alignment is the first family"
    for place, head in enumerate(found.metrics if found else []):
        cells = {name: of_row[place] for name, of_row in [*found.methods, *found.baselines] if of_row[place]}
        of_metric = [one for one in rows if one.metric == head.metric and one.question == head.question
                     and (is_official(one) or not any(map(is_official, rows)))]  # fmt: skip
        assert set(cells) == {one.explainer for one in of_metric}
        sign = 1 if head.higher_is_better else -1
        baselines = [one.value for one in of_metric if one.baseline]
        best = max(baselines, key=lambda value: sign * value) if baselines else None
        top = max(one.value for one in of_metric)
        for name, cell in cells.items():
            assert cell.row in of_metric
            assert cell.share == pytest.approx(cell.row.value / top if top else 0, abs=1e-4)
            assert (cell.line is None) == (best is None)
            assert best is None or cell.line == pytest.approx(best / top if top else 0, abs=1e-4)
            untested = best is not None and sign * cell.row.value <= sign * best
            assert bool(cell.behind) == (name in "ab" and (bool(cell.row.not_beaten) or untested))


def test_invalid_parts_of_an_address_become_defaults():
    assert View.read("tab=x&sort=device&status=best&number=-3&reverse=1&cost=gold&zebra=1&columns=a.b") == View()
    assert (View().query(), View.read("a=1&" * 100)) == ("", View())
    assert View.read("columns=n&columns=explainer&columns=rank.status").columns == (
        "explainer", "score", "rank", "n", "status")  # fmt: skip
    assert View.read("metric=a").metric == ("a",)  # the format of addresses before filters had several values
    assert View.read("metric=a&metric=&metric=b&metric=a").metric == ("a", "b")
    assert View.read("status=claimed&status=best&status=run+by+the+board").status == (RUN, "claimed")
    assert len(View.read("&".join(f"model={number}" for number in range(300))).model) == MOST_CHOSEN
    assert View.read("a=1&" * 1000 + "metric=a") == View()
    assert View.read("search=" + "x" * 9999).search == "x" * 200
    assert View.read("search=a%00b%E2%80%AEc").search == "abc"


# Rows and their order


def names(rows):
    return [one.explainer for one in rows]


def test_rows_are_sorted_best_first_and_unscored_last():
    up = chosen(ROWS, View(metric=("saliency_miou",), dataset=("pets",)))
    assert names(up) == ["centre", "gradcam", "rise", "random", "mine"]
    down = chosen(ROWS, View(metric=("saliency_deletion",), dataset=("pets",)))
    assert names(down) == ["random", "rise", "gradcam", "centre", "mine"]
    assert names(chosen(ROWS, View(metric=("saliency_miou",), dataset=("pets",), reverse=True))) == [
        "random", "rise", "gradcam", "centre", "mine"]  # fmt: skip


def test_comparisons_are_grouped_before_sorting():
    rows = chosen(ROWS, View())
    assert len(rows) == len(ROWS)
    groups = grouped(rows, ROWS)
    assert [(one.rows[0].dataset, one.rows[0].metric) for one in groups] == [
        (dataset, metric) for dataset in ("pets", "shapes") for metric in ("saliency_miou", "saliency_deletion")
    ]
    assert all(len({one.question for one in group.rows}) == 1 for group in groups)


@pytest.mark.parametrize("reverse", [False, True])
def test_sorting_by_cost_puts_unknown_last(reverse):
    rows = [row("a", passes=3.0), row("b", passes=None), row("c", passes=1.0), row("d", passes=2.0)]
    order = names(chosen(rows, View(sort="passes", reverse=reverse)))
    assert order == (["a", "d", "c", "b"] if reverse else ["c", "d", "a", "b"])


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_keeps_all_rows(sort):
    assert sorted(one.key for one in chosen(ROWS, View(sort=sort))) == sorted(one.key for one in ROWS)


def test_filters_keep_baselines():
    only = chosen(ROWS, View(explainer=("gradcam",), metric=("saliency_miou",), dataset=("pets",)))
    assert names(only) == ["centre", "gradcam", "random"]
    assert names(chosen(ROWS, View(search="RISE pets miou"))) == ["centre", "rise", "random"]
    assert names(grouped(only, ROWS)[0].baselines) == ["centre", "random"]
    assert chosen(ROWS, View(search="nowhere")) == []
    claimed = [row("mine", status="claimed"), row("random")]
    assert names(chosen(claimed, View(status=("claimed",)))) == ["random", "mine"]


def test_choices_follow_from_other_filters():
    found = choices(ROWS, View(metric=("saliency_miou",)))
    assert (found["metric"], found["family"]) == (["saliency_deletion", "saliency_miou"], ["alignment"])
    assert (found["status"], found["dataset"]) == ([RUN], ["pets", "shapes"])
    assert only_known(View(dataset=("gone",), model=("net",)), ROWS) == View(model=("net",))
    assert only_known(View(dataset=("gone", "pets")), ROWS) == View(dataset=("pets",))


def test_long_tables_are_split_into_pages():
    rows = chosen([row(f"method {number:03d}", number / 300) for number in range(250)], View())
    first, at, parts = page_of(rows, 1)
    assert (len(first), at, parts) == (PER_PAGE, 1, 3)
    last, at, _ = page_of(rows, 99)
    assert (len(last), at) == (50, 3)
    assert grouped(last, rows, rows[2 * PER_PAGE - 1])[0].more
    assert not grouped(first, rows)[0].more
    assert page_of([], 4) == ([], 1, 1)


def test_every_metric_has_a_family():
    found = {name: family_of(name) for name in registry.names("metrics")}
    assert set(found.values()) == set(FAMILIES) - {"other"}
    assert (found["saliency_miou"], found["saliency_road"], found["saliency_max_sensitivity"]) == (
        "alignment", "faithfulness", "sensitivity")  # fmt: skip
    assert family_of("somebody's own") == "other"


def test_numbers_and_names_are_shortened():
    assert (rank_text((1, 3)), rank_text((2, 2)), rank_text(None)) == ("1-3", "2", "")
    assert (short("saliency-bench/pet-xai"), short("saliency_miou")) == ("pet-xai", "miou")
    assert [amount(value) for value in (None, 0.01234, 2.0, 4000.0)] == ["–", "0.0123", "2", "4,000"]


# Exports

STRANGE = row("=1+1 & 50% of {x}_y \\ \u00e9", submitters=("eve",), rank=(1, 3), best=True)


def test_csv_contains_all_columns_and_no_formula():
    rows = [STRANGE, row("random", None), row("rise", 1 / 3, beats=("random", "centre"))]
    read = list(csv.DictReader(io.StringIO(export.as_csv(rows))))
    assert [one["explainer"] for one in read] == ["'=1+1 & 50% of {x}_y \\ \u00e9", "random", "rise"]
    assert [one["value"] for one in read] == ["0.5", "", repr(1 / 3)]
    assert (read[0]["rank"], read[0]["best"], read[2]["beats"]) == ("1-3", "yes", "random; centre")
    assert all(set(one) == set(export.FIELDS) for one in read)


def test_latex_table_escapes_texts():
    text = export.as_tex([STRANGE, row("random", -0.25), row("rise", 0.1)], "http://here/?a=b\n\\input{x}")
    assert r"=1+1 \& 50\% of \{x\}\_y \textbackslash{} é & \textbf{0.500} & [0.400, 0.600] & 60 & 1--3 \\" in text
    assert r"\textit{random} & $-$0.250 & [$-$0.350, $-$0.150] & 60 & run by the board \\" in text
    assert r"rise & 0.100 & [0.000, 0.200] & 60 & run by the board \\" in text
    assert r"\multicolumn{5}{l}{miou, pets, net $\uparrow$} \\" in text
    assert [line for line in text.splitlines() if "input" in line] == ["% http://here/?a=b \\input{x}"]
    assert text.count("\n\\midrule") == 2


def test_latex_marks_own_methods_and_checked_rows():
    rows = [row("mine", 0.9, own_method=True, status="checked", rank_if_true=(1, 3)), row("rise", rank=(1, 1))]
    text = export.as_tex(rows)
    assert r"mine$^\dagger$ & 0.900 & [0.800, 1.000] & 60 & if true: 1--3 \\" in text
    assert "rise & 0.500 & [0.400, 0.600] & 60 & 1 \\\\" in text
    assert text.endswith(
        "\\end{tabular}\n\\par $^\\dagger$ Not part of saliency-bench; the submitter computed the maps.\n"
    )
    assert "dagger" not in export.as_tex(rows[1:])


def test_bibtex_cites_the_board_and_each_submitter():
    text = export.as_bib([STRANGE, row(submitters=("ada", "eve"))], "a_board", "http://here/?a=1&b=}{%20", "2026-11-23")
    assert re.findall(r"@misc\{(\S+),", text) == ["saliency-bench-board", "saliency-bench-eve", "saliency-bench-ada"]
    assert r"title = {Leaderboard of a\_board}" in text
    assert r"\url{http://here/?a=1&b=\%20}" in text
    assert "year = {2026}" in text
    assert text.count("{") == text.count("}")


# Plots


def literal_front(costs, gains):
    """Return the points that no other point dominates, with a loop over all pairs."""
    points = list(zip(costs, gains, strict=True))
    return {
        place for place, (cost, gain) in enumerate(points)
        if not any(a <= cost and b >= gain and (a < cost or b > gain) for a, b in points)}  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_pareto_front_matches_literal_loop(points):
    costs, gains = zip(*points, strict=True)
    front = board_plots.pareto(costs, gains)
    assert set(front) == literal_front(costs, gains)
    assert [costs[place] for place in front] == sorted(costs[place] for place in front)


def test_plot_axes_point_towards_better():
    rows = [row(name, value, metric) for metric in ("saliency_miou", "saliency_deletion")
            for name, value in (("good", 0.9), ("poor", 0.1))]  # fmt: skip
    plot = board_plots.scatter(rows, "saliency_miou", "saliency_deletion")
    good, poor = plot.dots
    assert good.x > poor.x
    assert good.y > poor.y  # lower in the plot, because a high deletion is worse
    assert good.across[0] < good.x < good.across[1]
    assert all(plot.left <= one.x <= plot.right and plot.top <= one.y <= plot.bottom for one in plot.dots)
    assert [text for _, text in board_plots.Axis([0, 40], 0, 100).ticks()] == ["0", "10", "20", "30", "40"]
    assert board_plots.scatter(rows, "saliency_miou", "saliency_road") is None


def test_interval_beside_a_score_may_end_at_zero():
    """Compare positions in pixels. The axis runs from -0.2 to 0.5 and has a margin of 4 pixels on each side."""
    ends = {"a": (0.0, 0.1, 0.25), "b": (0.3, 0.4, 0.5), "c": (-0.2, -0.1, 0.0), "d": (None, 0.15, None)}
    rows = [row(name, value, low=low, high=high) for name, (low, value, high) in ends.items()]
    tracks = {one.explainer: track for one, track in _tracks(SimpleNamespace(rows=rows, baselines=[]))}
    for name, (low, value, high) in ends.items():
        expected = [value if end is None else end for end in (low, value, high)]
        assert tracks[name] == pytest.approx([4 + (end + 0.2) / 0.7 * (TRACK - 8) for end in expected], abs=0.06)


def test_cost_axis_is_logarithmic_and_of_one_device():
    rows = [row("cheap", 0.4, passes=2.0, seconds=0.1), row("dear", 0.6, passes=4000.0, seconds=2.0),
            row("wasteful", 0.5, passes=4000.0, seconds=1.0, device="gpu"), row("silent", 0.9),
            *(row(status, 0.8, passes=3.0, status=status) for status in (HIDDEN, CHECKED, CLAIMED))]  # fmt: skip
    plot = board_plots.cost(rows, "saliency_miou", "passes")
    front = {dot.name: dot.on_front for dot in plot.dots}
    assert front == {"cheap": True, "dear": True} | dict.fromkeys(["wasteful", HIDDEN, CHECKED, CLAIMED], False)
    assert (len(plot.front), [text for _, text in plot.x_ticks]) == (2, ["10", "100", "1,000"])
    seconds = board_plots.cost(rows, "saliency_miou", "seconds")
    assert [dot.name for dot in seconds.dots] == ["cheap", "dear"]
    assert seconds.x == "seconds per image on cpu, less is better"
    assert board_plots.cost([row("silent")], "saliency_miou", "passes") is None


def test_plot_labels_do_not_overlap():
    rows = [row(f"method {number}", 0.5 + number / 1000, metric) for number in range(4)
            for metric in ("saliency_miou", "saliency_insertion")] + [row("far on the right side", 0.9, metric)
            for metric in ("saliency_miou", "saliency_insertion")]  # fmt: skip
    dots = board_plots.scatter(rows, "saliency_miou", "saliency_insertion").dots
    places = [dot.label for dot in dots]
    assert len(set(places)) == len(dots)
    beside = {(abs(round(x - dot.x)), round(y - dot.y)) for dot, (x, y, _) in zip(dots, places, strict=True)}
    assert beside <= {(8, -7), (8, 15)}
    assert (
        next(dot for dot in dots if dot.name == "far on the right side").label[2] == "end"
    )  # there is no space on the right


def test_plot_of_many_methods_names_official_ones():
    crowd = [row(f"method {number}", 0.5, metric, status="checked") for number in range(60)
             for metric in ("saliency_miou", "saliency_insertion")]  # fmt: skip
    known = [row(name, value, metric) for name, value in (("gradcam", 0.9), ("random", 0.1))
             for metric in ("saliency_miou", "saliency_insertion")]  # fmt: skip
    shown, left_out = board_plots.fewer([*crowd, *known])
    assert (len({one.explainer for one in shown}), left_out) == (board_plots.MOST, 62 - board_plots.MOST)
    dots = board_plots.scatter(shown, "saliency_miou", "saliency_insertion").dots
    assert {dot.name for dot in dots if dot.is_named} > {"gradcam", "random"}
    assert sum(dot.is_named for dot in dots) < 10  # the other dots overlap
    assert board_plots.fewer(known) == (known, 0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_ticks_lie_on_their_axis(values):
    places = [place for place, _ in board_plots.Axis(values, 0, 100).ticks()]
    assert all(-0.2 <= place <= 100.2 for place in places)
    assert places == sorted(places)
    assert len(places) <= 10


def test_plots_choose_missing_settings():
    view, rows = board_plots.plotted(ROWS, View())
    assert (view.dataset, view.x, view.y) == (("pets",), "saliency_miou", "saliency_deletion")
    assert ({one.dataset for one in rows}, board_plots.plotted([], View())[0]) == ({"pets"}, View())
