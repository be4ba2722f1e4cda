"""Test vision-language models: logits equal the logits of the library, and maps explain the image tower."""

import copy
import json
import shlex
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers as hf
from PIL import Image
from refusals import refused
from vision_language import KINDS, POSITIONS, folder_of, network_of, processor_of, tokenizer_of

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.board.template import read_template
from saliency_bench.cli import main
from saliency_bench.compute.loading.texts import texts_for
from saliency_bench.compute.python_objects import describe
from saliency_bench.read.public_names import public_spec
from saliency_bench.spec import RunSpec

LABELS = ["cat", "dog", "blue bird"]
TEMPLATES = ["a photo of a {}", "{}, drawn.", "a small {}"]
AUTO = hf.AutoModelForZeroShotImageClassification


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return cache(lambda kind: folder_of(kind, tmp_path_factory.mktemp("models") / "small"))


TEXTS = {"prompts": TEMPLATES, "labels": LABELS}


def clip(folder, kind="clip", **settings):
    return load_classifier(folder(kind), **TEXTS | {"device": "cpu"} | settings)


def clip_with(folder, change=lambda model: None):
    model = AUTO.from_pretrained(folder("clip"))
    change(model)
    return load_classifier(model, **TEXTS)


def enlarged(rows):
    """Return enlarged maps (B, 32, 32) of small maps with any order of axes after the batch."""
    side = int(rows[0].numel() ** 0.5)
    small = rows.detach().reshape(-1, 1, side, side)
    return torch.nn.functional.interpolate(small, (32, 32), mode="bilinear", align_corners=False)[:, 0]


def pictures(count=2, size=(40, 40)):
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)) for _ in range(count)]


def tokens_of(model, kind, texts):
    padding = {"padding": "max_length", "max_length": POSITIONS} if "siglip" in kind else {"padding": True}
    given = tokenizer_of(kind)(texts, return_tensors="pt", **padding)
    return {name: value for name, value in given.items() if name != "token_type_ids" or kind in ("altclip",)}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_match_transformers(folder, kind):
    """Compare with the library in float64, which differs from its float32 by 1e-7 of the scale."""
    classifier = clip(folder, kind, prompts="a photo of a {}")
    model = AUTO.from_pretrained(folder(kind)).double()
    inputs = processor_of(kind)(images=pictures(), return_tensors="pt")
    inputs["pixel_values"] = inputs["pixel_values"].double()
    tokens = tokens_of(model, kind, [f"a photo of a {name}" for name in LABELS])
    with torch.no_grad():
        expected = model(**inputs, **tokens).logits_per_image.float()
        images = classifier.prepare([{"image": picture} for picture in pictures()]).images
        logits = classifier(images)
    scale = 1 / model.temperature if kind == "align" else model.logit_scale.exp()
    assert (logits - expected).abs().max() < 2e-6 * scale
    assert expected.std(dim=1).min() > 1e-4 * scale  # otherwise any result would pass
    assert classifier.activation == ("sigmoid" if "siglip" in kind else "softmax")
    assert not classifier.assumed
    assert classifier.labels == LABELS
    of_object = load_classifier(AUTO.from_pretrained(folder(kind)), prompts="a photo of a {}", labels=LABELS)
    assert torch.equal(of_object(images), logits)
    assert of_object.digest == classifier.digest


def test_template_embeddings_are_averaged_as_in_clip(folder):
    """Embed and normalise each prompt separately, average the embeddings of each class, and normalise again."""
    classifier, model = clip(folder), AUTO.from_pretrained(folder("clip")).double()
    rows = []
    for label in LABELS:
        total = torch.zeros(12, dtype=torch.float64)
        for template in TEMPLATES:
            tokens = tokenizer_of("clip")(template.replace("{}", label), return_tensors="pt")
            with torch.no_grad():
                embedding = model.get_text_features(**tokens).pooler_output[0]
            total += embedding / embedding.norm()
        rows.append(total / total.norm())
    assert (classifier.model.text - torch.stack(rows)).abs().max() < 1e-7
    given = {label: [template.replace("{}", label) for template in TEMPLATES] for label in LABELS}
    assert clip(folder, prompts=given, labels=None).digest == classifier.digest
    turned = clip(folder, prompts=given, labels=LABELS[::-1])
    assert torch.equal(turned.model.text, classifier.model.text.flip(0))


