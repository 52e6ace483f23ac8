"""Reads YAML configuration files: every scalar stays text, and every key has its line and column.

Input: a file, or text with a name; output: mappings (`YamlMapping`), lists, texts and None. A mistake raises
UsageError with file, line, column and the likely cause. A file may be hostile: its size, depth and number of
nodes (with aliases expanded) are limited, and a key may occur once. Imported only if there is a file to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpuscope.base.errors import UsageError
from gpuscope.base.files import read_regular_file

# Explains YAML syntax errors. Input: the parser's error and the text; output: one or two sentences.
#
# PyYAML reports what it expected ("<block end>"); a user needs to know that a line is indented too far. The
# cause is guessed from the lines around the error. Messages contain no control characters of the text.

_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # YAML's line breaks, which PyYAML counts
_INDENT = re.compile(r"[ \t]*")
_KEY = re.compile(
    r"""[ ]*(?:-[ ]+)*(?P<key>"[^"]*"|'[^']*'|[^\s'"#:-][^:#]*?)[ ]*:"""
    r"""(?:[ ]+(?P<value>[^#\s].*)|[ ]*(?:#.*)?)\Z"""
)
_MAX_LINE = 1000
"""Only this many characters of a line are examined."""
_CANNOT_START = re.compile(r"found character '(.+)' that cannot start any token")


@dataclass(frozen=True, slots=True)
class _Mistake:
    line: int  # from 0
    column: int
    cause: str


def explain(error: Any, text: str) -> str:
    """`line 7, column 5: …`"""
    position = getattr(error, "position", None)
    mark = getattr(error, "problem_mark", None)
    if mark is None and isinstance(position, int):  # a character that YAML does not allow
        before = text[:position]
        where = _Mistake(before.count("\n"), position - before.rfind("\n") - 1, _bad_character(text, position))
    elif mark is None:
        return f"not valid YAML: {' '.join(str(error).split())[:200]}"
    else:
        where = _diagnose(error, [line[:_MAX_LINE] for line in _BREAK.split(text)])
    return f"line {where.line + 1}, column {where.column + 1}: {where.cause}"


def _bad_character(text: str, position: int) -> str:
    return f"the character U+{ord(text[position]):04X} is not allowed in YAML"


def _diagnose(error: Any, lines: list[str]) -> _Mistake:
    problem, mark = str(error.problem), error.problem_mark
    start = error.context_mark or mark
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = _INDENT.match(line)[0]  # type: ignore[index]  # matches always
    if "\t" in indent and "cannot start" in problem:
        return _Mistake(mark.line, indent.index("\t"), "a tab; indent with spaces")
    if "mapping values are not allowed" in problem:
        return _unexpected_colon(lines, mark)
    if "expected <block end>" in problem:
        return _wrong_indentation(lines, mark, start, problem)
    if "unexpected end of stream" in problem:
        return _Mistake(start.line, start.column, "this quoted text has no closing quote")
    if "expected ',' or" in problem:
        bracket = "]" if "sequence" in str(error.context) else "}"
        return _Mistake(
            start.line, start.column, f"the closing {bracket} of this list or mapping, or a comma, is missing"
        )
    if "could not find expected ':'" in problem:
        return _Mistake(start.line, start.column, "no ': ' after this key")
    return _Mistake(mark.line, mark.column, _other_cause(problem))


def _other_cause(problem: str) -> str:
    if found := _CANNOT_START.match(problem):
        return f"a text that starts with {found[1]} must be in quotes"
    if "found '<stream end>'" in problem:
        return "the file ends inside a list or mapping; its closing ] or } is missing"
    if "undefined alias" in problem:
        return "* starts an alias, which is not defined; put the text in quotes"
    if "constructor for the tag" in problem:
        return "! starts a tag, which is not known; put the text in quotes"
    if "unknown escape character" in problem:
        return "in double quotes a backslash starts an escape; use single quotes"
    if "another document" in problem:
        return "a second document starts here; only one is allowed"
    return " ".join("".join(c if c.isprintable() else "?" for c in problem).split())[:200]


