"""Bounded parser for plain YAML, which reads every YAML file of the package.

A few hundred bytes of aliases or merge keys can stand for gigabytes, deep nesting crashes the parser, and scalars
(dates, integers of thousands of digits) raise errors of many kinds. Nodes are counted before any value is built, and
the nodes of an alias are counted each time it is used.
"""

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from saliency_bench.errors import one_line
from saliency_bench.utils.files import DEEPEST

if TYPE_CHECKING:  # most commands need no YAML
    import yaml

MOST_NODES = 100_000  # values that aliases may repeat; a file's own values are bounded by its size
LARGEST_NUMBER = 2**64


def parse_yaml(content: bytes | str, *, aliases: bool = True, texts: bool = False) -> Any:
    """Return the content of plain YAML.

    Args:
        content: the content of a file.
        aliases: allow values that refer to other values; False for files of strangers.
        texts: keep every scalar as a text, so that `no` is a name and not False.

    Raises:
        ValueError: The content is not YAML, is too large or too deep, has an impossible value such as the day
            2001-99-99, or has a duplicate key (YAML itself would keep the last value).
    """
    import yaml

    kind = ("CBaseLoader", "BaseLoader") if texts else ("CSafeLoader", "SafeLoader")
    base: Any = getattr(yaml, kind[0], getattr(yaml, kind[1]))  # libyaml is 10 times faster, if it is installed
    try:
        _check_nodes(content, base, aliases)
        return yaml.load(content, _unique_keys(base))
    except Exception as error:  # decoders of scalars raise many kinds: ValueError, OverflowError, AttributeError
        text = one_line(error, 250).replace('in "<unicode string>", ', "").replace('in "<byte string>", ', "")
        if not isinstance(error, ValueError | yaml.YAMLError):
            text = f"a value does not fit its tag ({type(error).__name__}: {text})"
        raise ValueError(text) from error


def _check_nodes(content: bytes | str, loader: Any, aliases: bool) -> None:
    """Raise ValueError if aliases repeat too many nodes, nodes nest too deep, or aliases are used but not allowed."""
    import yaml

    sizes: dict[str, int] = {}  # {anchor: nodes below it, with aliases expanded}
    level: list[tuple[str | None, int]] = []  # (anchor, nodes before it) of each open collection
    nodes = repeated = 0
    for event in yaml.parse(content, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise ValueError(f"it has the alias *{event.anchor}; write out the value instead")
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} refers to no finished value before it")
            nodes += sizes[event.anchor]
            repeated += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            level.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = level.pop()
            if anchor:
                sizes[anchor] = nodes - before
        if repeated > MOST_NODES:
            raise ValueError(f"its aliases repeat more than {MOST_NODES:,} values")
        if len(level) > DEEPEST:
            raise ValueError(f"it nests more than {DEEPEST} levels deep")


@cache
def _unique_keys(base: Any) -> Any:
    """Return a loader that rejects duplicate keys and integers with an absolute value of 2**64 or more."""
    import yaml

    class UniqueKeys(base):
        def construct_mapping(self, node: "yaml.MappingNode", deep: bool = False) -> dict:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            key, times = Counter(keys).most_common(1)[0] if keys else ("", 0)
            if times > 1:
                problem = f"the key {one_line(key, 60)} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return super().construct_mapping(node, deep)

        def construct_number(self, node: "yaml.ScalarNode") -> int:
            number = self.construct_yaml_int(node)
            if abs(number) >= LARGEST_NUMBER:  # Python cannot print an integer of thousands of digits
                raise ValueError(f"the number {one_line(node.value, 30)} is too large")
            return number

    if hasattr(UniqueKeys, "construct_yaml_int"):
        UniqueKeys.add_constructor("tag:yaml.org,2002:int", UniqueKeys.construct_number)
    return UniqueKeys