def test_digest_depends_on_texts_and_used_weights(folder):
    classifier = clip(folder)
    keys = set(classifier.state_dict())
    assert {"model.text", "model.scale", "model.bias", "model.visual_projection.weight"} <= keys
    assert not any("text_model" in key or "text_projection" in key for key in keys)

    def scaled(part, name):
        return clip_with(folder, lambda model: getattr(model.get_submodule(part), name).data.mul_(1.01))

    others = [clip(folder, prompts=TEMPLATES[:2]), clip(folder, labels=LABELS[::-1]), clip(folder, labels=LABELS[:2]),
              scaled("visual_projection", "weight"), scaled("", "logit_scale"),
              clip_with(folder, lambda model: model.text_model.encoder.layers[0].mlp.fc1.weight.data[0].mul_(2)),
              ]  # fmt: skip
    digests = {classifier.digest, *(other.digest for other in others)}
    assert len(digests) == 1 + len(others)
    # Scaling the weights of a norm scales the embeddings, which are normalised afterwards.
    assert scaled("text_model.final_layer_norm", "weight").digest in digests
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert clip(folder).digest == classifier.digest
    finally:
        torch.set_num_threads(threads)


def test_loading_keeps_model_and_encodes_texts_once(folder, monkeypatch):
    model = AUTO.from_pretrained(folder("clip"))
    before = copy.deepcopy(model.state_dict())
    classifier = load_classifier(model, **TEXTS)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert classifier.model.vision_model is model.vision_model
    assert all(parameter.requires_grad for parameter in model.parameters())
    monkeypatch.setattr(type(model.text_model), "forward", None)
    classifier(torch.rand(2, 3, 32, 32))


def test_pipeline_provides_tokenizer_and_processor(folder):
    model = AUTO.from_pretrained(folder("clip"))
    model.name_or_path = model.config._name_or_path = ""
    made = hf.pipeline("zero-shot-image-classification", model=model, tokenizer=tokenizer_of("clip"),
                       image_processor=processor_of("clip"))  # fmt: skip
    assert load_classifier(made, **TEXTS).digest == clip(folder).digest
    words = r"tokenizer of CLIPModel is unknown.*pipeline"
    refused(words, load_classifier, model, **TEXTS, mean=0.5, std=0.5, size=32)


def test_copies_and_precisions_keep_logits(folder, tmp_path):
    classifier, images = clip(folder), torch.rand(4, 3, 32, 32)
    expected, scale = classifier(images), float(classifier.model.scale)
    copied = copy.deepcopy(classifier)
    assert torch.equal(copied(images), expected)
    assert copied.digest == classifier.digest
    assert clip(folder, channels_last=True)(images).allclose(expected, atol=1e-5 * scale)
    assert clip_with(folder, lambda model: model.double())(images).allclose(expected, atol=1e-6 * scale)
    mixed = clip(folder, precision="bf16")
    assert torch.equal(mixed.model.text, classifier.model.text)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = classifier.model.vision_model(classifier.normalised(images)).pooler_output
        features = classifier.model.visual_projection(pooled)
    features = features.float() / features.float().norm(dim=1, keepdim=True)
    assert mixed(images).allclose(features @ classifier.model.text.T * scale, atol=1e-5 * scale)
    model = AUTO.from_pretrained(folder("clip")).to(torch.bfloat16)
    for part in (model, tokenizer_of("clip"), processor_of("clip")):
        part.save_pretrained(tmp_path)
    half = load_classifier(tmp_path, **TEXTS, device="cpu")
    assert half.arithmetic == "bf16 weights"
    for other in (mixed, half):
        assert 0 < (other(images) - expected).abs().max() < 0.05 * scale