def _unexpected_colon(lines: list[str], mark: Any) -> _Mistake:
    line = lines[min(mark.line, len(lines) - 1)]
    own_column = len(line) - len(line.lstrip(" "))
    if re.search(r":[ ]", line[: mark.column].lstrip(" ")):
        return _Mistake(mark.line, mark.column, "a second ': ' in this line; put the value in quotes")
    above = _above(lines, mark.line)
    if above is None:
        return _Mistake(mark.line, mark.column, "a ': ' where no key is allowed")
    key = _KEY.match(lines[above])
    if key is not None and key["value"] is not None and own_column > key.start("key"):
        return _too_far(mark.line, own_column, above, key)
    begins = len(lines[above]) - len(lines[above].lstrip(" "))
    bare = lines[above].strip()
    if re.match(r"-[^\s-]", bare):
        return _Mistake(above, begins, "no space after the '-'")
    if re.match(r"[\w-]+:\S", bare):
        return _Mistake(above, begins, "no space after the ':'")
    return _Mistake(above, begins, "no ': ' after this key")


def _wrong_indentation(lines: list[str], mark: Any, start: Any, problem: str) -> _Mistake:
    if problem.endswith("found '-'"):
        cause = "a list entry beside the keys of a mapping; indent it below the key it belongs to"
        return _Mistake(mark.line, mark.column, cause)
    above = _above(lines, mark.line)
    key = None if above is None else _KEY.match(lines[above])
    if above is not None and key is not None and key["value"] is not None and mark.column > key.start("key"):
        return _too_far(mark.line, mark.column, above, key)
    columns = sorted({start.column + 1, *([] if key is None else [key.start("key") + 1])})
    cause = (
        f"this line starts in column {mark.column + 1}, the lines above in column "
        f"{' or '.join(map(str, columns))}; correct its indentation"
    )
    return _Mistake(mark.line, mark.column, cause)


def _too_far(line: int, column: int, above: int, key: re.Match[str]) -> _Mistake:
    name = key["key"] if key["key"].isprintable() and len(key["key"]) <= 60 else "the key"
    cause = (
        f"indented more than {name} in line {above + 1}, which already has a value; "
        f"start it in column {key.start('key') + 1}, below {name}"
    )
    return _Mistake(line, column, cause)


def _above(lines: list[str], line: int) -> int | None:
    """The last line before that is neither blank nor a comment."""
    for number in range(line - 1, -1, -1):
        bare = lines[number].strip()
        if bare and not bare.startswith("#"):
            return number
    return None


T = TypeVar("T")
MAX_YAML_BYTES = 4 << 20
"""A configuration with 1,000 jobs has 300 KiB."""
MAX_DEPTH = 64
MAX_MESSAGE_CHARACTERS = 1000
MAX_NUMBER_CHARACTERS = 64
MAX_NODES = 200_000
"""Keys and values with aliases expanded: a `billion laughs` file of 1 KiB has 10⁹."""

_NOT_TEXT = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_MAP = "tag:yaml.org,2002:map"
_MERGE = "tag:yaml.org,2002:merge"
Place = tuple[int, int]
"""Line and column, counted from 1."""


class YamlMapping(dict[str, Any]):
    """A mapping with the positions of its keys and values, and the keys whose values are in quotes."""

    __slots__ = ("places", "quoted", "value_places")

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, Place] = {}
        self.value_places: dict[str, Place] = {}
        self.quoted: set[str] = set()


def _mostly_text(resolvers: Mapping[Any, Any]) -> dict[Any, Any]:
    kept = {first: [rule for rule in rules if rule[0] in _NOT_TEXT] for first, rules in resolvers.items()}
    return {first: rules for first, rules in kept.items() if rules}


