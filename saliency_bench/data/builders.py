"""The protocol of a dataset builder: one file `hub_builders/NAME.py` per dataset.

A builder is a module with a docstring. The first line of the docstring describes the dataset. The following text
explains where to get the source and what the folder must contain. The module defines these constants:

    VERSION       string; must be increased whenever the same source would produce different rows
    TITLE         display name
    ANNOTATORS    origin of labels and masks, in the Hub's terms: "crowdsourced", "expert-generated", "found",
                  "machine-generated"
    SOURCES       origin of the images, in the Hub's terms: "original", "extended|other-NAME"
    LICENSE       identifier in the Hub's spelling, such as "cc-by-sa-4.0"
    TERMS         required if LICENSE is "other": (name of the licence, its URL)
    REDISTRIBUTE  whether the images may be published
    CITATION      BibTeX
    RULE          how samples are made, for the card
    PAPER_COUNTS  counts reported in the paper: {"samples": n, "masks": n, COLUMN: {class name: n}}, or {"test": n} if
                  only a part of the dataset is evaluated; may be partial
    check(**options)  optional function that rejects invalid options before any file is read or written
    PAPER         optional: the paper that defines the counts and the rule, as "authors, title, year, URL"
    TAGS          optional: extra tags for the card
    BIASES        optional: known biases, for the card
    GROUP         required if samples have a `group`: short description of the group, for the card
    ALSO_CALLED   optional: other names of the dataset, for suggestions in error messages
    EMBEDDED      optional: True if the dataset needs no source and is built on first use
    EXAMPLE       optional: build options for the example; if the builder supports several layouts,
                  `EXAMPLE_<LAYOUT>` contains the options for a further layout
    PRIVATE       optional: options that concern only this machine (a token, a server) and do not change rows; build
                  reports never contain them
    JOBS          optional: jobs per batch, for builders whose jobs take seconds (default: 32)
    PROCESSES     optional: True if the jobs are pure Python (headers, XML) rather than image decoding, so that
                  threads would block each other; several processes then read large sources
    OWN_DATA      optional: name of an additional option for the source, besides --source; for builders that read
                  a layout of your own data instead of one named dataset
    DERIVED       optional: True if the source is a built dataset; such a builder has no example
    USAGE         optional: options in the usage example in the help text, such as "--from shapes --model M"
    SPLIT         optional: split of all samples that do not set `split`

and two functions:

    features() -> {column: feature}                    returns `label` (a ClassLabel) and any extra columns; if the
                                                       classes are read from the source, `features(classes)`
    samples(source, log, *, option=default, ...)       yields one Job per image, always in the same order

Unless the dataset is embedded or derived, the module also defines:

    example(folder, count, side)                       writes a small synthetic source in the raw layout, for the tests
                                                       and the samples page; `example_<LAYOUT>` writes a source in a
                                                       further layout

A `Job(make, *args)` is a call `make(log, *args)` that returns one sample (a dict), a list of samples, or None. Jobs run
on several threads, so slow work belongs in jobs. Keep their arguments small. Every file that a job reads must be an
argument of the job, or be inside a folder that is an argument, because a resumed build recomputes the jobs whose files
have changed. `samples` may also yield dicts instead of jobs.

A sample has the keys `image_id` (unique string), `image` and `label` (a class name). Optional keys are `mask`,
`source_split`, the extra columns, `group` and `split`. A `group` is a cluster of samples that depend on each other
(same patient, same scene, or same image in several rows). All samples of a group are in the same split. A sample
without `group` is its own group. `split` is train, validation or test if the source determines the split. An image is
a `pictures.Picture` (returned by `pictures.read`) or uint8 (H, W, 3); a mask may also be bool (H, W).

Report left-out images and masks with `log.leave_out(image_id, "image" or "mask", reason)`, and unusual samples that are
kept with `log.remark(image_id, text)`. `log.expected = n` is the number of jobs for the progress bar.
`log.classes = {column: [names]}`, set before the first job, is passed to `features`. `log.files = {name: bytes}` are
written next to the rows. Lines of the form "option: text" in the docstring of `samples` become the help texts on the
command line. An option `seed` receives the seed of the build.
"""

import inspect
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from datasets import Features, Image, Value

from saliency_bench import options as bound
from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError


def settings_of(name: str, builder: ModuleType, options: dict[str, Any]) -> dict[str, Any]:
    """Return the values of all options of a build, including `seed`, which every builder has.

    Raises:
        UserError: An option is unknown or has an invalid value.
    """
    seed = options.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"option seed of {name} must be an integer; got {seed!r}")
    chosen = {key: value for key, value in options.items() if key != "seed"}
    known = bound.defaults(builder.samples)
    chosen = {
        key: _texts(name, key, value) if isinstance(known.get(key), tuple) else value for key, value in chosen.items()
    }
    resolved = dict(bound.resolved(name, builder.samples, chosen | ({"seed": seed} if "seed" in known else {})))
    bound.check(getattr(builder, "check", None), tuple(resolved.items()))
    return dict(sorted((resolved | {"seed": seed}).items()))


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    """Parse the value of an option, which is a list of strings or a string with commas.

    Raises:
        UserError: The value is not a list of strings.
    """
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(text, str) for text in listed):
        raise UserError(f"option {key} of {name} takes a list of strings; got {value!r}")
    return tuple(text.strip() for text in listed if text.strip())


def own_options(builder: ModuleType, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are parameters of `builder.samples`."""
    return {key: settings[key] for key in bound.defaults(builder.samples)}


def private(builder: ModuleType) -> tuple[str, ...]:
    """Return the names of a builder's options that concern only this machine."""
    return getattr(builder, "PRIVATE", ())


def start(
    builder: ModuleType, source: Path | None, log: BuildLog, options: dict[str, Any]
) -> tuple[Features, Iterator[dict | Job]]:
    """Start a build: return the dataset's columns and an iterator over its samples.

    The source's list of classes is read only once.
    """
    samples = iter(builder.samples(source, log, **options))
    first = list(islice(samples, 1))  # `log.classes` is set before the first job
    return columns(builder, log.classes), chain(first, samples)


def columns(builder: ModuleType, classes: dict[str, list[str]] | None = None) -> Features:
    """Return the columns that all datasets have, followed by the builder's own columns."""
    takes_classes = "classes" in inspect.signature(builder.features).parameters
    further = dict(builder.features(classes) if takes_classes else builder.features())
    first = {"image": Image(), "label": further.pop("label"), "mask": Image()}
    texts = {name: Value("string") for name in ("image_id", "group", "source_split")}
    return Features({**first, **texts, **further})
