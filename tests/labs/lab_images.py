"""Image archives for containerd, made without an engine: layers in, a file that `docker load` reads out.

`pause_archive` is the sandbox of each pod: a static program that waits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from tests.labs.debian_programs import lab_cache, run

PAUSE_IMAGE = "localhost/pause:lab"
PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
"""


def pause_archive(folder: Path) -> Path:
    program = lab_cache() / "go" / "pause"
    if not program.exists():
        source = folder / "pause"
        source.mkdir()
        (source / "go.mod").write_text("module pause\n\ngo 1.22\n")
        (source / "main.go").write_text(PAUSE)
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        run("go", "build", "-ldflags=-s -w", "-o", program, ".", cwd=source, env=environment)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(program, "pause")
    archive = folder / "pause.tar"
    write_image(archive, PAUSE_IMAGE, [layer.getvalue()], {"Entrypoint": ["/pause"]})
    return archive


def read_layers(archive: Path) -> list[bytes]:
    """The layers of an archive that `docker save` wrote, lowest first."""
    with tarfile.open(archive) as saved:
        manifest = saved.extractfile("manifest.json")
        assert manifest is not None
        found = [saved.extractfile(name) for name in json.load(manifest)[0]["Layers"]]
        return [layer.read() for layer in found if layer is not None]


def write_image(archive: Path, name: str, layers: list[bytes], config: dict[str, Any]) -> None:
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "lab"} for _ in layers],
    }
    document = json.dumps(image).encode()
    config_name = f"{hashlib.sha256(document).hexdigest()}.json"
    names = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(archive, "w") as made:
        members = [*zip(names, layers, strict=True), (config_name, document), ("manifest.json", manifest)]
        for member, data in members:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
