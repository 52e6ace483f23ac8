"""Reads a YAML file that a person wrote: every scalar stays text, and every key knows its line and column.

Goes in: a file, or text with a name. Comes out: mappings (`YamlMapping`), lists, texts and None. A mistake is a
UsageError with file, line, column and the likely cause. Such a file may be hostile: its size, depth and number
of nodes, aliases expanded, are bounded, and a key may stand once. Imported only where there is a file to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpuscope.errors import UsageError
from gpuscope.yaml_mistakes import explain

T = TypeVar("T")
MAX_YAML_BYTES = 4 << 20
"""1,000 jobs have 300 KiB."""
MAX_DEPTH = 64
MAX_MESSAGE_CHARACTERS = 1000
MAX_NUMBER_CHARACTERS = 64
MAX_NODES = 200_000
"""Keys and values, as many times as aliases repeat them: a `billion laughs` file has 10⁹ in 1 KiB."""

_NOT_TEXT = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_MAP = "tag:yaml.org,2002:map"
_MERGE = "tag:yaml.org,2002:merge"
Place = tuple[int, int]
"""Line and column, both from 1."""


class YamlMapping(dict[str, Any]):
    """A mapping with the positions of its keys and values."""

    __slots__ = ("places", "value_places")

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, Place] = {}
        self.value_places: dict[str, Place] = {}


def _mostly_text(resolvers: Mapping[Any, Any]) -> dict[Any, Any]:
    kept = {first: [one for one in rules if one[0] in _NOT_TEXT] for first, rules in resolvers.items()}
    return {first: rules for first, rules in kept.items() if rules}


class TextLoader(yaml.SafeLoader):
    """Leaves numbers, dates and switches as they are written: the label 1.10 is not 1.1, nor yes true."""

    yaml_implicit_resolvers = _mostly_text(yaml.SafeLoader.yaml_implicit_resolvers)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._weights: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Counts what a reader of the document would meet, before any of it is built."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._weights:
                raise _mistake("an alias that refers to itself", event.start_mark)
            self._count(self._weights[id(node)], event.start_mark)
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _mistake(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        before = self._nodes
        node = super().compose_node(parent, index)
        self._count(1, event.start_mark)
        self._weights[id(node)] = self._nodes - before
        self._depth -= 1
        return node

    def _count(self, nodes: int, mark: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _mistake(f"more than {MAX_NODES} keys and values, those that aliases repeat included", mark)


def _construct_mapping(loader: TextLoader, node: yaml.MappingNode) -> Iterator[YamlMapping]:
    found = YamlMapping()
    yield found
    _refuse_repeated(node)
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = key_node.value
        found.places[key] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        found.value_places[key] = (value_node.start_mark.line + 1, value_node.start_mark.column + 1)
        found[key] = loader.construct_object(value_node, deep=True)


def _refuse_repeated(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == _MERGE:
            continue
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise _mistake("a key that is not a text", key.start_mark)
        if key.value in seen:
            raise _mistake(
                f"the key {shown(key.value)} stands here and in line {seen[key.value]}", key.start_mark
            )
        seen[key.value] = key.start_mark.line + 1


# Other explicit tags (!!int, !!binary, !!set) make values that no configuration has.
_KINDS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:null", "tag:yaml.org,2002:seq", None)
TextLoader.yaml_constructors = {kind: yaml.SafeLoader.yaml_constructors[kind] for kind in _KINDS}
TextLoader.add_constructor(_MAP, _construct_mapping)


class TypedLoader(TextLoader):
    """With YAML's own numbers and switches: for files whose values are few and of known types."""

    yaml_implicit_resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    yaml_constructors = yaml.SafeLoader.yaml_constructors | {_MAP: _construct_mapping}


def _construct_number(loader: TypedLoader, node: yaml.ScalarNode) -> object:
    """A long one takes time with the square of its length (1:1:1… is to the base 60) and cannot be shown."""
    if len(node.value) > MAX_NUMBER_CHARACTERS:
        raise _mistake(f"a number of {len(node.value)} characters", node.start_mark)
    number: object = yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    return number


TypedLoader.add_constructor("tag:yaml.org,2002:int", _construct_number)
TypedLoader.add_constructor("tag:yaml.org,2002:float", _construct_number)


class TextDumper(yaml.SafeDumper):
    """Writes what `TextLoader` has read."""

    yaml_implicit_resolvers = _mostly_text(yaml.SafeDumper.yaml_implicit_resolvers)


TextDumper.add_representer(YamlMapping, yaml.SafeDumper.represent_dict)


def _mistake(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def load_yaml(path: Path, *, typed: bool = False) -> object:
    return parse_yaml(read_yaml_text(path), str(path), typed=typed)


def read_yaml_text(path: Path) -> str:
    """The file's text; UsageError if it cannot be read, is too large or is not UTF-8."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_YAML_BYTES + 1)
        if len(body) > MAX_YAML_BYTES:
            raise UsageError(f"{path}: larger than {MAX_YAML_BYTES >> 20} MiB")
        return body.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: {reason}") from None


def parse_yaml(text: str, name: str, *, typed: bool = False) -> object:
    """`name` is the file's, for messages; `typed` makes numbers and switches of plain scalars."""
    return _parse(text, name, lambda: yaml.load(text, TypedLoader if typed else TextLoader))  # noqa: S506


def parse_first_document(text: str, name: str) -> tuple[object, bool]:
    """The first document of a file, scalars as text, and whether more documents follow it."""

    def parse() -> tuple[object, bool]:
        loader = TextLoader(text)
        try:
            document = loader.get_data() if loader.check_data() else None  # type: ignore[no-untyped-call]
            return document, bool(loader.check_data())  # type: ignore[no-untyped-call]
        finally:
            loader.dispose()

    return _parse(text, name, parse)


def _parse(text: str, name: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: {explain(error, text)}") from None
    # PyYAML lets other errors through: a number with a stray `_`, a date of month 13, an empty !!int.
    except (ValueError, LookupError, RecursionError, TypeError, AttributeError) as error:
        raise UsageError(f"{name}: not valid YAML: {' '.join(str(error).split())[:200]}") from None


def one_line(text: str) -> str:
    """A message that repeats something of a file: harmless in a terminal, and not too long."""
    cut = text if len(text) <= MAX_MESSAGE_CHARACTERS else text[:MAX_MESSAGE_CHARACTERS] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def shown(key: object) -> str:
    """A key in a message: as it is if that is harmless."""
    text = str(key)
    return text if text.isprintable() and 0 < len(text) <= 60 else repr(text[:60])
