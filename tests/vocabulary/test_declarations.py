"""Tests of the declarations by `@sb.explainer` and `@sb.metric`, and of errors at definition time."""

from functools import partial

import numpy as np
import pytest
from refusals import refused

import saliency_bench as sb
from saliency_bench.bound_metric import as_metric
from saliency_bench.declarations import MetricDeclaration, declaration_of, paper_line
from saliency_bench.utils.source_code import code_hash


def halves(options, classifier):
    return ["upper", "lower"]


def maps_alone(maps):
    return maps.mean(axis=(1, 2))


REFUSED = [({"rnage": (0, 1)}, "unknown keyword 'rnage' of @sb.metric; did you mean range"),
           ({"range": (1, 0)}, r"maps_alone: .range. .*\(1, 0\)"), ({"range": 3}, "range. .*got 3"),
           ({"range": (0, float("nan"))}, "range. .*got"),
           ({"higher_is_better": "yes"}, "higher_is_better. .*'yes'"), ({"version": 0}, "version. .*got 0"),
           ({"version": "2"}, "version. .*got '2'"), ({"reduce": max}, "reduce. requires .parts"),
           ({"aggregate": max}, "aggregate. requires .parts"), ({"absent": "no such layer"}, "absent. requires .parts"),
           ({"parts": halves, "reduce": max, "aggregate": max}, "remove one of them"),
           ({"aggregate_if": bool}, "add .aggregate"), ({"mark": "dim"}, "mark. .*require each other"),
           ({"marked": max}, "mark. .*require each other"), ({"plan": max}, "partners. and the keyword plan"),
           ({"columns": "scene"}, r'columns. must be a list of names, not a string; write \("scene",\)'),
           ({"columns": ("scene",)}, "scene.*no parameter `columns`"),
           ({"keeps": "bottom"}, "keeps. must be 'top' or 'rest'; got 'bottom'"),
           ({"also_called": "mean"}, r'also_called. .*\("mean",\)'),
           ({"range": lambda options, target: (0, 1)}, "its range depends .*curves., or .*target. and .classifier"),
           ({"check": "never"}, "check. must be a function"), ({"paper": 3}, "paper. must be a string; got 3"),
           ({"note": None}, "note. must be a string; got None"),
           ({"plan": "all"}, "plan. must be a function; got 'all'"),
           ({"also_called": 3}, "also_called. must be a list of names; got 3"),
           ({"passes": 3}, r"passes. must be .pictures, maps. or a function of the options; got 3"),
           ({"passes": (1, -1)}, r"passes. must be .pictures, maps. or")]  # fmt: skip


@pytest.mark.parametrize(("declared", "words"), REFUSED)
def test_invalid_metric_declaration_is_rejected(declared, words):
    refused(words, lambda: sb.metric(**declared)(maps_alone))
    assert not hasattr(maps_alone, "declaration")


@pytest.mark.parametrize(("declared", "words"), [
    ({"needs": "gradient"}, "needs. contains the unknown word gradient; use only outputs, gradients"),
    ({"needs": "attention, weights"}, "needs. contains the unknown word weights"),
    ({"range": (0, 1)}, "unknown keyword 'range' of @sb.explainer"),
    ({"version": True}, "version. .*got True"), ({"needs": ["gradients"]}, "needs. must be a string"),
    ({"passes": 1.5}, "passes. must be a whole number or a function of the options; got 1.5"),
    ({"passes": -1}, "passes. must be a whole number"),
    ({"targeted": "no"}, "targeted. must be True or False; got 'no'"),
    ({"also_called": (3,)}, "also_called. must be a list of names"),
    ({"elsewhere": ("captum", "Saliency")}, "elsewhere. must contain pairs of package and code"),
])  # fmt: skip
def test_invalid_explainer_declaration_is_rejected(declared, words):
    refused(words, lambda: sb.explainer(**declared)(lambda classifier, images, target: images[:, 0]))


@pytest.mark.parametrize(("function", "words"), [
    (lambda images: images, r"explainer <lambda> must have the parameters .*images, target\).*it takes \(images\)"),
    (3, r"@sb.explainer\(...\) must decorate a function; got 3"),
])  # fmt: skip
def test_decorator_rejects_what_is_not_an_explainer(function, words):
    refused(words, sb.explainer(version=1), function)


