"""Programs of the Kubernetes lab that exist only as Go source: built once from published modules, then cached.

`go_program("kubelet")` gives the path. `LabUnavailable` says in one sentence why there is none. A first build
of the API server takes up to half an hour on two cores, one of helm takes minutes:
`python -m tests.labs.go_programs` builds all of them ahead of a test run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.labs.debian_programs import LabUnavailable, lab_cache

KUBERNETES = "v1.36.3"  # the proxy refuses `@latest`, so every version is exact
PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator"
KEDA = "github.com/kedacore/keda/v2"
# Neither optimised nor with symbols for a debugger: a cold build takes half the time.
FLAGS = ("-mod=mod", "-trimpath", "-gcflags=all=-N -l -dwarf=false")


@dataclass(frozen=True, slots=True)
class GoProgram:
    module: str
    version: str
    package: str
    version_variables: tuple[tuple[str, str], ...] = ()
    link_flags: str = ""


def _kubernetes(name: str) -> GoProgram:
    at = "k8s.io/component-base/version"
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    variables = ((f"{at}.gitVersion", KUBERNETES), (f"{at}.gitMajor", major), (f"{at}.gitMinor", minor))
    return GoProgram("k8s.io/kubernetes", KUBERNETES, f"./cmd/{name}", variables)


PROGRAMS = {
    "helm": GoProgram(
        "helm.sh/helm/v4", "v4.3.1", "./cmd/helm", (("helm.sh/helm/v4/internal/version.version", "v4.3.1"),)
    ),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kubelet": _kubernetes("kubelet"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "prometheus-operator": GoProgram(PROMETHEUS_OPERATOR, "v0.85.0", "./cmd/operator"),
    "prometheus-config-reloader": GoProgram(PROMETHEUS_OPERATOR, "v0.85.0", "./cmd/prometheus-config-reloader"),
    # It links to names of Go's runtime that newer linkers hide.
    "prometheus-adapter": GoProgram(
        "sigs.k8s.io/prometheus-adapter", "v0.12.0", "./cmd/adapter", link_flags="-checklinkname=0"
    ),
    "keda-operator": GoProgram(KEDA, "v2.21.0", "./cmd/operator"),
    "keda-adapter": GoProgram(KEDA, "v2.21.0", "./cmd/adapter"),
    # The newest version that the proxy has: later ones do not follow Go's rules for major versions.
    "gpu-operator": GoProgram("github.com/NVIDIA/gpu-operator", "v1.11.1", "."),
}
NOT_TO_BE_HAD = ('Get "', "reading http", "module lookup disabled", "requires go >=", "toolchain not available")


def go_program(name: str) -> Path:
    program = PROGRAMS[name]
    built = lab_cache() / "go" / f"{name}-{program.version}"
    if not built.exists():
        built.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            fresh = _build(name, program, Path(scratch))
            fresh.replace(built)  # at once: another run may be looking
    return built


def module_folder(module: str, version: str) -> Path:
    """The read-only source of a module, for files that are no Go: protobuf definitions, CRDs."""
    if shutil.which("go") is None:
        raise LabUnavailable("Go is not installed")
    told = _go(["mod", "download", "-json", f"{module}@{version}"], lab_cache())
    return Path(json.loads(told)["Dir"])


def _build(name: str, program: GoProgram, scratch: Path) -> Path:
    source = module_folder(program.module, program.version)
    # A go.mod of our own, because the module's lies in Go's read-only cache and names folders outside of it.
    modfile = scratch / "build.mod"
    modfile.write_text(_published_versions((source / "go.mod").read_text(), program.version))
    if (source / "go.sum").exists():
        shutil.copy(source / "go.sum", scratch / "build.sum")
        (scratch / "build.sum").chmod(0o644)
    set_variables = " ".join(f"-X {variable}={value}" for variable, value in program.version_variables)
    link = f"-ldflags=-s -w {set_variables} {program.link_flags}".strip()
    print(f"building {name} {program.version}", file=sys.stderr)
    _go(["build", *FLAGS, f"-modfile={modfile}", link, "-o", str(scratch / name), program.package], source)
    return scratch / name


def _published_versions(go_mod: str, version: str) -> str:
    """Parts of a repository are replaced by folders that the published module lacks: take the published parts.

    Kubernetes publishes its parts as v0.36.3 for v1.36.3; other repositories use one version for all.
    """
    part = re.sub(r"^v1\.", "v0.", version)

    def published(line: re.Match[str]) -> str:
        module = line["module"]
        return f"{line['before']}{module} => {module} {part if module.startswith('k8s.io/') else version}"

    return re.sub(r"(?m)^(?P<before>\s*(?:replace )?)(?P<module>\S+)(?: v\S+)? => \.\S*$", published, go_mod)


def _go(arguments: list[str], folder: Path) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(["go", *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        assert any(sign in done.stderr for sign in NOT_TO_BE_HAD), done.stderr
        raise LabUnavailable(f"Go modules: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PROGRAMS:
        print(go_program(wanted))
