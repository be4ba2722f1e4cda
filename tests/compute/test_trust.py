"""Nothing that is downloaded, or lies in a folder given as a model, is executed or believed."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.errors import UserError
from saliency_bench.utils.pictures import MAX_PIXELS

CODE = """
open({mark!r}, "w").write("executed")
from transformers import PretrainedConfig, PreTrainedModel, ViTImageProcessor
class OwnConfig(PretrainedConfig):
    model_type = "own-model"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
class OwnProcessor(ViTImageProcessor):
    pass
"""
AUTO = {
    "config": {"AutoConfig": "own.OwnConfig"},
    "model": {"AutoModelForImageClassification": "own.OwnModel"},
    "processor": {"AutoImageProcessor": "own.OwnProcessor"},
}


def checkpoint(path, processor=None):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_labels=3)
    ResNetForImageClassification(config).save_pretrained(path)
    (processor or ViTImageProcessor(size={"height": 32, "width": 32})).save_pretrained(path)
    return path


def change(path, name, **values):
    file = path / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def hostile(tmp_path):
    """hostile(what) -> a checkpoint that names code of its own for it, and the file that this code writes."""

    def make(what):
        folder, mark = checkpoint(tmp_path / "model"), tmp_path / "executed"
        (folder / "own.py").write_text(CODE.format(mark=str(mark)))
        if what == "processor":
            change(folder, "preprocessor_config.json", auto_map=AUTO[what], image_processor_type="OwnProcessor")
        else:
            # A type that transformers does not know, so that only the folder's code could load it.
            change(folder, "config.json", auto_map=AUTO["config"] | AUTO["model"], model_type="own-model")
            (folder / "preprocessor_config.json").unlink() if what == "model" else None
        return folder, mark

    return make


LOAD = "import sys, saliency_bench as sb; sb.load_classifier(sys.argv[1])"


@pytest.mark.slow
@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("what", ["config", "processor"])
def test_code_of_a_folder_is_neither_executed_nor_asked_about(hostile, what):
    folder, mark = hostile(what)
    with pytest.raises(UserError) as error:
        load_classifier(folder)
    assert "\n" not in str(error.value)
    done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], input="y\ny\n", capture_output=True, text=True)
    assert done.returncode == 1
    assert "UserError" in done.stderr.splitlines()[-1]
    assert not done.stdout
    assert not mark.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["config", "processor"])
def test_train_executes_no_code_either(hostile, what, shapes, tmp_path):
    folder, mark = hostile(what)
    command = [sys.executable, "-m", "saliency_bench", "train", "--dataset", str(shapes), "--model", str(folder),
               "--out", str(tmp_path / "out"), "--epochs", "1", "--limit", "4", "--size", "32"]  # fmt: skip
    done = subprocess.run(command, input="y\ny\n", capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not mark.exists()


def test_a_config_alone_executes_nothing(hostile, shapes, tmp_path):
    folder, mark = hostile("config")
    with pytest.raises(UserError, match="nothing that is downloaded is executed"):
        sb.train(dataset=str(shapes), model=str(folder / "config.json"), out=tmp_path / "out", epochs=1, limit=4)
    assert not mark.exists()


@pytest.mark.slow
def test_code_that_a_repository_offers_is_not_even_downloaded(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    folder = checkpoint(tmp_path / "model")
    mark = tmp_path / "executed"
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    change(folder, "config.json", auto_map=AUTO["config"] | AUTO["model"])
    change(folder, "preprocessor_config.json", auto_map=AUTO["processor"])
    api = hub.api()
    api.create_repo("founder/own")
    api.upload_folder(repo_id="founder/own", folder_path=folder)
    code = "import saliency_bench as sb; c = sb.load_classifier('founder/own'); print(c.repo, c.revision, c.digest)"
    done = hub.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["founder/own", api.repo_info("founder/own").sha, load_classifier(folder).digest]
    assert not mark.exists()
    names = {file.name for file in (hub.root / "home").rglob("*") if file.is_symlink() or file.is_file()}
    assert {"config.json", "model.safetensors"} <= names
    assert not {"own.py", "pytorch_model.bin"} & names


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_not_opened(tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    folder = checkpoint(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.1.weight": Bomb()}, folder / name)
    with pytest.raises(UserError, match=r"no \*\.safetensors.*pickled"):
        load_classifier(folder)
    with pytest.raises(UserError, match=r"holds weights without their network|holds no TorchScript network"):
        load_classifier(folder / name)
    with pytest.raises(UserError, match="holds more than tensors and is not opened, because it could run code"):
        load_classifier(f"torchvision:resnet18:weights={folder / name}")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_file_of_a_checkpoint_is_told_to_be_its_folder(tmp_path, name):
    with pytest.raises(UserError, match=rf"{name}.*give its folder"):
        load_classifier(checkpoint(tmp_path / "model") / name)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(tmp_path, value):
    folder = checkpoint(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.1.bias"][0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"NaN or infinite weights \(classifier\.1\.bias\)"):
        load_classifier(folder)


SQUASH = "squash", lambda: ViTImageProcessor(size={"height": 32, "width": 32})
CROP = "crop", lambda: ConvNextImageProcessor(size={"shortest_edge": 32})
HOSTILE = [
    (SQUASH, {"size": {"height": 100_000, "width": 100_000}}, "100000"),
    (SQUASH, {"size": {"height": -1, "width": 32}}, "-1"),
    (SQUASH, {"size": {"height": 0, "width": 32}}, "0"),
    (SQUASH, {"size": {"height": "32", "width": "big"}}, ""),
    (SQUASH, {"size": {}}, ""),
    (SQUASH, {"size": 10**9}, ""),
    (CROP, {"size": {"shortest_edge": 1e5}}, ""),
    (CROP, {"crop_pct": 1e-9}, ""),
    (CROP, {"crop_pct": -0.5}, ""),
    (CROP, {"crop_pct": "all"}, ""),
    (SQUASH, {"do_center_crop": True, "crop_size": {"height": 10**6, "width": 10**6}}, ""),
    (SQUASH, {"image_mean": "grey"}, "grey"),
    (SQUASH, {"image_mean": [0.5, 0.5]}, ""),
    (SQUASH, {"image_mean": [0.5, 0.5, float("nan")]}, "nan"),
    (SQUASH, {"image_mean": None}, ""),
    (SQUASH, {"image_std": [0.5, 0, 0.5]}, "0"),
    (SQUASH, {"image_std": [0.5, -1, 0.5]}, "-1"),
    (SQUASH, {"image_std": [[0.5] * 3] * 3}, ""),
    (SQUASH, {"image_std": {"red": 1}}, ""),
    (SQUASH, {"rescale_factor": 1e30}, ""),
    (SQUASH, {"rescale_factor": float("nan")}, ""),
    (SQUASH, {"rescale_factor": "one"}, ""),
    (SQUASH, {"resample": 99}, ""),
    (SQUASH, {"resample": "cubic"}, ""),
    (SQUASH, {"do_pad": True, "pad_size": {"height": 64, "width": 64}}, ""),
    (SQUASH, {"image_processor_type": 7}, ""),
    (SQUASH, {"image_processor_type": "NoSuchProcessor"}, ""),
]


@pytest.mark.parametrize(("kind", "settings", "words"), HOSTILE, ids=[str(case[1])[:60] for case in HOSTILE])
def test_a_hostile_processor_is_one_line_and_takes_no_memory(tmp_path, kind, settings, words):
    import resource

    folder = checkpoint(tmp_path / "model", kind[1]())
    change(folder, "preprocessor_config.json", **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=words) as error:
        load_classifier(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.mark.parametrize("broken", ["[]", "{", "null", '"text"', "\x00"])
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_json_that_is_none_is_one_line(tmp_path, name, broken):
    folder = checkpoint(tmp_path / "model")
    (folder / name).write_text(broken)
    with pytest.raises(UserError) as error:
        load_classifier(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [{}, {"0": "a"}, {"a": "b"}, {str(index): "x" for index in range(1000)}, None, 7])
def test_class_names_that_do_not_fit_are_one_line(tmp_path, labels):
    folder = checkpoint(tmp_path / "model")
    change(folder, "config.json", id2label=labels)
    with pytest.raises(UserError) as error:
        load_classifier(folder)
    assert "\n" not in str(error.value)


# Pictures that are small as files


def bomb(path, size):
    Image.new("1", size).save(path, "PNG")
    return path


@pytest.fixture
def classifier(resnet):
    return load_classifier(resnet, device="cpu")


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, classifier):
    path = bomb(tmp_path / "bomb.png", (11_000, 11_000))
    assert path.stat().st_size < 100_000
    pictures = [path, path.read_bytes(), {"bytes": path.read_bytes(), "path": None}]
    with pytest.warns(Image.DecompressionBombWarning):
        pictures.append(Image.open(path))
    for picture in pictures:
        with pytest.raises(UserError, match=f"{MAX_PIXELS // 10**6} million pixels"):
            classifier.prepare([{"image": picture}])
        with pytest.raises(UserError, match=f"{MAX_PIXELS // 10**6} million pixels"):
            classifier.prepare([{"image": Image.new("RGB", (9, 9)), "mask": picture}])
    with pytest.raises(UserError, match="million pixels"):
        sb.explain(path, classifier, "gradient")


def test_a_sliver_that_grows_when_its_shorter_side_is_enlarged(tmp_path):
    path = bomb(tmp_path / "sliver.png", (1_000_000, 1))
    folder = checkpoint(tmp_path / "model", ConvNextImageProcessor(size={"shortest_edge": 224}))
    with pytest.raises(UserError, match=r"image 0.*1000000 x 1.*million pixels"):
        load_classifier(folder, device="cpu").prepare([{"image": path}])


def test_an_opened_file_that_is_cut_off_is_one_line(tmp_path, classifier):
    path = tmp_path / "cut.jpg"
    Image.effect_noise((200, 200), 50).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"image 0.*truncated"):
        classifier.prepare([{"image": Image.open(path)}])
