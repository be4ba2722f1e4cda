"""Test strings that name a user's own network, in commands and calls that take a model."""

import contextlib
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import save_file
from torch import nn

import saliency_bench as sb
from saliency_bench.board.recompute import _named
from saliency_bench.board.submission_schema import Model
from saliency_bench.cli import main
from saliency_bench.compute.classifiers.own_networks import refuse_own
from saliency_bench.compute.loading.load import load
from saliency_bench.errors import UserError
from saliency_bench.spec import RunSpec

CODE = """
import torch
from torch import nn

def make(width=8, classes=8):
    torch.manual_seed(width)
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width, classes))

class Trained(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.net = make(width)

    def forward(self, x):
        return self.net(x)

def loaded():
    import saliency_bench as sb
    return sb.load_classifier(make(), mean=0.5, std=0.25, labels=list("abcdefgh"))

ready = make()
def number(): return 3
def fails(): raise ValueError("no disk")
"""
PLAIN = "mean=0,std=1"
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write networks and weights, valid and not, to a folder. Return (folder, names in the network file)."""
    folder, namespace = tmp_path_factory.mktemp("networks"), {}
    with contextlib.chdir(folder):
        (folder / "own_net.py").write_text(CODE)
        exec(CODE, namespace)
        write_weights(namespace)
        write_unusable_weights(namespace)
    return folder, namespace


@pytest.fixture
def own(written, monkeypatch):
    """Return (string that names the network file, names in the file)."""
    monkeypatch.chdir(written[0])
    return "./own_net.py", written[1]


def write_weights(namespace):
    torch.save(namespace["make"](8).state_dict(), "plain.pth")
    save_file(namespace["make"](6).state_dict(), "six.safetensors")
    inner = {f"model.{key}": value for key, value in namespace["Trained"](6).state_dict().items()}
    content = {"state_dict": inner | {"loss.weight": torch.ones(3)}, "hyper_parameters": {"width": 6, "lr": 0.1}}
    torch.save(content, "trained.ckpt")
    torch.jit.trace(namespace["make"](8).eval(), IMAGES).save("script.pt")
    plain = namespace["make"](8).state_dict()
    # PyTorch's ImageNet script saves a file like this one. Next to the weights, it contains a number as a tensor.
    torch.save({"epoch": 2, "best_acc1": torch.tensor(71.0), "state_dict": plain}, "example.pth")
    averaged = {key: value + 1 for key, value in plain.items()}
    torch.save({"model": plain, "model_ema": averaged}, "both.pth")
    torch.save({"state_dict_ema": plain}, "averaged.pth")
    torch.save({f"net.{'_orig_mod.' * ('4.' in key)}{key}": value for key, value in plain.items()}, "compiled.pth")
    Path("classes.txt").write_text("\n".join("abcdefgh"))
    Path("windows.txt").write_bytes("\r\n".join("abcdefgh").encode("utf-8-sig"))


def write_unusable_weights(namespace):
    torch.save({"0.weight": torch.ones(8, 3, 3, 3)}, "other.pth")
    for name in ("code.pth", "code.ckpt"):
        torch.save(nn.Linear(2, 2), name)
    torch.save({"fc.weight": torch.zeros(1).expand(200_000, 512)}, "wide.pth")  # 2 kB
    Path("net.onnx").touch()
    plain, recursive = namespace["make"](8).state_dict(), {}
    recursive["state_dict"] = recursive
    bias = plain["0.bias"]
    for name, content in {"none": None, "recursive": recursive}.items():
        torch.save(content, f"{name}.ckpt")
    for name, odd in {"sparse": bias.to_sparse(), "meta": bias.to("meta"), "complex": bias * 1j}.items():
        torch.save(plain | {"0.bias": odd}, f"{name}.ckpt")
    torch.save({"0.weight": torch.zeros(10**6)}, "stored.ckpt")
    with zipfile.ZipFile("stored.ckpt") as stored, zipfile.ZipFile("bomb.ckpt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))


@pytest.mark.parametrize(("text", "width"), [
    ("FILE:make:mean=0,std=1", 8),
    ("FILE:make:width=6,weights=six.safetensors,mean=0,std=1", 6),
    ("FILE:make:weights=plain.pth,mean=0,std=1,labels=classes.txt", 8),
    ("FILE:make:weights=example.pth,mean=0,std=1,labels=windows.txt", 8),
    ("FILE:make:weights=both.pth,mean=0,std=1", 8),
    ("FILE:make:weights=averaged.pth,mean=0,std=1", 8),
    ("FILE:make:weights=compiled.pth,mean=0,std=1", 8),
    ("FILE:Trained:weights=trained.ckpt,mean=0,std=1", 6),
    ("FILE:make:width=6,weights=trained.ckpt,mean=0,std=1", 6),
    ("FILE:ready:mean=0,std=1", 8),
    ("script.pt:mean=0,std=1", 8),
])  # fmt: skip
def test_model_string_loads_the_named_network(own, caplog, text, width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = sb.load_classifier(text.replace("FILE", own[0]))
        assert classifier.digest
    expected = own[1]["make"](width)(IMAGES)
    torch.testing.assert_close(classifier(IMAGES), expected, rtol=0, atol=1e-6)
    assert classifier.labels == (list("abcdefgh") if "labels" in text else None)
    assert ("the weights under 'model' are used, not those under 'model_ema'" in caplog.text) == ("both" in text)


def test_factory_that_returns_classifier_keeps_settings(own):
    classifier = sb.load_classifier(f"{own[0]}:loaded")
    assert classifier.labels == list("abcdefgh")
    torch.testing.assert_close(classifier(IMAGES), own[1]["make"]()((IMAGES - 0.5) / 0.25))


@pytest.mark.parametrize(("library", "name"), [("timm", "test_resnet"), ("torchvision", "squeezenet1_1")])
def test_architecture_gets_classes_of_its_weights(own, library, name):
    timm = pytest.importorskip("timm")
    from torchvision import models

    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5) if library == "timm" else models.get_model(name, num_classes=5)
    torch.save({"epoch": 3, "model": {f"module.{key}": value for key, value in network.state_dict().items()}}, "w.pth")
    classifier = sb.load_classifier(f"{library}:{name}:weights=w.pth,mean=0,std=1,size=64")
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(classifier(images), network.eval()(images))
    assert classifier.id == f"module:{name}"


REFUSED = {
    "FILE:make:width=3,depth=3": "unknown option 'depth' of FILE:make; known: classes, labels, mean, name, size, std",
    "FILE:number": "returned int; return a torch module or the result of load_classifier instead",
    "FILE:fails": "raised ValueError: no disk",
    "FILE:nake": "unknown function 'nake' .*did you mean make",
    "FILE:make": r"are unknown; .* --model \./net\.py:make:mean=0\.5,std=0\.5",
    "FILE:make:weights=trained.ckpt,mean=0,std=1": r"has 0\.weight of shape \(6, 3, 3, 3\).*network needs \(8, 3",
    "FILE:make:weights=none.pth": "weights=none.pth is not a file",
    "FILE:make:weights=classes.txt": "weights=classes.txt cannot be read|contains more than tensors",
    **{f"FILE:make:weights={name}.ckpt,{PLAIN}": "contains no weights" for name in ("none", "recursive")},
    **{
        f"FILE:make:weights={name}.ckpt,{PLAIN}": rf"0\.bias, which is not a plain tensor.*{name}"
        for name in ("sparse", "meta", "complex")
    },
    f"FILE:make:weights=bomb.ckpt,{PLAIN}": "unpack to more than",
    "FILE:make:weights=code.pth": r"because it could run code; save .*\.save\(network\.state_dict\(\), NEW",
    "FILE:make:weights=code.ckpt": r"save only the weights: torch\.save\(torch\.load\(.*\)\['state_dict'\], NEW",
    "FILE:make:weights=other.pth": r"lacks 0\.bias \(1 of 4 weights match\); use the weights of this network",
    "timm:resnet18": "timm:resnet18 has no weights; use .*; for weights from the Hub, use timm/resnet18",
    "timm:resnet18:weights=plain.pth,heads=2": "unknown option 'heads' of timm:resnet18",
    "timm:resnet10x:weights=plain.pth": "unknown timm model 'resnet10x'",
    "torchvision:resnet:weights=plain.pth": "unknown torchvision model 'resnet'",
    "torchvision:resnet18:weights=plain.pth": "use the weights of this network",
    "torchvision:resnet18:weights=wide.pth": "wide.pth has a last layer with 200,000 classes, but at most 100,000",
    "plain.pth": r"contains no TorchScript network; for weights, use \./net\.py:make:weights=plain\.pth",
    "code.pth": r"contains no TorchScript .* a pickled network is not opened: save its state_dict\(\)",
    "none.pt": r"there is no file none\.pt; use",
    "six.safetensors": r"or \./net\.py:make:weights=six\.safetensors with a function",
    "trained.ckpt": "contains weights without .*:make:weights=trained.ckpt .* a Lightning checkpoint, make is",
    "net.onnx": "has no gradients or layers that PyTorch can read; use the network from which it was exported",
}


@pytest.mark.parametrize("text", REFUSED)
def test_unusable_model_strings_are_rejected(own, text):
    refused(REFUSED[text].replace("FILE", own[0]), sb.load_classifier, text.replace("FILE", own[0]))


@pytest.mark.parametrize("stored", [5, {"width": 8}, {"lr": {}}])
def test_unusable_hyper_parameters_of_checkpoint_are_ignored(own, stored, tmp_path, monkeypatch):
    network = Path(own[0]).resolve()
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": own[1]["Trained"](8).state_dict(), "hyper_parameters": stored}, "strange.ckpt")
    assert sb.load_classifier(f"{network}:Trained:width=8,weights=strange.ckpt,{PLAIN}")(IMAGES).shape == (2, 8)


def test_command_line_and_python_give_the_same_run(own, shapes, tmp_path, capsys):
    text = f"{own[0]}:make:{PLAIN},size=32"
    settings = ["--dataset", str(shapes), "--explainers", "gradcam", "--metrics", "saliency_miou", "--limit", "4"]
    assert main(["run", *settings, "--model", text, "--out", str(tmp_path / "cli")]) == 0
    network = sb.load_classifier(own[1]["make"](), mean=0, std=1, size=32)
    runs = [
        sb.run(dataset=shapes, model=model, explainers=["gradcam"], metrics=["saliency_miou"], limit=4,
               out=tmp_path / name, progress=False)
        for name, model in (("text", text), ("object", network))
    ]  # fmt: skip
    scores = [sb.load_run(folder).cells[0].value for folder in (tmp_path / "cli", *(run.folder for run in runs))]
    assert scores[0] == scores[1] == scores[2]
    assert f"--model {text}" in (tmp_path / "cli/report.html").read_text()
    assert main(["run", *settings, "--model", text, "--out", str(tmp_path / "cli")]) == 0
    assert "already contains every requested score" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["./evil.py:make", "timm:resnet18:weights=a.pt", "torchvision:resnet18:weights=a.pt", "a.pt"]
)
def test_model_strings_from_other_people_are_never_loaded(own, shapes, tmp_path, text):
    refused("is never loaded by name; pass the network itself", refuse_own, text)
    common = {"dataset": str(shapes), "explainers": ["random"], "metrics": ["saliency_miou"], "out": tmp_path / "run"}
    with pytest.raises(UserError, match="by name; run it first with --model, then use --target predicted-by:"):
        sb.run(**common, model=f"{own[0]}:make:{PLAIN},size=32", target=f"predicted-by:{text}", progress=False)
    refused("is never loaded by name", load, RunSpec.read({**common, "model": text, "out": "run"}), {})
    refused("is never loaded by name", _named, None, Model.model_construct(id=text, repo=None))
