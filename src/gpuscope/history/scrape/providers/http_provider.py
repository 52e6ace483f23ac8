"""`http_sd_configs`: a URL that answers with target groups in JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import httpx2

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.fetch import ScrapeBodyBudget, ScrapeError, new_client, read_body, root_cause
from gpuscope.history.scrape.job_options import HttpProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError, refresh_forever

log = logging.getLogger("gpuscope.scrape")

# GET requests of target providers: a bounded body, or a `DiscoveryError` with one sentence.

MAX_BODY_LIMIT = "discovery_max_body_bytes"
NETWORK_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError, OSError)


class TooLargeError(DiscoveryError):
    """The body exceeds the limit; a smaller page may fit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the answer is larger than {max_bytes} bytes ({MAX_BODY_LIMIT})")
        LIMITS_REACHED.count(MAX_BODY_LIMIT)


class StatusError(DiscoveryError):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"server returned HTTP status {status} {reason}".rstrip())
        self.status = status


async def get_body(
    client: httpx2.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    http: HttpConfig,
    *,
    timeout_seconds: float,
    max_bytes: int,
) -> tuple[httpx2.Headers, bytes]:
    """Headers and decompressed body of a 200 response."""
    client.cookies.clear()
    extensions = {"sni_hostname": http.server_name} if http.server_name else {}
    accepting = {"accept": "application/json", "accept-encoding": "gzip", **headers}
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            client.stream("GET", url, headers=accepting, extensions=extensions) as response,
        ):
            if response.status_code != 200:
                raise StatusError(response.status_code, response.reason_phrase)
            # A budget of its own: discovery must work while large targets use up the budget of scrapes.
            with ScrapeBodyBudget(max_bytes).share() as share:
                return response.headers, await read_body(
                    response.aiter_raw(), response.headers.get("content-encoding", ""), max_bytes, share
                )
    except TimeoutError:
        raise DiscoveryError(f"no complete answer within {timeout_seconds:g} s") from None
    except ScrapeError as error:
        if error.limit:
            raise TooLargeError(max_bytes) from None
        raise DiscoveryError(str(error)) from None
    except NETWORK_ERRORS as error:
        raise DiscoveryError(root_cause(error)) from None


_JSON_TYPE = re.compile(r'application/json(;\s*charset=("utf-8"|utf-8))?', re.IGNORECASE)
_MAX_SHOWN = 60


class HttpProvider:
    def __init__(self, config: HttpProviderConfig, workers: Executor, max_bytes: int) -> None:
        self.config = config
        self.failures = 0
        self._workers = workers
        self._max_bytes = max_bytes
        self._groups: tuple[TargetGroup, ...] = ()
        self._episode = EpisodeLog(log, f"targets of {config.url}", level=logging.ERROR)

    def groups(self) -> tuple[TargetGroup, ...]:
        return self._groups

    def adopt(self, groups: tuple[TargetGroup, ...]) -> None:
        self._groups = groups

    async def run(self, on_change: Callable[[], None]) -> None:
        self._client = new_client(self.config.http)
        try:
            await refresh_forever(self._refresh, self.config.refresh_seconds, on_change)
        finally:
            await self._client.aclose()

    async def _refresh(self) -> bool:
        try:
            groups = await self._read()
        except DiscoveryError as error:
            self.failures += 1
            self._episode.failed(f"{error}; keeping the last valid targets")
            return False
        self._episode.succeeded()
        is_changed = groups != self._groups
        self._groups = groups
        return is_changed

    async def _read(self) -> tuple[TargetGroup, ...]:
        interval = self.config.refresh_seconds
        headers, body = await get_body(
            self._client,
            self.config.url,
            {"x-prometheus-refresh-interval-seconds": f"{interval:g}"},
            self.config.http,
            timeout_seconds=interval,
            max_bytes=self._max_bytes,
        )
        content_type = headers.get("content-type", "").strip()
        if _JSON_TYPE.fullmatch(content_type) is None:
            raise DiscoveryError(
                f"unsupported Content-Type {content_type[:_MAX_SHOWN]!r}; it must be application/json"
            )
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._workers, decode_groups, body, self.config.url)


def decode_groups(body: bytes, url: str) -> tuple[TargetGroup, ...]:
    """A list of {targets, labels}; one wrong entry refuses the whole answer, as in Prometheus."""
    try:
        document = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"the answer is not JSON: {error}") from None
    if document is None:
        return ()
    if not isinstance(document, list):
        raise DiscoveryError("the answer must be a list of target groups, each with targets and labels")
    return tuple(_group(entry, at, url) for at, entry in enumerate(document))


def _group(entry: Any, at: int, url: str) -> TargetGroup:
    if not isinstance(entry, dict):
        raise DiscoveryError(f"entry {at} is not a target group with targets and labels")
    # Go's decoder, which defines this format, ignores the case of keys.
    values = {key.lower(): value for key, value in entry.items()}
    for key in values.keys() - {"targets", "labels"}:
        raise DiscoveryError(f"entry {at} has the unknown key {key[:_MAX_SHOWN]!r}")
    targets = values.get("targets") or []
    labels = values.get("labels") or {}
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise DiscoveryError(f"targets of entry {at} must be a list of strings")
    if not isinstance(labels, dict) or not all(
        name and (value is None or isinstance(value, str)) for name, value in labels.items()
    ):
        raise DiscoveryError(f"labels of entry {at} must be a mapping of names to strings")
    given = {name: value or "" for name, value in labels.items()}
    return TargetGroup(tuple(targets), {**given, "__meta_url": url}, f"{url}: entry {at}")
