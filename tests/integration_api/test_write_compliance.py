"""The Prometheus project's own compliance suite for receivers of remote write 2.0, against a real server.

It is run where it is in Go's module cache already, without the network:
    go mod download github.com/prometheus/compliance/remotewrite@latest
Its code needs github.com/prometheus/prometheus v0.307.3; a later one has another message. Exemplars are not
stored here, as in a Prometheus without --enable-feature=exemplar-storage: the tests that count them fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration_api.servers import running_gpuscope

PROMETHEUS_MODULE = "github.com/prometheus/prometheus@v0.307.3"


def suite(folder: Path) -> Path:
    """A copy that can be built; skips the test if there is none."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go: not found")
    cache = subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    found = sorted(Path(cache, "github.com/prometheus/compliance").glob("remotewrite@*"))
    if not found:
        pytest.skip("github.com/prometheus/compliance/remotewrite: not in Go's module cache")
    copy = folder / "remotewrite"
    shutil.copytree(found[-1], copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    subprocess.run([go, "mod", "edit", f"-require={PROMETHEUS_MODULE}"], cwd=copy, check=True)
    build = subprocess.run(
        [go, "test", "-mod=mod", "-c", "-o", copy / "receiver.test", "./receiver"],
        cwd=copy,
        capture_output=True,
        text=True,
        env={**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=mod"},
    )
    if build.returncode:
        pytest.skip(f"the compliance suite cannot be built without the network: {build.stderr[-300:]}")
    return copy


@pytest.mark.slow
def test_receiver_compliance(tmp_path: Path) -> None:
    copy = suite(tmp_path)
    with running_gpuscope(tmp_path / "data") as ours:
        (copy / "config.yml").write_text(f"remote_write: [{{name: ours, url: {ours}/api/v1/write}}]\n")
        run = subprocess.run(
            ["go", "tool", "test2json", copy / "receiver.test", "-test.v"],
            cwd=copy / "receiver",
            env={**os.environ, "PROMETHEUS_RW2_COMPLIANCE_CONFIG_FILE": str(copy / "config.yml")},
            capture_output=True,
            text=True,
        )
    said: dict[str, str] = {}
    passed, failed = 0, []
    for line in run.stdout.splitlines():
        event = json.loads(line)
        name = event.get("Test", "")
        said[name] = said.get(name, "") + event.get("Output", "")
        if name.endswith("/ours"):
            passed += event["Action"] == "pass"
            failed += [name] * (event["Action"] == "fail")
    assert passed > 150  # 158 of 205; all others want exemplars to be kept
    others = [name for name in failed if not re.search(r"Messages:\s+0 exemplars written", said[name])]
    assert others == []
