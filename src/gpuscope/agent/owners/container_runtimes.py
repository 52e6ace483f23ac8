"""Names and images of containers, from the sockets of containerd or CRI-O (CRI) and of Docker.

Access to such a socket is root access to the machine, so only sockets named in the settings are used; `auto`
means the usual paths. One call lists all containers; it is made only while a wanted container is unknown. The
image is often given as a digest only; the name the user wrote is in a field that only newer runtimes have.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.attribution import ContainerInfo, ContainerInfos
from gpuscope.agent.owners.grpc_call import CallError, Value, call, fields, message, text
from gpuscope.agent.worker import ReadResult, Worker, lasting_timing
from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT

LIST_CONTAINERS: Final = "/runtime.v1.RuntimeService/ListContainers"
AUTO: Final = "auto"
USUAL_SOCKETS: Final = (
    "run/containerd/containerd.sock",
    "run/crio/crio.sock",
    "run/k3s/containerd/containerd.sock",
)
TIMEOUT_SECONDS: Final = 5.0
NAME_LABEL: Final = "io.kubernetes.container.name"
_MAX_BYTES: Final = 16 << 20  # what the runtimes themselves allow
_MAX_NAME: Final = 256
_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{64}")


class CriReader:
    """The reader of the worker. Another thread says with `want` which containers are present."""

    def __init__(self, sockets: Sequence[str], root: str = "/") -> None:
        self._named = tuple(path for path in sockets if path != AUTO)
        self._usual = tuple(str(Path(root, path)) for path in USUAL_SOCKETS) if AUTO in sockets else ()
        self._wanted: frozenset[str] = frozenset()
        self._known: ContainerInfos = {}

    def want(self, container_ids: frozenset[str]) -> None:
        self._wanted = container_ids

    def read(self) -> ReadResult[ContainerInfos]:
        """The same mapping as before unless it changes. Raises SourceMissing when no runtime answered."""
        wanted, known = self._wanted, self._known
        now = {container: known[container] for container in wanted if container in known}
        failures: Counter[str] = Counter()
        if missing := wanted - known.keys():
            found, failures = self._query(missing)
            now.update(found)
            if not failures:  # every runtime answered and none knows the others: they are not queried again
                now.update(dict.fromkeys(missing - found.keys(), ContainerInfo()))
        if now != known:
            self._known = now
        return ReadResult(self._known, failures)

    def close(self) -> None:
        pass

    def _query(self, missing: frozenset[str]) -> tuple[dict[str, ContainerInfo], Counter[str]]:
        """What was found, and which runtimes failed; raises when none answered."""
        found: dict[str, ContainerInfo] = {}
        failures, silent, answered = Counter[str](), [], False
        for path in self._sockets():
            try:
                found.update(list_containers(path, missing - found.keys()))
                answered = True
            except SourceError as error:
                why = str(error) if path in str(error) else f"{path}: {error}"
                silent.append(why)
                # Docker's own containerd has no CRI: not a failure if another runtime answers.
                if not (isinstance(error, CallError) and error.status == "UNIMPLEMENTED"):
                    failures[why] += 1
        if not answered:
            raise SourceMissing("; ".join(silent))
        return found, failures

    def _sockets(self) -> tuple[str, ...]:
        # Not `Path.exists`: it raises for a folder that may not be entered, and the other paths must be tried.
        paths = self._named + tuple(path for path in self._usual if os.path.exists(path))  # noqa: PTH110
        if not paths:
            raise SourceMissing(
                f"no CRI socket: {', '.join(self._usual)} do not exist, or this user may not see them"
            )
        return tuple(dict.fromkeys(paths))


def list_containers(
    path: str, wanted: Collection[str], timeout: float = TIMEOUT_SECONDS
) -> dict[str, ContainerInfo]:
    """Those wanted containers that this runtime knows; raises SourceError if it gives no valid answer."""
    return decode_containers(call(path, LIST_CONTAINERS, timeout=timeout, max_bytes=_MAX_BYTES), wanted)


def decode_containers(answer: bytes, wanted: Collection[str]) -> dict[str, ContainerInfo]:
    found: dict[str, ContainerInfo] = {}
    for number, value in fields(answer):
        if number != 1:
            continue
        container = message(value)
        container_id = _text_field(container, 1)
        if container_id in wanted:
            found.setdefault(container_id, _container(container))
    return found


def _container(container: bytes) -> ContainerInfo:
    name = label = image_ref = ""
    image = b""
    for number, value in fields(container):
        if number == 3:
            name = _text_field(message(value), 1)
        elif number == 4:
            image = message(value)
        elif number == 5:
            image_ref = text(value)
        elif number == 8:
            label = _name_label(value) or label
    return ContainerInfo((label or name)[:_MAX_NAME] or ABSENT, _image(image, image_ref)[:_MAX_NAME] or ABSENT)


def _image(spec: bytes, image_ref: str) -> str:
    """The first name that is not a digest; a digest if there is nothing else."""
    names = [word for word in (_text_field(spec, 1), _text_field(spec, 18), image_ref) if word]
    return next((word for word in names if not _DIGEST.fullmatch(word)), names[0] if names else "")


def _name_label(entry: Value) -> str:
    data = message(entry)
    return _text_field(data, 2) if _text_field(data, 1) == NAME_LABEL else ""


def _text_field(data: bytes, wanted: int) -> str:
    found = ""
    for number, value in fields(data):
        if number == wanted:
            found = text(value)
    return found


def cri_worker(reader: CriReader, settings: Settings, clock: Clock) -> Worker[ContainerInfos]:
    return Worker(
        "cri",
        "names and images of containers, from containerd or CRI-O",
        lambda: reader,
        lasting_timing(settings, settings.interval),
        clock,
    )


# Names and images of containers outside Kubernetes, from the sockets of Docker or Podman.
#
# Access to such a socket is root access to the machine, so only sockets named in the settings are used.
# Podman answers Docker's API. Each container is queried once; an unknown one has an empty `ContainerInfo`.

_MAX_DOCKER_BYTES: Final = 4 << 20


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
        now = {container: known[container] for container in wanted if container in known}
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
        with BlockingHttp(address, timeout_seconds=TIMEOUT_SECONDS, max_body_bytes=_MAX_DOCKER_BYTES) as http:
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
