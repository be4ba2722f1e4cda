"""Parse plain YAML within limits. The package reads all YAML files with this parser.

A few hundred bytes of aliases or merge keys can expand to gigabytes, deep nesting crashes the parser, and scalars
(dates, integers with thousands of digits) raise errors of many types. Nodes are therefore counted before any value is
built. The nodes of an alias are counted each time the alias is used.
"""

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from saliency_bench.errors import one_line
from saliency_bench.utils.files import DEEPEST

if TYPE_CHECKING:  # yaml is imported on use, because most commands need no YAML
    import yaml

MOST_NODES = 100_000  # maximum number of values that aliases repeat; other values are limited by the size of the file
LARGEST_NUMBER = 2**64


def parse_yaml(content: bytes | str, *, aliases: bool = True, texts: bool = False) -> Any:
    """Parse plain YAML.

    Args:
        content: Content of a file.
        aliases: Whether to allow values that refer to other values. False for untrusted files.
        texts: Whether to return every scalar as a string. For example, `no` then becomes "no" instead of False.

    Raises:
        ValueError: The content is not YAML, is too large or nested too deeply, has an impossible value such as the date
            2001-99-99, or has a duplicate key (YAML itself would use the last value).
    """
    import yaml

    kind = ("CBaseLoader", "BaseLoader") if texts else ("CSafeLoader", "SafeLoader")
    base: Any = getattr(yaml, kind[0], getattr(yaml, kind[1]))  # libyaml is 10 times faster, if it is installed
    try:
        _check_nodes(content, base, aliases)
        return yaml.load(content, _unique_keys(base))
    except Exception as error:  # scalars raise errors of many types: ValueError, OverflowError, AttributeError
        text = one_line(error, 250).replace('in "<unicode string>", ', "").replace('in "<byte string>", ', "")
        if not isinstance(error, ValueError | yaml.YAMLError):
            text = f"a value does not match its tag ({type(error).__name__}: {text})"
        raise ValueError(text) from error


def _check_nodes(content: bytes | str, loader: Any, aliases: bool) -> None:
    """Raise ValueError if aliases repeat too many nodes or are not allowed, or if nodes are nested too deeply."""
    import yaml

    sizes: dict[str, int] = {}  # {anchor: nodes below it, with aliases expanded}
    level: list[tuple[str | None, int]] = []  # (anchor, nodes before it) of each open collection
    nodes = repeated = 0
    for event in yaml.parse(content, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise ValueError(f"it has the alias *{event.anchor}; write out the value instead")
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} does not refer to a complete value before it")
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
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")


@cache
def _unique_keys(base: Any) -> Any:
    """Return a subclass of a loader that rejects duplicate keys and integers of magnitude 2**64 or more."""
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
            if abs(number) >= LARGEST_NUMBER:  # Python cannot print an integer with thousands of digits
                raise ValueError(f"the number {one_line(node.value, 30)} is too large")
            return number

    if hasattr(UniqueKeys, "construct_yaml_int"):
        UniqueKeys.add_constructor("tag:yaml.org,2002:int", UniqueKeys.construct_number)
    return UniqueKeys
