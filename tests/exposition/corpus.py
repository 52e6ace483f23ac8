"""OpenMetrics' parser tests from the Go module cache; otherwise a skip with instructions to get them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

MODULE = "github.com/prometheus/OpenMetrics"
_FOLDER = "github.com/prometheus/!open!metrics@*/tests/testdata/parsers"


def openmetrics_corpus() -> dict[str, tuple[bytes, bool]]:
    """The text and its validity according to OpenMetrics, by name."""
    go_path = Path(os.environ.get("GOPATH") or Path.home() / "go")
    cache = Path(os.environ.get("GOMODCACHE") or go_path / "pkg" / "mod")
    folder = max(cache.glob(_FOLDER), default=None)
    if folder is None:
        pytest.skip(f"OpenMetrics' parser tests: not in {cache}; `go mod download {MODULE}@latest` gets them")
    return {
        case.name: (
            (case / "metrics").read_bytes(),
            bool(json.loads((case / "test.json").read_text("utf-8"))["shouldParse"]),
        )
        for case in sorted(folder.iterdir())
        if (case / "metrics").is_file()
    }
