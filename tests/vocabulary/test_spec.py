"""Tests that every field of RunSpec is available wherever settings are listed."""

import inspect
import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench import spec as module
from saliency_bench.arguments import parser_of
from saliency_bench.board.template import NOT_YET
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.compute import python_objects
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.python_objects import describe
from saliency_bench.push_scripts import _shared
from saliency_bench.push_scripts import run as command
from saliency_bench.settings import RunSettings, SampleSettings
from saliency_bench.spec import PythonObject, RunSpec, flag, takes_settings

LEAST = {"dataset": "d", "model": "m", "explainers": ["e"], "metrics": ["s"], "out": "o"}
# Another value for each optional setting.
OTHER = {"split": "train", "target": "predicted", "label_map": "labels of mine.json", "groups": "g.csv", "limit": 3,
         "batch_size": 5, "seed": -2, "precision": "bf16", "channels_last": True, "strict": True, "device": "cpu",
         "keep_maps": True, "compile": True, "label_column": "scene", "activation": "sigmoid",
         "only": ("correct", "label=a b"), "prompts": ("a photo of a {}", "it's a {}"),
         "mask_values": ("1", "#ff0000", "128+"), "other_model": "m2", "other_label": "scene",
         "maps": ("mine=my maps", "other=o.parquet")}  # fmt: skip


def options(parser):
    return {action.dest: action for action in parser._actions}


@pytest.fixture
def wider(monkeypatch):
    """Replace RunSpec by a class with an additional field."""

    class Wider(RunSpec):
        colour: str | None = module._setting("of the frames", None, metavar="NAME")

    for place in (module, _shared, python_objects):
        monkeypatch.setattr(place, "RunSpec", Wider)
    return Wider


def test_new_setting_needs_only_one_field(wider):
    @takes_settings()
    def function(*, progress: bool = True, **settings):
        """Do it.

        Args:
            progress: show a bar.
            **settings: SETTINGS
        """

    assert inspect.signature(function).parameters["colour"].default is None
    assert "colour: of the frames" in function.__doc__
    parser = parser_of("run", command)
    assert options(parser)["colour"].help == "of the frames"
    settings = _shared.given(parser.parse_args(["--model", "m", "--out", "o", "--colour", "red"]))
    spec, _ = describe(settings)
    assert spec.colour == "red"
    assert spec.command().endswith("--colour red")
    assert json.loads(spec.model_dump_json())["colour"] == "red"
    refused("did you mean colour", wider.read, LEAST | {"color": "red"})


@pytest.mark.parametrize("name", RunSpec.model_fields)
def test_setting_appears_in_signature_docs_and_command_line(name):
    field = RunSpec.model_fields[name]
    for function in (sb.run, sb.template):
        if function is sb.run or name not in NOT_YET:
            assert name in inspect.signature(function).parameters
    parameter = inspect.signature(sb.run).parameters[name]
    assert (parameter.default is parameter.empty) == field.is_required()
    assert field.is_required() or parameter.default == field.default
    assert f"\n    {name}: " in sb.run.__doc__
    option = options(parser_of("run", command))[name]
    assert option.option_strings == [flag(name)]
    assert field.description in option.help
    assert flag(name) in shlex.split(RunSpec.read(LEAST | OTHER).command())


def test_examples_cover_every_setting():
    assert set(LEAST) | set(OTHER) == set(RunSpec.model_fields)
    default = RunSpec.read(LEAST)
    assert all(getattr(default, name) != value for name, value in OTHER.items())


def test_zero_setting_is_shown():
    spec = RunSpec.read(LEAST)
    assert "--seed 0" in spec.command()
    assert "seed=0," in spec.call()
    assert "maps" not in spec.command() + spec.call()
    assert options(parser_of("run", command))["seed"].help.endswith("(default: 0)")
    assert "default" not in options(parser_of("run", command))["maps"].help


@pytest.mark.parametrize("changes", [{}, OTHER, {"out": "two words", "model": "it's"}])
def test_command_round_trips_to_spec(changes):
    spec = RunSpec.read(LEAST | {"explainers": ["rise:masks=9", "random"]} | changes)
    words = shlex.split(spec.command())
    assert words[:2] == ["saliency-bench", "run"]
    parser = parser_of("run", command)
    assert [name for name in options(parser) if name in RunSpec.model_fields] == list(RunSpec.model_fields)
    assert RunSpec.read(_shared.given(parser.parse_args(words[2:]))) == spec
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(("changes", "words"), [
    ({"limit": 0}, r"limit \(--limit\) .*1; got 0"),
    ({"batch_size": 2.5}, r"batch_size .*; got 2\.5"), ({"batch_size": True}, "batch_size .*; got True"),
    ({"seed": "seven"}, "seed .*; got 'seven'"),
    ({"precision": "fp23"}, "precision .*'fp32', 'tf32', 'bf16' or 'fp16'; got 'fp23'"),
    ({"strict": 1}, "strict .*; got 1"), ({"model": 5}, "model .*; got 5"),
    ({"explainers": 5}, "explainers .*; got 5"), ({"label_map": 5}, "label_map .*; got 5"),
    ({"limit": np.zeros((3, 3))}, r"limit .*; got array\(\[\[0"),
    ({"dataset": ""}, "dataset .*; got ''"),
    ({"batchsize": 4}, "'batchsize'; did you mean batch_size"),
])  # fmt: skip
def test_invalid_setting_is_rejected_with_its_value(changes, words):
    for read in (RunSpec.read, lambda settings: sb.run(**settings)):
        refused(words, read, LEAST | {"explainers": ["random"], "metrics": ["saliency_miou"]} | changes)


