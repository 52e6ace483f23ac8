"""Text files for a node exporter: whether they are new, and whether a node exporter reads their folder.

Looks at the usual folders, and at command lines of node exporters in /proc. In a pod without hostPID other
processes are not visible; then there is no result about readers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict

FOLDERS: Final = (
    "/var/lib/node_exporter/textfile_collector",
    "/var/lib/prometheus/node-exporter",
    "/run/prometheus",
    "/textfile",  # in the pods of the Helm chart
)
FILES: Final = ("gpu_sessions.prom", "gpuscope.prom", "dcgm.prom")
OLD_SECONDS: Final = 300.0
_FLAG: Final = "collector.textfile.directory"
_PROGRAMS: Final = ("node_exporter", "prometheus-node-exporter", "node-exporter")


def old_files(context: DoctorContext) -> Iterator[CheckResult]:
    for path in _files(context):
        age_seconds = time.time() - path.stat().st_mtime
        if age_seconds > OLD_SECONDS:
            fix = (
                "systemctl status gpuscope-textfile; in Kubernetes kubectl get cronjob,daemonset and "
                "kubectl logs of the writer (values: collection.schedule, gpu-session-monitoring.nodes)"
            )
            what = f"{path} is {age_seconds / 60:.0f} minutes old: nothing writes it any more"
            yield CheckResult(Verdict.BAD, what, fix)


def unread_folders(context: DoctorContext) -> Iterator[CheckResult]:
    written = sorted({path.parent for path in _files(context)})
    if not written:
        return
    readers = _node_exporters(context)
    if readers is None:
        return
    read = {folder.rstrip("/") for folder in readers}
    for folder in written:
        inside = "/" + str(folder.relative_to(context.root))
        if inside in read:
            yield CheckResult(Verdict.GOOD, f"a node exporter reads {inside}")
        elif inside == "/textfile" and read:
            yield CheckResult(Verdict.NOTE, f"node exporters of this machine read {', '.join(sorted(read))}")
        else:
            fix = (
                f"node_exporter --{_FLAG}={inside}; in Kubernetes: "
                "gpuscope render helm-values --for kube-prometheus-stack"
            )
            found = f"; they read {', '.join(sorted(read))}" if read else ""
            yield CheckResult(Verdict.BAD, f"no node exporter reads {inside}{found}", fix)


def _files(context: DoctorContext) -> Iterator[Path]:
    for folder in FOLDERS:
        for name in FILES:
            path = context.root / folder.lstrip("/") / name
            if path.is_file():
                yield path


def _node_exporters(context: DoctorContext) -> list[str] | None:
    """The folders that node exporters read; None if the machine's processes are not visible."""
    proc = context.root / "proc"
    if context.settings.path_procfs != "/proc":
        proc = Path(context.settings.path_procfs)
    folders: list[str] = []
    is_machine = False
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        words = _command_line(entry)
        # Kernel threads have no command line; PID 2 is one, unless this is a container's own namespace.
        is_machine = is_machine or (entry.name == "2" and words == [])
        if words and words[0].rpartition("/")[2] in _PROGRAMS:
            is_machine = True
            folders += _flag_values(words)
    return folders if is_machine else None


def _command_line(entry: Path) -> list[str] | None:
    try:
        text = (entry / "cmdline").read_text("utf-8", "replace")
    except OSError:
        return None
    return [word for word in text.split("\0") if word]


def _flag_values(words: list[str]) -> Iterator[str]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.lstrip("-").partition("=")
        if name == _FLAG:
            yield value if equals else following


CHECKS = (old_files, unread_folders)
