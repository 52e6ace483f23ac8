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
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server", "slurm-wlm-jwt-plugin",
)  # fmt: skip
NEW_PACKAGES = {"slurm-wlm-mysql-plugin", "slurm-wlm-jwt-plugin"}
"""Not in bullseye: the first is a part of slurmdbd there, and its Slurm is built without JWT."""
JWT_PLUGIN = "usr/lib/*/slurm*/auth_jwt.so"
MIRROR = "http://deb.debian.org/debian"


def slurm_root(version: str) -> Path | None:
    """The folder that holds this version, None for the machine itself; skips the test if there is none."""
    found = _find(version)
    if isinstance(found, str):
        pytest.skip(f"Slurm {version}: {found}")
    return found


def has_jwt(root: Path | None) -> bool:
    return any(Path(root or "/").glob(JWT_PLUGIN))


@functools.cache
def _find(version: str) -> Path | str | None:
    if os.geteuid() != 0:
        return "its daemons and network namespace need root"
    if not shutil.which("ip") or subprocess.run(["ip", "netns", "list"], capture_output=True).returncode:
        return "no network namespaces here (ip netns)"
    return _install() if version == "22.05" else _make_root(SUITES[version])


def _install() -> str | None:
    """Debian 12 has 22.05; on another system the packages are another version, which is told apart below."""
    programs = ("slurmctld", "munged", "slurmdbd", "mariadbd", "slurmrestd")
    if not all(map(shutil.which, programs)) or not has_jwt(None):
        why = _apt_install(*PACKAGES)
        if why and not all(map(shutil.which, programs)):
            return why
    printed = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout
    return None if " 22.05" in printed else f"this machine has {printed.strip()}"


def _apt_install(*packages: str) -> str:
    """Why they could not be installed; empty if they are."""
    if not shutil.which("apt-get"):
        return f"{packages[0]} is not installed and there is no apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=300)
    # Another lab may be installing its packages at this moment.
    options = ("-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")
    command = ["apt-get", "install", *options, *packages]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    return f"apt-get could not install it: {done.stderr.strip()[-200:]}" if done.returncode else ""


def _make_root(suite: str) -> Path | str:
    home = Path(os.environ.get("GPUSCOPE_SLURM_ROOTS", "~/.cache/gpuscope/slurm")).expanduser()
    root, done = home / suite, home / suite / ".done"
    packages = ",".join(name for name in PACKAGES if suite != "bullseye" or name not in NEW_PACKAGES)
    if done.exists() and done.read_text() == packages:
        return root
    if not shutil.which("mmdebstrap") and (why := _apt_install("mmdebstrap")):
        return f"mmdebstrap: {why}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    command = [
        "mmdebstrap", "--quiet", "--variant=apt", "--aptopt=APT::Install-Recommends \"false\"",
        # A mirror may lag more than a week behind unstable; signatures are checked all the same.
        "--aptopt=Acquire::Check-Valid-Until \"false\"", "--dpkgopt=force-unsafe-io",
        f"--include={packages}", suite, str(root), os.environ.get("DEBIAN_MIRROR", MIRROR),
    ]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if made.returncode:
        return f"mmdebstrap failed: {made.stderr.strip()[-200:]}"
    done.write_text(packages)
    return root
