"""Compare the time of training and retraining with plain PyTorch loops for the same computation.

examples:
  python benchmarks/training.py
  python benchmarks/training.py --network small --size 64 --images 256 --rounds 5

The images are synthetic JPEG files of 500 x 375 pixels. The validation and test sets are an eighth of the size of the
training set.

`train` is the whole function `saliency_bench.train`, from the files to the checkpoint. The plain loop for comparison
uses torchvision: ImageFolder, transforms v2 (squash, scale, normalise), and a DataLoader in this process, which needs
less CPU time than workers. It trains with Adam, measures the accuracy on the validation images after each epoch, and
saves the best weights to a file. `retrain` is one retraining for `saliency_roar` within a run, with half of each image
replaced, after the maps have been computed. For its plain loop, the changed and normalised images are in memory as one
tensor, which is created before the measurement.

Each plain loop does the same computation: the initial weights and the order of the images are the same, and the last
column compares the final weights. The two sides alternate; times are CPU seconds including children, on one thread. A
ratio is the median over the rounds, with quartiles in brackets. The last columns count the images that Pillow decodes.
"""

import argparse
import copy
import os
import shutil
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as Pictures
from PIL import ImageFile
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from transformers import AutoModelForImageClassification, ResNetConfig

import saliency_bench as sb
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.retraining import stage, tasks
from saliency_bench.utils.seeds import random_bits, seed_of

SIZES: dict[str, dict] = {  # the defaults of ResNetConfig are those of ResNet-50
    "resnet18": {"hidden_sizes": [64, 128, 256, 512], "depths": [2] * 4, "layer_type": "basic"},
    "small": {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1] * 4, "layer_type": "basic"},
}
ASKED, CLASSES, RATE = 1.05, 8, 1e-3
Batches = Callable[[Sequence[int]], Iterable[tuple[Tensor, Tensor]]]  # positions -> normalised images and labels

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--network", choices=SIZES, default="resnet18", help="random weights (default: resnet18)")
parser.add_argument("--size", type=int, default=224, metavar="N", help="side of the prepared images (default: 224)")
parser.add_argument("--images", type=int, default=512, metavar="N", help="number of training images (default: 512)")
parser.add_argument("--epochs", type=int, default=2, metavar="N", help="number of epochs (default: 2)")
parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="batch size (default: 32)")
parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)")


