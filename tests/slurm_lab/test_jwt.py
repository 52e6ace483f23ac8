"""slurmrestd with JWT (`AuthAltTypes=auth/jwt`), over HTTP and its socket: good, expired and wrong tokens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.sources.slurm.restd import SlurmRest
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.agent.sources.slurm.values import REST_API
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import load_settings
from gpuscope.model.doctor_check import DoctorContext
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.serve.doctor.slurm_access import slurm_controller
from tests.slurm_lab.cluster import SlurmCluster
from tests.slurm_lab.test_live import differences, differing, parsed_samples
from tests.slurm_lab.truth import expected_samples

ADDRESS = "127.0.0.1:6820"
LONG, SHORT = 3600, 1  # seconds


@pytest.fixture(scope="module")
def socket(cluster: SlurmCluster) -> Iterator[str]:
    if not cluster.has_jwt:
        pytest.skip(f"Slurm {cluster.version} is built without auth/jwt here")
    if not cluster.has("slurmrestd") or cluster.version < REST_API[-1][0]:
        pytest.skip("no slurmrestd that is read")
    yield cluster.start_rest("jwt", ADDRESS)
    cluster.end("slurmrestd-jwt")


@pytest.fixture
def token(cluster: SlurmCluster, tmp_path: Path) -> Path:
    """A file as `scontrol token > FILE` writes it."""
    path = tmp_path / "token"
    path.write_text(f"SLURM_JWT={cluster.token('games', LONG)}\n")
    return path


def agent_once(cluster: SlurmCluster, *flags: str) -> subprocess.CompletedProcess[str]:
    """Where slurmrestd listens: its network has no other way in."""
    enter = ["nsenter", f"--net=/run/netns/{cluster.namespace}", sys.executable, "-m", "gpuscope"]
    mode = ["--slurm", "restd", "--slurm-rest", f"http://{ADDRESS}"]
    command = [*enter, "agent", "--as", "slurm-exporter", "--once", *mode, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_over_http_it_shows_what_the_clients_say(cluster: SlurmCluster, socket: str, token: Path) -> None:
    shown = agent_once(cluster, "--slurm-rest-token-file", str(token))
    found = differing(expected_samples(cluster), parsed_samples(shown.stdout))
    assert {name: both for name, both in found.items() if "status=" not in name} == {}
    refused = agent_once(cluster)
    assert "slurm_queue_running" not in refused.stdout
    assert "answered 401: Authentication failure" in refused.stderr


def test_over_the_socket_too(cluster: SlurmCluster, socket: str, token: Path) -> None:
    found = differences(cluster, SlurmRest(socket, 60.0, token_file=str(token)))
    assert {name: both for name, both in found.items() if "status=" not in name} == {}


def test_a_token_that_expires_and_is_renewed(cluster: SlurmCluster, socket: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(cluster.token("games", SHORT))
    source = SlurmSource(SlurmRest(socket, 60.0, token_file=str(path)), interval=0.0, slow_interval=0.0)
    cluster.wait("the token to expire", lambda: source.read(frozenset()).down)
    reading = source.read(frozenset())
    assert "the JWT for slurmrestd expired" in reading.down
    assert reading.slurm is not ABSENT
    assert reading.slurm.jobs is ABSENT
    (result,) = slurm_controller(
        DoctorContext(load_settings({}, {}), Snapshot(node="master", taken_at=0.0, slurm=reading.slurm))
    )
    assert "scontrol token username=USER" in result.fix
    path.write_text(cluster.token("games", LONG))
    renewed = source.read(frozenset())
    assert renewed.down == ""
    assert renewed.slurm is not ABSENT
    assert renewed.slurm.jobs


@pytest.mark.parametrize("wrong", ["signature", "user", "words"])
def test_a_token_that_slurm_refuses(cluster: SlurmCluster, socket: str, token: Path, wrong: str) -> None:
    """slurmctld refuses it; 22.05 then answers 500, and 24.11 that slurmctld is down."""
    good = token.read_text().strip()
    token.write_text({"signature": good[:-8] + "AAAAAAAA", "user": good, "words": "not a token"}[wrong])
    user = "news" if wrong == "user" else ""
    with pytest.raises(SourceError, match=r"answered (401|500): \w|or it refuses the JWT") as refused:
        SlurmRest(socket, 60.0, token_file=str(token), user=user).ping()
    assert '"meta"' not in str(refused.value)
