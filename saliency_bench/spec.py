"""Define the settings of a run as one pydantic model.

The model defines the arguments of `saliency_bench.run(**settings)` and `template`, the options of their commands,
`run.json`, `template.json` and the command line that repeats a run. To add a setting, add a field here.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from operator import index
from pathlib import PurePath
from textwrap import fill
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from saliency_bench.errors import UserError, did_you_mean, one_line, unknown
from saliency_bench.utils.mask_values import words_of

F = TypeVar("F", bound=Callable)
ARRAYS = "maps in memory"  # kind of the Python objects in `maps`
IN_FILE = "function in a file"  # kind of FILE.py:NAME; the file is never imported when a spec is read
SHOWN = 60  # maximum number of characters of an invalid value in a message
TARGETS = ("label", "predicted", "contrast:second")  # other values of --target: a file, or PREDICTED_BY...
MAP_FORMS = "a folder of .npy, .npz, .pt or grey .png files, or one .npy, .npz, .pt or Parquet file (image_id, map)"
PREDICTED_BY = "predicted-by:"  # followed by a model or the folder of its run
# Suggestions for users who omit a list.
FIRST = {
    "explainers": "; good first choices: gradcam integrated_gradients rise:masks=1000, with centre random as baselines",
    "metrics": "; good first choices: saliency_insertion saliency_deletion, and with masks saliency_miou "
    "saliency_pointing_game",
}
NotEmpty = Annotated[str, StringConstraints(min_length=1)]


class PythonObject(BaseModel):
    """A Python object that is passed to a run instead of a name.

    Attributes:
        kind: Type of the object, such as "function".
        name: Name of the object.
        digest: Hash of the object's content.
        code: Expression that recreates the object. It may be the name of a variable that the user must define.
        about: Description of this variable, as "NAME: ...", or "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    kind: str
    name: str
    digest: str
    code: str = ""
    about: str = ""

    def __str__(self) -> str:
        return self.name if self.kind == IN_FILE else f"{self.name} ({self.kind} {self.digest})"


def _setting(
    about: str,
    default: Any = ...,
    *,
    metavar: str | None = None,
    path: bool = False,
    repeat: bool = False,
    group: str = "",
    option: str = "",
    **bounds: Any,
) -> Any:
    """Return a field of `RunSpec`.

    Args:
        about: Description of the setting, without the default.
        default: Default value. A setting without a default is required.
        metavar: Name of the value in the help.
        path: Whether the value may be a file or folder.
        repeat: Whether the option may be repeated.
        group: Heading under which the help lists the setting.
        option: Name on the command line, if it differs from the name of the field.
        bounds: Constraints for pydantic, such as `ge=1`.
    """
    extra: dict[str, Any] = {"metavar": metavar, "path": path, "repeat": repeat, "group": group, "option": option}
    return Field(default, description=about, json_schema_extra=extra, **bounds)


