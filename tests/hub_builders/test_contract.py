"""Tests of the contract of all builders: constants, help, identical output for any number of threads, page."""

import io
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

import contracts
import datasets
import pytest
from built_samples import built_by, content
from huggingface_hub import DatasetCard
from PIL import Image
from refusals import refused
from site_pages import site_page

from saliency_bench import build, cli, options, registry
from saliency_bench.data import builders, building
from saliency_bench.data.card import group_line
from saliency_bench.data.jobs import BuildLog
from saliency_bench.hub_builders import _examples

NAMES = contracts.complete("hub_builders")
EXAMPLES = contracts.examples()


@pytest.mark.parametrize("name", contracts.names("hub_builders"))
def test_builder_defines_all_required_attributes(name):
    contracts.check("hub_builders", name)


@pytest.mark.parametrize("name", NAMES)
def test_builder_help_states_licence_rule_and_options(name, capsys):
    builder = registry.load("hub_builders", name)
    assert getattr(builder, "SPLIT", "test") in building.SPLITS
    if builder.LICENSE == "other":  # the Hub requires a name in its own spelling, and an address
        called, address = builder.TERMS
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", called)
        assert re.fullmatch(r"https?://\S+", address)
    with pytest.raises(SystemExit):
        cli.main(["build", name, "--help"])
    text = capsys.readouterr().out
    words = " ".join(text.split())  # lines are as wide as the terminal
    assert "Source" in text or getattr(builder, "EMBEDDED", False)
    assert "--workers N" in text
    licence = "set by --license" if getattr(builder, "OWN_DATA", "") else builder.LICENSE
    assert f"licence: {licence}" in words
    assert ("published: images" if builder.REDISTRIBUTE else "published: masks and labels only") in words
    assert " ".join(builder.RULE.split()) in words
    assert text.rstrip().endswith(f"--out {name}")
    assert all(f"{count:,} {what}" in words for what, count in builder.PAPER_COUNTS.items() if isinstance(count, int))
    for option in options.defaults(builder.samples):
        assert f"--{option.replace('_', '-')}" in text
        assert f"{option}: " in (builder.samples.__doc__ or "") + "seed: ", f"{option} has no help text"


@pytest.mark.parametrize("name", EXAMPLES)
def test_missing_source_and_empty_folder_are_rejected(name, tmp_path):
    name, options = name.partition(" ")[0], _examples.options(name)
    refused(r"--source DIR \(source=DIR\) with ", build, name, tmp_path / "out", progress=False, **options)
    (tmp_path / "empty").mkdir()
    words = "has no|has none|has neither|does not contain|gives? the folder"
    refused(words, build, name, tmp_path / "out", tmp_path / "empty", progress=False, **options)


VOC = "VOCdevkit/VOC2012/"
PARTS = {
    "pet-xai": ("Visual Geometry Group", "images", "annotations", "annotations/list.txt", "annotations/trimaps"),
    "object-xai": ("VOCtrainval", f"{VOC}JPEGImages", f"{VOC}SegmentationClass", f"{VOC}ImageSets/Segmentation"),
    "cancer-xai": ("medicaldecathlon|NIH", "Task07_Pancreas/imagesTr", "Pancreas-CT"),
    "gender-xai": (r"cocodataset\.org", "annotations", "train2017", "annotations/captions_train2017.json"),
    "security-xai": ("SIXray", "JPEGImage"),
}


@pytest.mark.parametrize("name", PARTS)
def test_missing_part_error_names_part_and_dataset_home(name, tmp_path):
    home, *parts = PARTS[name]
    for number, part in enumerate(parts):
        source = _examples.write(name, tmp_path / str(number), 3, 32)
        (source / part).rename(source / "gone")
        last = part.removeprefix(VOC).removeprefix("Task07_Pancreas/")
        refused(
            rf"has (no|none of the folders) {last}\b.*({home})", built_by, registry.load("hub_builders", name), source
        )