class TextLoader(yaml.SafeLoader):
    """Keeps numbers, dates and booleans as text: the label 1.10 is not 1.1, and yes is not true."""

    yaml_implicit_resolvers = _mostly_text(yaml.SafeLoader.yaml_implicit_resolvers)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._weights: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Counts nodes with aliases expanded, before values are constructed."""
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
            raise _mistake(f"more than {MAX_NODES} keys and values, counting those that aliases repeat", mark)


def _construct_mapping(loader: TextLoader, node: yaml.MappingNode) -> Iterator[YamlMapping]:
    found = YamlMapping()
    yield found
    _refuse_repeated(node)
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = key_node.value
        found.places[key] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        found.value_places[key] = (value_node.start_mark.line + 1, value_node.start_mark.column + 1)
        if isinstance(value_node, yaml.ScalarNode) and value_node.style is not None:
            found.quoted.add(key)
        found[key] = loader.construct_object(value_node, deep=True)


def _refuse_repeated(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == _MERGE:
            continue
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise _mistake("a key that is not a text", key.start_mark)
        if key.value in seen:
            raise _mistake(f"the key {shown(key.value)} is also in line {seen[key.value]}", key.start_mark)
        seen[key.value] = key.start_mark.line + 1


# Other explicit tags (!!int, !!binary, !!set) construct values that no configuration uses.
_KINDS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:null", "tag:yaml.org,2002:seq", None)
TextLoader.yaml_constructors = {kind: yaml.SafeLoader.yaml_constructors[kind] for kind in _KINDS}
TextLoader.add_constructor(_MAP, _construct_mapping)


class TypedLoader(TextLoader):
    """Constructs numbers and booleans: for small files whose values have known types."""

    yaml_implicit_resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    yaml_constructors = yaml.SafeLoader.yaml_constructors | {_MAP: _construct_mapping}


def _construct_number(loader: TypedLoader, node: yaml.ScalarNode) -> object:
    """Refuses long numbers: parsing takes time with the square of the length (1:1:1… has base 60)."""
    if len(node.value) > MAX_NUMBER_CHARACTERS:
        raise _mistake(f"a number of {len(node.value)} characters", node.start_mark)
    number: object = yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    return number


TypedLoader.add_constructor("tag:yaml.org,2002:int", _construct_number)
TypedLoader.add_constructor("tag:yaml.org,2002:float", _construct_number)


class TextDumper(yaml.SafeDumper):
    """Writes documents that `TextLoader` has read."""

    yaml_implicit_resolvers = _mostly_text(yaml.SafeDumper.yaml_implicit_resolvers)


TextDumper.add_representer(YamlMapping, yaml.SafeDumper.represent_dict)


def _mistake(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def load_yaml(path: Path, *, typed: bool = False) -> object:
    return parse_yaml(read_yaml_text(path), str(path), typed=typed)


def read_yaml_text(path: Path) -> str:
    """The file's text; UsageError if it is not a regular file, too large or not UTF-8."""
    try:
        return read_regular_file(path, MAX_YAML_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: {reason}") from None


def parse_yaml(text: str, name: str, *, typed: bool = False) -> object:
    """`name` appears in messages; `typed` converts plain scalars to numbers and booleans."""
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
    # PyYAML also raises other errors: for a number with a misplaced `_`, a date of month 13, an empty !!int.
    except (ValueError, LookupError, RecursionError, TypeError, AttributeError) as error:
        raise UsageError(f"{name}: not valid YAML: {' '.join(str(error).split())[:200]}") from None


def one_line(text: str) -> str:
    """Makes a message that quotes a file safe for a terminal, and limits its length."""
    cut = text if len(text) <= MAX_MESSAGE_CHARACTERS else text[:MAX_MESSAGE_CHARACTERS] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def shown(key: object) -> str:
    """A key for a message: unchanged if it is short and printable, else quoted."""
    text = str(key)
    return text if text.isprintable() and 0 < len(text) <= 60 else repr(text[:60])
