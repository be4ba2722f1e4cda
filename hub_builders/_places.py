"""Read Places365 in any of the three layouts in which it is distributed."""

from pathlib import Path

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._source import entries, first_folder, is_picture, lines, listed_file, part

HOME = "Places365-Standard, places2.csail.mit.edu (images for non-commercial research and education)"
TERMS = ("places-terms-of-use", "http://places2.csail.mit.edu/download.html")
CITATION = """@article{zhou2017places,
  title = {Places: A 10 million Image Database for Scene Recognition},
  author = {Zhou, Bolei and Lapedriza, Agata and Khosla, Aditya and Oliva, Aude and Torralba, Antonio},
  journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
  year = {2017}
}"""
EASY = ("places365_standard", ".")
TRAIN = ("data_256", "data_large", "data_256_standard", "data_large_standard")
VALIDATION = ("val_256", "val_large")
MARKS = (EASY[0], *TRAIN, *VALIDATION)  # the source folder contains at least one of these
Found = dict[str, tuple[Path, str, str]]  # {image id: (file, category, split)}


def images(root: Path, categories: list[str], log: BuildLog) -> Found:
    """Find the images of these categories (exact names such as "field/wild") in any supported layout.

    Raises:
        UserError: The source has none of the layouts, or a category has no folder in any layout.
    """
    images_found: Found = {}
    empty = set(categories)
    for folder, category, split in _folders(root, categories):
        empty.discard(category)
        for path in entries(folder):
            _add(images_found, f"{split}/{category}/{path.stem}", path, category, split, log)
    flat = first_folder(root, *VALIDATION)
    if flat:
        for number, name, category in _validation(root):
            if category in empty | set(categories):
                _list(images_found, flat, number, name, category, log)
                empty.discard(category)
    if len(empty) == len(categories):
        raise UserError(
            f"{root} has neither places365_standard/train/, nor {'/, '.join(TRAIN[:2])}/, nor "
            f"{VALIDATION[0]}/ with its lists; pass the folder of the complete, unpacked source: {HOME}"
        )
    if empty:
        raise UserError(f"{root} has no images for {', '.join(sorted(empty))}; unpack the complete source: {HOME}")
    return images_found


def _folders(root: Path, categories: list[str]) -> list[tuple[Path, str, str]]:
    """Return (folder, category, split) for each category folder. Some layouts have one folder per category."""
    there = []
    easy = next(
        (root / name for name in EASY if (root / name / "train").is_dir() or (root / name / "val").is_dir()), None
    )
    deep = first_folder(root, *TRAIN)
    for category in categories:
        if easy:
            there += [(easy / split / category.replace("/", "-"), category, split) for split in ("train", "val")]
        if deep:
            there.append((deep / category[0] / category, category, "train"))
    return [entry for entry in there if entry[0].is_dir()]


def _add(images_found: Found, name: str, path: Path, category: str, split: str, log: BuildLog) -> None:
    """Add an image unless it has already been found at a different size."""
    if not is_picture(path):
        log.leave_out(name if path.suffix else f"{name} (folder)", "image", "the file name has no image extension")
    elif name not in images_found:  # the small and the large distribution contain the same images
        images_found[name] = (path, category, split)


def _validation(root: Path) -> list[tuple[int, str, str]]:
    """Return (line number, file name, category) for each validation image in the list."""
    categories = {}
    for number, words in lines(part(root, "categories_places365.txt", HOME)):
        if len(words) != 2 or not words[1].isascii() or not words[1].isdigit() or len(words[0]) < 4:
            raise UserError(f"{root / 'categories_places365.txt'} line {number}: expected '/LETTER/CATEGORY NUMBER'")
        categories[int(words[1])] = words[0][3:]
    listed = []
    for number, words in lines(part(root, "places365_val.txt", HOME)):
        if len(words) != 2 or not words[1].isascii() or not words[1].isdigit():
            raise UserError(f"{root / 'places365_val.txt'} line {number}: expected 'NAME.jpg NUMBER'")
        if int(words[1]) not in categories:
            raise UserError(f"{root / 'places365_val.txt'} line {number}: {words[1]} is not the number of a category")
        listed.append((number, words[0], categories[int(words[1])]))
    return listed


def _list(images_found: Found, flat: Path, number: int, name: str, category: str, log: BuildLog) -> None:
    if path := listed_file(log, name, flat, name):
        if path.stem in images_found:
            log.remark(
                path.stem, f"places365_val.txt line {number}: the image is listed twice; the first entry is used"
            )
        images_found.setdefault(path.stem, (path, category, "val"))
