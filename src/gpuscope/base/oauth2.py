"""Access tokens by OAuth 2's client credentials, as `oauth2` in Prometheus' and Alertmanager's files asks for.

A token is fetched with the first request and again shortly before it expires. The token's server gets the
client's name and secret in a header, and if it refuses that, in the form. Every failure is an OSError without
the secret.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus, urlencode

from gpuscope.base.blocking_http import Headers, HttpResponse, open_url
from gpuscope.base.files import MAX_SECRET_BYTES, read_regular_text
from gpuscope.base.http_config import HttpConfig

EARLY_SECONDS = 10.0
MAX_TOKEN_BYTES = 1 << 20
_FORM = ("content-type", "application/x-www-form-urlencoded")


@dataclass(slots=True)
class ClientCredentials:
    token_url: str
    client_id: str
    secret: str = field(repr=False)
    secret_file: Path | None = None
    """Read for each token, so that a changed secret is used."""
    scopes: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    http: HttpConfig = field(default_factory=HttpConfig)
    _header: tuple[str, str] = field(default=("", ""), init=False, repr=False, compare=False)
    _until: float = field(default=0.0, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def header(self, timeout_seconds: float) -> tuple[str, str]:
        """`Authorization` with a token that is valid now."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._fetch(timeout_seconds)
            return self._header

    def forget(self) -> None:
        """After a server has refused the token."""
        with self._lock:
            self._until = 0.0

    def _fetch(self, timeout_seconds: float) -> None:
        secret = self.secret
        if self.secret_file is not None:
            try:
                secret = read_regular_text(self.secret_file, MAX_SECRET_BYTES).strip()
            except UnicodeDecodeError:
                raise OSError(f"{self.secret_file}: not a text file") from None
        form = [("grant_type", "client_credentials")]
        if self.scopes:
            form.append(("scope", " ".join(self.scopes)))
        form += self.parameters
        named = f"{quote_plus(self.client_id)}:{quote_plus(secret)}".encode()
        basic = ("authorization", f"Basic {base64.b64encode(named).decode()}")
        response = self._post(form, [basic, _FORM], timeout_seconds)
        if not 200 <= response.status < 300:
            own = [("client_id", self.client_id), ("client_secret", secret)]
            response = self._post([*form, *own], [_FORM], timeout_seconds)
        if not 200 <= response.status < 300:
            raise OSError(f"no OAuth 2 token: HTTP status {response.status} from {self.token_url}")
        self._take(response.body)

    def _post(self, form: list[tuple[str, str]], headers: Headers, timeout_seconds: float) -> HttpResponse:
        client, target = open_url(
            self.token_url, self.http, timeout_seconds=timeout_seconds, max_body_bytes=MAX_TOKEN_BYTES
        )
        with client:
            return client.request("POST", target, headers, urlencode(form).encode())

    def _take(self, body: bytes) -> None:
        try:
            answer = json.loads(body)
            token, kind = answer["access_token"], answer.get("token_type") or "Bearer"
            seconds = float(answer.get("expires_in") or 0)
            header = f"{'Bearer' if kind.lower() == 'bearer' else kind} {token}"
            if not isinstance(token, str) or not header.isascii() or not header.isprintable():
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise OSError(f"no OAuth 2 token: the answer of {self.token_url} has none") from None
        self._header = ("authorization", header)
        self._until = time.monotonic() + seconds - EARLY_SECONDS if seconds > 0 else float("inf")
