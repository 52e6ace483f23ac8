"""docs/features.md: 88 rows, each with a test or page that exists, or a reason."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"\| (\d+) \| ([^|]+) \| (yes|partly|no) \| ([^|]+) \|")


def test_every_row_is_shown_or_has_a_reason() -> None:
    text = (ROOT / "docs/features.md").read_text("utf-8")
    rows = [match.groups() for match in map(ROW.fullmatch, text.splitlines()) if match]
    assert [int(number) for number, *_ in rows] == list(range(1, 89))
    for number, _, state, shown in rows:
        if state == "no":
            assert len(shown) > 20, f"row {number} has no reason"
        for name in re.findall(r"`([\w/.-]+\.(?:mjs|py|ts))`", shown):
            found = [ROOT / "tests" / name, ROOT / name]
            assert any(path.is_file() for path in found), f"row {number}: {name}"
        for page in re.findall(r"\]\((\w[\w-]*\.md)\)", shown):
            assert (ROOT / "docs" / page).is_file(), f"row {number}: {page}"