def test_missing_setting_and_dict_of_explainers_are_rejected():
    refused(r"model \(--model\) is missing", sb.run, dataset="d", explainers="random", metrics="saliency_miou", out="o")
    refused("explainers must be a list.*rise:masks=1000", sb.run, **LEAST | {"explainers": {"rise": {"masks": 5}}})


def test_library_values_become_python_values(tmp_path):
    spec, _ = describe(LEAST | {"explainers": "random", "metrics": "saliency_miou", "out": tmp_path,
                                "limit": np.int64(4), "device": torch.device("cuda:1")})  # fmt: skip
    assert (spec.limit, spec.out, spec.device) == (4, str(tmp_path), "cuda:1")
    assert type(spec.limit) is int


def brightness(classifier, images, target):
    return images.mean(dim=1)


def test_python_objects_are_recorded_by_kind_name_and_digest():
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 8))
    rise, miou = sb.load_explainer("rise", masks=7), sb.load_metric("saliency_miou")
    other = replace(miou, version=99)
    given = {"model": sb.load_classifier(network, device="cpu", mean=0, std=1),
             "explainers": [brightness, rise, "random"], "metrics": [miou, other], "groups": {"a": [0]}}  # fmt: skip
    spec, objects = describe(LEAST | given)
    assert (spec.explainers[1:], spec.metrics[0]) == (("rise:masks=7", "random"), "saliency_miou")
    written = {"model": spec.model, "explainer": spec.explainers[0], "metric": spec.metrics[1], "groups": spec.groups}
    assert {key: (value.kind, value.name) for key, value in written.items()} == {
        "model": ("classifier", "module:Sequential"), "explainer": ("function", "brightness"),
        "metric": ("metric", "saliency_miou"), "groups": ("dict", "groups")}  # fmt: skip
    assert set(objects) == set(written.values())
    assert spec.model.digest == sb.load_classifier(network, device="cpu", mean=0, std=1).digest
    command = spec.command()
    assert "model=model" in command
    assert spec.model.digest in command
    assert "explainers=[brightness, 'rise:masks=7', 'random']" in command
    assert as_explainer(brightness).version in command
    assert "metrics=['saliency_miou', my_saliency_miou]" in command
    assert "version 99" in command
    assert "groups={'a': [0]}" in command
    with torch.no_grad():
        network[2].weight += 1
    again, _ = describe(LEAST | given | {"groups": {"a": [1]}})
    assert again.model.digest != spec.model.digest
    assert again.groups.digest != spec.groups.digest
    assert again.explainers == spec.explainers


def test_recorded_python_object_must_be_passed_again(shapes):
    spec = RunSpec.read(LEAST | {"dataset": str(shapes), "explainers": ["random"], "metrics": ["saliency_miou"],
                                 "model": PythonObject(kind="module", name="mine", digest="0f")})  # fmt: skip
    again = RunSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    refused(r"mine \(module 0f\)", load, again, {}, "cpu")


def test_run_has_a_readable_signature():
    signature = str(inspect.signature(sb.run))
    assert signature.startswith("(*, dataset, model, explainers, metrics, out, maps=(), ")
    assert "pydantic" not in signature
    assert "Annotated" not in signature


def test_only_setting_accepts_a_single_condition(tmp_path):
    assert RunSpec.read(LEAST | {"only": "masked"}).only == ("masked",)
    for word, near in (("maskd", "; did you mean masked?"), ("Correct", "; did you mean correct?"), ("scene", "")):
        line = refused("COLUMN=VALUE, not ", RunSpec.read, LEAST | {"only": ["label=a", word]})
        assert line == f"only (--only) must be correct, masked or COLUMN=VALUE, not '{word}'{near}"


@pytest.mark.parametrize(("name", "first"), [("metrics", "saliency_insertion"), ("explainers", "gradcam")])
def test_missing_metrics_or_explainers_suggest_first_choices(name, first):
    settings = LEAST | {"explainers": ["centre"], "metrics": ["saliency_miou"]} | {name: []}
    refused(f"good first choices: {first}", sb.run, **settings)
    del settings[name]
    refused(f"good first choices: {first}", sb.run, **settings)


def test_typed_dicts_list_every_setting():
    assert set(RunSettings.__annotations__) == set(RunSpec.model_fields)
    required = {name for name, field in RunSpec.model_fields.items() if field.is_required()}
    assert RunSettings.__required_keys__ == required - {"explainers"}  # precomputed maps may replace explainers
    named = {"dataset", "model", "out"}  # explicit in the signature of `template`
    assert set(SampleSettings.__annotations__) == set(RunSpec.model_fields) - {*NOT_YET, *named}
    for name in ("activation", "precision"):
        annotation = SampleSettings.__annotations__[name]
        assert getattr(annotation, "__forward_arg__", annotation) == RunSpec.model_fields[name].annotation