def main() -> None:
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{args.network}, {args.images} images of {args.size}, {args.epochs} epochs, torch {torch.__version__}\n")
    print(f"{'what':<8} {'seconds':>8} {'plain':>8} {'/ plain':>16} {'limit':>5} {'decoded':>8} {'plain':>8}  weights")
    with TemporaryDirectory() as folder:
        splits = {"train": args.images, "validation": args.images // 8, "test": args.images // 8}
        for split, count in splits.items():
            photographs(Path(folder, "pictures", split), count)
        rows = DatasetDict({split: rows_of(Path(folder, "pictures", split)) for split in splits})
        print(in_turns("train", *training(Path(folder), rows, args), args.rounds), flush=True)
        print(retraining(Path(folder), rows, args), flush=True)


def photographs(folder: Path, count: int) -> None:
    """Write JPEG files of noise and blobs to class folders. The colours of the blobs depend on the class."""
    rng = np.random.default_rng(sum(map(ord, folder.name)))
    for number in range(count):
        (folder / f"class{number % CLASSES}").mkdir(parents=True, exist_ok=True)
        blotches = rng.integers(0, 200, (6, 8, 3)).astype(np.uint8) + np.uint8(6 * (number % CLASSES))
        large = np.asarray(Pictures.fromarray(blotches).resize((500, 375), Pictures.Resampling.BICUBIC), np.float32)
        noisy = (large + rng.normal(0, 10, large.shape)).clip(0, 255).astype(np.uint8)
        Pictures.fromarray(noisy).save(folder / f"class{number % CLASSES}" / f"{number:05}.jpg", quality=90)


def rows_of(folder: Path) -> Dataset:
    """Return the rows of a folder in the order of torchvision's ImageFolder."""
    files = ImageFolder(folder)
    paths, labels = zip(*files.samples, strict=True)
    features = Features({"image": Image(), "label": ClassLabel(names=files.classes)})
    return Dataset.from_dict({"image": list(paths), "label": list(labels)}, features)


def in_turns(name: str, ours: Callable[[], dict], plain: Callable[[], dict], rounds: int) -> str:
    """Return a table row that compares two functions, each of which returns its final weights."""
    seconds: dict[Callable, list[float]] = {ours: [], plain: []}
    decoded = {}
    for turn in range(-1, rounds):  # the first round is a warm-up
        ended = []
        for work in (ours, plain):
            with decodes() as files:
                begun = used()
                ended.append(work())
                seconds[work] += [used() - begun] if turn >= 0 else []
            decoded[work] = len(files)
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if rounds > 1 else ratios * 3
    off = max(float((ended[0][key].double() - ended[1][key].double()).abs().max()) for key in ended[1])
    taken, plainly = map(statistics.median, seconds.values())
    return (
        f"{name:<8} {taken:>8.2f} {plainly:>8.2f} {f'{middle:.3f} ({low:.3f}-{high:.3f})':>16} {ASKED:>5.2f} "
        f"{decoded[ours]:>8} {decoded[plain]:>8}  {f'off by {off:.1e}' if off else 'equal'}"
    )


def used() -> float:
    """Return CPU seconds of this process and its children."""
    return sum(os.times()[:4])


@contextmanager
def decodes() -> Iterator[list[object]]:
    """Yield a list that grows with each file that Pillow decodes."""
    decoded: list[object] = []
    prepare = ImageFile.ImageFile.load_prepare

    def counting(image: ImageFile.ImageFile) -> None:
        decoded.append(None)
        prepare(image)

    with patch.object(ImageFile.ImageFile, "load_prepare", counting):
        yield decoded


def training(folder: Path, rows: DatasetDict, args) -> tuple[Callable[[], dict], Callable[[], dict]]:
    """Compare `train` with a plain loop over the same files."""
    config = ResNetConfig(**SIZES[args.network], num_labels=CLASSES)
    out = folder / "trained"

    def ours() -> dict:
        shutil.rmtree(out, ignore_errors=True)
        sb.train(dataset=rows, model=copy.deepcopy(config), out=out, epochs=args.epochs, learning_rate=RATE,
                 batch_size=args.batch_size, size=args.size, device="cpu", progress=False)  # fmt: skip
        return AutoModelForImageClassification.from_pretrained(out).state_dict()

    def plain() -> dict:
        scaled = [v2.PILToTensor(), v2.Resize((args.size,) * 2), v2.ToDtype(torch.float32, scale=True)]
        prepare = v2.Compose([*scaled, v2.Normalize((0.5,) * 3, (0.5,) * 3)])
        data = {split: ImageFolder(folder / "pictures" / split, prepare) for split in rows}
        torch.manual_seed(seed_of(0, "weights"))
        network = AutoModelForImageClassification.from_config(config)

        def batches(split: str) -> Batches:
            return lambda order: DataLoader(data[split], args.batch_size, sampler=order)

        loop(network, batches("train"), batches("validation"), args, 0, folder / "best.pt")
        accuracy(network, batches("test")(range(len(data["test"]))))
        network.save_pretrained(folder / "plain")
        return network.state_dict()

    return ours, plain


def batches_of(images: Tensor, labels: Tensor, size: int, order: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of images in memory."""
    for part in torch.tensor(order).split(size):
        yield images[part], labels[part]


def loop(network: nn.Module, train: Batches, validation: Batches, args, seed: int, file: Path) -> None:
    """Train, and save the weights from the epoch with the best accuracy on the validation images."""
    optimizer, best = torch.optim.Adam(network.parameters(), lr=RATE), -1.0
    for epoch in range(args.epochs):
        # Use the order of this package, and draw the same number of random numbers.
        order = np.argsort(random_bits(seed_of(seed, "epoch", epoch), args.images), kind="stable")
        network.train()
        total = 0.0
        for images, labels in train(order.tolist()):
            loss = nn.functional.cross_entropy(network(images).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(images)
        share = accuracy(network, validation(range(args.images // 8)))
        if share > best:
            best = share
            torch.save(network.state_dict(), file)
    network.load_state_dict(torch.load(file))


@torch.no_grad()
def accuracy(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    network.eval()
    right = [network(images).logits.argmax(1) == labels for images, labels in batches]
    return float(torch.cat(right).double().mean())


def retraining(folder: Path, rows: DatasetDict, args) -> str:
    """Return the row for one retraining, measured within a run: the second one, which uses maps."""
    made: list[Classifier] = []  # network of each retraining
    found: list[str] = []
    retrain, new_classifier = tasks.retrain, tasks.new_classifier

    def noted(*given) -> Classifier:
        made.append(new_classifier(*given))
        return made[-1]

    def measured(setup, splits, pictures, folder_of_task: Path, task: tasks.Task, advance) -> None:
        def ours() -> dict:
            retrain(setup, splits, pictures, folder_of_task, task, advance)
            return made[-1].model.state_dict()

        if task.explainer is None:
            ours()
            return
        seed = seed_of(setup.seed, "retraining", task.number)
        sources = [tasks.Changed.make(task, split, pictures, torch.device("cpu")) for split in splits.all]
        changed = [source.batch(np.arange(len(source))) for source in sources]
        held = [(setup.classifier.normalised(images), labels) for images, labels in changed]
        clean = setup.classifier.normalised(sources[2].plain(sources[2].kept))

        def plain() -> dict:
            network = new_classifier(setup, task.number).model

            loop(network, *(partial(batches_of, *of_split, args.batch_size) for of_split in held[:2]), args, seed,
                 folder / "best.pt")  # fmt: skip
            for images in (held[2][0], clean):
                accuracy(network, zip(images.split(args.batch_size), held[2][1].split(args.batch_size), strict=True))
            return network.state_dict()

        found.append(in_turns("retrain", ours, plain, args.rounds))

    options = f"trainings=1,epochs={args.epochs},batch_size={args.batch_size},exposures=[0,0.5]"
    with patch.object(tasks, "new_classifier", noted), patch.object(stage, "retrain", measured):
        sb.run(dataset=rows, model=str(folder / "trained"), explainers=["random"], out=folder / "run", device="cpu",
               metrics=[f"saliency_roar:{options}"], limit=args.images // 8, progress=False)  # fmt: skip
    return "\n".join(found)


if __name__ == "__main__":
    main()
