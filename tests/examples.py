"""How many examples a property test tries: all in `make test`, at most the profile's in `make test-fast`."""

from __future__ import annotations

from hypothesis import settings

FULL = 100  # hypothesis' own default, which the profile of `make test` keeps


def examples(count: int) -> int:
    limit = settings().max_examples
    return count if limit >= FULL else min(count, limit)
