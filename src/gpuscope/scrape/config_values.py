"""A mapping of a configuration file, read key by key.

Every value that is not what it should be is one sentence that names the file, the job, the key, the likely
cause and, for YAML, line and column. Keys are ticked off as they are read; what is left over is a mistake of
the user's, or something we do not do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gpuscope.errors import UsageError
from gpuscope.yaml_file import YamlMapping, load_yaml, one_line, shown

__all__ = ["Table", "load_yaml", "parse_count_text", "parse_duration_text", "parse_size_text"]

T = TypeVar("T")
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
_DURATION = re.compile(
    r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?\Z", re.ASCII
)
_SECONDS = (31_536_000, 604_800, 86_400, 3_600, 60, 1, 0.001)
_SIZE = re.compile(r"(\d+)([KMGTPE]i?)?B?\Z", re.ASCII)


def parse_duration_text(value: object) -> float:
    """Seconds of Prometheus' `1m30s`, or of the number 0."""
    text = str(value)
    match = _DURATION.match(text)
    if text == "0":
        return 0.0
    if not text or match is None or isinstance(value, bool):
        raise ValueError(f"{text!r} is not a duration such as 15s or 1m30s")
    return float(sum(int(group) * unit for group, unit in zip(match.groups(), _SECONDS, strict=True) if group))


def parse_size_text(value: object) -> int:
    """Bytes of `10MB`, `512KiB` or a bare number; all units are powers of 1024, as in Prometheus."""
    match = _SIZE.match(str(value))
    if match is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a size such as 10MB")
    power = "KMGTPE".index(match[2][0]) + 1 if match[2] else 0
    return int(match[1]) << (10 * power)


def parse_count_text(value: object) -> int:
    if isinstance(value, bool) or re.fullmatch(r"\d+", str(value), re.ASCII) is None:
        raise ValueError(f"{value!r} is not a whole number of 0 or more")
    return int(str(value))


class Table:
    """One mapping. `place` says where it is: the file, then the job, then the key."""

    def __init__(self, value: object, place: str, folder: Path, files: list[Path] | None = None) -> None:
        self.place = place
        self.folder = folder
        self.files = [] if files is None else files
        """Every file named in here or below, in one list for all."""
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise UsageError(one_line(f"{place}: must be a mapping, not {_kind(value)}"))
        self._values: Mapping[Any, Any] = value
        self._read: set[str] = set()

    def wrong(self, key: str, why: object) -> NoReturn:
        raise UsageError(one_line(f"{self.place}: {shown(key)}: {why}") + self._position(key))

    def _position(self, key: str) -> str:
        """Line and column of a key, where the file has them: YAML does, JSON does not."""
        places = self._values.places if isinstance(self._values, YamlMapping) else {}
        line, column = places.get(key, (0, 0))
        return f" (line {line}, column {column})" if line else ""

    def has(self, key: str) -> bool:
        """Present and not left empty; `params:` with nothing behind it is as if it were not there."""
        return self._values.get(key) is not None

    def raw(self, key: str) -> Any:
        self._read.add(key)
        return self._values.get(key)

    def _typed(self, key: str, default: Any, kinds: type | tuple[type, ...], wanted: str) -> Any:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            self.wrong(key, f"must be {wanted}, not {_kind(value)}{_list_hint(value, kinds)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self._typed(key, default, (str, int, float), "a text")
        return _scalar(value)

    def switch(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, (dict, list)) or _scalar(value).lower() not in (*_TRUE, *_FALSE):
            self.wrong(key, f"must be true or false, not {_kind(value)}")
        return _scalar(value).lower() in _TRUE

    def count(self, key: str, default: int) -> int:
        return self.parsed(key, default, parse_count_text)

    def parsed(self, key: str, default: T, parse: Callable[[object], T]) -> T:
        value = self.raw(key)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.wrong(key, error)

    def duration(self, key: str, default: float) -> float:
        return self.parsed(key, default, parse_duration_text)

    def one_of(self, key: str, default: str, choices: Collection[str]) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.wrong(key, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        found: list[Any] = self._typed(key, [], list, "a list")
        for item in found:
            if isinstance(item, (dict, list)) or item is None:
                self.wrong(key, f"must be a list of texts, but has {_kind(item)} in it")
        return tuple(_scalar(item) for item in found)

    def labels(self, key: str) -> dict[str, str]:
        """A mapping of names to texts."""
        found: dict[Any, Any] = self._typed(key, {}, dict, "a mapping of labels")
        for name, value in found.items():
            if not isinstance(name, str) or not name or isinstance(value, (dict, list)):
                self.wrong(key, f"{name!r} must be a label with a text")
        return {name: "" if value is None else _scalar(value) for name, value in found.items()}

    def table(self, key: str) -> Table:
        value = self._typed(key, None, dict, "a mapping")
        return Table(value, f"{self.place}: {shown(key)}", self.folder, self.files)

    def tables(self, key: str) -> list[Table]:
        found: list[Any] = self._typed(key, [], list, "a list")
        for at, item in enumerate(found):
            if item is not None and not isinstance(item, dict):
                self.wrong(key, f"entry {at + 1} must be a mapping, not {_kind(item)}")
        return [
            Table(item, f"{self.place}: {key}[{at}]", self.folder, self.files) for at, item in enumerate(found)
        ]

    def file(self, key: str) -> Path | None:
        """A file name, relative to the configuration file."""
        name = self.text(key)
        if not name:
            return None
        self.files.append(self.folder / name)
        return self.files[-1]

    def secret(self, key: str) -> str | None:
        """`password` or the contents of `password_file`; only one of them may be given."""
        path, inline = self.file(f"{key}_file"), self.has(key)
        value = self.text(key)
        if path is None:
            return value if inline else None
        if inline:
            self.wrong(key, f"give it or {key}_file, not both")
        try:
            return path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            self.wrong(f"{key}_file", f"{path} cannot be read: {error}")

    def _unknown(self, key: str, unsupported: Collection[str]) -> str:
        """What to say of a key that nothing knows: the key it resembles, or the empty one it belongs below."""
        above = self._empty_above(key)
        if above:
            return f"there is no such key here; indent it further if it belongs below {above}, which is empty"
        alike = difflib.get_close_matches(key, sorted({*self._read, *unsupported}), 1)
        if alike:
            return f"there is no such key here; did you mean {alike[0]}?"
        return f"there is no such key here; there are {', '.join(sorted(self._read))}"

    def _empty_above(self, key: str) -> str:
        """A key without a value that stands before this one, in the same column: a slip of indentation."""
        if not isinstance(self._values, YamlMapping) or key not in self._values.places:
            return ""
        before = [*self._values][: [*self._values].index(key)]
        known = [one for one in before if one in self._read]
        return known[-1] if known and self._values[known[-1]] is None else ""

    def finish(self, unsupported: Collection[str], warn: Callable[[str], None]) -> None:
        """Keys nobody read: a warning for what Prometheus knows and we do not do, an error for the rest."""
        for key, value in self._values.items():
            if key in self._read:
                continue
            if key not in unsupported:
                self.wrong(str(key), self._unknown(str(key), unsupported))
            if value not in (None, False, [], {}):
                warn(one_line(f"{self.place}: {key} is not supported here and ignored"))


def _list_hint(value: object, kinds: type | tuple[type, ...]) -> str:
    if kinds is not list:
        return ""
    if isinstance(value, dict):
        return "; put '- ' before the first key of each entry"
    return f"; write [{shown(value)}]" if isinstance(value, str) else ""


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    names = {
        dict: "a mapping",
        YamlMapping: "a mapping",
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
