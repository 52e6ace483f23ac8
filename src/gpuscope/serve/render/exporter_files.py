"""Files for other exporters: Helm values for the node exporter, counters files for dcgm-exporter."""

from __future__ import annotations

from typing import Final

import yaml

from gpuscope.serve.render import RenderedFile
from gpuscope.vendors.nvidia.families.dcgm.table import (
    OLD_OPT_IN_COUNTERS,
    OPT_IN_COUNTERS,
    SHIPPED_FILES,
    Counter,
)

# Helm values that make the node exporter of another chart read gpuscope's text files: YAML for `helm upgrade
# … -f FILE`. `extraArgs` is a list that Helm replaces as a whole, so it repeats the chart's own two
# arguments. The node exporter's job renames `pod` of a text file to `exported_pod`; for kube-prometheus-stack
# the values rename it back.

CHARTS = ("kube-prometheus-stack", "prometheus")
DEFAULT_FOLDER = "/var/lib/node_exporter/textfile_collector"
_EXCLUDED_MOUNTS = "^/(dev|proc|run/containerd/.+|sys|var/lib/docker/.+|var/lib/kubelet/.+)($|/)"
_EXCLUDED_TYPES = (
    "^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|fusectl|hugetlbfs|iso9660|mqueue|nsfs|"
    "overlay|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs|sysfs|tracefs)$"
)
_CLASHING = ("namespace", "pod", "container")


def helm_values(chart: str, folder: str) -> str:
    exporter: dict[str, object] = {
        "extraArgs": [
            f"--collector.filesystem.mount-points-exclude={_EXCLUDED_MOUNTS}",
            f"--collector.filesystem.fs-types-exclude={_EXCLUDED_TYPES}",
            f"--collector.textfile.directory={folder}",
        ],
        "extraHostVolumeMounts": [
            {"name": "gpuscope-textfile", "hostPath": folder, "mountPath": folder, "readOnly": True}
        ],
    }
    if chart == "kube-prometheus-stack":
        exporter["prometheus"] = {"monitor": {"metricRelabelings": _restored_labels()}}
    heading = (
        f"# Values for {chart}: its node exporter reads {folder}.\n"
        f"#   helm upgrade RELEASE prometheus-community/{chart} --reuse-values -f FILE\n"
        "# The first two arguments are the chart's own: Helm replaces the list.\n"
    )
    text: str = yaml.safe_dump({"prometheus-node-exporter": exporter}, sort_keys=False, width=4096)
    return heading + text


def _restored_labels() -> list[dict[str, object]]:
    """Prometheus renames labels that its target has too; these rules give them their names back."""
    rules: list[dict[str, object]] = [
        {"sourceLabels": [f"exported_{name}"], "regex": "(.+)", "targetLabel": name} for name in _CLASHING
    ]
    return [*rules, {"action": "labeldrop", "regex": f"exported_({'|'.join(_CLASHING)})"}]


# The counters files of /etc/dcgm-exporter, written from gpuscope's own lists.
#
# The image for dcgm-exporter's role has them: `-f /etc/dcgm-exporter/dcp-metrics-included.csv`, and scripts
# that copy or edit these files, keep working.

HEADER: Final = """# Format: name, Prometheus type, help. Lines that start with # are comments.
# A row of type `label` becomes a label of all other metrics.

"""
OPT_IN_HEADER: Final = "\n# Further fields: remove the # to export them.\n"


def counters_files() -> list[RenderedFile]:
    return [RenderedFile(name, _text(name, counters)) for name, counters in SHIPPED_FILES.items()]


def _text(name: str, counters: tuple[Counter, ...]) -> str:
    opt_in = OLD_OPT_IN_COUNTERS if name.startswith("1.x") else OPT_IN_COUNTERS
    rows = "".join(_row(counter) + "\n" for counter in counters)
    comments = "".join(f"# {_row(counter)}\n" for counter in opt_in)
    return HEADER + rows + OPT_IN_HEADER + comments


def _row(counter: Counter) -> str:
    help_text = counter.help
    if "," in help_text or '"' in help_text:
        help_text = '"' + help_text.replace('"', '""') + '"'
        return f"{counter.name},{counter.type},{help_text}"
    return f"{counter.name}, {counter.type}, {help_text}"
