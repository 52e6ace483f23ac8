"""What `gpuscope agent` and `textfile` load: an image for nodes needs neither the server nor its libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOT_LOADED = (
    "numpy", "pcodec", "textual", "rich", "httpx2", "promql_parser", "re2", "bcrypt", "gpuscope.history",
    "gpuscope.judge", "gpuscope.serve.api", "gpuscope.serve.live", "gpuscope.serve.login",
    "gpuscope.serve.reports", "gpuscope.serve.render", "gpuscope.serve.doctor",
)  # fmt: skip
PROGRAM = """
import json, sys
from gpuscope.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("agent", "--once", "--families", "native,host"),
        ("agent", "--once", "--as", "dcgm-exporter", "--as", "nvidia_gpu_exporter", "--as", "node_exporter"),
        ("textfile", "--once", "--output", "gpus.prom"),
    ],
)
def test_an_agent_loads_nothing_of_the_server(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """With simulated GPUs, so that every part of a cycle runs; the demo itself is all that a node has not."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--source", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, None), done.stderr
    assert "gpuscope.agent.collect.collector" in modules
    loaded = [name for name in modules if name.startswith(tuple(f"{part}." for part in NOT_LOADED))]
    assert [*loaded, *(set(modules) & set(NOT_LOADED))] == []
