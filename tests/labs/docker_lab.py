"""A real Docker engine with compose and BuildKit for one test session, from unpacked Debian packages.

Needs root and iptables. Everything it makes is below one folder with a short path (UNIX sockets), and on
bridges of its own; `down` ends only processes it started. No rule is added to the machine's firewall, so
containers reach each other and published ports, not other networks.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.labs.debian_programs import LabUnavailable, make_root, run, unpack

READY_WITHIN_SECONDS = 60
BASE, BUILD_BASE = "localhost/gpuscope-base", "localhost/gpuscope-build-base"
IMAGE_SUITE, IMAGE_PYTHON = "trixie", "3.13"
"""What python:3.13-slim-trixie, the image's own base, is made of."""
BASE_PACKAGES = ("python3", "dash", "ca-certificates", "libstdc++6")
BUILD_PACKAGES = (*BASE_PACKAGES, "python3-pip", "python3-venv", "coreutils", "findutils")


class DockerLab:
    def __init__(self, folder: Path, programs: Path, runc: Path, number: int) -> None:
        self.folder = folder
        self._bridge = f"gpuscopelab{number}"
        self._has_bridge = False
        self._third_byte = 87 + 8 * number  # of its addresses; containers' networks have the next two
        plugins = programs / "usr/libexec/docker/cli-plugins"
        path = f"{programs}/usr/sbin:{programs}/usr/bin:{runc.parent}:{os.environ['PATH']}"
        self.environment = {
            "PATH": path,
            "HOME": str(folder),
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
        }
        (folder / "config" / "cli-plugins").mkdir(parents=True)
        for plugin in plugins.iterdir():
            (folder / "config" / "cli-plugins" / plugin.name).symlink_to(plugin)
        self._runc = runc
        self._engine: subprocess.Popen[bytes] | None = None

    def docker(self, *argv: str | Path, cwd: Path | None = None, check: bool = True, stdin: Any = None) -> str:
        command = ["docker", *map(str, argv)]
        done = subprocess.run(
            command, env=self.environment, cwd=cwd, stdin=stdin, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout

    def inspect(self, name: str) -> Any:
        return json.loads(self.docker("inspect", name))[0]

    def add_image(self, root: Path, name: str) -> None:
        """A folder as an image; device nodes and the package manager's files stay out."""
        command = ["tar", "-C", str(root), "--exclude=./dev/*", "--exclude=./var/cache/*", "-c", "."]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
            self.docker(
                "import", "-c", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "-", name, stdin=archive.stdout
            )

    def up(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        run("ip", "link", "add", self._bridge, "type", "bridge")
        self._has_bridge = True
        run("ip", "addr", "add", f"172.29.{self._third_byte}.1/24", "dev", self._bridge)
        folder = self.folder
        command = [
            "dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec",
            "-p", folder / "docker.pid", "-H", self.environment["DOCKER_HOST"], "--bridge", self._bridge,
            "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip", "127.0.0.1",
            "--default-address-pool", f"base=172.29.{self._third_byte + 1}.0/23,size=26",
            # Without CAP_SYS_RESOURCE no container may have higher limits than this machine.
            "--default-ulimit", f"nofile={most}:{most}",
            "--add-runtime", f"lab={self._runc}", "--default-runtime", "lab",
        ]  # fmt: skip
        words = [str(word) for word in command]
        with (folder / "dockerd.log").open("wb") as log:
            self._engine = subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while subprocess.run(["docker", "info"], env=self.environment, capture_output=True).returncode:
            if self._engine.poll() is not None or time.monotonic() > deadline:
                last = (folder / "dockerd.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise LabUnavailable(f"dockerd does not start: {last}")
            time.sleep(0.2)

    def down(self) -> None:
        if self._engine is not None and self._engine.poll() is None:
            containers = self.docker("ps", "-aq", check=False).split()
            if containers:
                self.docker("rm", "-f", *containers, check=False)
            self.docker("network", "prune", "-f", check=False)
            self._engine.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._engine.wait(30)
            self._engine.kill()
            self._engine.wait()
        if self._has_bridge:
            subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True)
        self._unmount()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _unmount(self) -> None:
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for path in sorted((p for p in mounted if p.startswith(f"{self.folder}/")), reverse=True):
            subprocess.run(["umount", "-l", path], capture_output=True)


@contextmanager
def docker_lab(number: int = 0) -> Iterator[DockerLab]:
    """Labs that run at the same time need different numbers."""
    if os.geteuid() != 0:
        raise LabUnavailable("only root can start a Docker engine")
    if shutil.which("iptables") is None:
        raise LabUnavailable("iptables is not installed; service names need it inside containers")
    programs = unpack(("docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd"), "sid")
    stable = unpack(("runc", "tini"), "bookworm")  # sid's runc needs a newer libc
    init = programs / "usr/sbin/docker-init"
    if not init.is_symlink():
        init.symlink_to(stable / "usr/bin/tini-static")
    lab = DockerLab(
        Path(tempfile.mkdtemp(prefix="gsdk", dir="/tmp")), programs, stable / "usr/sbin/runc", number
    )
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


def add_base_images(lab: DockerLab) -> None:
    """Stand-ins for python:slim: Debian's Python, without and with pip."""
    for name, packages in ((BASE, BASE_PACKAGES), (BUILD_BASE, BUILD_PACKAGES)):
        root = make_root(f"{name.rpartition('/')[2]}-{IMAGE_SUITE}", "extract", packages, suite=IMAGE_SUITE)
        _finish_merged_root(root)
        (root / "bin/sh").unlink(missing_ok=True)
        (root / "bin/sh").symlink_to("dash")
        (root / "tmp").mkdir(exist_ok=True)
        (root / "tmp").chmod(0o1777)
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
        (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
        lab.add_image(root, name)


def _finish_merged_root(root: Path) -> None:
    """From Debian 13 on: links that base-files has, and certificates, without which pip does not start."""
    for link in ("bin", "lib", "lib64", "sbin"):
        if not (root / link).is_symlink():
            (root / link).symlink_to(f"usr/{link}")
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    text = "".join(path.read_text() for path in certificates)
    (root / "etc/ssl/certs/ca-certificates.crt").write_text(text)
