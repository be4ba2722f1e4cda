"""Tests of minibatches of images, masks and labels for a DataLoader, compared with a second reading of each image."""

import re
from io import BytesIO
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

import saliency_bench as sb

COLOUR = (200, 60, 40)


def coloured(count=6, size=(24, 16), without=()):
    """Return images in which only the object has COLOUR, so that each image shows where its mask must be."""
    rows = {"image": [], "mask": [], "label": [], "image_id": []}
    for index in range(count):
        mask = np.zeros(size[::-1], np.uint8)
        mask[2 : 8 + index % 3, 3 + index : 12 + index] = 255
        pixels = np.full((*mask.shape, 3), (10, 120, 200), np.uint8)
        pixels[mask > 0] = COLOUR
        rows["image"].append(Image.fromarray(pixels))
        rows["mask"].append(None if index in without else Image.fromarray(mask))
        rows["label"].append(("disc", "square")[index % 2])
        rows["image_id"].append(f"picture {index}")
    kinds = {"image": datasets.Image(), "mask": datasets.Image(), "label": datasets.Value("string")}
    return datasets.Dataset.from_dict(rows, datasets.Features(kinds | {"image_id": datasets.Value("string")}))


def is_object(images):
    """Return where images (..., 3, H, W) show COLOUR. The result is exact for images resized by nearest neighbour."""
    colour = torch.tensor(COLOUR).view(3, 1, 1) / 255
    return ((images - colour).abs() < 0.02).all(-3)


def test_every_loading_route_gives_the_same_minibatches(here, pets):
    """Compare the folder, `load_dataset` and plain `datasets` from the Hub, in any format, with a literal reading."""
    api = here.api()
    api.create_repo("saliency-bench/pets", repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id="saliency-bench/pets", folder_path=pets, repo_type="dataset")
    resize = v2.Resize((24, 32))
    ours = sb.load_dataset("hub:saliency-bench/pets", split="train")
    plain = datasets.load_dataset("saliency-bench/pets", split="train")
    hub = "hub:saliency-bench/pets"
    routes = [sb.torch_dataset(pets, transform=resize), sb.torch_dataset(ours.with_format("torch"), transform=resize),
              sb.torch_dataset(plain, "train"), sb.torch_dataset(hub, transform=resize)]  # fmt: skip
    assert all(route.classes == ours.features["label"].names and len(route) == len(ours) for route in routes)
    pixels = torch.stack([torch.tensor(np.asarray(row["image"].convert("RGB")) / 255.0) for row in ours])
    inside = [None if row["mask"] is None else np.asarray(row["mask"]) > 127 for row in ours]
    for route in routes:
        images, masks, labels = map(torch.cat, zip(*DataLoader(route, batch_size=7), strict=True))
        assert (images.dtype, masks.dtype, labels.dtype) == (torch.float32, torch.bool, torch.int64)
        torch.testing.assert_close(images, pixels.permute(0, 3, 1, 2).float())
        assert labels.tolist() == ours["label"]
        for mask, expected in zip(masks, inside, strict=True):
            assert np.array_equal(mask.numpy(), np.zeros((24, 32), bool) if expected is None else expected)


NEAREST = {"interpolation": v2.InterpolationMode.NEAREST}


@pytest.mark.parametrize("transform", [
    v2.RandomAffine(30, (0.2, 0.2), (0.7, 1.3), **NEAREST), v2.RandomResizedCrop((15, 20), **NEAREST),
    v2.Compose([v2.ToDtype(torch.uint8, scale=True), v2.RandomRotation(30, fill=255, **NEAREST)]),
    v2.Pad(5, fill=1), v2.Pad(5, padding_mode="reflect"), v2.RandomZoomOut(fill=1.0, p=1.0),
    v2.RandomChoice([v2.Pad(1, fill=0.5), v2.RandomHorizontalFlip(1.0)]),
    lambda image, mask: (image.flip(-1), mask.flip(-1)),
    lambda image, mask: [v2.functional.crop(each, 1, 2, 12, 18) for each in (image, mask)],
], ids=lambda transform: type(transform).__name__)  # fmt: skip
def test_transforms_keep_the_mask_on_its_object(transform):
    torch.manual_seed(1)
    for image, mask, _ in sb.torch_dataset(coloured(), transform=transform):
        assert mask.shape == image.shape[1:]
        assert torch.equal(mask, is_object(image))
        assert type(image) is type(mask) is torch.Tensor


def test_colour_transforms_leave_the_mask_unchanged():
    rows = coloured()
    change = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.ColorJitter(0.5),
                         v2.Normalize((0.5,) * 3, (0.2,) * 3)])  # fmt: skip
    for plain, changed in zip(sb.torch_dataset(rows), sb.torch_dataset(rows, transform=change), strict=True):
        assert torch.equal(plain[1], changed[1])
        assert not torch.allclose(plain[0], changed[0])


def test_missing_and_cropped_masks_are_empty():
    batches = DataLoader(sb.torch_dataset(coloured(without=(1, 4))), batch_size=6)
    ((_, masks, labels),) = batches
    assert masks.flatten(1).any(1).tolist() == [True, False, True, True, False, True]
    assert labels.tolist() == [0, 1, 0, 1, 0, 1]
    narrowed = sb.torch_dataset(coloured(), transform=lambda *pair: [each[..., :2] for each in pair])
    assert not narrowed[0][1].any()


