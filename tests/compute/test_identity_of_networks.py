"""Test the digest of a network. It is equal in every process, and each setting that `forward` reads changes it.

Networks with equal digests but different outputs are rejected.
"""

import argparse
import collections
import copy
import dataclasses
import datetime
import enum
import fractions
import functools
import os
import pathlib
import random
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from refusals import refused
from torch import nn
from torch.nn.utils import parametrizations

import saliency_bench as sb
from saliency_bench.compute.classifiers import content
from saliency_bench.compute.fixed_answers import answers_of, fixed_pictures
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.network_answers import NetworkAnswers
from saliency_bench.utils.source_code import is_library


class Mode(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass
class Settings:
    head: str = "a"
    nested: dict = dataclasses.field(default_factory=dict)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __call__(self, x):
        return x * self.value


class Incomplete(collections.UserDict):
    def items(self):
        raise KeyError("missing")


class Tagged:
    kind = "first"


SCALE, HELPER = 1.0, types.SimpleNamespace(scale=1.0)
Pair = collections.namedtuple("Pair", "a")


@functools.lru_cache
def scaled(x):
    return x * SCALE


class Net(nn.Module):
    flag = "a"

    def __init__(self, value=None):
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)
        nn.init.ones_(self.layer.weight)
        self._value = value

    @property
    def factor(self):
        return HELPER.scale

    @torch.no_grad()
    def forward(self, x):
        return self.head(x.mean((2, 3)))

    def head(self, x):
        return self.layer(x) * scaled(self.factor)

    def training_step(self, batch):
        return batch, UNRELATED


UNRELATED = [0]


def own_module(name, **content):
    module = types.ModuleType(name)
    vars(module).update(content)
    return module


def digest_of(network, size=8, **given):
    return sb.load_classifier(network, **{"mean": 0, "std": 1, "size": size, "device": "cpu"} | given).digest


def linear(value):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, value)
    nn.init.zeros_(layer.bias)
    return layer


def times(factor):
    return lambda x: x * factor


# {type: function of 0 or 1 that returns a value}, with new objects at each call.
VALUES = {
    "int": lambda v: v,
    "bool": bool,
    "type of number": lambda v: (1, True)[v],
    "float": lambda v: 0.1 + v,
    "text": lambda v: "ab"[v],
    "none": lambda v: (None, 0)[v],
    "bytes": lambda v: bytes([v]),
    "list": lambda v: [v],
    "type of sequence": lambda v: ((1,), [1])[v],
    "nested": lambda v: {"a": [{"b": (v,)}]},
    "order of a dict": lambda v: dict([("a", 1), ("b", 2)][:: 1 - 2 * v]),
    "long list": lambda v: [*range(200), {"a": v}],
    "set": lambda v: {"x", "y", "z", v},
    "ordered dict": lambda v: collections.OrderedDict(a=v),
    "default dict": lambda v: collections.defaultdict(list, a=[v]),
    "counter": lambda v: collections.Counter("ab"[v]),
    "deque": lambda v: collections.deque([v]),
    "named tuple": Pair,
    "read-only dict": lambda v: types.MappingProxyType({"a": v}),
    "tensor": lambda v: torch.full((2,), float(v)),
    "type of tensor": lambda v: torch.ones(2, dtype=(torch.float32, torch.float64)[v]),
    "bfloat16": lambda v: torch.full((2,), float(v)).bfloat16(),
    "sparse tensor": lambda v: (torch.eye(2) * (v + 1)).to_sparse(),
    "tensors in a list": lambda v: [torch.full((2,), float(v))],
    "parameters in a list": lambda v: [nn.Parameter(torch.full((2,), float(v)))],
    "array": lambda v: np.full(2, v),
    "array of objects": lambda v: np.array([v, "a"], object),
    "number of numpy": np.float32,
    "dtype": lambda v: (torch.float32, torch.float16)[v],
    "enum": lambda v: (Mode.A, Mode.B)[v],
    "dataclass": lambda v: Settings(nested={"a": v}),
    "namespace": lambda v: argparse.Namespace(a=v),
    "object with slots": Slotted,
    "mapping with a missing entry": lambda v: Incomplete(a=v),
    "method": lambda v: Slotted(v).__call__,
    "module": lambda v: own_module("settings", scale=v),
    "function of torch": lambda v: (torch.relu, torch.tanh)[v],
    "built-in function": lambda v: (min, max)[v],
    "lambda": lambda v: (lambda x: x, lambda x: -x)[v],
    "name in a lambda": lambda v: (lambda x: x.sin(), lambda x: x.cos())[v],
    "closure": times,
    "partial": lambda v: functools.partial(torch.add, v),
    "class": lambda v: (nn.ReLU, nn.GELU)[v],
    "weights of a module in a list": lambda v: [linear(float(v))],
    "settings of a module in a dict": lambda v: {"a": nn.LeakyReLU(0.1 + v)},
    "path": lambda v: pathlib.Path("ab"[v]),
    "date": lambda v: datetime.date(2020, 1, 1 + v),
    "regular expression": lambda v: re.compile("ab"[v]),
    "fraction": lambda v: fractions.Fraction(1, 2 + v),
    "generator of torch": lambda v: torch.Generator().manual_seed(v),
    "generator of numpy": np.random.default_rng,
    "generator of Python": random.Random,
    "slice": lambda v: slice(0, v),
    "picture": lambda v: Image.new("L", (2, 2), v),
}


