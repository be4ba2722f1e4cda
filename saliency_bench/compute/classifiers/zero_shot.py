"""Use vision-language models as classifiers (Radford et al., 2021: CLIP; Zhai et al., 2023: SigLIP).

    logit_k = scale * cos(f(image), t_k) + bias        t_k = norm(mean over texts of class k of norm(g(text)))

f and g are the model's image and text towers with their projections; scale and bias are parameters of the model (only
SigLIP has a bias). CLIP is trained with a softmax over texts, and SigLIP with a sigmoid for each pair. Both predict the
class with the largest logit. The text tower runs once, when the classifier is loaded. The explained network consists of
the image tower and a buffer with the text embeddings.

Embeddings are computed in float64 and rounded to multiples of 2^-24, so that the embeddings and the identity of the
classifier are bit-identical on all devices and for any number of threads. This step changes a logit by less than
float32 rounding does.
"""

import copy
import inspect
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from saliency_bench.compute.classifiers.classifier import check_finite
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.progress import bar

# `model_type` of transformers models whose score is the cosine of two embeddings.
MODELS = ("align", "altclip", "chinese_clip", "clip", "metaclip_2", "siglip", "siglip2")
# Other models that transformers offers for the task, and why they are not supported.
OTHERS = {
    "blip": "its score comes from a network that processes the image and the text jointly, or from "
    "projection heads that BlipModel does not have",
    "blip-2": "its score comes from a network that processes the image and the text jointly, or from several queries",
    "clipseg": "it segments pictures; use the CLIP model that it is built on",
    "tipsv2": "it is not supported yet; wrap its image tower in a torch module",
    "videoprism": "it takes videos",
}
NAMES = "CLIP, SigLIP, SigLIP 2, MetaCLIP 2, ALIGN, AltCLIP and Chinese-CLIP"
BATCH = 256  # texts
STEP = 2.0**-24  # resolution of a normalised embedding
SAME = 1e-2, 1e-1  # tolerated difference from the model's own logits / scale, in float32 and in half precision
Texts = Mapping[str, list[str]]  # {label: its texts}


class NoTextsError(UserError):
    """Prompts were passed for a network that is not a vision-language model."""


def is_vision_language(model: Any) -> bool:
    """Return whether a transformers model, or its config, is a vision-language model.

    Raises:
        UserError: The score of the model is not a cosine.
    """
    config = getattr(model, "config", None) if isinstance(model, nn.Module) else model
    kind = getattr(config, "model_type", None)
    if isinstance(model, nn.Module):
        has_head = not hasattr(model, "get_text_features")
    else:
        has_head = any("ForImageClassification" in name for name in getattr(config, "architectures", None) or ())
    if has_head:
        return False
    if kind in OTHERS:
        raise UserError(
            f"a model of type {kind} is not supported as a zero-shot classifier: {OTHERS[kind]}; {NAMES} are supported"
        )
    return kind in MODELS


def activation_of(model: Any) -> str:
    """Return the activation that a model was trained with: "sigmoid" for SigLIP, "softmax" for all others."""
    return "sigmoid" if hasattr(model, "logit_bias") else "softmax"


