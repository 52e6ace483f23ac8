"""Pods by UID from the names of the kubelet's log folders: no permission, no token, no network.

`/var/log/pods/<namespace>_<pod>_<uid>/<container>/`; neither namespace nor pod can contain an underscore.
Container ids are in the links of `/var/log/containers`, if that folder is mounted too. Labels are absent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuscope.owners.pods import Pod, PodContainer
from gpuscope.readings import ABSENT

MAX_PODS: Final = 10_000
_LINK = re.compile(r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<container>.+)-(?P<id>[0-9a-f]{64})\.log\Z")


def read_pod_logs(folder: str) -> list[Pod]:
    """Raises OSError if the folder cannot be read."""
    ids = _container_ids(Path(folder).parent / "containers")
    pods = []
    with os.scandir(folder) as entries:
        for entry in entries:
            parts = entry.name.split("_")
            if len(parts) != 3 or not all(parts) or not entry.is_dir(follow_symlinks=False):
                continue
            namespace, name, uid = parts
            containers = tuple(_containers(entry.path, ids.get((namespace, name), {})))
            pods.append(Pod(uid=uid, namespace=namespace, name=name, containers=containers))
            if len(pods) >= MAX_PODS:
                break
    return pods


def _containers(folder: str, ids: dict[str, list[str]]) -> Iterator[PodContainer]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - only names are needed
    except OSError:  # the pod was deleted in the meantime
        return
    for name in names:
        # A restarted container has a link for each start; all have its name.
        for container_id in ids.get(name, [""]):
            yield PodContainer(name, container_id or ABSENT)


def _container_ids(folder: Path) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Ids by namespace and pod, then by container. A name cut at 255 characters does not match."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return found
    for name in names[: 8 * MAX_PODS]:
        match = _LINK.match(name)
        if match:
            pod = found.setdefault((match["namespace"], match["pod"]), {})
            pod.setdefault(match["container"], []).append(match["id"])
    return found