@pytest.mark.parametrize("kind", VALUES)
def test_digest_depends_on_attribute_content(kind):
    value = VALUES[kind]
    assert digest_of(Net(value(0))) == digest_of(Net(value(0))) != digest_of(Net(value(1)))


def changed_setting(network, name, value):
    setattr(network, name, value)
    return network


def hooked(network, register, hook):
    getattr(network.layer, register)(hook)
    return network


def with_buffer(value):
    network = Net()
    network.register_buffer("kept", torch.tensor(value), persistent=False)
    return network


def test_digest_ignores_code_that_forward_does_not_reach(monkeypatch):
    before = digest_of(Net())
    monkeypatch.setitem(globals(), "UNRELATED", [1])
    monkeypatch.setattr(sys.modules[__name__], "layer", [1], raising=False)  # the value is the name of an attribute
    monkeypatch.setattr(Net, "training_step", lambda self, batch: None)
    assert digest_of(Net()) == before


class Gain(type):
    gain = 1.0


class OfMeta(Net, metaclass=Gain):
    def forward(self, x):
        return super().forward(x) * type(type(self)).gain


class Looking(Net):
    """Network that looks up methods and factors by composed, imported or given names."""

    default_cfg: dict

    def __init__(self, mode="first"):
        super().__init__()
        self.mode, self.default_cfg = mode, {"scale": 1.0}

    def _by_first(self, x):
        return self.layer(x)

    def third(self, x):
        return self.layer(x)

    def forward(self, x):
        from own_late import SCALE

        x = x.mean((2, 3)) * SCALE * own_package.config.scale * getattr(own_package, "other", 1) * times.factor
        x = getattr(self, self.mode)(x) if self.mode == "third" else getattr(self, f"_by_{self.mode}")(x)
        return nn.functional.silu(x * self.default_cfg["scale"])


own_package = own_module("own_package", config=own_module("own_package.config", scale=1.0), other=1.0)
times.factor = 1.0


def test_digest_includes_relative_imports_in_functions(tmp_path, monkeypatch):
    digests = []
    for scale in (1, 1, 2):
        package = tmp_path / f"{len(digests)}" / "own_relative"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "config.py").write_text(f"SCALE = {scale}.0")
        (package / "net.py").write_text(
            "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n"
            "        from .config import SCALE\n        return super().forward(x.mean((2, 3))) * SCALE\n"
        )
        monkeypatch.syspath_prepend(package.parent)
        from own_relative.net import Net as Relative

        digests.append(digest_of(seeded(lambda kind=Relative: kind(3, 2))))
        for name in ("own_relative", "own_relative.net", "own_relative.config"):
            monkeypatch.delitem(sys.modules, name)
    assert digests[0] == digests[1] != digests[2]