def test_workers_give_the_same_batches():
    data = sb.torch_dataset(coloured())
    alone, shared = (list(DataLoader(data, batch_size=4, num_workers=count)) for count in (0, 2))
    assert all(torch.equal(a, b) for first, second in zip(alone, shared, strict=True)
               for a, b in zip(first, second, strict=True))  # fmt: skip


def test_label_column_and_mask_values_are_applied():
    rows = coloured().add_column("kind", [3, 1, 4, 1, 5, 9])
    data = sb.torch_dataset(rows, label_column="kind")
    assert [int(label) for _, _, label in data] == [3, 1, 4, 1, 5, 9]
    assert data.classes is None
    trimaps = coloured().map(lambda row: {"mask": Image.fromarray(np.asarray(row["mask"]) // 255 + np.uint8(1))})
    refused(r"picture 0.*mask_values=", sb.torch_dataset(trimaps).__getitem__, 0)
    for image, mask, _ in sb.torch_dataset(trimaps, mask_values=2):
        assert torch.equal(mask, is_object(image))


def test_exif_rotation_applies_to_the_mask():
    exif, files = Image.Exif(), {"image": BytesIO(), "mask": BytesIO()}
    exif[0x0112] = 6  # the file is stored rotated by 90 degrees
    for name, file in files.items():
        stored = coloured(1)[0][name].transpose(Image.Transpose.ROTATE_90)
        stored.save(file, "PNG", **({"exif": exif} if name == "image" else {}))
    bytes_of = {name: [{"bytes": file.getvalue(), "path": None}] for name, file in files.items()}
    rows = datasets.Dataset.from_dict(bytes_of | {"label": ["disc"]})
    image, mask, _ = sb.torch_dataset(rows)[0]
    assert image.shape == (3, 16, 24)
    assert torch.equal(mask, is_object(image))


@pytest.mark.parametrize(("change", "words"), [
    ({"transform": v1.Resize(8)}, "torchvision.transforms.v2"),
    ({"transform": v2.Compose([v1.RandomHorizontalFlip()])}, r"picture 0.*\(image, mask\)"),
    ({"transform": lambda image: image}, r"picture 0.*\(image, mask\)"),
    ({"transform": lambda image, mask: image}, "returns Image"),
    ({"transform": lambda image, mask: (image[:, 2:], mask)}, r"shapes \(3, 14, 24\) and \(16, 24\)"),
    ({"transform": lambda image, mask: (image, mask * 3)}, "values other than 0 and 1"),
    ({"transform": v2.AutoAugment()}, "not supported by AutoAugment"),
    ({"transform": v2.FiveCrop(8)}, "FiveCrop"),
    ({"label_column": "labl"}, "labl.*label"),
    ({"mask_values": "grey-ish"}, "grey-ish"),
    ({"colour": 1}, "colour"),
])  # fmt: skip
def test_invalid_transforms_and_options_are_rejected(change, words):
    refused(words, lambda: sb.torch_dataset(coloured(), **change)[0])


def test_incompatible_sizes_labels_and_masks_are_rejected():
    both = datasets.concatenate_datasets([coloured(2), coloured(2, (30, 20))])
    refused(r"3 x 16 x 24 and 3 x 20 x 30.*Resize", next, iter(DataLoader(sb.torch_dataset(both), batch_size=4)))
    _, masks, _ = next(iter(DataLoader(sb.torch_dataset(both, transform=v2.Resize((8, 8))), batch_size=4)))
    assert masks.shape == (4, 8, 8)
    without = coloured().remove_columns("mask")
    refused(r"no column `mask` .*add a column `mask` with None", sb.torch_dataset, without)
    assert not any(mask.any() for _, mask, _ in sb.torch_dataset(without.add_column("mask", [None] * len(without))))
    missing = coloured().map(lambda row: {"label": None}, features=coloured().features)
    refused(r"picture 0.*label", sb.torch_dataset(missing).__getitem__, 0)
    refused("IterableDataset", sb.torch_dataset, coloured().to_iterable_dataset())
    assert len(sb.torch_dataset(coloured(), "test")) == 6  # rows in memory without a split
    part = coloured()
    part._split = datasets.NamedSplit("validation")
    assert len(sb.torch_dataset(part)) == 6
    refused("validation", sb.torch_dataset, part, "train")


@pytest.mark.slow
def test_mask_penalty_of_the_docs_page_improves_saliency(tmp_path, monkeypatch):
    """Recompute the penalty by a loop over samples, and check what the page states about its two networks."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "minibatches.md").read_text(encoding="utf-8")
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S):
        exec(compile(code, "minibatches.md", "exec"), names)
    plain, supervised = (names["runs"][penalty] for penalty in (0, 10))
    inside = [run.cells[0].value for run in (plain, supervised)]
    assert inside[1] > inside[0] + 0.3
    assert sum(supervised.predictions()["correct"]) > 0.9 * 100
