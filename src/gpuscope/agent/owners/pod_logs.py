"""Pods by UID from the names of the kubelet's logs: no permission, no token, no network.

The links of `/var/log/containers` name everything: `<pod>_<namespace>_<container>-<id>.log` points to
`/var/log/pods/<namespace>_<pod>_<uid>/<container>/0.log`. Their text is enough, so that a container which
mounts only this folder cannot read any log. `/var/log/pods` is read too where it is there: it has pods without
a link. Neither namespace nor pod can contain an underscore. Labels are absent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.pods import Pod, PodContainer
from gpuscope.model.readings import ABSENT

MAX_PODS: Final = 10_000
MAX_LINKS: Final = 8 * MAX_PODS
# A file name has at most 255 characters: with long names the id is cut, and the pod is known by its UID.
_ID = re.compile(r"-([0-9a-f]{64})\.log\Z")

PodFolder = tuple[str, str, str]
"""Namespace, pod, UID."""


def read_pod_logs(folder: str) -> list[Pod]:
    """Raises OSError if neither the folder nor that of the links beside it can be read."""
    pods: dict[PodFolder, dict[str, list[str]]] = {}  # ids by container
    failure: OSError | None = None
    try:
        _add_folders(pods, folder)
    except OSError as error:
        failure = error
    try:
        _add_links(pods, Path(folder).parent / "containers")
    except OSError:
        if failure is not None:
            raise failure from None
    return [
        Pod(uid=uid, namespace=namespace, name=name, containers=tuple(_containers(ids)))
        for (namespace, name, uid), ids in pods.items()
    ]


def _add_folders(pods: dict[PodFolder, dict[str, list[str]]], folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if (pod := _parse(entry.name)) is None or not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError):  # the pod was deleted in the meantime
                names = sorted(os.listdir(entry.path))  # noqa: PTH208 - only names are needed
                pods[pod] = {name: [] for name in names}
            if len(pods) >= MAX_PODS:
                break


def _add_links(pods: dict[PodFolder, dict[str, list[str]]], folder: Path) -> None:
    for name in sorted(os.listdir(folder))[:MAX_LINKS]:  # noqa: PTH208
        try:
            target = os.readlink(folder / name).split("/")  # noqa: PTH115 - its text, not a path of this machine
        except OSError:
            continue
        pod = _parse(target[-3]) if len(target) >= 3 else None
        if pod is None or (pod not in pods and len(pods) >= MAX_PODS):
            continue
        # A restarted container has a link for each start; all have its name.
        ids = pods.setdefault(pod, {}).setdefault(target[-2], [])
        if found := _ID.search(name):
            ids.append(found[1])


def _parse(name: str) -> PodFolder | None:
    parts = name.split("_")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and all(parts) else None


def _containers(ids: dict[str, list[str]]) -> Iterator[PodContainer]:
    for name, of_container in ids.items():
        known: Iterable[str] = of_container or ("",)
        yield from (PodContainer(name, container_id or ABSENT) for container_id in known)