def test_user_module_may_shadow_a_standard_module(tmp_path, monkeypatch):
    (tmp_path / "code.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "code", raising=False)
    assert not is_library.__wrapped__("code")
    assert all(is_library.__wrapped__(name) for name in ("sys", "os", "json.decoder", "_thread", "zipimport", "torch"))


def without_saving(way, fill=nn.init.ones_):
    """Return a network whose `state_dict` lacks some weights."""
    network = Net()
    fill(network.layer.weight)
    if way == "hook":
        network.register_state_dict_post_hook(lambda module, state, prefix, _: state.pop(prefix + "layer.weight"))
        return network
    methods = {"state_dict": lambda self: {}} if way == "method" else {"get_extra_state": lambda self: {"a": 1}}
    network.__class__ = type("Unsaved", (Net,), methods)
    return network


def unsaved_mean(mean):
    layer = nn.Identity()
    layer.register_buffer("mean", torch.full((1, 3, 1, 1), mean), persistent=False)
    return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def traced(factor):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear(1.0)

        def forward(self, x):
            return self.layer(x.mean((2, 3))[:, :2]) * factor

    return torch.fx.symbolic_trace(Scaled())


def flat(norm=lambda layer: layer):
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(192, 4)))


def seeded(make):
    torch.manual_seed(0)
    return make()


class Encoder(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **settings)

    def forward(self, x):
        return self.head(self.layer(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def googlenet(**settings):
    return torchvision.models.GoogLeNet(num_classes=4, init_weights=False, aux_logits=False, **settings)


def vision_transformer(heads):
    return torchvision.models.VisionTransformer(32, 8, 1, heads, 16, 32, num_classes=4)


def timm_vit(**settings):
    return timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=1, num_heads=2, num_classes=4,
                             **settings)  # fmt: skip


def hf_vit(**settings):
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=4, **settings))  # fmt: skip


def set_in(module, path, name, value):
    setattr(module.get_submodule(path), name, value)
    return module


def convolution(**settings):
    return nn.Sequential(nn.Conv2d(3, 4, 3, **settings), nn.AdaptiveAvgPool2d(1), nn.Flatten())


# {setting or unsaved value of a library: (network, different network)}
LIBRARIES = {
    "transform_input": (lambda: googlenet(transform_input=True), lambda: googlenet(transform_input=False)),
    "number of heads": (lambda: vision_transformer(2), lambda: vision_transformer(4)),
    "norm_first": (Encoder, lambda: Encoder(norm_first=True)),
    "activation": (Encoder, lambda: Encoder(activation=nn.functional.gelu)),
    "heads of timm": (timm_vit, lambda: set_in(timm_vit(), "blocks.0.attn", "num_heads", 4)),
    "pooling of timm": (timm_vit, lambda: set_in(timm_vit(), "", "global_pool", "avg")),
    "epsilon": (timm_vit, lambda: set_in(timm_vit(), "blocks.0.norm1", "eps", 0.1)),
    "activation of transformers": (hf_vit, lambda: hf_vit(hidden_act="relu")),
    "heads of transformers": (
        hf_vit,
        lambda: set_in(hf_vit(), next(n for n, m in hf_vit().named_modules() if hasattr(m, "scaling")), "scaling", 9.0),
    ),
    "padding": (convolution, lambda: convolution(padding_mode="reflect", padding=1)),
    "stride": (convolution, lambda: convolution(stride=2)),
    "order of layers": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Tanh()),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Tanh(), nn.ReLU()),
    ),
    "weights by parametrisation": (flat, lambda: flat(parametrizations.weight_norm)),
    "kind of parametrisation": (
        lambda: flat(parametrizations.weight_norm), lambda: flat(parametrizations.spectral_norm)),
    # older weight norms compute their weights before each pass; the digest ignores the computed weights
    "old norm": (lambda: flat(nn.utils.spectral_norm), flat),
    "few numbers that are not saved": (lambda: unsaved_mean(0.0), lambda: unsaved_mean(1.0)),
    "code of a graph": (lambda: traced(1.0), lambda: traced(2.0)),
    **{f"weights, {way}": (lambda way=way: without_saving(way), lambda way=way: without_saving(way, nn.init.zeros_))
       for way in ("hook", "method", "extra state")},
}  # fmt: skip