class RunSpec(BaseModel):
    """All settings of a run.

    The settings of a template contain no explainers or metrics. Names and files are strings. If a Python object is
    passed instead, it is stored as a `PythonObject`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    dataset: NotEmpty | PythonObject = _setting("name, folder or Hub id (also hub:OWNER/NAME@COMMIT)", path=True)
    model: str | PythonObject = _setting(
        "Hub id, local folder, torchvision:NAME, or your own network: ./net.py:make, timm:NAME:weights=FILE or "
        "torchvision:NAME:weights=FILE; the options mean=, std=, size= and labels= may follow",
        path=True,
    )
    explainers: tuple[str | PythonObject, ...] = _setting(
        "names; options follow a colon, as in rise:masks=1000,p=0.3", metavar="NAME"
    )
    metrics: tuple[str | PythonObject, ...] = _setting(
        "names; options follow a colon, as in saliency_miou:threshold=0.3", metavar="NAME"
    )
    maps: tuple[str | PythonObject, ...] = _setting(
        "precomputed maps, scored like maps of an explainer with this name: a folder of IMAGE-ID.npy, .npz, .pt or "
        "grey .png, a Parquet file with the columns image_id and map, or a .npy, .npz or .pt file (N, H, W) in the "
        "order of the dataset",
        (),
        metavar="NAME=FOLDER",
        path=True,
    )
    out: str = _setting("output folder", metavar="DIR", path=True, min_length=1)
    split: str = _setting(
        "split of the dataset; if train is the only split, it is used instead", "test", group="samples"
    )
    target: str = _setting(
        "target of the maps: label, predicted, contrast:second (the predicted class against the runner-up of its "
        "group), predicted-by:MODEL (the class that another model predicts; MODEL may be the folder of its run), or a "
        "CSV file with the columns image_id,target[,against]",
        "label",
        path=True,
        group="classes",
    )
    label_column: str = _setting(
        "column of the dataset that contains the label", "label", metavar="NAME", min_length=1, group="samples"
    )
    prompts: tuple[str, ...] | PythonObject | None = _setting(
        "texts that a vision-language model (CLIP, SigLIP) compares images with: templates such as 'a photo of "
        "a {}', where {} is replaced by each class name of the dataset, a text file with one template per line, or a "
        "JSON file {class: [texts]}",
        None,
        metavar="TEXT|FILE",
        path=True,
        repeat=True,
        group="classes",
    )
    label_map: str | PythonObject | None = _setting(
        "JSON file {dataset class: model class or list of classes} for class names that differ, or one of the "
        "built-in mappings coco_to_imagenet, pets_to_imagenet, photos_to_imagenet, voc_to_imagenet",
        None,
        metavar="FILE",
        path=True,
        group="classes",
    )
    groups: str | PythonObject | None = _setting(
        "groups of the model's classes: JSON file {group: [class, ...]} or CSV file with the columns class,group; "
        "groups for "
        "ImageNet, pets, VOC and shapes are built in",
        None,
        metavar="FILE",
        path=True,
        group="classes",
    )
    other_model: str | PythonObject | None = _setting(
        "second classifier for the same images, for metrics that compare two models: Hub id, folder or "
        "torchvision:NAME",
        None,
        path=True,
        group="classes",
    )
    other_label: str | None = _setting(
        "column of the dataset that contains the label for the other model",
        None,
        metavar="NAME",
        min_length=1,
        group="classes",
    )
    activation: Literal["softmax", "sigmoid"] | None = _setting(
        "function from logits to probabilities: softmax, or sigmoid for multi-label and single-logit heads (default: "
        "from the checkpoint, else softmax)",
        None,
        group="classes",
    )
    only: tuple[str, ...] | None = _setting(
        "explain and score only these samples: correct, masked, or COLUMN=VALUE (if you list several "
        "values of a column, a sample needs only one of them); for other samples, only predictions are computed",
        None,
        metavar="CONDITION",
        repeat=True,
        group="samples",
    )
    mask_values: tuple[str, ...] | None = _setting(
        "mask values that mark the object: single values (1), a value and all higher values (128+), colours "
        "('#ff0000' or "
        "255,0,0), nonzero, or alpha (default: masks contain 0 and one other value)",
        None,
        metavar="VALUE",
        repeat=True,
        group="samples",
        option="--foreground",
    )
    limit: int | None = _setting(
        "use only N samples, drawn at random with the seed; groups are kept whole, so slightly more than N samples "
        "may be used",
        None,
        metavar="N",
        ge=1,
        group="samples",
    )
    batch_size: int = _setting(
        "samples per batch; each batch is computed and saved as a whole", 16, metavar="N", ge=1, group="computation"
    )
    seed: int = _setting("seed of all random draws", 0, metavar="N", group="computation")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = _setting(
        "numerical precision of the network (default: that of the loaded model, usually fp32)",
        None,
        group="computation",
    )
    channels_last: bool | None = _setting(
        "use a memory layout in which many networks run faster", None, group="computation"
    )
    compile: bool | None = _setting(
        "compile the network with torch.compile for methods that use only its outputs (faster after the first "
        "seconds; needs a compiler)",
        None,
        group="computation",
    )
    keep_maps: bool = _setting(
        "also save the maps (float16, in the folder maps), for load_maps", False, group="computation"
    )
    strict: bool = _setting(
        "stop at an unsupported explainer, or at the first sample or batch that fails, instead of leaving it out",
        False,
        group="computation",
    )
    device: str | None = _setting("cpu, cuda or cuda:N (default: cuda if available)", None, group="computation")

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        """Convert paths to strings, integers from libraries such as NumPy to Python integers, and lists to tuples."""
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, PurePath):
            return str(value)
        with suppress(TypeError):  # the value is not an integer
            return value if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
        return value

    @field_validator("only", "prompts", mode="before")
    @classmethod
    def _one_text(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("mask_values", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        return words_of(value) or None

    @field_validator("only")
    @classmethod
    def _conditions(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Check each condition. Return None for an empty tuple."""
        for condition in value or ():
            column, equals, wanted = condition.partition("=")
            if condition not in ("correct", "masked") and not (column and equals and wanted):
                near = did_you_mean(condition, ("correct", "masked"))
                raise ValueError(f"must be correct, masked or COLUMN=VALUE, not {condition!r}{near}")
        return value or None

    @classmethod
    def read(cls, settings: Mapping[str, object]) -> "RunSpec":
        """Create a spec from settings.

        Raises:
            UserError: A setting is unknown, missing or invalid. The message describes the first such setting.
        """
        check_names(settings)
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            rule = f"is missing: {about(name)}{FIRST.get(name, '')}"
            if first["type"] != "missing":
                rule = _rule(first["msg"])
                items = first["input"] if isinstance(first["input"], list) else _list(first["input"])
                if not any(repr(item) in rule for item in items):  # the rule does not contain the value
                    rule += f"; got {one_line(repr(first['input']), SHOWN)}"
            raise UserError(f"{name} ({flag(name)}) {rule}") from error

    def python_objects(self) -> dict[str, list[PythonObject]]:
        """Return {setting: Python objects that its value contains}."""
        objects = {name: [v for v in _list(value) if isinstance(v, PythonObject)] for name, value in self}
        return {name: given for name, given in objects.items() if given}

    @property
    def needs_python(self) -> bool:
        """Return whether a setting contains an object that cannot be written on a command line."""
        return any(item.kind != IN_FILE for item in chain.from_iterable(self.python_objects().values()))

    @property
    def computing(self) -> dict[str, Any]:
        """Settings for `load_classifier` that affect the computation (precision, memory format and compilation)."""
        return {"precision": self.precision, "channels_last": self.channels_last, "compile": self.compile}

    def command(self, verb: str = "run", without: Collection[str] = (), more: Iterable[str] = ()) -> str:
        """Return the command line that repeats this run.

        If Python objects are used, return the result of `call` instead.

        Args:
            verb: Name of the command.
            without: Settings to leave out.
            more: Additional words to append.
        """
        if self.needs_python:
            return self.call()
        words = ["saliency-bench", verb]
        for name, value in self._written(without):
            if value is True:
                words.append(flag(name))
            elif not (value is None or value is False or value == ()):
                words += _option(name, [str(item) for item in _list(value)])
        return shlex.join([*words, *more])

    def call(self, function: str = "run", without: Collection[str] = (), more: Iterable[str] = ()) -> str:
        """Return the Python call that repeats this run, preceded by a comment for each object that the call needs.

        Args:
            function: Name of the function.
            without: Settings to leave out.
            more: Additional arguments, as code.
        """
        objects = list(dict.fromkeys(chain.from_iterable(self.python_objects().values())))
        codes = _codes(objects)
        lines = ["import saliency_bench as sb"]
        lines += ["from saliency_bench import composing"] * any("composing." in code for code in codes.values())
        notes = [item.about.replace(item.code, codes[item], 1) for item in objects if item.about]
        lines += ["", *(f"# {note}" for note in dict.fromkeys(notes)), f"sb.{function}("]
        for name, value in self._written(without):
            off = value is False or value == ()
            if value is None or (off and type(self).model_fields[name].default == value):
                continue
            if name == "maps":
                named = (_named_maps(entry, codes) for entry in value)
                lines.append(f"    maps={{{', '.join(f'{key!r}: {code}' for key, code in named)}}},")
                continue
            text = ", ".join(codes.get(item) or repr(item) for item in _list(value))
            lines.append(f"    {name}=[{text}]," if isinstance(value, tuple) else f"    {name}={text},")
        return "\n".join([*lines, *(f"    {argument}," for argument in more), ")"])

    def _written(self, without: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) for each setting that is not in `without`."""
        return ((name, value) for name, value in self if name not in without)


def _list(value: Any) -> tuple:
    """Convert the value of a setting to a tuple, even if it is a single value."""
    return value if isinstance(value, tuple) else (value,)


def _named_maps(entry: str | PythonObject, codes: Mapping[PythonObject, str]) -> tuple[str, str]:
    """Return (name of precomputed maps, expression that evaluates to the maps)."""
    if isinstance(entry, PythonObject):
        return entry.name, codes[entry]
    name, _, path = entry.partition("=")
    return name, repr(path)


def one_after_the_other(commands: Iterable[str]) -> str:
    """Join distinct commands. If a command has several lines, the commands are separated by blank lines."""
    each = list(dict.fromkeys(commands))
    return ("\n\n" if any("\n" in command for command in each) else "\n").join(each)


def _option(name: str, values: list[str]) -> list[str]:
    """Return the words that set an option on the command line.

    A value that begins with a dash is joined to its option by "=". Otherwise it would be parsed as an option.
    """
    if not any(value.startswith("-") for value in values) or RunSpec.model_fields[name].annotation is int:
        return [flag(name), *values]
    return [f"{flag(name)}={value}" for value in values]


def _codes(objects: Iterable[PythonObject]) -> dict[PythonObject, str]:
    """Return {object: expression}. If several variables have the same name, they are numbered."""
    codes: dict[PythonObject, str] = {}
    for item in objects:
        code, number = item.code or variable(item.name), 1
        while code.isidentifier() and code in codes.values():
            number += 1
            code = f"{item.code or variable(item.name)}_{number}"
        codes[item] = code
    return codes


def variable(name: str) -> str:
    """Return a valid variable name for an object with this name."""
    return "my_" + "_".join(re.findall(r"[a-z0-9]+", name.lower()))


def flag(name: str) -> str:
    """Return the command-line option for a setting, such as --batch-size for batch_size."""
    return (name in RunSpec.model_fields and hint(name, "option")) or "--" + name.replace("_", "-")


def about(name: str) -> str:
    """Return a short description of a setting. It does not include the default."""
    return RunSpec.model_fields[name].description or ""


def hint(name: str, key: str) -> Any:
    """Return the property `metavar`, `path`, `repeat`, `group` or `option` of a setting; see `_setting`."""
    extra = RunSpec.model_fields[name].json_schema_extra
    return extra[key] if isinstance(extra, dict) else None


def shown(default: object) -> str:
    """Format a default for the help text. An empty or false default becomes ""."""
    if default is PydanticUndefined or default is None or default is False or default == ():
        return ""
    return f" (default: {' '.join(default) if isinstance(default, tuple) else default})"


def check_names(names: Iterable[str]) -> None:
    """Raise UserError for a name that is not a run setting. The message suggests the closest setting."""
    for name in names:
        if name not in RunSpec.model_fields:
            raise unknown("argument", name, RunSpec.model_fields)


def takes_settings(*without: str) -> Callable[[F], F]:
    """Return a decorator that lists the settings in the signature and docstring of a function with `**settings`.

    The list replaces the line `**settings: SETTINGS` under `Args:` in the docstring.

    Args:
        without: Names of settings that the function does not accept.
    """

    def decorate(function: F) -> F:
        written = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {parameter.name for parameter in written} | set(without)
        fields = {name: field for name, field in RunSpec.model_fields.items() if name not in taken}
        keywords = [_parameter(name, field) for name, field in fields.items()]
        keywords.sort(key=lambda parameter: parameter.default is not parameter.empty)  # required settings first
        positional = [parameter for parameter in written if parameter.kind is not parameter.KEYWORD_ONLY]
        named = [parameter for parameter in written if parameter.kind is parameter.KEYWORD_ONLY]
        signature = inspect.signature(function).replace(parameters=[*positional, *keywords, *named])
        setattr(function, "__signature__", signature)  # noqa: B010
        texts = (f"{name}: {about(name)}{shown(field.default)}" for name, field in fields.items())
        lines = (fill(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 8) for text in texts)
        docstring = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = docstring.replace("    **settings: SETTINGS", "\n".join(lines))
        return function

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the parameter that represents a field, without a type annotation."""
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _rule(message: str) -> str:
    """Rephrase a message from pydantic: "Input should be ..." becomes "must be ..."."""
    message = message.removeprefix("Value error, ")
    return re.sub(r"^\w+ should", "must", message).replace("a valid string", "text").replace("tuple", "list")
