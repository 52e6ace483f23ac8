"""Reads a mapping of a configuration file key by key, with precise errors.

A wrong value is one sentence that names the file, the job, the key, the likely cause and, for YAML, line and
column. Keys that were not read are either unsupported (a warning) or unknown (an error).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gpuscope.base.errors import NotSupported, UsageError
from gpuscope.base.files import MAX_SECRET_BYTES, read_regular_text
from gpuscope.base.time_text import OUT_OF_RANGE, parse_prometheus_duration
from gpuscope.base.yaml_file import YamlMapping, load_yaml, one_line, shown

__all__ = ["ConfigMapping", "load_yaml", "parse_config_count", "parse_config_duration", "parse_config_size"]

T = TypeVar("T")
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
_SIZE = re.compile(r"(\d+)([KMGTPE]i?)?B?\Z", re.ASCII)


def parse_config_duration(value: object) -> float:
    """Seconds of a Prometheus duration such as `1m30s`, or of the number 0."""
    text = str(value)
    try:
        if isinstance(value, bool):
            raise ValueError
        return parse_prometheus_duration(text) / 1000
    except ValueError as error:
        if str(error) == OUT_OF_RANGE:
            raise ValueError(f"{text!r} is longer than 292 years") from None
        raise ValueError(f"{text!r} is not a duration such as 15s or 1m30s") from None


def parse_config_size(value: object) -> int:
    """Bytes of `10MB`, `512KiB` or a bare number; all units are powers of 1024, as in Prometheus."""
    match = _SIZE.match(str(value))
    if match is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a size such as 10MB")
    power = "KMGTPE".index(match[2][0]) + 1 if match[2] else 0
    return int(match[1]) << (10 * power)


def parse_config_count(value: object) -> int:
    if isinstance(value, bool) or re.fullmatch(r"\d+", str(value), re.ASCII) is None:
        raise ValueError(f"{value!r} is not a whole number of 0 or more")
    return int(str(value))


class ConfigMapping:
    """One mapping. `location` names the file, the job and the key, for messages."""

    def __init__(self, value: object, location: str, folder: Path, files: list[Path] | None = None) -> None:
        self.location = location
        self.folder = folder
        self.files = [] if files is None else files
        """All files named in this mapping and in nested ones; nested mappings share the list."""
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise UsageError(one_line(f"{location}: must be a mapping, not {_kind(value)}"))
        self._values: Mapping[Any, Any] = value
        self._read: set[str] = set()

    def fail(self, key: str, why: object, kind: type[UsageError] = UsageError) -> NoReturn:
        raise kind(one_line(f"{self.location}: {shown(key)}: {why}") + self._position(key))

    def not_supported(self, key: str, why: object) -> NoReturn:
        self.fail(key, why, NotSupported)

    def _position(self, key: str) -> str:
        """Line and column of a key in YAML, or of the mapping that lacks it; empty for JSON."""
        places = self._values.places if isinstance(self._values, YamlMapping) else {}
        if not places:
            return ""
        line, column = places.get(key) or min(places.values())
        return f" (line {line}, column {column})"

    def has(self, key: str) -> bool:
        """True if the key has a value; an empty `params:` counts as absent."""
        return self._values.get(key) is not None

    def position(self, key: str) -> int:
        """Among the keys of the file; those that are not there come last."""
        return next((at for at, name in enumerate(self._values) if name == key), len(self._values))

    def raw(self, key: str) -> Any:
        self._read.add(key)
        return self._values.get(key)

    def _typed(self, key: str, default: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            self.fail(key, f"must be {expected}, not {_kind(value)}{_list_hint(value, kinds)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self._typed(key, default, (str, int, float), "a string")
        return _scalar(value)

    def switch(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, (dict, list)) or _scalar(value).lower() not in (*_TRUE, *_FALSE):
            self.fail(key, f"must be true or false, not {_kind(value)}")
        return _scalar(value).lower() in _TRUE

    def count(self, key: str, default: int) -> int:
        return self.parsed(key, default, parse_config_count)

    def parsed(self, key: str, default: T, parse: Callable[[object], T]) -> T:
        value = self.raw(key)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.fail(key, error)

    def duration(self, key: str, default: float) -> float:
        return self.parsed(key, default, parse_config_duration)

    def one_of(self, key: str, default: str, choices: Collection[str]) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.fail(key, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value: list[Any] = self._typed(key, [], list, "a list")
        for item in value:
            if isinstance(item, (dict, list)) or item is None:
                self.fail(key, f"must be a list of strings, but contains {_kind(item)}")
        return tuple(_scalar(item) for item in value)

    def labels(self, key: str) -> dict[str, str]:
        """A mapping of label names to values."""
        value: dict[Any, Any] = self._typed(key, {}, dict, "a mapping of labels")
        for name, text in value.items():
            if not isinstance(name, str) or not name or isinstance(text, (dict, list)):
                self.fail(key, f"{name!r} must be a label name with a string value")
        return {name: "" if text is None else _scalar(text) for name, text in value.items()}

    def table(self, key: str) -> ConfigMapping:
        value = self._typed(key, None, dict, "a mapping")
        return ConfigMapping(value, f"{self.location}: {shown(key)}", self.folder, self.files)

    def tables(self, key: str) -> list[ConfigMapping]:
        value: list[Any] = self._typed(key, [], list, "a list")
        for at, item in enumerate(value):
            if item is not None and not isinstance(item, dict):
                self.fail(key, f"entry {at + 1} must be a mapping, not {_kind(item)}")
        return [
            ConfigMapping(item, f"{self.location}: {key}[{at}]", self.folder, self.files)
            for at, item in enumerate(value)
        ]

    def file(self, key: str) -> Path | None:
        """A file name, relative to the configuration file."""
        name = self.text(key)
        if not name:
            return None
        self.files.append(self.folder / name)
        return self.files[-1]

    def secret(self, key: str) -> str | None:
        """The value of `password` or the content of `password_file`; setting both is an error."""
        path, inline = self.file(f"{key}_file"), self.has(key)
        value = self.text(key)
        if path is None:
            return value if inline else None
        if inline:
            self.fail(key, f"set either this or {key}_file, not both")
        try:
            return read_regular_text(path, MAX_SECRET_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"{key}_file", f"{path} cannot be read: {error}")

    def _unknown(self, key: str, unsupported: Collection[str]) -> str:
        """The message for an unknown key: a similar key, or the empty key it may belong under."""
        above = self._empty_above(key)
        if above:
            return f"unknown key; indent it further if it belongs under {above}, which is empty"
        similar = difflib.get_close_matches(key, sorted({*self._read, *unsupported}), 1)
        if similar:
            return f"unknown key; did you mean {similar[0]}?"
        return f"unknown key; known are {', '.join(sorted(self._read))}"

    def _empty_above(self, key: str) -> str:
        """The key before this one, if it has no value: probably an indentation mistake."""
        if not isinstance(self._values, YamlMapping) or key not in self._values.places:
            return ""
        before = [*self._values][: [*self._values].index(key)]
        known = [name for name in before if name in self._read]
        return known[-1] if known and self._values[known[-1]] is None else ""

    def finish(self, unsupported: Collection[str], warn: Callable[[str], None]) -> None:
        """Checks the keys that were not read: warns about `unsupported` ones, fails for unknown ones."""
        for key, value in self._values.items():
            if key in self._read:
                continue
            if key not in unsupported:
                self.fail(str(key), self._unknown(str(key), unsupported))
            if value not in (None, False, [], {}):
                warn(one_line(f"{self.location}: {key} is not supported and ignored"))


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
        str: "a string",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
