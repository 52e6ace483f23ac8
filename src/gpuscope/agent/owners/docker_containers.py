"""Names and images of containers outside Kubernetes, from the sockets of Docker or Podman.

Access to such a socket is root access to the machine, so only sockets named in the settings are used. Podman
answers Docker's API. Each container is queried once; an unknown one has an empty `ContainerInfo`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gpuscope.agent.owners.attribution import ContainerInfo, ContainerInfos
from gpuscope.agent.owners.lookup_timing import lasting_timing
from gpuscope.agent.worker import ReadResult, Worker
from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT

TIMEOUT_SECONDS: Final = 5.0
_MAX_BYTES: Final = 4 << 20
_MAX_NAME: Final = 256


class DockerReader:
    """The reader of the worker. Another thread says with `want` which containers are present."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets
        self._wanted: frozenset[str] = frozenset()
        self._known: ContainerInfos = {}

    def want(self, container_ids: frozenset[str]) -> None:
        self._wanted = container_ids

    def read(self) -> ReadResult[ContainerInfos]:
        """The same mapping as before unless it changes. Raises SourceMissing when no socket answered."""
        wanted, known, failures = self._wanted, self._known, Counter[str]()
        now = {one: known[one] for one in wanted if one in known}
        for container_id in wanted - known.keys():
            found = self._query(container_id, failures)
            if found is not None:
                now[container_id] = found
        if now != known:
            self._known = now
        if len(failures) >= len(self._sockets):
            raise SourceMissing("; ".join(sorted(failures)))
        return ReadResult(self._known, failures)

    def close(self) -> None:
        pass

    def _query(self, container_id: str, failures: Counter[str]) -> ContainerInfo | None:
        """None if a runtime did not answer: the container is queried again."""
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
        return ContainerInfo() if all_answered else None


def inspect(path: str, container_id: str) -> ContainerInfo | None:
    """None if this runtime does not know the container."""
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


def decode_inspect(body: bytes) -> ContainerInfo:
    try:
        answer = json.loads(body)
        name = str(answer["Name"]).removeprefix("/")[:_MAX_NAME]
        image = str(answer.get("Config", {}).get("Image") or "")[:_MAX_NAME]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SourceError("the answer does not describe a container") from None
    return ContainerInfo(name or ABSENT, image or ABSENT)


def docker_worker(reader: DockerReader, settings: Settings, clock: Clock) -> Worker[ContainerInfos]:
    return Worker(
        "containers",
        "names and images of containers, from Docker or Podman",
        lambda: reader,
        lasting_timing(settings, settings.interval),
        clock,
    )
