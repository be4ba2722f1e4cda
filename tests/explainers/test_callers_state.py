"""Test that a caller's settings in torch or on a network do not change maps and are preserved.

The expected maps come from the same network without the setting. Maps of a few explainers are computed in plain torch.
"""

import threading
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

import saliency_bench as sb
from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.errors import UserError
from saliency_bench.utils.untouched import untouched

IMAGES = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGET = targets.one_hot([0, 2], 3)
OF_CONVOLUTIONS = ("gradient", "guided_backprop", "integrated_gradients:steps=3", "gradcam", "cebp", "iia:steps=2",
                   "rise:masks=20")  # fmt: skip
OF_ATTENTION = ("attention", "rollout", "gae", "gradcam_vit", "gradient_rollout", "tattr", "iia:steps=2", "gradient")


class Convolutions(nn.Module):
    """Network with in-place ReLUs; a test chooses how the ReLU number `place` is called."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(6, 3)
        self.call = lambda function, x: function(x)

    def forward(self, x):
        x = self.relu(self.first(x))
        x = self.call(lambda x: self.relu(self.second(x)), x)
        return self.head(x.mean(dim=(2, 3)))


def classifier_of(model):
    return load_classifier(model.eval(), mean=0.5, std=0.3, device="cpu")


def maps_of(model, explainer):
    """Return the maps of a newly loaded classifier."""
    return load_explainer(explainer)(classifier_of(model), IMAGES, TARGET)


@cache
def expected_of(make, explainer):
    """Return the maps of a network without special settings."""
    return maps_of(make(), explainer)


@contextmanager
def setting(name, value):
    before = getattr(torch, f"get_{name}")()
    getattr(torch, f"set_{name}")(value)
    try:
        yield
    finally:
        getattr(torch, f"set_{name}")(before)


FLOAT64, PRODUCTS = ("default_dtype", torch.float64), ("float32_matmul_precision", "medium")


STATES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16), "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad, "float64": lambda: setting(*FLOAT64),
    "bfloat16": lambda: setting("default_dtype", torch.bfloat16), "another device": lambda: torch.device("meta"),
    "products": lambda: setting(*PRODUCTS), "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "counted operations": lambda: FlopCounterMode(display=False),
    "eager only": lambda: torch.compiler.set_stance("fail_on_recompile"),
}  # fmt: skip


def settings():
    """Return the current values of all settings that `STATES` changes."""
    return (
        torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.is_grad_enabled(),
        torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(), torch._dynamo.eval_frame._stance, torch.backends.cudnn.deterministic,
        torch.utils.checkpoint.CheckpointFunction.__name__,
    )  # fmt: skip


@pytest.mark.sample(4, 3)
@pytest.mark.parametrize("state", STATES)
def test_torch_settings_change_no_map_and_are_preserved(state, tiny):
    for make, explainers in ((Convolutions, OF_CONVOLUTIONS), (tiny, OF_ATTENTION)):
        model = make()
        for explainer in explainers:
            expected = expected_of(make, explainer)
            with STATES[state]():
                before, maps = settings(), maps_of(model, explainer)
                assert settings() == before
            assert torch.equal(maps, expected), explainer
            assert maps.requires_grad == maps.is_inference() == False  # noqa: E712


def test_autocast_inside_network_is_kept():
    class Half(Convolutions):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    images = (IMAGES - 0.5) / 0.3
    assert torch.equal(classifier_of(Half())(IMAGES), Half()(images))
    assert not torch.equal(Half()(images), Convolutions()(images))


def test_network_made_in_inference_mode_has_gradients():
    expected = maps_of(Convolutions(), "gradient")
    with torch.inference_mode():
        model = Convolutions()
        model.tied, model.plain = model.first, torch.ones(1)
    assert torch.equal(maps_of(model, "gradient"), expected)
    assert model.tied.weight is model.first.weight
    assert not model.plain.is_inference()


def test_unreachable_inference_mode_tensor_is_rejected():
    model = Convolutions()
    with torch.inference_mode():
        model.kept = [torch.ones(1, 6, 1, 1)]
    model.call = lambda function, x: function(x * model.kept[0])
    refused("inference_mode", maps_of, model, "gradient")


def test_tensor_cached_in_inference_mode_keeps_scores():
    class Keeps(Convolutions):
        factor = None

        def forward(self, x):
            self.factor = torch.ones(1, 3, 1, 1) if self.factor is None else self.factor
            return super().forward(x * self.factor)

    def scores(model):  # the metric's own passes run before the explainer's
        return score_samples("saliency_max_sensitivity", IMAGES, classifier_of(model), "gradient")

    with torch.inference_mode():
        kept = scores(Keeps())
    assert np.array_equal(kept, scores(Convolutions()))


def test_run_in_autocast_and_inference_mode_keeps_scores(shapes, tmp_path):
    settings = {
        "dataset": str(shapes), "explainers": ["gradcam", "gradient"], "target": "predicted", "limit": 4,
        "metrics": ["saliency_energy", "saliency_deletion:steps=4"], "batch_size": 2, "device": "cpu",
    }  # fmt: skip

    def scores(name):
        model = load_classifier(Convolutions(), mean=0, std=1, name="mine")
        return sb.run(model=model, out=str(tmp_path / name), progress=False, **settings).records().to_list()

    expected = scores("outside")
    with STATES["autocast"](), STATES["inference mode"]():
        assert scores("inside") == expected


CHECKPOINTS = {
    "reentrant": lambda function, x: checkpoint(function, x, use_reentrant=True),
    "not reentrant": lambda function, x: checkpoint(function, x, use_reentrant=False),
    "sequential": lambda function, x: checkpoint_sequential([function, nn.Identity()], 2, x, use_reentrant=False),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpointing_changes_no_map(kind, tiny):
    class Checkpointed(tiny):
        """Network whose first block is computed twice."""

        def forward(self, x):
            return CHECKPOINTS[kind](super().forward, x)

    model = Convolutions()
    model.call = CHECKPOINTS[kind]
    for network, plain, explainers in ((model, Convolutions, OF_CONVOLUTIONS), (Checkpointed(), tiny, OF_ATTENTION)):
        for explainer in explainers:
            assert torch.equal(maps_of(network, explainer), expected_of(plain, explainer)), explainer
    x, calls = IMAGES.clone().requires_grad_(), []
    CHECKPOINTS[kind](lambda x: calls.append(1) or model.first(x).sin(), x).sum().backward()
    assert len(calls) == 2, "checkpointing works again afterwards"


@pytest.mark.parametrize("switch", ["timm", "vit"])
def test_library_checkpointing_changes_no_map(switch, vision_transformer):
    plain, model = vision_transformer(switch), vision_transformer(switch)
    model.load_state_dict(plain.state_dict())
    if switch == "timm":
        model.timm_model.set_grad_checkpointing(True)
    else:
        model.gradient_checkpointing_enable()
    images, target = torch.rand(1, 3, 32, 32), targets.one_hot([1], 5)
    for explainer in OF_ATTENTION:
        method = load_explainer(explainer)
        assert torch.equal(method(classifier_of(model), images, target), method(classifier_of(plain), images, target))
    assert sb.explain(Image.new("RGB", (32, 32)), classifier_of(model)).explainer == "gae"


def in_place(model):
    model.compile(backend="eager")
    return model


def of_a_layer(model):
    for name, child in list(model.named_children())[:1]:
        setattr(model, name, torch.compile(child, backend="eager"))
    return model


def of_a_function(model):
    model.call = torch.compile(model.call, backend="eager")
    return model


@pytest.mark.parametrize("how", [in_place, of_a_layer, of_a_function])
def test_compiled_networks_give_eager_maps(how, tiny):
    for explainer in OF_CONVOLUTIONS:
        model = how(Convolutions())
        model(IMAGES)
        compiled = [vars(module).get("_compiled_call_impl") for module in model.modules()]
        assert torch.equal(maps_of(model, explainer), expected_of(Convolutions, explainer)), explainer
        assert compiled == [vars(module).get("_compiled_call_impl") for module in model.modules()]
    for explainer in OF_ATTENTION if how is in_place else ():
        assert torch.equal(maps_of(in_place(tiny()), explainer), expected_of(tiny, explainer)), explainer


HOOKS = {
    "full": lambda model, hook: model.second.register_full_backward_hook(lambda m, i, o: hook(o)),
    "of the ReLU": lambda model, hook: model.relu.register_full_backward_hook(lambda m, i, o: hook(i)),
    "before": lambda model, hook: model.second.register_full_backward_pre_hook(lambda m, o: hook(o)),
    "old": lambda model, hook: model.second.register_backward_hook(lambda m, i, o: hook(i)),
    "of every module": lambda model, hook: nn.modules.module.register_module_full_backward_hook(
        lambda m, i, o: hook(i) if isinstance(m, nn.Conv2d) else None
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_backward_hooks_remain_but_may_not_change_gradients(kind):
    seen = []
    for explainer in OF_CONVOLUTIONS:
        expected, model = expected_of(Convolutions, explainer), Convolutions()
        handle = HOOKS[kind](model, seen.append)
        try:
            assert torch.equal(maps_of(model, explainer), expected), explainer
            seen.clear()
            model.relu = nn.ReLU() if kind != "of the ReLU" else model.relu
            model.relu.inplace = False
            model(IMAGES.clone().requires_grad_()).sum().backward()
            assert seen, "the hook is called again afterwards"
        finally:
            handle.remove()
    model = Convolutions()
    handle = HOOKS[kind](model, lambda gradients: tuple(None if g is None else 2 * g for g in gradients))
    try:
        refused(r"backward hook.*module:Convolutions", maps_of, model, "gradient")
    finally:
        handle.remove()


def test_explainer_hooks_may_change_gradients():
    def doubled(classifier, images, target):
        handle = classifier.model.second.register_full_backward_hook(lambda m, i, o: (2 * i[0],))
        try:
            return load_explainer("gradient:reduction=sum")(classifier, images, target)
        finally:
            handle.remove()

    model = Convolutions()
    model.relu.inplace = False
    assert torch.equal(maps_of(model, doubled), 2 * maps_of(model, "gradient:reduction=sum"))


def test_parameter_hooks_and_flags_are_preserved():
    model, seen = Convolutions().eval(), []
    model.first.weight.register_hook(seen.append)
    model.second.requires_grad_(False).train()
    model.head.weight.grad = torch.ones(3, 6)
    assert torch.equal(maps_of(model, "gradient"), maps_of(Convolutions(), "gradient"))
    assert seen == []
    assert torch.equal(model.head.weight.grad, torch.ones(3, 6))
    model(IMAGES).sum().backward()
    assert len(seen) == 1
    assert model.second.weight.grad is None


def test_settings_are_restored_after_error():
    def faulty(classifier, images, target):
        torch.set_default_dtype(torch.float64)
        raise RuntimeError

    model, seen = Convolutions(), []
    model.second.register_full_backward_hook(lambda *_: seen.append(1))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        before = settings()
        with pytest.raises(RuntimeError):
            maps_of(model, faulty)
        assert settings() == before
    assert len(model.second._backward_hooks) == 1


def test_threads_sharing_a_network_match_single_thread(tiny):
    def explained(number):
        for explainer in OF_CONVOLUTIONS:
            maps[number].append(load_explainer(explainer)(classifier, IMAGES, TARGET))

    model = Convolutions()
    model.call = CHECKPOINTS["reentrant"]
    model.second.register_full_backward_hook(lambda *_: None)
    classifier, maps = classifier_of(model), {number: [] for number in range(4)}
    threads = [threading.Thread(target=explained, args=(number,)) for number in maps]
    with setting(*FLOAT64), setting(*PRODUCTS):
        before = settings()
        model.second.train()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert settings() == before
    for ours in maps.values():
        for explainer, values in zip(OF_CONVOLUTIONS, ours, strict=True):
            assert torch.equal(values, expected_of(Convolutions, explainer)), explainer
    assert len(model.second._backward_hooks) == 1
    assert [module.training for module in (model.first, model.second)] == [False, True]


def test_last_thread_restores_process_settings():
    entered, left = threading.Event(), threading.Event()

    def stays():
        with untouched():
            entered.set()
            left.wait()

    with setting(*FLOAT64), setting(*PRODUCTS):
        before, thread = settings(), threading.Thread(target=stays)
        with untouched():
            thread.start()
            entered.wait()
        assert torch.get_default_dtype() == torch.float32, "the other thread still computes"
        left.set()
        thread.join()
        assert settings() == before


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_torch_func_transforms_are_rejected(transform):
    classifier, gradient = classifier_of(Convolutions()), load_explainer("gradient")
    with pytest.raises(UserError, match=r"torch\.func"):
        transform(lambda images: gradient(classifier, images, TARGET).sum())(IMAGES[None])


def test_weight_normalised_network_keeps_maps():
    model = Convolutions()
    nn.utils.parametrizations.weight_norm(model.second)
    for explainer in OF_CONVOLUTIONS:
        expected = expected_of(Convolutions, explainer)
        torch.testing.assert_close(maps_of(model, explainer), expected, rtol=1e-3, atol=1e-6)


def test_torchscript_made_in_inference_mode_is_rejected():
    with torch.inference_mode():
        model = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(288, 3)))
    refused("inference_mode", classifier_of, model)


def test_float64_network_computes_in_float64():
    class Makes(Convolutions):
        def forward(self, x):
            return super().forward(x @ torch.eye(x.shape[-1]))

    model = Makes()
    with setting(*FLOAT64):
        maps = maps_of(model.double(), "gradient")
    torch.testing.assert_close(maps, maps_of(Convolutions(), "gradient"), rtol=1e-4, atol=1e-7)
