"""docs/features.md: 90 rows, each with a test or page that exists, or a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PANELS = {
    one["title"]
    for one in json.loads((ROOT / "src/gpuscope/serve/render/panels.json").read_text("utf-8"))["panels"]
}
ROW = re.compile(r"\| (\d+) \| ([^|]+) \| (yes|partly|no) \| ([^|]+) \|")


def test_every_row_is_shown_or_has_a_reason() -> None:
    text = (ROOT / "docs/features.md").read_text("utf-8")
    rows = [match.groups() for match in map(ROW.fullmatch, text.splitlines()) if match]
    assert [int(number) for number, *_ in rows] == list(range(1, 91))
    for number, _, state, shown in rows:
        if state == "no":
            assert len(shown) > 20, f"row {number} has no reason"
        for name in re.findall(r"`([\w/.-]+\.(?:mjs|py|ts))`", shown):
            found = [ROOT / "tests" / name, ROOT / name]
            assert any(path.is_file() for path in found), f"row {number}: {name}"
        for name, titles in re.findall(r"`([\w/.-]+\.mjs)`: ((?:\"[^\"]+\"(?:, )?)+)", shown):
            tests = (ROOT / "tests" / name).read_text("utf-8")
            for title in re.findall(r'"([^"]+)"', titles):
                assert f'test("{title}"' in tests or f'"{title}",\n' in tests, f"row {number}: {title}"
        for panel in re.findall(r'panel "([^"]+)"', shown):
            assert panel in PANELS, f"row {number}: {panel}"
        for page in re.findall(r"\]\((\w[\w-]*\.md)\)", shown):
            assert (ROOT / "docs" / page).is_file(), f"row {number}: {page}"