@pytest.mark.parametrize("setting", LIBRARIES)
def test_digest_covers_library_settings_and_unsaved_weights(setting):
    first, other = LIBRARIES[setting]
    made = seeded(first)
    before = digest_of(made, 32)
    assert before == digest_of(copy.deepcopy(made), 32) == digest_of(seeded(first), 32) != digest_of(seeded(other), 32)


class Busy(Net):
    """Network that counts, keeps features and fills a cache during a pass."""

    def __init__(self, value):
        super().__init__(value)
        self.count, self.seen, self.cache, self.grid = 0, [], {}, None

    def forward(self, x):
        self.count += 1
        self.seen.append(x)
        self.cache.setdefault(x.shape[2:], x.mean())
        self.grid = torch.ones(2) if self.grid is None else self.grid
        return self.layer(x.mean((2, 3)))


COUNTS, CALLS = {"calls": 0}, 0


class Counting(Net):
    """Network that writes into objects that also contain settings of its forward pass."""

    calls = 0

    def __init__(self, factor, **given):
        super().__init__()
        self.settings = types.SimpleNamespace(factor=factor, calls=0)
        self.members = [Member(factor)]
        self.register_buffer("count", torch.zeros(2))
        for name, value in given.items():
            setattr(self, name, value)

    def forward(self, x):
        global CALLS
        CALLS += 1
        COUNTS["calls"] += 1
        type(self).calls += 1
        self.settings.calls += 1
        self.count += 1
        return self.members[0](x.mean((2, 3)))


class Member(nn.Linear):
    def __init__(self, factor):
        super().__init__(3, 2)
        nn.init.constant_(self.weight, factor)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        self.features = x
        return super().forward(x)


class Keeper:
    def __init__(self, factor):
        self.factor, self.seen = factor, {}

    def __call__(self, module, inputs, output):
        self.seen["output"] = output
        return output * self.factor


class Gradients(Net):
    gradient = None

    def keep(self, gradient):
        self.gradient = gradient

    def forward(self, x):
        features = self.layer(x.mean((2, 3)) * 1.0)
        if features.requires_grad:
            features.register_hook(self.keep)
        return features * self._value


# {target of the writes of a pass: (setting) -> network}
WRITING = {
    "object": lambda v: changed_setting(Counting(1.0), "settings", types.SimpleNamespace(factor=v, calls=0)),
    "module in a list": lambda v: changed_setting(Counting(1.0), "members", [Member(v)]),
    "other attribute": lambda v: Counting(1.0, other=v),
    "cache": Busy,
    "hook": lambda v: hooked(Net(), "register_forward_hook", Keeper(v)),
    "gradient": Gradients,
}


@pytest.mark.parametrize("what", WRITING)
def test_digest_includes_settings_next_to_written_state(what):
    network = WRITING[what](1.0)
    classifier = sb.load_classifier(network, mean=0, std=1, size=8)
    before = classifier.digest
    if what == "gradient":
        sb.explain(Image.new("RGB", (8, 8), "red"), classifier, "gradient")
    else:
        with torch.no_grad():
            classifier(torch.rand(2, 3, 8, 8))
    assert before == classifier.digest == digest_of(network) == digest_of(WRITING[what](1.0))
    assert before != digest_of(WRITING[what](2.0))
    if what != "gradient":  # no part depends on the picture
        copied = copy.deepcopy(network)
        assert digest_of(copied) == before


