"""ACT-X: images of human activities, with the regions that annotators pointed at as masks.

Source: a folder with the following data, as downloaded and unpacked.

- ACT-X of Park et al. 2018 (github.com/Seth-Park/MultimodalExplanations): `ACT-X/textual/exp_SPLIT_split.json` for
  train, val and test, and `ACT-X/visual/{val,test}/QUESTION.npy` (three maps each; the training split has none). The
  folder `ACT-X/` itself is optional.
- The images of MPII Human Pose (human-pose.mpi-inf.mpg.de; for research): `images/*.jpg` (or `mpii_images/`), and its
  annotations `mpii_human_pose_v1_u12_1.mat`. The annotations state which images are frames of the same video. If they
  are missing, each image is a separate group.

A language model decides, with the paper's prompt, whether a question-answer pair can become a class. The default
is GPT-4o mini through OpenAI (token in OPENAI_API_KEY), as in the paper. `--model HUB-ID` selects a model through the
inference providers of Hugging Face (HF_TOKEN, or `hf auth login`), and `--server URL` selects any server with a
chat-completion API. Tokens are read from the environment and never stored. The replies are stored in `answers.jsonl` in
the source folder (or `--answers FILE`), so that a rebuild sends no requests. They are published with the dataset.
"""

import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub_builders import _examples, _language_model
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import (
    PICTURES,
    base_of,
    first_folder,
    inside,
    json_of,
    listed_file,
    mask_or_none,
    needed,
    part,
    picture_of,
    spread,
)
from saliency_bench.utils.pictures import Picture, UnreadableError, file_bytes

VERSION = "3"
ALSO_CALLED = ("act-x",)
TITLE = "Action-XAI"
ANNOTATORS = ("crowdsourced", "machine-generated")
SOURCES = ("extended|other-act-x", "extended|other-mpii-human-pose")
PAPER = SALIENCY_BENCH
LICENSE = "other"
TERMS = ("act-x-and-mpii-human-pose-terms", "http://human-pose.mpi-inf.mpg.de/")
REDISTRIBUTE = False
EXAMPLE = {"ask": False}
PRIVATE = ("answers", "provider", "server", "token")
PAPER_COUNTS = {"samples": 11511}  # number of masks in the paper; the published data do not contain all of them
CITATION = """@inproceedings{park2018multimodal,
  title = {Multimodal Explanations: Justifying Decisions and Pointing to the Evidence},
  author = {Park, Dong Huk and Hendricks, Lisa Anne and Akata, Zeynep and Rohrbach, Anna and Schiele, Bernt and Darrell,
            Trevor and Rohrbach, Marcus},
  booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
  year = {2018}
}
@inproceedings{andriluka2014human,
  title = {2D Human Pose Estimation: New Benchmark and State of the Art Analysis},
  author = {Andriluka, Mykhaylo and Pishchulin, Leonid and Gehler, Peter and Schiele, Bernt},
  booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
  year = {2014}
}"""
RULE = """The label is the answer. A sample is included if a language model accepts its question and answer as a
classification task, given the paper's prompt. The mask contains the pixels that at least half of the annotators marked.
A pixel counts as marked by an annotator if its value exceeds half of the maximum of that annotator's map. The mask is
scaled to the size of the image with nearest-neighbour interpolation. ACT-X was published with maps for its validation
and test splits only, so the paper's 11,511 masks, one per sample, cannot be reproduced. Samples without a map have no
mask.
`explanations` contains the source's textual explanations."""
GROUP = "the video that the image is a frame of (the image itself if MPII's annotations are not in the source)"

