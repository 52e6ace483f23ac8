"""Images of Prometheus and of the operator's config reloader for the Kubernetes lab, made without a registry.

Prometheus is the engine that `tools/get-engines` fetches, with the C libraries that it is linked to; the
reloader is built from the operator's source. Raises `LabUnavailable`, or skips, where one cannot be had.
"""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

from tests.engines import engine
from tests.labs.debian_programs import run
from tests.labs.go_programs import go_program
from tests.labs.lab_images import write_image

PROMETHEUS_IMAGE = "localhost/prometheus:lab"
RELOADER_IMAGE = "localhost/prometheus-config-reloader:lab"
NOBODY = "65534"


def prometheus_archive(folder: Path) -> Path:
    program = engine("prometheus")
    libraries = re.findall(r"(?:=> )?(/\S+) \(0x", run("ldd", program))
    files = {str(program): "bin/prometheus"} | {path: path.lstrip("/") for path in libraries}
    return _write(folder / "prometheus.tar", PROMETHEUS_IMAGE, files, "/bin/prometheus")


def reloader_archive(folder: Path) -> Path:
    files = {str(go_program("prometheus-config-reloader")): "bin/prometheus-config-reloader"}
    return _write(folder / "reloader.tar", RELOADER_IMAGE, files, "/bin/prometheus-config-reloader")


def _write(archive: Path, name: str, files: dict[str, str], program: str) -> Path:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as packed:
        for path, inside in files.items():
            packed.add(path, inside)
    write_image(archive, name, [layer.getvalue()], {"Entrypoint": [program], "User": NOBODY})
    return archive
