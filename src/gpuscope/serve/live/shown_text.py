"""Label texts as the live picture has them: at most 1,024 characters, and still one text for each label.

A label may have 64 KiB, and every viewer gets every row.
"""

from __future__ import annotations

import hashlib
from typing import Final

MAX_TEXT_CHARACTERS: Final = 1024
_DIGEST_BYTES: Final = 16


def shown_text(text: str) -> str:
    """A label's text as the picture has it. One that is too long ends in its hash, so that two texts stay two:
    rows are found by them."""
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    digest = hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{text[: MAX_TEXT_CHARACTERS - len(digest) - 1]}…{digest}"
