"""A password, token or URL that grants access: shown as `<secret>` everywhere, read where it is used.

A secret in a file is read each time, as Alertmanager does it: it may be rotated while the server runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.base.files import MAX_SECRET_BYTES, read_regular_text
from gpuscope.judge.notify.channels import SendError

SECRET = "<secret>"  # noqa: S105 - Alertmanager's own word


@dataclass(frozen=True, slots=True)
class SecretText:
    _text: str = field(default="", repr=False)
    path: Path | None = None

    def __bool__(self) -> bool:
        return bool(self._text) or self.path is not None

    def __str__(self) -> str:
        return SECRET

    def reveal(self) -> str:
        if self.path is None:
            return self._text
        try:
            return read_regular_text(self.path, MAX_SECRET_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SendError(f"{self.path}: {reason}", may_retry=True) from None


NO_SECRET = SecretText()
