"""Render the section of docs/findings.md on explainers that use attention, for a transformer trained by this script.

The tokens of the transformer are features of EfficientNet-Lite0 at 7 x 7 positions. The features are frozen, because a
few dozen photographs are too few to train them. Only the attention blocks and the head are trained, to distinguish cats
from dogs.
"""

from functools import partial
from pathlib import Path

import datasets
import torch
from findings_page import ATTENTION, interval, picture, remarks, table
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

import saliency_bench as sb
from saliency_bench.compute.classifiers.efficientnet_lite import MEAN, STD, read_weights, renamed
from saliency_bench.read.finished_run import Run

SIZE, COPIES, EPOCHS = 224, 12, 30
HELD_OUT = 52  # number of explained photographs, as for the other datasets; all others are used for training
DEPTH = 4
TITLE = "## Explainers that use attention: a vision transformer trained on pets"
BEFORE = "\n## How this page was made\n"
EXPLAINERS = ("attention", "rollout", "gradient_rollout", "gae", "gradcam_vit", "iia", "gradient", "input_x_gradient")
METRICS = ("saliency_pointing_game", "saliency_energy", "saliency_insertion:steps=8")


def explain_pets(pets: datasets.Dataset, work: Path, images: int) -> None:
    """Train the network on pets that are not explained, unless it has been trained already, and run the explainers."""
    pets = pets.remove_columns("label").rename_column("species", "label").shuffle(seed=0)
    weights = work / "vit.pt"
    if not weights.exists():
        torch.save(trained(pets.select(range(HELD_OUT, len(pets)))).state_dict(), weights)
    vit = network().eval()
    vit.load_state_dict(torch.load(weights, weights_only=True))
    model = sb.load_classifier(vit, mean=MEAN, std=STD, size=SIZE, labels=pets.features["label"].names,
                               name="vit-on-lite0", device="cpu")  # fmt: skip
    sb.run(dataset=pets.select(range(HELD_OUT)), model=model, explainers=["centre", "edges", "random", *EXPLAINERS],
           metrics=METRICS, out=work / "vit-pets", target="predicted", limit=min(images, HELD_OUT), batch_size=8,
           progress=False)  # fmt: skip


def network() -> nn.Module:
    """Return the untrained transformer on top of the last stage of the pretrained EfficientNet-Lite0."""
    import timm
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import HybridEmbed

    whole = timm.create_model("tf_efficientnet_lite0")
    weights = renamed(read_weights(0), list(whole.state_dict()))
    stages = timm.create_model("tf_efficientnet_lite0", features_only=True, out_indices=(4,))
    stages.load_state_dict({name: weights[name] for name in stages.state_dict()})
    return VisionTransformer(
        img_size=SIZE, patch_size=1, num_classes=2, embed_dim=64, depth=DEPTH, num_heads=4, mlp_ratio=2,
        proj_drop_rate=0.1, embed_layer=partial(HybridEmbed, backbone=stages.requires_grad_(False)),
    )  # fmt: skip


def trained(photographs: datasets.Dataset) -> nn.Module:
    """Return the network after training on the labels of photographs, with `COPIES` random crops of each photograph."""
    torch.manual_seed(0)
    model = network().eval()
    stages, model.patch_embed.backbone = model.patch_embed.backbone, nn.Identity()
    features, labels = features_of(stages, photographs)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4, weight_decay=0.05)
    steps = EPOCHS * len(labels.split(32))
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(labels)).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(features[chosen]), labels[chosen]).backward()
            optimiser.step()
            rates.step()
    model.patch_embed.backbone = stages
    return model.eval()


@torch.no_grad()
def features_of(stages: nn.Module, photographs: datasets.Dataset) -> tuple[Tensor, Tensor]:
    """Return the features (n, C, 7, 7) and the labels (n,) of random crops of photographs."""
    crop = v2.Compose([
        v2.PILToTensor(), v2.RandomResizedCrop(SIZE, scale=(0.4, 1)), v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.2, 0.2, 0.2), v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN] * 3, [STD] * 3),
    ])  # fmt: skip
    parts, labels = [], []
    for row in photographs:
        picture = row["image"].convert("RGB")
        parts.append(stages(torch.stack([crop(picture) for _ in range(COPIES)]))[-1])
        labels += [row["label"]] * COPIES
    return torch.cat(parts), torch.tensor(labels)


def attention_section(run: Run) -> str:
    """Return the section of the page for a finished run."""
    accuracy = run.summary["model"]["accuracy"]
    value = interval(accuracy["value"], accuracy["low"], accuracy["high"])
    about = f"""\
The network is a vision transformer with {DEPTH} attention blocks, 64 channels and a class token. It was trained for
{EPOCHS} epochs to distinguish cats from dogs, on photographs other than those explained here. Instead of image patches,
its tokens are features of EfficientNet-Lite0 at 7 x 7 positions. The receptive field of a feature is larger than its
cell, so the maps are only approximate. The accuracy on the explained photographs is {value} (n = {accuracy["n"]}). With
14 x 14 positions, the accuracy was 0.615. Because the number of positions was chosen on the same photographs, the
stated accuracy is slightly optimistic."""
    figure = picture(ATTENTION, "Explainers that use attention")
    return "\n\n".join([TITLE, about, figure, table(run.cells), remarks(run), limits(accuracy["low"])])


def limits(lowest: float) -> str:
    """Return the conclusions that are justified by the lower bound of the accuracy."""
    if lowest > 0.75:
        return """\
The network classifies most of these photographs correctly, but this does not mean that it looks at the animals: a low
score for the pointing game or energy may be due to the network or to the map. These results are for a single small
network with a single task; larger networks may distribute their attention differently."""
    return """\
The network classifies many of these photographs incorrectly. Insertion still measures what its predictions depend on,
but the pointing game and energy may be low because the network uses other regions."""


def with_section(page: str, section: str) -> str:
    """Return the page with this section before the last one. An earlier version of the section is replaced."""
    before, heading, rest = page.partition(BEFORE)
    return before.partition(f"\n{TITLE}\n")[0].rstrip("\n") + f"\n\n{section}\n{heading}{rest}"
