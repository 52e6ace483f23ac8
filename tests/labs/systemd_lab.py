"""systemd as PID 1 in a podman container without a network, with gpuscope as /usr/local/bin/gpuscope.

Needs root, podman, runc and mmdebstrap. The container's root is an overlay: the folder below stays clean.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.labs.debian_programs import LabUnavailable, lab_cache, make_root, run

PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "libstdc++6")
NAME = "gpuscope-systemd-lab"
PATIENCE_SECONDS = 300  # as in tests/waiting.py
LAUNCHER = """#!/usr/bin/python3
import sys

sys.path.insert(0, "/opt/gpuscope")
from gpuscope.cli import main

sys.exit(main())
"""


class SystemdLab:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # crun refuses hybrid cgroups; without CAP_SYS_RESOURCE no limit may exceed the machine's.
        (folder / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile={most}:{most}", "nproc=4096:4096"]\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\nevents_logger = "file"\n'
        )
        self._environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}

    def podman(self, *argv: str) -> subprocess.CompletedProcess[str]:
        storage = ("--root", f"{self._folder}/root", "--runroot", f"{self._folder}/run")
        command = ["podman", *storage, "--storage-driver", "overlay", *argv]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def inside(self, *argv: str, check: bool = True) -> str:
        done = self.podman("exec", NAME, *argv)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        self.inside("sh", "-c", f"mkdir -p {Path(path).parent} && printf '%s' '{text}' > {path}")

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        flags = [word for name in properties for word in ("-p", name)]
        lines = self.inside("systemctl", "show", unit, *flags).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                journal = self.inside("journalctl", "-n", "30", "--no-pager", check=False)
                raise AssertionError(f"{what}\n{journal}")
            time.sleep(0.2)

    def up(self, packages: Path, launcher: Path) -> None:
        root = make_root("systemd", "essential", PACKAGES)
        done = self.podman(
            "run", "-d", "--name", NAME, "--systemd=always", "--network", "none",
            # DynamicUser makes namespaces.
            "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined",
            "-v", f"{packages}:/opt/gpuscope:ro", "-v", f"{launcher}:/usr/local/bin/gpuscope:ro",
            "--rootfs", f"{root}:O", "/sbin/init",
        )  # fmt: skip
        if done.returncode:
            raise LabUnavailable(f"podman: {done.stderr.strip().splitlines()[-1:]}")
        self.wait_until(
            lambda: self.inside("systemctl", "is-system-running", check=False) in ("running", "degraded"),
            "systemd does not start",
        )

    def down(self) -> None:
        self.podman("rm", "-f", "-t", "5", NAME)
        self.podman("umount", "-a")
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for path in sorted((p for p in mounted if p.startswith(f"{self._folder}/")), reverse=True):
            subprocess.run(["umount", "-l", path], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def systemd_lab(wheels: Path) -> Iterator[SystemdLab]:
    """`wheels`: gpuscope and its dependencies for Python 3.11."""
    if os.geteuid() != 0:
        raise LabUnavailable("only root can run systemd in a container")
    for program in ("podman", "runc"):
        if shutil.which(program) is None:
            raise LabUnavailable(f"{program} is not installed")
    folder = Path(tempfile.mkdtemp(prefix="gssd", dir=lab_cache()))
    packages, launcher = folder / "packages", folder / "gpuscope"
    options = (
        "--quiet",
        "--no-index",
        "--find-links",
        wheels,
        "--only-binary=:all:",
        "--python-version",
        "3.11",
    )
    run(sys.executable, "-m", "pip", "install", *options, "--target", packages, "gpuscope")
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    lab = SystemdLab(folder)
    try:
        lab.up(packages, launcher)
        yield lab
    finally:
        lab.down()
