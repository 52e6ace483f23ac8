"""A mapping of a YAML file, read key by key with its place in mind.

Every value that is not what it should be is one sentence that names the file, the place and the key. Keys
are ticked off as they are read; what is left over is a mistake of the user's, or something we do not do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from gpuscope.errors import UsageError

T = TypeVar("T")
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
_NOT_TEXT = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_DURATION = re.compile(
    r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?\Z", re.ASCII
)
_SECONDS = (31_536_000, 604_800, 86_400, 3_600, 60, 1, 0.001)
_SIZE = re.compile(r"(\d+)([KMGTPE]i?)?B?\Z", re.ASCII)


def _mostly_text(resolvers: Mapping[Any, Any]) -> dict[Any, Any]:
    kept = {first: [one for one in rules if one[0] in _NOT_TEXT] for first, rules in resolvers.items()}
    return {first: rules for first, rules in kept.items() if rules}


class TextLoader(yaml.SafeLoader):
    """Leaves numbers, dates and switches as they are written: the label 1.10 is not 1.1, nor yes true."""

    yaml_implicit_resolvers = _mostly_text(yaml.SafeLoader.yaml_implicit_resolvers)


class TextDumper(yaml.SafeDumper):
    """Writes what `TextLoader` has read."""

    yaml_implicit_resolvers = _mostly_text(yaml.SafeDumper.yaml_implicit_resolvers)


def load_yaml(path: Path) -> object:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: {reason}") from None
    try:
        document: object = yaml.load(text, TextLoader)  # noqa: S506 - a safe one
        return document
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())[:300]}") from None


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
            raise UsageError(f"{place}: must be a mapping, not {_kind(value)}")
        self._values: Mapping[Any, Any] = value
        self._read: set[str] = set()

    def wrong(self, key: str, why: object) -> NoReturn:
        raise UsageError(f"{self.place}: {key}: {why}")

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
            self.wrong(key, f"must be {wanted}, not {_kind(value)}")
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
        return Table(self.raw(key), f"{self.place}: {key}", self.folder, self.files)

    def tables(self, key: str) -> list[Table]:
        found: list[Any] = self._typed(key, [], list, "a list")
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

    def finish(self, unsupported: Collection[str], warn: Callable[[str], None]) -> None:
        """Keys nobody read: a warning for what Prometheus knows and we do not do, an error for the rest."""
        for key, value in self._values.items():
            if key in self._read:
                continue
            if key not in unsupported:
                known = ", ".join(sorted(self._read))
                self.wrong(str(key), f"there is no such key here; there are {known}")
            if value not in (None, False, [], {}):
                warn(f"{self.place}: {key} is not supported here and ignored")


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    names = {dict: "a mapping", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
