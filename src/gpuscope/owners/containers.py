"""Names and images of containers outside Kubernetes, from Docker's or Podman's socket, where that is allowed.

Whoever may open such a socket is root on the machine, so none is asked unless the settings name it. Podman
answers Docker's API. Both are asked once for each container.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gpuscope.blocking_http import BlockingHttp, HttpAddress
from gpuscope.errors import SourceError, SourceMissing
from gpuscope.owners.attribute import ContainerName, Containers
from gpuscope.readings import ABSENT, Reading
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier

TIMEOUT_SECONDS: Final = 5.0
_MAX_BYTES: Final = 4 << 20
_MOST_NAME: Final = 256


class ContainerNames:
    """Like the process lookup: the collector says whom it wants, the worker asks, `known` has the answers."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets
        self._wanted: frozenset[str] = frozenset()
        self.known: Containers = {}

    def want(self, container_ids: frozenset[str]) -> Containers:
        self._wanted = container_ids
        return self.known

    def read(self, due: frozenset[Tier]) -> Reading:
        wanted, known, failures = self._wanted, self.known, Counter[str]()
        now = {one: known[one] for one in wanted if one in known}
        for container_id in wanted - known.keys():
            found = self._ask(container_id, failures)
            if found is not None:
                now[container_id] = found
        if now != known:
            self.known = now
        if len(failures) >= len(self._sockets):
            raise SourceMissing("; ".join(sorted(failures)))
        return Reading(failures=failures)

    def close(self) -> None:
        pass

    def _ask(self, container_id: str, failures: Counter[str]) -> ContainerName | None:
        """None where some runtime did not answer: it is asked again."""
        all_answered = True
        for path in self._sockets:
            try:
                found = inspect(path, container_id)
            except SourceError as error:
                failures[str(error)] += 1
                all_answered = False
                continue
            if found is not None:
                return found
        return ContainerName() if all_answered else None


def inspect(path: str, container_id: str) -> ContainerName | None:
    """None where this runtime does not know the container."""
    address = HttpAddress(unix_socket=path)
    try:
        with BlockingHttp(address, timeout_seconds=TIMEOUT_SECONDS, max_body_bytes=_MAX_BYTES) as http:
            response = http.request("GET", f"/containers/{container_id}/json")
    except OSError as error:
        raise SourceError(f"{path}: {error}") from None
    if response.status == 404:
        return None
    if response.status != 200:
        raise SourceError(f"{path} answers {response.status}")
    return decode_inspect(response.body)


def decode_inspect(body: bytes) -> ContainerName:
    try:
        told = json.loads(body)
        name = str(told["Name"]).removeprefix("/")[:_MOST_NAME]
        image = str(told.get("Config", {}).get("Image") or "")[:_MOST_NAME]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SourceError("the answer is no container") from None
    return ContainerName(name or ABSENT, image or ABSENT)


def containers_spec(names: ContainerNames) -> SourceSpec:
    def open_names(settings: Settings) -> ContainerNames:
        return names

    return SourceSpec(
        name="containers", summary="names and images of containers, from their runtime", open=open_names
    )
