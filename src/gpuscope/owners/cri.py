"""Names and images of containers under containerd or CRI-O, from the CRI socket, where that is allowed.

Whoever may open such a socket is root on the machine, so none is asked unless the settings name it, or say
`auto` for the usual places. One question lists all containers; it is put only while a wanted one is not known.
The image is often told as a mere digest; what the user called it comes in a field only newer runtimes have.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from gpuscope.errors import SourceError, SourceMissing
from gpuscope.owners.attribute import ContainerName, Containers
from gpuscope.owners.grpc.call import CallError, call
from gpuscope.owners.grpc.protobuf import Value, fields, message, text
from gpuscope.readings import ABSENT, Reading
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier

LIST_CONTAINERS: Final = "/runtime.v1.RuntimeService/ListContainers"
AUTO: Final = "auto"
USUAL_SOCKETS: Final = (
    "run/containerd/containerd.sock",
    "run/crio/crio.sock",
    "run/k3s/containerd/containerd.sock",
)
TIMEOUT_SECONDS: Final = 5.0
NAME_LABEL: Final = "io.kubernetes.container.name"
_MOST_BYTES: Final = 16 << 20  # what the runtimes themselves allow
_MOST_NAME: Final = 256
_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{64}")


class CriNames:
    """Like the process lookup: the collector says whom it wants, the worker asks, `known` has the answers."""

    def __init__(self, sockets: Sequence[str], root: str = "/") -> None:
        self._named = tuple(path for path in sockets if path != AUTO)
        self._usual = tuple(str(Path(root, path)) for path in USUAL_SOCKETS) if AUTO in sockets else ()
        self._wanted: frozenset[str] = frozenset()
        self.known: Containers = {}

    def want(self, container_ids: frozenset[str]) -> Containers:
        self._wanted = container_ids
        return self.known

    def read(self, due: frozenset[Tier]) -> Reading:
        wanted, known = self._wanted, self.known
        now = {one: known[one] for one in wanted if one in known}
        failures: Counter[str] = Counter()
        if missing := wanted - known.keys():
            found, failures = self._ask(missing)
            now.update(found)
            if not failures:  # every runtime answered: the others are none of theirs, and not asked for again
                now.update(dict.fromkeys(missing - found.keys(), ContainerName()))
        if now != known:
            self.known = now
        return Reading(failures=failures)

    def close(self) -> None:
        pass

    def _ask(self, missing: frozenset[str]) -> tuple[dict[str, ContainerName], Counter[str]]:
        """What was found, and who failed; raises when nobody answered."""
        found: dict[str, ContainerName] = {}
        failures, silent, answered = Counter[str](), [], False
        for path in self._sockets():
            try:
                found.update(list_containers(path, missing - found.keys()))
                answered = True
            except SourceError as error:
                why = str(error) if path in str(error) else f"{path}: {error}"
                silent.append(why)
                # Docker's own containerd has no CRI: beside another runtime that is no failure.
                if not (isinstance(error, CallError) and error.status == "UNIMPLEMENTED"):
                    failures[why] += 1
        if not answered:
            raise SourceMissing("; ".join(silent))
        return found, failures

    def _sockets(self) -> tuple[str, ...]:
        # Not `Path.exists`: a folder that may not be entered must not keep the other places from being tried.
        paths = self._named + tuple(path for path in self._usual if os.path.exists(path))  # noqa: PTH110
        if not paths:
            raise SourceMissing(f"no CRI socket: {', '.join(self._usual)} are not here, or not for this user")
        return tuple(dict.fromkeys(paths))


def list_containers(
    path: str, wanted: Collection[str], timeout: float = TIMEOUT_SECONDS
) -> dict[str, ContainerName]:
    """Those of the wanted that this runtime knows; raises a SourceError when it does not answer sensibly."""
    return decode_containers(call(path, LIST_CONTAINERS, timeout=timeout, most=_MOST_BYTES), wanted)


def decode_containers(answer: bytes, wanted: Collection[str]) -> dict[str, ContainerName]:
    found: dict[str, ContainerName] = {}
    for number, value in fields(answer):
        if number != 1:
            continue
        container = message(value)
        container_id = _text_field(container, 1)
        if container_id in wanted:
            found.setdefault(container_id, _container(container))
    return found


def _container(container: bytes) -> ContainerName:
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
    return ContainerName(
        (label or name)[:_MOST_NAME] or ABSENT, _image(image, image_ref)[:_MOST_NAME] or ABSENT
    )


def _image(spec: bytes, image_ref: str) -> str:
    """The first that a person would know it by; a digest only where there is nothing else."""
    told = [word for word in (_text_field(spec, 1), _text_field(spec, 18), image_ref) if word]
    return next((word for word in told if not _DIGEST.fullmatch(word)), told[0] if told else "")


def _name_label(entry: Value) -> str:
    data = message(entry)
    return _text_field(data, 2) if _text_field(data, 1) == NAME_LABEL else ""


def _text_field(data: bytes, wanted: int) -> str:
    found = ""
    for number, value in fields(data):
        if number == wanted:
            found = text(value)
    return found


def cri_spec(names: CriNames) -> SourceSpec:
    def open_names(settings: Settings) -> CriNames:
        return names

    return SourceSpec(
        name="cri", summary="names and images of containers, from containerd or CRI-O", open=open_names
    )
