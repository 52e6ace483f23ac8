"""Where each version of Slurm is installed: 22.05 on the machine itself, newer ones in Debian roots.

A root is made once by mmdebstrap, in `~/.cache/gpuscope/slurm` or `$GPUSCOPE_SLURM_ROOTS`, and kept. What
cannot be installed is skipped with the reason.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SUITES = {"20.11": "bullseye", "24.11": "trixie", "26.05": "sid"}
PACKAGES = (
    "munge", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "slurmrestd",
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server",
)  # fmt: skip
NEW_PACKAGES = {"slurm-wlm-mysql-plugin"}  # bullseye has it in slurmdbd
MIRROR = "http://deb.debian.org/debian"


def slurm_root(version: str) -> Path | None:
    """The folder that holds this version, None for the machine itself; skips the test if there is none."""
    found = _find(version)
    if isinstance(found, str):
        pytest.skip(f"Slurm {version}: {found}")
    return found


@functools.cache
def _find(version: str) -> Path | str | None:
    if os.geteuid() != 0:
        return "its daemons and network namespace need root"
    if not shutil.which("ip") or subprocess.run(["ip", "netns", "list"], capture_output=True).returncode:
        return "no network namespaces here (ip netns)"
    return _install() if version == "22.05" else _make_root(SUITES[version])


def _install() -> str | None:
    """Debian 12 has 22.05; on another system the packages are another version, which is told apart below."""
    if not all(map(shutil.which, ("slurmctld", "munged", "slurmdbd", "mariadbd"))):
        if not shutil.which("apt-get"):
            return "slurmctld is not installed and there is no apt-get"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=300)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        if done.returncode:
            return f"apt-get could not install it: {done.stderr.strip()[-200:]}"
    printed = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout
    return None if " 22.05" in printed else f"this machine has {printed.strip()}"


def _make_root(suite: str) -> Path | str:
    home = Path(os.environ.get("GPUSCOPE_SLURM_ROOTS", "~/.cache/gpuscope/slurm")).expanduser()
    root, done = home / suite, home / suite / ".done"
    if done.exists():
        return root
    if not shutil.which("mmdebstrap"):
        return "mmdebstrap is not installed"
    packages = [name for name in PACKAGES if suite != "bullseye" or name not in NEW_PACKAGES]
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    command = [
        "mmdebstrap", "--quiet", "--variant=apt", "--aptopt=APT::Install-Recommends \"false\"",
        f"--include={','.join(packages)}", suite, str(root), os.environ.get("DEBIAN_MIRROR", MIRROR),
    ]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if made.returncode:
        return f"mmdebstrap failed: {made.stderr.strip()[-200:]}"
    done.touch()
    return root
