"""Reads YAML with libyaml where PyYAML has it: Python's own loader takes seconds for a chart or a capture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str) -> Any:
    return yaml.load(text, SAFE_LOADER)


def read_yaml_documents(text: str) -> Iterator[Any]:
    return yaml.load_all(text, SAFE_LOADER)
