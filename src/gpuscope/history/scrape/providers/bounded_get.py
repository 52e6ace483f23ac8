"""GET requests of target providers: a bounded body, or a `DiscoveryError` with one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2

from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.fetch import ScrapeBodyBudget, ScrapeError, read_body, root_cause
from gpuscope.history.scrape.providers import DiscoveryError

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