def test_maps_match_formulas_for_image_tower(folder):
    kind = "clip, quick gelu, eager"
    classifier = clip(folder, kind)
    model = AUTO.from_pretrained(folder(kind), attn_implementation="eager")
    images = torch.rand(2, 3, 32, 32).requires_grad_()
    out = model.vision_model(pixel_values=classifier.normalised(images), output_attentions=True)
    embedding = model.visual_projection(out.pooler_output)
    embedding = embedding / embedding.norm(dim=1, keepdim=True)
    texts, attentions = classifier.model.text, out.attentions
    score = model.logit_scale.exp() * (embedding @ (texts[1] - texts[0]))
    gradient, *of_attention = torch.autograd.grad(score.sum(), [images, *attentions])
    images, target = images.detach(), sb.targets.contrast(1, 0, 3)
    joint = torch.eye(17).expand(2, 17, 17)
    for matrix, slope in zip(attentions, of_attention, strict=True):
        joint = joint + (matrix * slope).relu().mean(dim=1) @ joint
    last, slope = attentions[-1][:, :, 0, 1:], of_attention[-1][:, :, 0, 1:]
    expected = {
        "gradient": gradient.abs().amax(dim=1),
        "attention": enlarged(last.mean(dim=1)),
        "gae": enlarged(joint[:, 0, 1:]),
        "gradcam_vit": enlarged((slope.mean(dim=2, keepdim=True) * last).mean(dim=1)),
    }
    for name, maps in expected.items():
        ours = sb.load_explainer(name)(classifier, images, target)
        assert ours.allclose(maps, atol=1e-4 * float(maps.abs().max())), name
        assert maps.std() > 0


def test_gradcam_uses_convolutional_image_tower(folder):
    classifier = clip(folder, "align", prompts="a {}", layer="vision_model.encoder.blocks.2")
    images = torch.rand(2, 3, 32, 32)
    kept = []
    hook = classifier.model.vision_model.encoder.blocks[2].register_forward_hook(lambda *call: kept.append(call[2]))
    logits = classifier(images)
    hook.remove()
    (slope,) = torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), kept[0])
    maps = enlarged((slope.mean(dim=(2, 3), keepdim=True) * kept[0]).sum(dim=1))
    ours = sb.load_explainer("gradcam")(classifier, images, sb.targets.contrast(1, 0, 3))
    assert ours.allclose(maps, atol=1e-4 * float(maps.abs().max()))


def test_attention_pooling_tower_has_no_attention_maps(folder):
    classifier, images = clip(folder, "siglip", prompts="a {}"), torch.rand(1, 3, 32, 32)
    refused("attention-pooling head", sb.load_explainer("gae"), classifier, images, sb.targets.one_hot(0, 3))
    assert sb.explain(pictures()[0], classifier).explainer.startswith("integrated_gradients")
    assert sb.explain(pictures()[0], clip(folder), target="dog", against="cat").explainer == "gae"


def test_activation_can_be_chosen(folder):
    assert clip(folder, activation="sigmoid").activation == "sigmoid"
    assert clip(folder, "siglip", prompts="a {}", activation="softmax").activation == "softmax"
    one, two = (clip(folder, "siglip", prompts="a {}", labels=labels) for labels in (["cat"], ["cat", "dog"]))
    images = torch.rand(2, 3, 32, 32)
    logit = two(images)[:, 0]
    assert one(images).allclose(torch.stack([-logit, logit], dim=1), atol=1e-4)
    assert one.prompts == {"cat": ["a cat"]}  # which return the same result
    assert one.labels == ["not cat", "cat"]
    refused("one class, whose softmax is always 1", clip, folder, labels=["cat"])


