"""Parses command lines of other exporters as kingpin does: `--flag=value`, `--flag value`, `--[no-]switch`.

A table lists an exporter's flags. An unknown flag is an error; a known but unsupported flag is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Flag:
    """`unsupported` says what to do instead of an unsupported flag; empty for a supported one."""

    switch: bool = False
    unsupported: str = ""


def parse_flags(
    exporter: str, argv: Sequence[str], table: Mapping[str, Flag]
) -> tuple[dict[str, str], list[str]]:
    """Values by flag name (switches as `true` or `false`), and warnings. The last of a repeated flag wins."""
    values: dict[str, str] = {}
    warnings: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        negated = name.startswith("no-") and name.removeprefix("no-") in table
        name = name.removeprefix("no-") if negated else name
        flag = table.get(name)
        if not word.startswith("--") or flag is None:
            raise UsageError(f"{exporter} has no flag {word.partition('=')[0]}")
        if flag.switch:
            text = "false" if negated else text or "true"
        elif not equals:
            if not words:
                raise UsageError(f"{word} of {exporter} needs a value")
            text = words.pop(0)
        if flag.unsupported:
            warnings.append(f"--{name} is not supported: {flag.unsupported}")
        values[name] = text
    return values, list(dict.fromkeys(warnings))