def bare(model: Any) -> Any:
    """Remove a model's peft wrapper. Adapter layers stay inside the model."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_given(prompts: object, name: str, *, compares: bool) -> None:
    """Raise UserError if a vision-language model has no prompts, and NoTextsError if any other network has prompts."""
    if compares and prompts is None:
        raise UserError(
            f"{name} compares pictures with texts; pass prompts to load_classifier(model, prompts=, labels=), such as "
            'prompts=["a photo of a {}"], labels=["cat", "dog"] (on the command line, use --prompts)'
        )
    if prompts is not None and not compares:
        raise NoTextsError(f"{name} does not compare pictures with texts ({NAMES} do); leave out the prompts")


class ZeroShot(nn.Module):
    """Image tower of a vision-language model with text embeddings as its head.

    Attributes:
        config: Config of the image tower.
        vision_model: The image tower.
        visual_projection: Projection after the tower; the identity if the tower already returns joint embeddings.
        text: Embedding of each class, Float (K, D), with norm 1.
        scale: Factor of the cosines, Float ().
        bias: Offset of the logits, Float ().
        patch: Side of a patch if the tower takes patches (SigLIP 2 with NaFlex), else 0.
    """

    text: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, model: Any, text: Tensor):
        """Take the image tower, scale and bias from a transformers model."""
        super().__init__()
        self.vision_model = model.vision_model
        self.config = model.vision_model.config
        self.visual_projection = getattr(model, "visual_projection", nn.Identity())
        self.patch = self.config.patch_size if model.config.model_type == "siglip2" else 0
        given = {name: value.detach().double().reshape(()) for name, value in model.named_parameters(recurse=False)}
        scale = given["logit_scale"].exp() if "logit_scale" in given else 1 / given["temperature"]
        bias = given.get("logit_bias", torch.zeros_like(scale))
        for name, value in (("text", text), ("scale", scale), ("bias", bias)):
            self.register_buffer(name, value.to(device=scale.device, dtype=torch.float32))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of normalised images (B, 3, H, W). They are float32 even under autocast."""
        features = self.visual_projection(self.vision_model(**self.inputs(images), return_dict=True).pooler_output)
        with torch.autocast(features.device.type, enabled=False):
            normalised = nn.functional.normalize(features.float(), dim=-1, eps=0)
            return nn.functional.linear(normalised, self.text.float()) * self.scale.float() + self.bias.float()

    def inputs(self, images: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the image tower."""
        if not self.patch:
            return {"pixel_values": images}
        grid = images.shape[2] // self.patch, images.shape[3] // self.patch
        if (grid[0] * self.patch, grid[1] * self.patch) != images.shape[2:]:
            raise ValueError(f"its patches have {self.patch} x {self.patch} pixels")
        cut = images.unflatten(3, (grid[1], self.patch)).unflatten(2, (grid[0], self.patch))  # (B, 3, h, p, w, p)
        patches = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, h * w, p * p * 3)
        return {
            "pixel_values": patches,
            "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.int32, device=images.device),
            "spatial_shapes": torch.tensor([grid] * len(images), device=images.device),
        }


def zero_shot(model: Any, tokenizer: Any, texts: Texts, name: str, device: torch.device | None = None) -> ZeroShot:
    """Return a network that compares images with the texts of each class and shares the model's image tower.

    Args:
        model: A transformers vision-language model. It is set to evaluation mode and otherwise unchanged.
        tokenizer: The tokenizer that the model was trained with.
        texts: {label: texts}.
        name: Name of the model in messages.
        device: Device on which to compute the embeddings; None for the model's device.

    Raises:
        UserError: A text is too long, two classes have the same embedding, tokenizer and model do not match, or the
            logits differ from the model's own logits.
    """
    model = bare(model).eval()
    home = next(model.parameters()).device
    place = device or home
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(home.type, enabled=False):
        try:
            for text in chain.from_iterable(texts.values()):
                _check_tokens(model, tokenizer, text, name)
            side = _text_side(model).to("cpu" if place.type == "mps" else place)  # MPS has no float64
            network = ZeroShot(model, _embedded(side, tokenizer, texts, name))
            first = {label: of_label[:1] for label, of_label in list(texts.items())[:2]}
            alone = ZeroShot(model, _embedded(side, tokenizer, first, name))
            check_finite(network, name)
            _check_logits(model, alone, _tokens(model, tokenizer, list(chain.from_iterable(first.values()))), name)
        except UserError:
            raise
        except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"the prompts for {name} cannot be embedded ({type(error).__name__}: {one_line(error, 200)}); check "
                "that the tokenizer belongs to the model"
            ) from error
    return network.eval()


def _embedded(side: Any, tokenizer: Any, texts: Texts, name: str) -> Tensor:
    """Return the embedding of each class, Float (K, D), with norm 1 and rounded to multiples of `STEP`."""
    every = list(chain.from_iterable(texts.values()))
    starts = bar(range(0, len(every), BATCH), desc="texts", unit="batch", shown=len(every) > BATCH)
    batches = (_tokens(side, tokenizer, every[start : start + BATCH]) for start in starts)
    rows = torch.cat([side.get_text_features(**batch, return_dict=True).pooler_output for batch in batches])
    parts = nn.functional.normalize(rows, dim=-1).split([len(of_label) for of_label in texts.values()])
    means = nn.functional.normalize(torch.stack([part.mean(dim=0) for part in parts]), dim=-1)
    if not bool(means.isfinite().all()):
        raise UserError(
            f"{name} returns NaN or infinite text embeddings, so its weights are damaged; use an undamaged checkpoint"
        )
    rounded = ((means / STEP).round() * STEP).float()
    _check_different(rounded, list(texts), name)
    return rounded


def _text_side(model: Any) -> Any:
    """Return a float64 copy of the text tower and its projection, in evaluation mode."""
    side = copy.copy(model)
    kept = {name: getattr(model, name, None) for name in ("text_model", "text_projection")}
    side._modules = {name: copy.deepcopy(module).double() for name, module in kept.items() if module is not None}
    side._parameters = {}
    with suppress(ValueError, ImportError):  # eager attention computes its softmax in float32
        side.text_model.set_attn_implementation("sdpa")
    return side


def _tokens(model: Any, tokenizer: Any, texts: list[str]) -> dict[str, Tensor]:
    # SigLIP reads the last token and was trained on texts padded to the full length.
    length = model.config.text_config.max_position_embeddings
    padding = (
        {"padding": "max_length", "max_length": length} if "siglip" in model.config.model_type else {"padding": True}
    )
    taken = inspect.signature(model.get_text_features).parameters
    place = next(model.parameters()).device
    tokens = tokenizer(texts, truncation=False, return_tensors="pt", **padding)
    return {name: value.to(place) for name, value in tokens.items() if name in taken}


def _check_tokens(model: Any, tokenizer: Any, text: str, name: str) -> None:
    """Raise UserError if a text would be truncated or contains tokens that the text tower does not have."""
    config, ids = model.config.text_config, tokenizer(text, truncation=False)["input_ids"]
    most = min(config.max_position_embeddings, tokenizer.model_max_length)
    if len(ids) > most:
        raise UserError(
            f"the prompt '{one_line(text, 60)}' has {len(ids)} tokens, but {name} accepts {most}; make it shorter"
        )
    if max(ids) >= config.vocab_size:
        raise UserError(
            f"the tokenizer returns token {max(ids)}, but the vocabulary of the text tower of {name} has only "
            f"{config.vocab_size} tokens; use the tokenizer that the model was trained with"
        )


def _check_different(text: Tensor, labels: list[str], name: str) -> None:
    """Raise UserError if two classes have the same embedding."""
    _, group = torch.unique(text, dim=0, return_inverse=True)
    first: dict[int, str] = {}
    for label, number in zip(labels, group.tolist(), strict=True):
        if (other := first.setdefault(number, label)) != label:
            raise UserError(
                f"{name} cannot distinguish '{other}' from '{label}': their prompts have the same embedding; use "
                "different words, and check that they are in the vocabulary of the tokenizer"
            )


def _check_logits(model: Any, network: ZeroShot, tokens: dict[str, Tensor], name: str) -> None:
    """Raise UserError if the network's logits for a picture differ from the model's own logits."""
    side = getattr(network.config, "image_size", 0) or 2 * network.patch
    parameter = next(network.vision_model.parameters())
    picture = torch.linspace(-1, 1, 3 * side * side, device=parameter.device, dtype=parameter.dtype)
    picture = picture.mul(50).sin().view(1, 3, side, side)
    theirs, ours = (
        model(**network.inputs(picture), **tokens, return_dict=True).logits_per_image.float(),
        network(picture),
    )
    off = float((theirs - ours).abs().max()) / float(network.scale)
    if not off <= SAME[parameter.dtype != torch.float32]:
        raise UserError(
            f"{name} does not compute its scores as scale * cosine + bias (off by {off:.1e} of the scale); wrap it "
            "in a torch module whose forward takes images and returns logits (B, K)"
        )