def test_naflex_inputs_match_processor(folder):
    classifier = clip(folder, "siglip2", prompts="a {}")
    batch = classifier.prepare([{"image": picture} for picture in pictures()])
    given = processor_of("siglip2")(images=pictures(), return_tensors="pt")
    ours = classifier.model.inputs(classifier.normalised(batch.images))
    assert ours["pixel_values"].allclose(given["pixel_values"], atol=1e-6)
    assert torch.equal(ours["spatial_shapes"], given["spatial_shapes"])
    refused(r"does not accept images of 33 x 32.*8 x 8", classifier, torch.rand(1, 3, 33, 32))


@pytest.mark.parametrize(("changes", "words"), [
    ({"prompts": None, "labels": None}, "compares pictures with texts.*prompts=.*labels="),
    ({"labels": None}, "there are no class names.*labels="),
    ({"prompts": ["a photo of a cat"]}, "no {}.*no such file"),
    ({"prompts": ["a cat", "a dog"]}, "2 prompts without {} but 3 labels"),
    ({"prompts": ["a {}", "a dog"]}, "'a dog'.*not a template.*{}"),
    ({"prompts": []}, "prompts is empty"),
    ({"prompts": {"cat": []}, "labels": None}, "prompts of 'cat' must be"),
    ({"prompts": {"cat": "a", "dog": "b"}}, "'blue bird' is in the labels but not in the prompts"),
    ({"prompts": {"cat": "a", "dog": "b"}, "labels": ["cat"]}, "'dog' is in the prompts but not in the lab"),
    ({"prompts": 5}, "prompts must be.*got 5"),
    ({"prompts": [lambda name: f"a {name}"]}, r"a function.*f\(\"{}\"\)"),
    ({"labels": []}, "labels is empty"),
    ({"labels": "cat"}, "labels must be a list"),
    ({"labels": ["cat", "dog", "cat"]}, "label 'cat' occurs 2 times"),
    ({"labels": ["cat", " "]}, "a label is empty"),
    ({"labels": ["cat", "Cat"]}, "cannot distinguish 'cat' from 'Cat'"),
    ({"labels": ["cat", "x" * 60]}, "has 71 tokens, but .* accepts 48"),
    ({"mean": 0.5}, "a checkpoint already has these settings"),
])  # fmt: skip
def test_invalid_prompts_and_labels_are_rejected(folder, changes, words):
    refused(words, clip, folder, **changes)


def test_other_networks_reject_prompts(folder, resnet, tmp_path):
    towers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    towers = {"text_config": towers, "vision_config": towers}
    hf.CLIPForImageClassification(hf.CLIPConfig(**towers)).save_pretrained(tmp_path)
    processor_of("clip").save_pretrained(tmp_path)
    assert load_classifier(tmp_path, device="cpu").labels == ["LABEL_0", "LABEL_1"]
    network = hf.AutoModelForImageClassification.from_pretrained(resnet)
    for model in (resnet, network, "torchvision:resnet18", tmp_path):
        refused("does not compare pictures with texts", load_classifier, model, **TEXTS)
    refused("a Classifier already has these settings", load_classifier, clip(folder), **TEXTS)
    refused(r"clipseg.*segments pictures", load_classifier, hf.CLIPSegModel(hf.CLIPSegConfig(**towers)), **TEXTS)
    words = r"CLIPModel compares pictures with texts.*prompts=.*labels="
    refused(words, load_classifier, AUTO.from_pretrained(folder("clip")))


def test_incompatible_tokenizers_are_rejected(folder, tmp_path):
    path = folder_of("clip", tmp_path / "small")
    for file in path.glob("*token*"):
        file.unlink()
    for file in ("vocab.json", "merges.txt"):
        (path / file).unlink(missing_ok=True)
    refused("has no tokenizer", load_classifier, path, **TEXTS)
    model = network_of("clip", tokenizer_of("clip"))

    def made(tokenizer):
        parts = {"model": model, "tokenizer": tokenizer, "image_processor": processor_of("clip")}
        return hf.pipeline("zero-shot-image-classification", **parts)

    larger = tokenizer_of("clip")
    larger.add_tokens(["cat", "dog"])
    refused(r"the tokenizer returns token .* has only 58 tokens", load_classifier, made(larger), **TEXTS)
    # Without the end-of-text token, which CLIP reads, all prompts have the same embedding.
    refused("cannot distinguish 'cat' from 'dog'", load_classifier, made(tokenizer_of("align")), **TEXTS)


