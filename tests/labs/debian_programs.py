"""Programs of Debian packages, unpacked into the user's cache and never installed: for labs.

`unpack(packages, suite)` gives the folder they are in. `LabUnavailable` says in one sentence why there is none,
so that tests skip by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class LabUnavailable(Exception):
    """A lab cannot run on this machine; the text says why."""


def lab_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "gpuscope" / "labs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]
        raise LabUnavailable(f"`{' '.join(str(word) for word in command)[:120]}` failed: {last}")
    return done.stdout


def unpack(packages: tuple[str, ...], suite: str) -> Path:
    """Dependencies are not followed; sid's statically linked Go programs run on any Debian."""
    target = lab_cache() / suite
    missing = [name for name in packages if not (target / f".{name}").exists()]
    if missing:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise LabUnavailable("this machine has no apt-get and dpkg-deb")
        apt = _private_apt(suite)
        debs = lab_cache() / "debs"
        debs.mkdir(exist_ok=True)
        for name in missing:
            for old in debs.glob(f"{name}_*.deb"):
                old.unlink()
            run(*apt, "download", name, cwd=debs)
            run("dpkg-deb", "-x", next(debs.glob(f"{name}_*.deb")), target)
            (target / f".{name}").touch()
    return target


@cache
def _private_apt(suite: str) -> tuple[str, ...]:
    """An apt-get with lists and status of its own; the machine's packages are neither read nor changed."""
    state = lab_cache() / "apt" / suite
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").write_text("")
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (state / "sources.list").write_text(f"deb {signed}{debian_mirror()} {suite} main\n")
    options = {
        "Dir::State::status": state / "status",
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Check-Valid-Until": "false",  # a frozen mirror; the signature is checked all the same
    }
    apt = ("apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}")))
    run(*apt, "update")
    return apt


def debian_mirror() -> str:
    listing = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages")
    sites = [line for line in listing.splitlines() if line.rstrip("/").endswith("/debian")]
    if not sites:
        raise LabUnavailable("apt of this machine names no Debian mirror")
    return sites[0].rstrip("/")


def make_root(
    name: str, variant: str, packages: tuple[str, ...], architecture: str = "", *, suite: str = "bookworm"
) -> Path:
    """A small Debian as a folder, made once; of another architecture only with the variant `extract`."""
    root = lab_cache() / "roots" / name
    if (root / ".complete").exists():
        return root
    if shutil.which("mmdebstrap") is None:
        raise LabUnavailable("mmdebstrap is not installed; it makes the base image")
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(exist_ok=True)
    excluded = ("doc", "man", "locale")
    run(
        "mmdebstrap",
        "--quiet",
        f"--variant={variant}",
        *([f"--architectures={architecture}"] if architecture else []),
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=APT::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in excluded),
        suite,
        root,
        debian_mirror(),
    )
    (root / ".complete").touch()
    return root
