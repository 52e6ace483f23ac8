"""Lists and watches objects of a Kubernetes API server over HTTPS, page by page and event by event.

Without `api_server` the address comes from the pod's environment, and the service account's token is read for
each request, because Kubernetes replaces it. Every failure is a `DiscoveryError` that says what to change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.fetch import new_client, root_cause
from gpuscope.history.scrape.job_options import SERVICE_ACCOUNT, KubernetesProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError
from gpuscope.history.scrape.providers.http_provider import NETWORK_ERRORS, StatusError, TooLargeError, get_body
from gpuscope.history.scrape.providers.kubernetes_objects import Json, object_key, part, parts, text

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


# Keeps the objects of one kind of one namespace: listed once, then watched, as Kubernetes' own clients do.
#
# A failure keeps the objects and is tried again after a growing pause. A watch that missed changes (410)
# lists again. The list is replaced only when it is complete.

PAGE_OBJECTS = 100
"""Pods take 10 to 20 KB of JSON each; a page that exceeds the limit is halved."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
MAX_OBJECTS_LIMIT = "discovery_max_objects"


@dataclass(frozen=True, slots=True)
class WatchedKind:
    name: str
    api: str
    resource: str
    read: Callable[[Json], object]

    def path(self, namespace: str) -> str:
        within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{self.api}{within}/{self.resource}"


class WatchReport:
    """Failures and changes of all watches of one provider."""

    def __init__(self, log: logging.Logger, subject: str) -> None:
        self.failures = 0
        self.version = 0
        """Increases with each change."""
        self.on_change: Callable[[], None] = lambda: None
        self._episode = EpisodeLog(log, subject, level=logging.ERROR)
        self._pause_seconds = FIRST_PAUSE_SECONDS

    async def failed(self, why: str) -> None:
        """Returns after the pause before the next attempt."""
        self.failures += 1
        self._episode.failed(f"{why}; keeping the last valid targets")
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)
        await asyncio.sleep(pause)

    def succeeded(self) -> None:
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._episode.succeeded()

    def changed(self) -> None:
        self.version += 1
        self.on_change()


class ObjectWatch:
    def __init__(
        self,
        kind: WatchedKind,
        namespace: str,
        query: Mapping[str, str],
        client: KubernetesClient,
        workers: Executor,
        report: WatchReport,
        max_objects: int,
    ) -> None:
        self.kind = kind
        self.is_listed = False
        self._path = kind.path(namespace)
        self._query = query
        self._client = client
        self._workers = workers
        self._report = report
        self._max_objects = max_objects
        self._objects: dict[str, object] = {}
        self._version = ""

    def objects(self) -> dict[str, Any]:
        return dict(self._objects)

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ExpiredError:
                self._version = ""
                # A server that always answers so must not be queried in a tight loop.
                await asyncio.sleep(FIRST_PAUSE_SECONDS)
            except DiscoveryError as error:
                await self._report.failed(f"{self.kind.resource}: {error}")

    async def _list(self) -> None:
        running = asyncio.get_running_loop()
        objects: dict[str, object] = {}
        position, page_objects = "", PAGE_OBJECTS
        while True:
            query = {**self._query, "limit": str(page_objects)} | ({"continue": position} if position else {})
            try:
                body = await self._client.get_list(self._path, query)
            except TooLargeError:
                if page_objects == 1:
                    raise
                page_objects //= 2
                continue
            page = await running.run_in_executor(self._workers, _read_page, body, self.kind)
            objects |= page.objects
            if len(objects) > self._max_objects:
                LIMITS_REACHED.count(MAX_OBJECTS_LIMIT)
                raise DiscoveryError(
                    f"more than {self._max_objects} objects ({MAX_OBJECTS_LIMIT}); narrow them with "
                    "namespaces or selectors"
                )
            # A server that gives one position twice would keep this loop going for ever.
            if not page.position or page.position == position:
                break
            position = page.position
        self._objects, self._version, self.is_listed = objects, page.version, True
        self._report.succeeded()
        self._report.changed()

    async def _watch(self) -> None:
        """One watch, until the server ends it."""
        running = asyncio.get_running_loop()
        began_at = running.time()
        async for line in self._client.watch(self._path, {**self._query, "resourceVersion": self._version}):
            if line.strip():
                self._apply(decode_document(line))
                self._report.succeeded()
        if running.time() - began_at < FIRST_PAUSE_SECONDS:
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def _apply(self, event: Json) -> None:
        kind, value = text(event, "type"), part(event, "object")
        if kind == "ERROR":
            if value.get("code") == 410:
                raise ExpiredError
            raise DiscoveryError(f"the watch failed: {text(value, 'message')[:200]}")
        self._version = text(part(value, "metadata"), "resourceVersion") or self._version
        key = object_key(value)
        if kind == "BOOKMARK" or not key:
            return
        if kind == "DELETED":
            self._objects.pop(key, None)
        elif kind in ("ADDED", "MODIFIED"):
            if key not in self._objects and len(self._objects) >= self._max_objects:
                LIMITS_REACHED.count(MAX_OBJECTS_LIMIT)
                return
            read = self.kind.read(value)
            if self._objects.get(key) == read:
                return  # only parts changed that no target has, such as a heartbeat
            self._objects[key] = read
        self._report.changed()


@dataclass(frozen=True, slots=True)
class _Page:
    objects: dict[str, object]
    position: str
    version: str


def _read_page(body: bytes, kind: WatchedKind) -> _Page:
    document = decode_document(body)
    metadata = part(document, "metadata")
    if not isinstance(document.get("items"), list):
        raise DiscoveryError("the API server's answer is not a list")
    objects = {key: kind.read(item) for item in parts(document, "items") if (key := object_key(item))}
    return _Page(objects, text(metadata, "continue"), text(metadata, "resourceVersion"))