# {change: (network, (monkeypatch) -> a different network, or None if the function changes the network itself)}
CHANGES = {
    "class attribute": (Net, lambda patch: patch.setattr(Net, "flag", "b")),
    "method": (Net, lambda patch: patch.setattr(Net, "head", lambda self, x: self.layer(x.flip(1)))),
    "property": (Net, lambda patch: patch.setattr(Net, "factor", property(lambda self: 2.0))),
    "global number": (Net, lambda patch: patch.setitem(globals(), "SCALE", 2.0)),
    "attribute of a global": (Net, lambda patch: patch.setattr(HELPER, "scale", 2.0)),
    "method of a library": (Net, lambda patch: patch.setattr(nn.Linear, "forward", lambda self, x: x[:, :2])),
    "forward of one layer": (Net, lambda patch: changed_setting(Net(), "forward", lambda x: x.mean((2, 3))[:, :2])),
    "forward hook": (Net, lambda patch: hooked(Net(), "register_forward_hook", lambda *given: given[2] * 0)),
    "hook before": (Net, lambda patch: hooked(Net(), "register_forward_pre_hook", lambda *given: (given[1][0] * 0,))),
    "backward hook": (Net, lambda patch: hooked(Net(), "register_full_backward_hook", lambda *given: None)),
    "class of settings": (Net, lambda patch: Net(Tagged())),
    "settings of a class": (lambda: Net(Tagged()), lambda patch: patch.setattr(Tagged, "kind", "second")),
    "attribute of a metaclass": (OfMeta, lambda patch: patch.setattr(Gain, "gain", 2.0)),
    "buffer that is not saved": (Net, lambda patch: with_buffer(0.0)),
    "content of that buffer": (lambda: with_buffer(0.0), lambda patch: with_buffer(1.0)),
    "module of a package": (Looking, lambda patch: patch.setattr(own_package.config, "scale", 2.0)),
    "attribute by its name as text": (Looking, lambda patch: patch.setattr(own_package, "other", 2.0)),
    "import within a function": (
        Looking, lambda patch: patch.setitem(sys.modules, "own_late", own_module("own_late", SCALE=2.0))),
    "attribute of a function": (Looking, lambda patch: patch.setattr(times, "factor", 2.0)),
    "method of a composed name": (
        Looking, lambda patch: patch.setattr(Looking, "_by_first", lambda self, x: self.layer(-x))),
    "method that an attribute names": (
        lambda: Looking("third"), lambda patch: patch.setattr(Looking, "third", lambda self, x: self.layer(-x))),
    "function put into a library": (Looking, lambda patch: patch.setattr(nn.functional, "silu", lambda x: x)),
    "origin that forward reads": (Looking, lambda patch: changed_setting(Looking(), "default_cfg", {"scale": 2.0})),
    "code beside globals that a pass writes": (
        lambda: Counting(1.0), lambda patch: patch.setattr(Member, "forward", lambda self, x: x[:, :2])),
    "another entry of such a global": (lambda: Counting(1.0), lambda patch: patch.setitem(COUNTS, "scale", 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_digest_depends_on_globals_hooks_and_code(change, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_late", own_module("own_late", SCALE=1.0))
    make, apply = CHANGES[change]
    before = digest_of(make())
    with monkeypatch.context() as patch:
        assert digest_of(apply(patch) or make()) != before
    assert digest_of(make()) == before


def test_large_data_and_long_call_chains_are_hashed(monkeypatch, caplog):
    monkeypatch.setattr(content, "MOST", 1000)
    scope = {"__name__": "__main__"}
    chain = "".join(f"def f{index}(x): return f{index + 1}(x)\n" for index in range(90))
    exec(f"{chain}def f90(x): return x", scope)
    rows = [{"file": f"{index}.jpg", "label": index} for index in range(2000)]
    digests = [digest_of(Net([rows, scope["f0"]])) for _ in range(2)]
    assert digests[0] == digests[1]
    assert not caplog.messages
    scope["f90"].__defaults__ = (1,)
    assert digest_of(Net([rows, scope["f0"]])) != digests[0]
    rows[1999]["label"] = 0
    assert digest_of(Net([rows, scope["f0"]])) not in digests


def test_digest_ignores_write_only_files(tmp_path, caplog):
    with open(tmp_path / "first.log", "w") as first, open(tmp_path / "second.log", "a") as second:
        assert digest_of(Net(first)) == digest_of(Net(second))
    assert not caplog.messages


def test_cyclic_objects_in_sets_are_reported_unhashable(caplog):
    nodes = [types.SimpleNamespace(number=number, near=None) for number in range(3)]
    for node in nodes:
        node.near = {Slotted(other) for other in nodes}
    digest_of(Net(nodes))
    assert "_value cannot be hashed (a set of objects that refer to each other" in caplog.text


def test_unhashable_attribute_is_reported_and_not_reused(caplog):
    classifier = sb.load_classifier(Net(open(os.devnull)), mean=0, std=1, size=8)  # noqa: SIM115
    assert classifier.digest == classifier.digest
    assert caplog.messages == [
        "module:Net: _value cannot be hashed (_io TextIOWrapper has no readable content), so a later run "
        "cannot reuse or extend these results"
    ]
    assert classifier.digest != digest_of(Net(open(os.devnull)))  # noqa: SIM115


def test_mutually_referencing_modules_are_hashed():
    first, second = linear(1.0), linear(2.0)
    first.others, second.others = [second], [first]
    assert len(digest_of(nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(1), nn.Linear(6, 2), first))) == 32


def seeded_digests():
    """Return the digests of a network with all types of attributes, and of networks of all libraries."""
    everything = Net({kind: value(0) for kind, value in VALUES.items()})
    return [digest_of(everything), *(digest_of(seeded(first), 32) for first, _ in LIBRARIES.values())]


@pytest.mark.slow
def test_digests_are_equal_in_every_process():
    """Sets and dicts have a different order in each process."""
    here = pathlib.Path(__file__).parent
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_identity_of_networks as t; print(t.seeded_digests())"
    other = subprocess.run([sys.executable, "-c", code, here, here.parent / "support"], check=True, capture_output=True,
                           text=True, env=os.environ | {"PYTHONHASHSEED": "1"}).stdout  # fmt: skip
    assert other == f"{seeded_digests()}\n"


# Networks with equal digests but different outputs, for example after a file has changed


class FromFile(nn.Module):
    """Network that shifts its input by a number in a file, which a digest does not cover."""

    def __init__(self, path):
        super().__init__()
        torch.manual_seed(0)
        self.path, self.dropout = str(path), nn.Dropout(0.5)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                                    nn.Linear(32, 8))  # fmt: skip

    def forward(self, x):
        with open(self.path) as file:
            return self.layers(self.dropout(x * float(file.read())))


@pytest.fixture
def factor(tmp_path):
    path = tmp_path / "factor.txt"
    path.write_text("1")
    return path


@pytest.fixture
def start(shapes, tmp_path):
    """Return a function that starts a run in `tmp_path` with a network or a network's file."""
    usual = {"dataset": str(shapes), "explainers": ["gradient"], "metrics": ["saliency_energy"], "target": "predicted",
             "limit": 4, "batch_size": 4, "device": "cpu", "progress": False}  # fmt: skip
    return lambda model, name="run", **changes: sb.run(model=model, out=tmp_path / name, **usual | changes)


def classifier_of(network, **settings):
    network = network if isinstance(network, nn.Module) else FromFile(network)
    return sb.load_classifier(network, **{"mean": 0.5, "std": 0.5, "device": "cpu"} | settings)


def test_run_rejects_same_digest_with_different_logits(start, tmp_path, factor):
    def again(**changes):
        return start(classifier_of(factor, precision="bf16"), **changes)

    digest = classifier_of(factor).digest
    first = again()
    assert first.summary["model"]["id"] == "module:FromFile"
    assert read_manifest(tmp_path / "run").answers.keys() == {"model"}
    assert again().summary == first.summary
    factor.write_text("0.9")
    assert classifier_of(factor).digest == digest
    refused(r"run contains results of a different model: .*0.0005 is allowed.*different --out", again)
    refused("logits for fixed images differ", again, explainers=["random"])
    factor.write_text("1")
    assert again().summary == first.summary


def test_run_rejects_changed_model_of_targets(start, resnet, tmp_path, factor):
    labels = sb.load_classifier(str(resnet)).labels
    named = start(classifier_of(factor, labels=labels), "named")
    target = f"predicted-by:{named.folder}"
    start(str(resnet), target=target)
    assert read_manifest(tmp_path / "run").answers.keys() == {"model", "model of the targets"}
    factor.write_text("0.5")
    other = classifier_of(factor, labels=labels)
    refused(r"named is a run of a different module:FromFile: .* repeat that run", start, other, "itself", target=target)
    target = f"predicted-by:{start(other, 'named again').folder}"
    refused("run contains results of a different model of the targets", start, str(resnet), target=target)


def test_answers_are_reproducible_logits_of_fixed_pictures(factor):
    classifier = classifier_of(factor, size=32).train()
    answers = answers_of(classifier)
    assert classifier.training
    pictures = fixed_pictures(32, 32)
    assert pictures.shape == (4, 3, 32, 32)
    assert [len(np.unique(picture[0])) for picture in pictures.numpy()[1:]] == [256, 25, 4]
    with torch.no_grad():
        expected = FromFile(factor).eval()((pictures - 0.5) / 0.5)
    torch.testing.assert_close(torch.tensor(answers.logits), expected)
    torch.manual_seed(7)
    assert answers_of(classifier) == answers


def test_answers_hardly_depend_on_arithmetic(factor):
    first = answers_of(classifier_of(factor, size=32))
    with torch.backends.mkldnn.flags(enabled=False):
        assert 0 <= first.distance(answers_of(classifier_of(factor, size=32, channels_last=True))) < 1e-5
    assert first.distance(answers_of(classifier_of(factor, size=32, precision="bf16"))) == 0
    assert first.distance(answers_of(classifier_of(factor, size=40))) == np.inf
    factor.write_text("1.01")
    assert first.distance(answers_of(classifier_of(factor, size=32))) > 5e-4


@pytest.mark.parametrize(("first", "second", "expected"), [
    ([0.0, 10.0], [0.0, 10.0], 0),
    ([0.0, 10.0], [0.0, 11.0], 0.1),
    ([1000.0, 1000.0], [1000.0, 1001.0], 0.1),  # for a range of zero, relative to a hundredth of the logits
    ([None, 1.0, 2.0], [None, 1.0, 2.5], 0.5),
    ([None, 1.0], [3.0, 1.0], np.inf),
    ([0.0, 0.0], [0.0, 0.0], 0),
    ([0.0, 1.0], [0.0, 1.0, 2.0], np.inf),
])  # fmt: skip
def test_distance_is_largest_difference_relative_to_range(first, second, expected):
    answers = [NetworkAnswers(size=(8, 8), logits=[logits]) for logits in (first, second)]
    assert answers[0].distance(answers[1]) == pytest.approx(expected)


class Scaled(nn.Module):
    def __init__(self, scale=1.0, bias=0.0, kind=nn.ReLU):
        super().__init__()
        torch.manual_seed(0)
        self.tower = nn.Sequential(nn.Conv2d(3, 8, 4, 4), kind(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.scale = scale
        with torch.no_grad():
            self.tower[0].bias += bias

    def forward(self, x):
        return self.scale * self.tower(x)


def test_error_names_differences_between_models(start):
    def run(mean=0.5, **settings):
        return start(classifier_of(Scaled(**settings), mean=mean))

    run()
    logits = "different logits for fixed images"
    for settings, words in (
        ({"scale": 2.0}, f"different settings, {logits}"),
        ({"scale": 1}, "different settings, equal logits for fixed images"),  # an int instead of a float
        ({"bias": 0.5}, f"different weights, {logits}"),
        ({"mean": 0.4}, f"different normalisation, {logits}"),
        ({"kind": nn.GELU, "bias": 0.5}, f"different classes or code and settings and weights, {logits}"),
    ):
        refused(
            re.escape(f"contains a run with a different model ({words}); choose a different --out"), run, **settings
        )
    run()