HOME = (
    "ACT-X, github.com/Seth-Park/MultimodalExplanations, and MPII Human Pose, human-pose.mpi-inf.mpg.de (research use)"
)
ANNOTATIONS = "mpii_human_pose_v1_u12_1.mat"
QUESTION = "What is the person doing?"  # the question of every sample; the files contain only answers
SPLITS = ("train", "val", "test")
BYTES = 2**26  # maximum number of bytes of an unpacked file of maps


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. The classes are the accepted answers."""
    from datasets import ClassLabel, List, Value

    return {"label": ClassLabel(names=classes["label"]), "explanations": List(Value("string"))}


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    ask: bool = True,
    answers: str = "",
    model: str = "gpt-4o-mini",
    provider: str = "auto",
    server: str = "",
    token: str = "",
) -> Iterator[Job]:
    """Yield one job per accepted question, split by split, ordered by question id.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        ask: keep only the question-answer pairs that a language model accepts.
        answers: file with the language model's replies (default: answers.jsonl in the source folder).
        model: name of an OpenAI language model, or Hub id of a model.
        provider: inference provider for a model on the Hub.
        server: URL of a server to use instead, such as http://localhost:8000/v1.
        token: name of the environment variable that contains the token (default: OPENAI_API_KEY, or HF_TOKEN for the
            Hub).
    """
    service = _language_model.Service(model, provider, server, token)
    root = root_of(source)
    images = first_folder(root, "images", "mpii_images", "../images", "../mpii_images")
    if images is None:
        raise UserError(
            f"{root} does not contain MPII's images/; pass the folder of the complete, unpacked source: {HOME}"
        )
    video_of = videos(images, log)
    entries = questions(root, log)
    keep = kept(source, entries, log, ask, answers, service)
    log.expected = len(entries)
    log.classes = {"label": sorted({answer for (_, answer), yes in keep.items() if yes})}
    if not log.classes["label"]:
        raise UserError(
            "action-xai: the language model did not accept any question-answer pair; check the file that contains "
            "its replies"
        )
    for key, (split, entry) in entries.items():
        if keep[entry["question"], entry["ans"]]:
            image = str(entry["iid"])
            if path := listed_file(log, key, images, image if image.lower().endswith(PICTURES) else f"{image}.jpg"):
                maps = maps_of(root / "visual" / split, key)
                group = video_of.get(path.stem, image)
                yield Job(sample_of, key, path, split, group, entry["ans"], entry["exp"], maps)
        else:
            reason = f"the language model does not accept {entry['ans']!r} as a class"
            log.leave_out(key, "image", reason)


def check(token: str, **_: object) -> None:
    """Raise UserError if the option `token` contains a token instead of the name of a variable.

    The check runs before the value is stored anywhere.
    """
    _language_model.check_token(token)


def root_of(source: Path | None) -> Path:
    """Return the folder of ACT-X in the source."""
    source = needed(source, "action-xai", HOME)
    root = first_folder(source, "ACT-X", "act-x") or base_of(source, "textual")
    part(root, "textual/", HOME)
    return root


def videos(images: Path, log: BuildLog) -> dict[str, str]:
    """Return {image name: video that contains the image}.

    Raises:
        UserError: The annotations cannot be read.
    """
    from scipy.io import loadmat

    folders = [where / name for where in (images.parent, images) for name in ("", "mpii_human_pose_v1_u12_2")]
    path = next((folder / ANNOTATIONS for folder in folders if (folder / ANNOTATIONS).is_file()), None)
    if path is None:
        log.remark(
            ANNOTATIONS, "the file is not in the source, so frames of the same video are treated as independent images"
        )
        return {}
    try:
        file = BytesIO(file_bytes(path))
        frames = loadmat(file, struct_as_record=False, squeeze_me=True, variable_names="RELEASE")["RELEASE"].annolist
        named = [(str(frame.image.name), frame.vididx) for frame in np.atleast_1d(frames)]
        return {Path(name).stem: f"video {int(number)}" for name, number in named if np.size(number) == 1}
    except Exception as error:  # damaged files raise errors of many types
        raise UserError(f"{path} cannot be read ({one_line(error)}); download it again: {HOME}") from error


def questions(root: Path, log: BuildLog) -> dict[str, tuple[str, dict]]:
    """Return {question id: (split, {question, ans, iid, exp})}.

    Raises:
        UserError: The source has no list of questions.
    """
    entries: dict[str, tuple[str, dict]] = {}
    there = [split for split in SPLITS if (root / f"textual/exp_{split}_split.json").is_file()]
    if not there:
        raise UserError(
            f"{root / 'textual'} has none of the files exp_SPLIT_split.json; download the source again "
            f"and unpack it: {HOME}"
        )
    for split in there:
        for key, entry in sorted(json_of(root / f"textual/exp_{split}_split.json", dict).items()):
            fields = entry if isinstance(entry, dict) else {}
            answer, image = fields.get("ans"), fields.get("iid")
            if not isinstance(answer, str) or not answer.strip() or not isinstance(image, str | int):
                log.leave_out(key, "image", "its entry has no answer (`ans`) or no image id (`iid`)")
            elif key in entries:
                log.remark(key, f"exp_{split}_split.json: a second question has this id; the first one is used")
            else:
                texts = fields.get("exp")
                texts = [texts] if isinstance(texts, str) else texts if isinstance(texts, list) else []
                question = fields.get("question") if isinstance(fields.get("question"), str) else QUESTION
                entries[key] = (split, {
                    "question": question, "ans": answer.strip(), "iid": image, "exp": [str(text) for text in texts],
                })  # fmt: skip
    return entries


def kept(
    source: Path | None, entries: dict, log: BuildLog, ask: bool, answers: str, service: _language_model.Service
) -> dict[_language_model.Pair, bool]:
    """Return {(question, answer): whether to keep this pair}."""
    pairs = [(entry["question"], entry["ans"]) for _, entry in entries.values()]
    if not ask:
        return dict.fromkeys(pairs, True)
    file = Path(answers).expanduser() if answers else Path(source or ".") / "answers.jsonl"
    return _language_model.accepted(pairs, file, service, log)


def sample_of(
    log: BuildLog, key: str, path: Path, split: str, group: str, label: str, texts: list[str], maps: Path | None
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, key, path)
    if picture is None:
        return None
    return {
        "image_id": key,
        "image": picture,
        "label": label,
        "mask": mask_or_none(log, key, lambda: pointed(maps, picture)),
        "explanations": texts,
        "source_split": split,
        "group": group,
    }


def maps_of(folder: Path, key: str) -> Path | None:
    """Return the file with the maps of a question, or None."""
    try:
        return next((p for p in (inside(folder, f"{key}{end}") for end in (".npy", ".npz")) if p.is_file()), None)
    except UnreadableError:  # the name points outside the folder, so it belongs to no maps
        return None


def pointed(path: Path | None, picture: Picture) -> np.ndarray:
    """Return the pixels that at least half of the annotators pointed at, bool (H, W)."""
    if path is None:
        raise UnreadableError("no pointing annotation")
    maps = arrays_of(path)
    maps = maps[None] if maps.ndim == 2 else maps
    if maps.ndim != 3 or not maps.size or maps.dtype.kind not in "biuf" or not np.isfinite(maps).all():
        raise UnreadableError(f"{path.name} is not a stack of maps")
    marks = [values > values.max() / 2 for values in maps.astype(np.float64) if values.max() > 0]
    if not marks:
        raise UnreadableError("empty mask")
    return spread(2 * np.sum(marks, axis=0) >= len(marks), picture)


def arrays_of(path: Path) -> np.ndarray:
    """Return the array in a NumPy file without unpickling.

    Raises:
        UnreadableError: The file cannot be read.
    """
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as packed:
                if sum(member.file_size for member in packed.infolist()) > BYTES:
                    raise UnreadableError(f"{path.name} unpacks to more than {BYTES // 2**20} MiB")
            with np.load(path, allow_pickle=False) as stored:
                return np.asarray(stored[stored.files[0]])
        if path.stat().st_size > BYTES:
            raise UnreadableError(f"{path.name} has more than {BYTES // 2**20} MiB")
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except UnreadableError:
        raise
    except Exception as error:  # damaged files raise errors of many types
        raise UnreadableError(f"{path.name} is not a valid NumPy file ({type(error).__name__})") from None


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    explanations: dict[str, dict] = {}
    (folder / "ACT-X/visual/val").mkdir(parents=True)
    for index in range(count):
        mask = _examples.picture(folder / f"images/{index:09d}.jpg", index + 72, side)
        answer = ("ironing", "skating, ice")[index % 2]
        explanations[f"v{index}"] = {"iid": f"{index:09d}", "ans": answer, "exp": ["Because of what he holds."]}
        np.save(
            folder / f"ACT-X/visual/val/v{index}.npy", np.stack([mask, mask, np.roll(mask, 2, 0)]).astype(np.float32)
        )
    _examples.text(folder / "ACT-X/textual/exp_val_split.json", explanations)