@pytest.mark.parametrize("name", EXAMPLES)
def test_job_keys_depend_on_every_file_read(name, tmp_path):
    """Test that a resumed build repeats jobs whose files have changed."""
    source, options = _examples.write(name, tmp_path, 6, 48), _examples.options(name)
    jobs = list(registry.load("hub_builders", name.partition(" ")[0]).samples(source, BuildLog(), **options))
    used = {path for path in opened_by(jobs) if path.is_relative_to(tmp_path)}
    assert used
    for path in used:
        before = [job.key() for job in jobs]
        os.utime(path, ns=(1, 1))
        assert before != [job.key() for job in jobs], path


@pytest.mark.parametrize("name", EXAMPLES)
def test_source_lists_are_read_once(name, tmp_path, monkeypatch):
    source, options = _examples.write(name, tmp_path, 6, 48), _examples.options(name)
    times: Counter = Counter()
    real = io.open

    def counted(file, *arguments, **settings):
        times[file if isinstance(file, int) else Path(file)] += 1
        return real(file, *arguments, **settings)

    monkeypatch.setattr(io, "open", counted)  # `open` of Path
    _, jobs = builders.start(registry.load("hub_builders", name.partition(" ")[0]), source, BuildLog(), options)
    assert list(jobs)
    lists = {path: times[path] for path in source.rglob("*") if path.suffix in (".json", ".csv", ".txt")}
    assert max(lists.values(), default=1) == 1, lists


def opened_by(jobs):
    opened, listening = set(), True

    def heard(event, arguments):
        if listening and event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.add(Path(arguments[0]))

    sys.addaudithook(heard)  # audit hooks cannot be removed, only disabled
    for job in jobs:
        job.samples(BuildLog())
    listening = False
    return opened


@pytest.mark.sample(10, 0)
@pytest.mark.parametrize("name", EXAMPLES)
def test_build_is_identical_with_one_and_three_threads(name, tmp_path):
    source, options = _examples.write(name, tmp_path / "source", 6, 48), _examples.options(name)
    dataset = name.partition(" ")[0]
    folders = [build(dataset, tmp_path / str(workers), source=source, progress=False, workers=workers, **options)
               for workers in (1, 3)]  # fmt: skip
    assert content(folders[0]) == content(folders[1])
    report = json.loads((folders[0] / "build_report.json").read_text())
    loaded = datasets.load_dataset(str(folders[0]))
    assert sum(map(len, loaded.values())) == report["counts"]["samples"] > 0
    assert {"counts", "paper_counts", "left_out", "near_duplicates", "splits", "license"} <= set(report)
    card = DatasetCard.load(folders[0] / "README.md").data.to_dict()
    terms = getattr(registry.load("hub_builders", dataset), "TERMS", (None, None))
    assert (card["license"], (card.get("license_name"), card.get("license_link"))) == (report["license"], terms)
    groups = {split: {group for group in rows["group"] if group is not None} for split, rows in loaded.items()}
    builder = registry.load("hub_builders", dataset)
    assert any(groups.values()) == hasattr(builder, "GROUP"), "GROUP says what `group` is"
    assert sum(map(len, groups.values())) == len(set().union(*groups.values())), "a group lies in one split"
    assert group_line(builder) in (folders[0] / "README.md").read_text()
    for part in report["splits"].values():
        assert {"class_shares", "files", "fingerprint"} <= set(part)


@pytest.mark.slow
def test_page_shows_every_dataset_and_its_samples(tmp_path):
    site_page("datasets").write(tmp_path)
    text = (tmp_path / "datasets.md").read_text(encoding="utf-8")
    for name in registry.names("hub_builders"):
        assert f"\n## {name}\n" in text
        if getattr(registry.load("hub_builders", name), "DERIVED", False):
            continue
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.height == 128
            assert len(picture.convert("RGB").getcolors(2**18)) > 20
