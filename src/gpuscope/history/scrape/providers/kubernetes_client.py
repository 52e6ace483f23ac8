"""Lists and watches objects of a Kubernetes API server over HTTPS, page by page and event by event.

Without `api_server` the address comes from the pod's environment, and the service account's token is read for
each request, because Kubernetes replaces it. Every failure is a `DiscoveryError` that says what to change.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpuscope.history.scrape.fetch import root_cause
from gpuscope.history.scrape.provider_configs import SERVICE_ACCOUNT, KubernetesProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError
from gpuscope.history.scrape.providers.bounded_get import NETWORK_ERRORS, StatusError, TooLargeError, get_body
from gpuscope.history.scrape.target_client import new_client

LIST_TIMEOUT_SECONDS = 60.0
WATCH_SECONDS = 300
"""The API server ends a watch after this time; the next one continues where it ended."""
_GONE = 410


class ExpiredError(Exception):
    """The API server no longer has the changes since that version: list again."""


class KubernetesClient:
    def __init__(
        self,
        config: KubernetesProviderConfig,
        max_bytes: int,
        *,
        environment: Mapping[str, str] | None = None,
        account: Path = SERVICE_ACCOUNT,
    ) -> None:
        self._account = account
        self._max_bytes = max_bytes
        self._is_in_cluster = not config.api_server
        environment = os.environ if environment is None else environment
        self._url = config.api_server or _cluster_url(environment)
        self._http = replace(config.http, tls=_cluster_tls(account)) if self._is_in_cluster else config.http
        self._client = new_client(self._http)

    async def close(self) -> None:
        await self._client.aclose()

    async def get_list(self, path: str, query: Mapping[str, str]) -> Any:
        try:
            _, body = await get_body(
                self._client,
                f"{self._url}{path}?{urlencode(query)}",
                self._headers(),
                self._http,
                timeout_seconds=LIST_TIMEOUT_SECONDS,
                max_bytes=self._max_bytes,
            )
        except StatusError as error:
            raise _explained(error, path) from None
        return body

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The lines of one watch: one JSON document each."""
        options = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        url = f"{self._url}{path}?{urlencode(options)}"
        headers = {"accept": "application/json", "accept-encoding": "identity", **self._headers()}
        extensions = {"sni_hostname": self._http.server_name} if self._http.server_name else {}
        try:
            async with (
                asyncio.timeout(WATCH_SECONDS + LIST_TIMEOUT_SECONDS),
                self._client.stream("GET", url, headers=headers, extensions=extensions) as response,
            ):
                if response.status_code != 200:
                    raise _explained(StatusError(response.status_code, response.reason_phrase), path)
                pending = b""
                async for piece in response.aiter_raw():
                    *lines, pending = (pending + piece).split(b"\n")
                    for line in lines:
                        yield line
                    if len(pending) > self._max_bytes:
                        raise TooLargeError(self._max_bytes)
        except TimeoutError:
            return  # the connection was lost silently: the next watch finds out
        except NETWORK_ERRORS as error:
            raise DiscoveryError(root_cause(error)) from None

    def _headers(self) -> dict[str, str]:
        if not self._is_in_cluster:
            return {}
        try:
            token = (self._account / "token").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DiscoveryError(f"the service account's token cannot be read: {error}") from None
        return {"authorization": f"Bearer {token}"}

    def own_namespace(self) -> str:
        try:
            return (self._account / "namespace").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DiscoveryError(f"namespaces: own_namespace: {error}") from None


def decode_document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"the API server's answer is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DiscoveryError("the API server's answer is not an object")
    return document


def _explained(error: StatusError, path: str) -> Exception:
    if error.status == _GONE:
        return ExpiredError()
    resource = path.rpartition("/")[2]
    hints = {
        401: "; the token or client certificate is not valid there",
        403: f"; give the service account `list` and `watch` on {resource}",
        404: f"; this API server has no {path}",
    }
    return DiscoveryError(f"{error}{hints.get(error.status, '')}")


def _cluster_url(environment: Mapping[str, str]) -> str:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise DiscoveryError("not in a Kubernetes pod (no KUBERNETES_SERVICE_HOST); set api_server")
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"


def _cluster_tls(account: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(account / "ca.crt"))
    except OSError as error:
        raise DiscoveryError(f"the service account's ca.crt cannot be read: {error}") from None