def test_network_with_other_scoring_is_rejected(folder):
    class Colder(hf.CLIPModel):
        def forward(self, *inputs, **settings):
            output = super().forward(*inputs, **settings)
            output.logits_per_image = output.logits_per_image / 2 + 1
            return output

    colder = Colder.from_pretrained(folder("clip"))
    refused("Colder does not compute its scores as", load_classifier, colder, **TEXTS)


def test_hub_model_loads_its_tokenizer(here, folder):
    api = here.api()
    api.create_repo("founder/clip")
    api.upload_folder(repo_id="founder/clip", folder_path=folder("clip"))
    by_name = load_classifier("founder/clip", **TEXTS, device="cpu")
    assert (by_name.repo, by_name.digest) == ("founder/clip", clip(folder).digest)
    assert load_classifier(AUTO.from_pretrained("founder/clip"), **TEXTS).digest == by_name.digest


RUN = {"explainers": ["gae", "random"], "metrics": ["saliency_miou"], "limit": 6, "device": "cpu", "progress": False}


def cells(run):
    return {cell.cell_id for cell in run.cells}


@pytest.mark.slow
def test_cell_ids_depend_on_prompts(folder, shapes, tmp_path):
    settings = RUN | {"dataset": str(shapes), "model": str(folder("clip"))}
    first = sb.run(**settings, prompts="a photo of a {}", out=tmp_path / "first")
    other = sb.run(**settings, prompts="a small {}", out=tmp_path / "other")
    assert not cells(first) & cells(other)
    refused("a different model", sb.run, **settings, prompts="a small {}", out=tmp_path / "first")
    # The stored command, a file of templates, and prompts per class all give the same run.
    names = sb.load_dataset(str(shapes)).features["label"].names
    (tmp_path / "templates.txt").write_text("\n a photo of a {}\n")
    (tmp_path / "texts.json").write_text(json.dumps({name: [f"a photo of a {name}"] for name in names}))
    command = json.loads((tmp_path / "first" / "summary.json").read_text())["command"]
    for number, given in enumerate(["a photo of a {}", "templates.txt", "texts.json"]):
        words = shlex.split(command)[1:]
        words[words.index("--out") + 1] = str(tmp_path / f"again{number}")
        assert words[words.index("--prompts") + 1] == "a photo of a {}"
        words[words.index("--prompts") + 1] = str(tmp_path / given) if number else given
        assert main([*words, "--quiet"]) == 0
        again = json.loads((tmp_path / f"again{number}" / "summary.json").read_text())
        assert {cell["cell_id"] for cell in again["cells"]} == cells(first)
        if number < 2:
            assert shlex.join(shlex.split(again["command"])).replace(f"again{number}", "first") == command
    # The prediction is the class with the largest logit.
    classifier = load_classifier(folder("clip"), prompts="a photo of a {}", labels=names, device="cpu")
    rows = {row["image_id"]: row for row in sb.load_dataset(str(shapes))}
    right = []
    for row in pq.read_table(tmp_path / "first" / "predictions.parquet").to_pylist():
        of_image = rows[row["image_id"]]
        assert row["prediction"] == int(classifier(classifier.prepare([of_image]).images).argmax())
        right.append(row["prediction"] == of_image["label"])
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert summary["model"]["accuracy"]["value"] == pytest.approx(np.mean(right[: RUN["limit"]]))
    of_object = sb.run(**settings | {"model": classifier}, out=tmp_path / "object")
    assert cells(of_object) == cells(first)
    assert "prompts=['a photo of a {}'], labels=['disc'" in (tmp_path / "object" / "run.json").read_text()
    # Another model explains the classes that it names.
    sb.run(**settings | {"model": str(folder("align")), "explainers": "random"}, prompts="a {}",
           target=f"predicted-by:{tmp_path / 'first'}", out=tmp_path / "named")  # fmt: skip
    records = pq.read_table(tmp_path / "named" / "records.parquet").to_pylist()
    predicted = pq.read_table(tmp_path / "first" / "predictions.parquet").to_pylist()
    by_id = {row["image_id"]: names[row["prediction"]] for row in predicted}
    assert {row["image_id"]: row["target"] for row in records}.items() <= by_id.items()


