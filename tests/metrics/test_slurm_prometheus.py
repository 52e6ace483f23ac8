"""`agent --as slurm-exporter` as a user runs it: 62 names in a real Prometheus, and a squeue that hangs."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuscope.agent.families.slurm.builder import SLURM_METRICS
from tests.engines import engine, running_prometheus
from tests.fake_slurm import fake_clients
from tests.fake_slurm.exporter_command import exporter_command
from tests.ports import free_port
from tests.waiting import wait_for


@contextmanager
def running_agent(clients: Path, *flags: str) -> Iterator[str]:
    """The agent's address, once it has read Slurm."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([*exporter_command(address, clients), *flags], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: "slurm_cpus_total" in get(f"http://{address}/metrics"), "Slurm metrics of the agent")
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=30)


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())
    except OSError:
        return ""


def test_each_of_the_62_names_returns_a_series(tmp_path: Path) -> None:
    engine("prometheus")
    with running_agent(fake_clients(tmp_path / "bin", "22.05")) as address:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "slurm", "static_configs": [{"targets": [address]}]}],
        }
        with running_prometheus(json.dumps(config)) as url:
            query = urllib.parse.quote('count by (__name__) ({__name__=~"slurm_.+"})')

            def names() -> set[str]:
                text = get(f"{url}/api/v1/query?query={query}")
                result = json.loads(text)["data"]["result"] if text else []
                return {row["metric"]["__name__"] for row in result}

            wait_for(lambda: names() == {row.name for row in SLURM_METRICS}, "all 62 names", names)


def test_promtool_finds_nothing_wrong_with_the_native_metrics() -> None:
    promtool = engine("promtool")
    golden = (Path(__file__).parents[1] / "golden/slurm/26.05-native.prom").read_bytes()
    checked = subprocess.run([promtool, "check", "metrics"], input=golden, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_a_scrape_does_not_wait_for_a_hanging_squeue(tmp_path: Path) -> None:
    """The first round succeeds; then squeue blocks on a pipe that is never written, and scrapes go on."""
    clients = fake_clients(tmp_path / "bin", "22.05")
    pipe = tmp_path / "pipe"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    with running_agent(clients, "--slurm-interval", "200ms", "--slurm-timeout", "600s") as address:
        hanging = (clients / "squeue").with_suffix(".new")
        hanging.write_text(
            f"#!/bin/sh\necho $$ > {clients}/hung\necho hangs >> {clients}/calls\nread line < {pipe}\n"
        )
        hanging.chmod(0o755)
        hanging.rename(clients / "squeue")
        wait_for(lambda: "hangs" in (clients / "calls").read_text(), "the hanging squeue")
        for _ in range(20):
            text = get(f"http://{address}/metrics")
            assert "slurm_queue_running" in text  # the last answer counts until its deadline
    hung = (clients / "hung").read_text().strip()
    wait_for(lambda: not is_alive(hung), "the squeue of an agent that has ended to end too")


def is_alive(pid: str) -> bool:
    """A process that has ended may stay as a zombie where PID 1 does not collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
