"""The Helm chart, rendered by the real helm: the modes that tests render, and how to read the manifests.

`MODES` has the values of each mode; `template` gives the documents that helm makes of them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.fast_yaml import read_yaml_documents

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy/helm/gpuscope"
EXAMPLES = ROOT / "deploy/helm/examples"
VERSIONS = tuple(f"1.{minor}" for minor in range(27, 38))
PASSWORD_HASH = "$2y$10$XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"
CRDS = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"))
SEED: dict[str, Any] = {
    "gpu-session-monitoring": {"enabled": True},
    "collection": {
        "schedule": "*/1 * * * *",
        "resources": {
            "requests": {"memory": "128Mi", "cpu": "100m"},
            "limits": {"memory": "256Mi", "cpu": "200m"},
        },
    },
    "nodeSelector": {"accelerator": "nvidia"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
"""The values of the tutorial on GPU sessions."""
ALL_MONITORS: dict[str, Any] = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "stack"}},
    "podMonitor": {"enabled": True},
    "prometheusRule": {
        "enabled": True,
        "files": ["gpuscope-gpu", "gpuscope-node", "gpuscope-service", "gpuscope-use", "gpuscope-slurm",
                  "gpuscope-rollups", "gpu-sessions", "dcgm-exporter", "nvidia-gpu-exporter", "instances"],
    },
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "everything": {
        **SEED,
        "textfile": {"enabled": True, "families": ["dcgm_legacy"]},
        "profiling": {"dcgm": "sidecar"},
        "server": {"enabled": True, "ingress": {"enabled": True}},
        "networkPolicy": {"enabled": True},
        "dashboards": {"enabled": True},
        "web": {"basicAuthUsers": {"ann": PASSWORD_HASH}},
    },
    "default": {},
    "seed": SEED,
    "sessions on nodes": {"gpu-session-monitoring": {"enabled": True, "nodes": ["gpu-1", "gpu-2.example.org"]}},
    "sessions by interval": {**SEED, "collection": {"interval": "30s"}},
    "textfile": {"agent": {"enabled": False}, "textfile": {"enabled": True, "fields": ["+191", "+51"]}},
    "no pods": {"agent": {"podAttribution": False}},
    "host path": {"driver": {"access": "hostPath"}},
    "runtime class": {"driver": {"runtimeClassName": "nvidia"}},
    "sidecar": {"profiling": {"dcgm": "sidecar"}},
    "host engine": {"profiling": {"dcgm": "hostengine"}, "networkPolicy": {"enabled": True}},
    "counters": {"agent": {"counters": "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n"}},
    "server": {"server": {"enabled": True}, "networkPolicy": {"enabled": True}},
    "server without claim": {"server": {"enabled": True, "persistence": {"enabled": False}}},
    "server with claim": {"server": {"enabled": True, "persistence": {"existingClaim": "x"}}},
    "store": {"server": {"enabled": True, "store": "http://prometheus:9090"}},
    "ingress": {
        "server": {"enabled": True, "ingress": {"enabled": True, "tlsSecret": "tls", "className": "n"}}
    },
    "web": {
        "server": {"enabled": True},
        "web": {"tlsSecret": "tls", "basicAuthUsers": {"ann": PASSWORD_HASH}, "scrapeCredentialsSecret": "c"},
    },
    "monitors": ALL_MONITORS,
    "dashboards": {"dashboards": {"enabled": True}},
    "host network": {"agent": {"hostNetwork": True, "priorityClassName": "", "exportedPodLabels": ["app"]}},
}


def run_helm(helm: Path, folder: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    command = [str(word) for word in (helm, *argv)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def template(helm: Path, folder: Path, values: dict[str, Any], *more: str) -> list[dict[str, Any]]:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    crds = [word for name in CRDS for word in ("--api-versions", name)]
    done = run_helm(helm, folder, "template", "gs", CHART, "-n", "gpu", "-f", file, *crds, *more)
    assert done.returncode == 0, done.stderr
    return [document for document in read_yaml_documents(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [one for one in documents if one["kind"] == kind and one["metadata"]["name"].endswith(name)]
    return found


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod: dict[str, Any] = spec.get("template", {}).get("spec", spec if document["kind"] == "Pod" else {})
    return pod


def containers_of(document: dict[str, Any]) -> list[Any]:
    pod = pod_of(document)
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def volumes_of(document: dict[str, Any]) -> list[Any]:
    return list(pod_of(document).get("volumes", []))