def test_explainer_parameters_can_be_bound_later():
    @sb.explainer(version=1)
    def shifted(classifier, images, target, *, by):
        return images[:, 0] + by

    @sb.explainer(version=1)
    class Shifted:
        def __call__(self, classifier, images, target):
            return images[:, 0]

    assert sb.load_explainer(partial(shifted, by=3)).options == (("by", 3),)
    assert sb.load_explainer(Shifted()).name == "Shifted"
    refused("missing a required argument: 'by'", sb.load_explainer, shifted)
    refused("options can only be set for an explainer passed by name; bind", sb.load_explainer, shifted, by=3)


def test_decorator_without_parentheses_is_rejected():
    refused(r"@sb.metric accepts only keywords; write @sb.metric\(version=1\)", sb.metric, maps_alone)


def test_decorator_keeps_function_and_adds_declaration():
    def bright(classifier, images, target, *, power: float = 1.0):
        """How bright a pixel is."""
        return images.mean(dim=1) ** power

    before, declared = code_hash(bright).version, sb.explainer(needs="nothing", passes=0)
    assert declared(bright) is bright
    assert declaration_of(bright) is declared
    explainer = sb.load_explainer(bright)
    assert (explainer.baseline, explainer.about, explainer.declaration) == (True, "How bright a pixel is.", declared)
    assert explainer.version not in (before, 1)  # a hash, which includes the declarations


def test_passes_can_be_number_or_function_of_options():
    assert (sb.explainer(passes=3).passes_of({}, 8, 8), sb.explainer().passes_of({}, 8, 8)) == (3, 0)
    assert sb.load_explainer("rise").declaration.passes_of({"masks": 7}, 8, 8) == 7
    assert sb.metric(passes=(2, 1)).passes_of({}, 8, 8) == (2, 1)
    assert sb.load_metric("saliency_insertion").declaration.passes_of({"steps": None}, 5, 8) == (6, 0)


def test_user_metric_can_have_parts_marks_and_reasons(shapes, resnet, tmp_path):
    @sb.metric(higher_is_better=True, range=(-1, 1), parts=halves, absent="no lower half",
               reduce=lambda values, options: values[:, 0], mark="bright",
               marked=lambda maps: maps[:, 0, 0] > -1)  # fmt: skip
    def of_halves(maps):
        """The mean of the upper half of a map."""
        middle = maps.shape[1] // 2
        return np.stack([maps[:, :middle].mean(axis=(1, 2)), np.full(len(maps), np.nan)], axis=1)

    run = sb.run(dataset=str(shapes), model=str(resnet), explainers=["edges"], metrics=[of_halves], limit=4,
                 batch_size=4, out=tmp_path / "run", device="cpu", progress=False)  # fmt: skip
    (cell,) = run.cells
    assert (cell.n, cell.marked) == (4, {"bright": 4})
    rows = run.records().to_pandas()
    upper = rows[rows.part == "upper"].value.to_numpy()
    np.testing.assert_array_equal(rows[rows.part.isna()].value, upper)
    assert rows[rows.part == "lower"].reason.unique().tolist() == ["not defined for this sample: no lower half"]


@pytest.mark.parametrize("declared", [{"parts": halves, "aggregate": max}, {"keeps": "top"}])
def test_function_metric_rejects_aggregate_and_keeps(declared):
    given = sb.metric(**declared)(lambda maps: maps[:, :2, 0])
    refused("only a metric from a package can set .aggregate. or .keeps", as_metric, given)


def test_metric_properties_come_from_declaration():
    metric = sb.load_metric("saliency_mcs", filter="each")
    declared = metric.declaration
    assert isinstance(declared, MetricDeclaration)
    assert metric.aggregate is declared.aggregate is not None
    assert sb.load_metric("saliency_mcs").aggregate is None  # because of aggregate_if
    assert (metric.version, metric.range) == (declared.version, (-1.0, 1.0))
    turned = {published: sb.load_metric("saliency_ccs", published=published) for published in (False, True)}
    assert [turned[published].higher_is_better for published in (False, True)] == [True, False]


def test_paper_line_accepts_text_or_bibtex():
    assert paper_line("Ada, Two, 2020, https://x.org") == "Ada, Two, 2020, https://x.org"
    entry = (
        "@misc{a, author={Ada, Eve and\n  Bo, Al and Cy, Di}, title={{T}wo: Three}, year={2020}, url={https://x.org}}"
    )
    assert paper_line(entry) == "Ada et al., Two: Three, 2020, https://x.org"
