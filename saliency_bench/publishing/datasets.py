"""Publish a built dataset, or only its annotations if the images may not be redistributed."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from PIL import Image, ImageDraw

from saliency_bench import registry
from saliency_bench.data import annotations
from saliency_bench.data.annotations import checksum, rows_of
from saliency_bench.data.build_report import HIDDEN, REPORT, read_report, report_bytes
from saliency_bench.data.card import ANNOTATIONS, CONFIG, card, terms
from saliency_bench.data.hidden_masks import MASKS_OF, hide_masks, keep_masks
from saliency_bench.data.hub_datasets import published_report
from saliency_bench.data.untrusted_reports import complete
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub.client import account, no_bars
from saliency_bench.hub.upload_plan import STARTERS, Publication
from saliency_bench.publishing.headline import eval_yaml, shown_split
from saliency_bench.publishing.own_data import check_published_alike, is_own_data
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.masks import object_in
from saliency_bench.utils.messages import counted
from saliency_bench.utils.pictures import decode, open_rgb

PICTURE = "assets/samples.png"
SAMPLES, COLUMNS, CELL, GAP = 6, 3, 256, 8
TINT = (230, 40, 40)
OWNED = ("data/*.parquet", "annotations/*.parquet", PICTURE)
MARK = (REPORT, "dataset", HIDDEN, MASKS_OF)
KEPT = "-masks"  # suffix of the private repository of a dataset's hidden masks


def dataset_publication(
    folder: str | Path,
    namespace: str,
    workspace: Path,
    name: str | None = None,
    with_images: str | None = None,
    evaluation: bool = False,
    hide: str | None = None,
) -> Publication:
    """Return the files to publish for a dataset written by `saliency-bench build`.

    Args:
        folder: Folder of the dataset.
        namespace: Namespace on the Hub.
        workspace: Empty folder for temporary files.
        name: Name of the repository. Defaults to the dataset's name.
        with_images: Licence under which to publish images that may otherwise not be redistributed. If it is None, only
            the annotations of such a dataset are published.
        evaluation: Whether to add `eval.yaml` (see `headline`). With this file, the Hub shows scores of models on the
            dataset's page. The Hub may reject the whole upload if the framework is not registered.
        hide: Split whose masks are left out. `masks_publication` publishes them in a private repository.

    Raises:
        UserError: The folder is not a built dataset or has been changed since the build, a licence is passed but not
            needed, or masks cannot be hidden because anyone can build them.
    """
    folder = Path(folder)
    build_report = _checked_report(folder)
    repo, builder = (
        f"{namespace}/{name or build_report['dataset']}",
        registry.load("hub_builders", build_report["dataset"]),
    )
    nameless = is_own_data(build_report["dataset"])
    if nameless and name is None:
        raise UserError(f"{folder} contains your own dataset, which has no name on the Hub yet; add --name NAME")
    if with_images and build_report["redistribute_images"]:
        raise UserError(
            f"the licence of {build_report['dataset']} allows its images to be published; remove --with-images"
        )
    if with_images and (with_images == "other" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", with_images)):
        raise UserError(
            f"--with-images {with_images} is not a licence identifier of the Hub; use one such as cc-by-4.0"
        )
    if nameless:
        check_published_alike(folder, repo, hide)
    if hide:
        _check_secret(build_report, with_images)
        build_report, folder = hide_masks(folder, build_report, hide, workspace), workspace
    named, _ = terms(builder, license := with_images or build_report["license"])
    license += f" ({named})" if named else ""
    features, centre = annotations.features_of(folder, build_report), _centre(folder, build_report)
    if not (build_report["redistribute_images"] or with_images):
        build_report = annotations.split_off(folder, build_report, workspace)
        readme = _with_bias(card(builder, build_report, annotations.without_images(features), ANNOTATIONS), centre)
        return Publication(
            "dataset",
            repo,
            _files(workspace, build_report, readme, repo, ANNOTATIONS if evaluation else None),
            license,
            OWNED,
            MARK,
        )
    if with_images or hide:
        readme = card(builder, build_report, features, images_license=with_images)
    else:
        readme = (folder / "README.md").read_text(encoding="utf-8")
    if hide:
        readme, config = _with_bias(readme, centre), CONFIG if evaluation else None
        return Publication("dataset", repo, _files(folder, build_report, readme, repo, config), license, OWNED, MARK)
    picture, shown = samples_picture(folder, build_report)
    readme, config = _with_bias(_with_picture(readme, shown), centre), CONFIG if evaluation else None
    files = _files(folder, build_report, readme, repo, config) | {PICTURE: picture}
    return Publication("dataset", repo, files, license, OWNED, MARK)


def masks_publication(public: Publication, folder: str | Path, split: str, workspace: Path) -> Publication:
    """Return the files of the private repository for hidden masks.

    The files contain all columns of the split except its images.

    Args:
        public: Publication of the dataset without these masks.
        folder: Folder of the dataset with the masks.
        split: Split whose masks are hidden.
        workspace: Empty folder for temporary files.
    """
    build_report = keep_masks(Path(folder), _checked_report(Path(folder)), split, workspace) | {MASKS_OF: public.repo}
    text = (
        f"# Hidden masks\n\nThis repository contains the masks of the split `{split}` of {public.repo}. It must remain "
        "private.\n"
    )
    files = _files(workspace, build_report, text, public.repo, None)
    return Publication("dataset", public.repo + KEPT, files, public.license, OWNED, MARK)


def check_never_shown(repo: str, split: str, api: HfApi) -> None:
    """Check that the masks to hide were never published. Errors from the Hub are raised unchanged.

    Args:
        repo: Id of the public repository.
        split: Split whose masks are to be hidden.
        api: `HfApi` client.

    Raises:
        UserError: A commit of the repository contains these masks, or data of unknown origin.
    """
    try:
        refs = api.list_repo_refs(repo, repo_type="dataset")
    except RepositoryNotFoundError:
        return
    names = [ref.ref for ref in (*refs.branches, *refs.tags)]
    commits = {commit.commit_id for name in names
               for commit in api.list_repo_commits(repo, repo_type="dataset", revision=name)}  # fmt: skip
    for commit in sorted(commits):
        files = set(api.list_repo_files(repo, repo_type="dataset", revision=commit)) - set(STARTERS)
        if files and published_report(repo, commit, api).get(HIDDEN) != split:
            raise UserError(
                f"commit {commit[:12]} of {repo} was published without hiding the masks of {split}, so others may "
                "already have them; use images that were never published, and a different --name"
            )


def check_hidden_nowhere(folder: str | Path, repo: str, hide: str | None, api: HfApi) -> None:
    """Check that no private repository of the account hides masks that would now be published.

    Samples count as the same if their images are the same, so a copied, renamed or rebuilt folder is recognised.
    Errors from the Hub are raised unchanged.

    Args:
        folder: Folder of the dataset.
        repo: Repository to publish.
        hide: Split whose masks `repo` hides, or None if it shows all masks.
        api: `HfApi` client with a token.

    Raises:
        UserError: A private repository hides these masks. The message names the repository.
    """
    build_report = _checked_report(Path(folder))
    masks = {checksum(row["image"]): row["image_id"]
             for split, part in build_report["splits"].items() if split != hide
             for row in rows_of(Path(folder), part, ["image_id", "image", "mask"]) if row["mask"]}  # fmt: skip
    owners = {repo.partition("/")[0].casefold(): repo.partition("/")[0]}
    owners |= {name.casefold(): name for name in account(api).roles}
    repositories = [info for name in owners.values() if masks for info in api.list_datasets(author=name)]
    for kept in sorted(info.id for info in repositories if info.private and info.id.endswith(KEPT)):
        if (public := published_report(kept, api=api).get(MASKS_OF)) is None:
            continue
        with no_bars():
            snapshot = Path(snapshot_download(kept, repo_type="dataset", endpoint=api.endpoint, token=api.token))
        hidden = {row["image_sha256"] for part in read_report(snapshot)["splits"].values()
                  for row in rows_of(snapshot, part, ["image_sha256"])}  # fmt: skip
        if both := sorted(masks[image] for image in masks.keys() & hidden):
            raise UserError(
                f"{public} hides the masks of {counted(len(both), 'image')} that {repo} would show, such as "
                f"{one_line(both[0], 100)}; add --hide-masks, or remove these images; if their masks no longer "
                f"need to be hidden, delete {kept}"
            )


def _check_secret(build_report: dict, with_images: str | None) -> None:
    """Raise UserError if anyone can build the masks, or if the images would not be published with the dataset."""
    if not is_own_data(build_report["dataset"]):
        raise UserError(
            f"anyone can build {build_report['dataset']} with its masks, so they cannot be hidden; use --hide-masks "
            f"only for your own data"
        )
    if not (build_report["redistribute_images"] or with_images):
        raise UserError(
            "maps can be submitted only for published images; publish the images with --with-images LICENCE"
        )


def samples_picture(folder: Path, build_report: dict) -> tuple[bytes, list[str]]:
    """Return a PNG that shows six samples of different classes with their masks, and the captions of the samples."""
    chosen = _chosen(folder, build_report)
    rows = -(-len(chosen) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (CELL + GAP) - GAP, rows * (CELL + GAP) - GAP), "white")
    for index, row in enumerate(chosen):
        cell = _with_mask(row)
        left, top = index % COLUMNS * (CELL + GAP), index // COLUMNS * (CELL + GAP)
        sheet.paste(cell, (left + (CELL - cell.width) // 2, top + (CELL - cell.height) // 2))
    buffer = BytesIO()
    sheet.save(buffer, format="png")
    kind = annotations.features_of(folder, build_report)["label"]
    shown = [
        row["image_id"] if row["label"] is None else f"{kind.names[row['label']]} ({row['image_id']})" for row in chosen
    ]
    return buffer.getvalue(), shown


def _checked_report(folder: Path) -> dict:
    """Return the build report, after checking that it matches every file."""
    if not (folder / REPORT).is_file():
        raise UserError(f"{folder} is not a dataset built by `saliency-bench build` (it has no {REPORT})")
    build_report = complete(read_report(folder), str(folder))
    for part in build_report["splits"].values():
        for file in part["files"]:
            path = folder / file["path"]
            if not path.is_file() or sha256_of(path) != file["sha256"]:
                raise UserError(f"{path} differs from the file described in {REPORT}; build the dataset again")
    return build_report


def _files(root: Path, build_report: dict, readme: str, repo: str, config: str | None) -> dict[str, Path | bytes]:
    """Return the files to publish. If `config` is None, eval.yaml is left out; otherwise, it contains this config."""
    files: dict[str, Path | bytes] = {
        file["path"]: root / file["path"] for part in build_report["splits"].values() for file in part["files"]
    }
    named = readme.replace(f'"saliency-bench/{build_report["dataset"]}"', f'"{repo}"')
    evaluation = {"eval.yaml": eval_yaml(build_report, config)} if config else {}
    return files | {REPORT: report_bytes(build_report), "README.md": named.encode()} | evaluation


def _with_picture(readme: str, shown: list[str]) -> str:
    text = f"## Samples\n\n![six samples with their masks]({PICTURE})\n\nMasks in red: {', '.join(shown)}.\n\n"
    return readme.replace("## Splits\n", text + "## Splits\n", 1) if PICTURE not in readme else readme


def _with_bias(readme: str, line: str | None) -> str:
    """Add a line about centred masks to the section on biases in a card."""
    none, head = "## Known biases\n\n- No biases are known.\n", "## Known biases\n\n"
    return readme.replace(none, head).replace(head, f"{head}- {line}\n", 1) if line and line not in readme else readme


def _centre(folder: Path, build_report: dict) -> str | None:
    """Return a line for the card that states how well a map that ignores the image would match the masks."""
    split = shown_split(build_report)
    rows = annotations.rows_of(folder, build_report["splits"][split], ["mask"])
    masks = (object_in(decode(row["mask"]["bytes"])) for row in rows if row["mask"] is not None)
    covered = [(mask.mean(), mask[mask.shape[0] // 2, mask.shape[1] // 2]) for mask in masks]
    if not covered:
        return None
    area, centre = np.mean(covered, axis=0)
    return (
        f"In the split {split}, the mask covers {area:.0%} of the image on average, and it contains the central pixel "
        f"in {centre:.0%} of the samples. Compare every explainer with the baseline `centre`, which ignores the image."
    )


def _chosen(folder: Path, build_report: dict) -> list[dict]:
    """Select the first samples that have a mask, from as many different classes as possible.

    The samples come from the test split if there is one.
    """
    by_class: dict[int, dict] = {}
    others: list[dict] = []
    for row in annotations.rows_of(folder, build_report["splits"][shown_split(build_report)]):
        if row["mask"] is not None and row["label"] not in by_class:
            by_class[row["label"]] = row
        elif len(others) < SAMPLES:
            others.append(row)
        if len(by_class) == SAMPLES:
            break
    return [*by_class.values(), *others][:SAMPLES]


def _with_mask(row: dict) -> Image.Image:
    """Draw an image with its mask tinted and outlined, scaled to at most CELL pixels per side."""
    image = open_rgb(row["image"]["bytes"])
    scale = CELL / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    if row["mask"] is None:
        return Image.fromarray(pixels.astype(np.uint8))
    mask = Image.fromarray(object_in(decode(row["mask"]["bytes"]))).resize(size, Image.Resampling.NEAREST)
    inside = np.asarray(mask)[..., None]
    tinted = Image.fromarray(np.where(inside, 0.6 * pixels + 0.4 * np.array(TINT), pixels).astype(np.uint8))
    edge = np.argwhere(inside[..., 0] & ~_shrunk(_shrunk(_shrunk(inside[..., 0]))))  # three pixels wide
    ImageDraw.Draw(tinted).point([(int(x), int(y)) for y, x in edge], fill=TINT)
    return tinted


def _shrunk(mask: np.ndarray) -> np.ndarray:
    """Return a mask without the pixels at its border."""
    padded = np.pad(mask, 1)
    return padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
