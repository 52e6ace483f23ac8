"""Pods from JSON: the kubelet's `/pods` and the API server's list have the same format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gpuscope.agent.owners.pods import Pod, PodContainer
from gpuscope.agent.owners.pods_api import CONFIG_HASH, KeepLabel, bare_id, has_not_ended
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT


def decode_pod_list(answer: bytes, keep_label: KeepLabel) -> list[Pod]:
    try:
        items = json.loads(answer)["items"] or []
        return list(_pods(items, keep_label))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise SourceError("the answer is not a list of pods") from None


def _pods(items: list[dict[str, Any]], keep_label: KeepLabel) -> Iterator[Pod]:
    for item in items:
        metadata, status = item["metadata"], item.get("status") or {}
        labels = metadata.get("labels") or {}
        hashed = str((metadata.get("annotations") or {}).get(CONFIG_HASH, ""))
        yield Pod(
            uid=str(metadata["uid"]),
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata["name"]),
            labels=tuple(sorted((str(k), str(v)) for k, v in labels.items() if keep_label(str(k)))),
            containers=tuple(_containers(status)),
            other_uid=hashed if hashed != metadata["uid"] else "",
            running=has_not_ended(str(status.get("phase") or "")),
        )


def _containers(status: dict[str, Any]) -> Iterator[PodContainer]:
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for container in status.get(kind) or []:
            image = str(container.get("image") or "")
            yield PodContainer(
                str(container["name"]), bare_id(str(container.get("containerID") or "")), image or ABSENT
            )
