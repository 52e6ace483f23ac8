"""Text for a terminal: escapes untrusted text, measures width in cells, and formats numbers.

Text from a server, a scrape target or a process goes through `printable` (one line, shortened),
`escape_controls` (complete) or `csv_cell` before it is printed.
"""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"


def printable(text: str, width: int = 200) -> str:
    """One line of safe text: control and direction characters become `?`; long text is shortened."""
    safe = text if text.isprintable() else "".join("?" if is_control(c) else c for c in text)
    return safe if len(safe) <= width else safe[: width - 1] + ELLIPSIS


def escape_controls(text: str, keep: str = "") -> str:
    """The complete text with control and direction characters as `\\x1b`, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if c not in keep and is_control(c) else c for c in text)


def csv_cell(value: object) -> str:
    """A CSV cell that neither a spreadsheet nor a terminal interprets (OWASP: CSV injection)."""
    text = escape_controls(str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def cell_width(text: str) -> int:
    """Cells of a terminal that the text takes: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_character_width(c) for c in text)


def _character_width(c: str) -> int:
    if unicodedata.combining(c):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly `width` cells: shortened with `…`, or padded with spaces (before the text if `right`)."""
    taken = cell_width(text)
    if taken > width:
        text, taken = _shorten(text, width)
    padding = " " * (width - taken)
    return padding + text if right else text + padding


def _shorten(text: str, width: int) -> tuple[str, int]:
    if width <= 0:
        return "", 0
    kept, taken = [], 0
    for c in text:
        cells = _character_width(c)
        if taken + cells > width - 1:
            break
        kept.append(c)
        taken += cells
    return "".join(kept) + ELLIPSIS, taken + 1


def bytes_text(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def duration_text(seconds: float) -> str:
    """The two largest units: `3d 4h`, `12m 5s`."""
    whole = max(0, int(seconds))
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count or first == 3)


def short_duration(seconds: float) -> str:
    """At most five cells: `45s`, `12m`, `3h20`, `12d`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}"
    return f"{whole // 86400}d"


def short_bytes(count: float) -> str:
    """At most five cells: `812M`, `61.2G`, `1.5T`."""
    for unit, size in (("T", 2**40), ("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if count >= size:
            number = count / size
            return f"{number:.1f}{unit}" if number < 99.95 and unit in "GT" else f"{number:.0f}{unit}"
    return f"{count:.0f}B"
