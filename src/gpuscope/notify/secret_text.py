"""A password, token or URL that grants access: shown as `<secret>` everywhere, read where it is used.

A secret in a file is read each time, as Alertmanager does it: it may be rotated while the server runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.notify.channels import SendError

SECRET = "<secret>"  # noqa: S105 - Alertmanager's own word
MAX_SECRET_BYTES = 1 << 20


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
            with self.path.open("rb") as file:
                return file.read(MAX_SECRET_BYTES).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SendError(f"{self.path}: {reason}", may_retry=True) from None


NO_SECRET = SecretText()
