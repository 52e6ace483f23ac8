"""Compile the fake library: C sources in, the path of a libnvidia-ml.so.1 out.

NVIDIA's nvml.h comes from the PyPI package nvidia-nvml-dev at test time and is kept, like the built
library, in the user's cache; neither is part of this project. Where no compiler or no header can be
had, `Unavailable` says which, so that tests skip by name. One library serves every test: it is keyed
by a hash of the sources, the header and the compiler's version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
HEADER_PACKAGE = "nvidia-nvml-dev>=13,<14"
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wno-deprecated-declarations",
)
SONAME = "libnvidia-ml.so.1"


class Unavailable(Exception):
    """The fake driver library cannot be built here; the text says what is missing."""


def library() -> Path:
    """The built library, compiled on first use. Raises Unavailable, at once when it did so before."""
    found = _library_or_reason()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


def old_library(symbols: Path) -> Path:
    """The library of an older driver: it has only the functions that a file lists, one per line."""
    names = [line for line in symbols.read_text().splitlines() if line and not line.startswith("#")]
    found = _library_or_reason(tuple(names))
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@cache
def _library_or_reason(only: tuple[str, ...] = ()) -> Path | str:
    """`only` leaves out every other symbol."""
    try:
        include = header()
        sources = "\n".join(path.read_text() for path in sorted(SOURCES.glob("*.c")))
        names = stub_names(include.read_text(), sources)
        stubs = {"stubs.def": "".join(f"STUB({name})\n" for name in names)}
        if not only:
            return compile_library("fake_nvml", SONAME, SOURCES, include, stubs)
        stubs["symbols.map"] = f"{{ global: {' '.join(f'{name};' for name in only)} local: *; }};\n"
        key = hashlib.sha256(stubs["symbols.map"].encode()).hexdigest()[:8]
        return compile_library(f"fake_nvml_{key}", SONAME, SOURCES, include, stubs, exported="symbols.map")
    except Unavailable as missing:
        return str(missing)


def header() -> Path:
    """NVIDIA's nvml.h: the one FAKE_NVML_HEADER names, the cached one, or a fresh download."""
    named = os.environ.get("FAKE_NVML_HEADER")
    return Path(named) if named else cached_header(HEADER_PACKAGE, "nvml-13", "nvml.h")


def cached_header(package: str, folder: str, name: str) -> Path:
    """A header of a PyPI package, downloaded once."""
    cached = _cache() / folder / name
    if not cached.exists():
        _write_atomically(cached, _download(package, name))
    return cached


def _download(package: str, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--retries", "1", "--timeout", "10", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", folder, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise Unavailable(f"fake driver: cannot get {name} from {package}: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next(member for member in wheel.namelist() if member.endswith(f"/{name}"))
            return wheel.read(member)


def stub_names(header_text: str, source_text: str) -> list[str]:
    """Functions the header declares and our sources do not define."""
    declared = re.findall(r"\bDECLDIR\s+(nvml\w+)\s*\(", header_text)
    defined = set(re.findall(r"^nvmlReturn_t\s+(nvml\w+)\(", source_text, re.MULTILINE))
    defined |= set(re.findall(r"^[A-Z_]+\((nvml\w+),", source_text, re.MULTILINE))
    return sorted(set(declared) - defined - {"nvmlErrorString"})


def compile_library(
    name: str,
    soname: str,
    folder: Path,
    header: Path,
    generated: dict[str, str] | None = None,
    exported: str = "",
) -> Path:
    """The library of a folder's C files, built unless the cache has it. `generated` are files to include.

    `exported` is the generated linker script that names the symbols; all, if there is none.
    """
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable(f"{name}: no C compiler (cc)")
    target = _cache() / name / _fingerprint(compiler, header, folder) / soname
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for file, text in (generated or {}).items():
            (Path(scratch) / file).write_text(text)
        built = Path(scratch) / soname
        command = [compiler, *FLAGS, f"-Wl,-soname,{soname}", f"-I{header.parent}", f"-I{scratch}"]
        if exported:
            command.append(f"-Wl,--version-script={scratch}/{exported}")
        command += [*map(str, sorted(folder.glob("*.c"))), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"{name}: {compiler} failed:\n{done.stderr}")
        built.replace(target)  # two test processes may build at once; either result will do
    return target


def _fingerprint(compiler: str, header: Path, folder: Path) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    digest.update(version + repr(FLAGS).encode() + Path(__file__).read_bytes())
    for path in [header, *sorted(folder.iterdir())]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpuscope"


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(content)
    Path(part.name).replace(path)


if __name__ == "__main__":
    print(library())