@pytest.mark.slow
def test_run_prompts_go_only_to_text_models(folder, resnet, shapes, tmp_path):
    def run(name, model=str(resnet), **settings):
        return sb.run(**RUN | {"dataset": str(shapes), "explainers": "random", "limit": 4}, model=model,
                      out=tmp_path / name, **settings)  # fmt: skip

    refused("does not compare pictures with texts", run, "none", prompts="a {}")
    of_clip = {"target": f"predicted-by:{folder('clip')}"}
    refused(r"compares pictures with texts; pass prompts .*--prompts", run, "none", **of_clip)
    run("clip", str(folder("clip")), prompts="a {}")
    of_run = {"target": f"predicted-by:{tmp_path / 'clip'}"}
    assert cells(run("by_name", prompts="a {}", **of_clip)) == cells(run("by_run", **of_run))
    # and no prompts are ignored
    refused("does not compare pictures with texts", run, "none", prompts="a {}", **of_run)


def test_underscores_of_class_names_become_spaces(folder):
    spec, objects = describe({"dataset": "d", "model": "m", "explainers": [], "metrics": [], "out": "o",
                              "prompts": "a {}"})  # fmt: skip
    assert texts_for(spec, objects, ["blue_bird", "cat"]) == {"prompts": ["a {}"], "labels": ["blue bird", "cat"]}
    refused("no class names to fill", texts_for, spec, objects, None)
    settings = {"explainers": "gae", "metrics": "saliency_miou", "out": "o", "prompts": "a {}"}
    refused("prompts need a model that is given by name", sb.run, dataset="d", model=clip(folder), **settings)


def test_explain_command_accepts_prompts(folder, tmp_path, capsys):
    pictures()[0].save(tmp_path / "picture.png")
    command = ["explain", str(tmp_path / "picture.png"), "--model", str(folder("clip")), "--out",
               str(tmp_path / "map.png"), "--json"]  # fmt: skip
    texts = ["a photo of a cat", "a photo of a dog"]
    (tmp_path / "texts.json").write_text(json.dumps(dict(zip("ab", texts, strict=True))))
    assert main([*command, "--prompts", *texts, "--target", texts[1]]) == 0
    by_texts = json.loads(capsys.readouterr().out)
    assert main([*command, "--prompts", str(tmp_path / "texts.json"), "--target", "b", "--against", "a"]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert dict(zip("ab", texts, strict=True))[by_file["prediction"]] == by_texts["prediction"]
    assert by_file["probability"] == by_texts["probability"]
    assert [item["target"] for item in by_file["maps"]] == ["b", "b - a"]
    assert main([*command, "--prompts", "a photo of a {}"]) == 2
    assert "there are no class names" in capsys.readouterr().err


def test_template_stores_prompts(folder, shapes, tmp_path):
    sb.template(str(shapes), str(folder("clip")), tmp_path / "mine", prompts=["a photo of a {}"], limit=2, device="cpu")
    assert "prompts=['a photo of a {}'], labels=['disc'" in (tmp_path / "mine" / "example.py").read_text()
    assert read_template(tmp_path / "mine")[0].spec.prompts == ("a photo of a {}",)
    spec = {"dataset": "d", "model": "m", "explainers": [], "metrics": [], "out": "o"}
    spec = RunSpec.read(spec | {"prompts": [str(tmp_path / "texts.json")]})
    assert public_spec(spec, "d", "m").prompts == ("texts.json",)
