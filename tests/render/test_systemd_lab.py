"""The units in a real systemd: installed by our command, restarted after SIGKILL with data, and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.debian_programs import LabUnavailable
from tests.labs.systemd_lab import NAME, SystemdLab, systemd_lab
from tests.labs.wheels import wheels_of_gpuscope

pytestmark = pytest.mark.slow

DYNAMIC_UIDS = range(61184, 65520)
TEXTFILE = "/var/lib/node_exporter/textfile_collector/gpu_sessions.prom"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdLab]:
    wheels = wheels_of_gpuscope(tmp_path_factory.mktemp("wheels"))
    try:
        with systemd_lab(wheels) as running:
            for service in ("agent", "up", "textfile"):
                running.write(f"/etc/gpuscope/{service}.env", "GPUSCOPE_SOURCE=demo\n")
            said = running.inside("gpuscope", "render", "systemd", "agent", "up", "textfile", "--install")
            assert "gpuscope-agent.service runs and answers at http://127.0.0.1:9400" in said
            assert "gpuscope-up.service runs and answers at http://127.0.0.1:9470" in said
            assert "gpuscope-textfile.service runs" in said
            yield running
    except LabUnavailable as missing:
        pytest.skip(f"systemd: {missing}")


def fetch(lab: SystemdLab, url: str) -> str:
    script = f"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())"
    return lab.inside("python3", "-c", script, check=False)


def stored_samples(lab: SystemdLab) -> float:
    """How many samples of the last hour the history has."""
    url = "http://127.0.0.1:9470/api/v1/query?query=sum(count_over_time(gpuscope_gpu_up[1h]))"
    answer = fetch(lab, url)
    result = json.loads(answer)["data"]["result"] if answer.startswith("{") else []
    return float(result[0]["value"][1]) if result else 0.0


def test_the_agent_runs_as_a_user_of_its_own(lab: SystemdLab) -> None:
    lab.wait_until(lambda: "gpuscope_gpu_info{" in fetch(lab, "http://127.0.0.1:9400/metrics"), "no metrics")
    pid = lab.show("gpuscope-agent", "MainPID")["MainPID"]
    assert int(lab.inside("stat", "-c", "%u", f"/proc/{pid}")) in DYNAMIC_UIDS
    assert lab.inside("stat", "-c", "%a", "/var/lib/private/gpuscope-agent") == "700"
    assert lab.inside("systemctl", "is-enabled", "gpuscope-agent") == "enabled"


def test_history_is_kept_over_a_sigkill(lab: SystemdLab) -> None:
    lab.wait_until(lambda: stored_samples(lab) >= 16, "no history")
    before = stored_samples(lab)
    pid = lab.show("gpuscope-up", "MainPID")["MainPID"]
    lab.inside("systemctl", "stop", "gpuscope-agent")  # one less to wait for
    lab.inside("sh", "-c", f"kill -KILL {pid}")

    def is_back() -> bool:
        shown = lab.show("gpuscope-up", "NRestarts", "ActiveState", "MainPID")
        return shown["NRestarts"] == "1" and shown["ActiveState"] == "active" and shown["MainPID"] != pid

    lab.wait_until(is_back, "not restarted")
    lab.wait_until(lambda: stored_samples(lab) >= before, "history is lost")
    lab.inside("systemctl", "start", "gpuscope-agent")


def test_the_textfile_is_there_as_long_as_its_service(lab: SystemdLab) -> None:
    assert "gpu_total_sessions" in lab.inside("cat", TEXTFILE)
    assert lab.inside("stat", "-c", "%a", TEXTFILE) == "644", "node_exporter must be able to read it"
    lab.inside("systemctl", "stop", "gpuscope-textfile")
    assert lab.inside("ls", "-A", str(Path(TEXTFILE).parent)) == ""
    lab.inside("systemctl", "start", "gpuscope-textfile")
    assert "gpu_total_sessions" in lab.inside("cat", TEXTFILE), "started means written"
    # A service that dies for good: systemd removes what it could not remove itself.
    lab.write("/etc/gpuscope/textfile.env", "GPUSCOPE_SOURCE=nonsense\n")
    pid = lab.show("gpuscope-textfile", "MainPID")["MainPID"]
    lab.inside("sh", "-c", f"kill -KILL {pid}")
    lab.wait_until(lambda: lab.inside("sh", "-c", f"ls {TEXTFILE} || true") == "", "the file stays")
    lab.write("/etc/gpuscope/textfile.env", "GPUSCOPE_SOURCE=demo\n")
    lab.inside("systemctl", "restart", "gpuscope-textfile")


def install(lab: SystemdLab, service: str) -> tuple[int, str]:
    done = lab.podman("exec", NAME, "gpuscope", "render", "systemd", service, "--install")
    return done.returncode, done.stdout + done.stderr


def test_an_install_without_libstdc_says_so_and_is_given_up(lab: SystemdLab) -> None:
    (library,) = lab.inside("sh", "-c", "ls /usr/lib/*/libstdc++.so.6").splitlines()
    lab.inside("mv", library, f"{library}.away")
    try:
        code, said = install(lab, "up")
        assert code == 1
        assert "gpuscope-up.service ended. Its last lines:" in said
        assert "gpuscope up needs libstdc++.so.6, which is not installed; install libstdc++6" in said
        lab.wait_until(
            lambda: lab.show("gpuscope-up", "ActiveState")["ActiveState"] == "failed",
            "still restarted",
        )
        assert int(lab.show("gpuscope-up", "NRestarts")["NRestarts"]) <= 5
    finally:
        lab.inside("mv", f"{library}.away", library)
    lab.inside("systemctl", "reset-failed", "gpuscope-up")
    code, said = install(lab, "up")
    assert (code, said.count("runs and answers at http://127.0.0.1:9470")) == (0, 1), said


def test_an_install_with_wrong_settings_says_which(lab: SystemdLab) -> None:
    lab.write("/etc/gpuscope/agent.env", "GPUSCOPE_SOURCE=demo\nGPUSCOPE_INTERVAL=soon\n")
    code, said = install(lab, "agent")
    assert code == 1
    assert "GPUSCOPE_INTERVAL" in said
    # On another address the answer is looked for there.
    lab.write("/etc/gpuscope/agent.env", "GPUSCOPE_SOURCE=demo\nGPUSCOPE_LISTEN=127.0.0.1:9500\n")
    code, said = install(lab, "agent")
    assert (code, said.count("runs and answers at http://127.0.0.1:9500")) == (0, 1), said


def test_the_server_tells_systemd_too_from_its_tighter_sandbox(lab: SystemdLab) -> None:
    lab.write("/etc/gpuscope/prometheus.yml", "scrape_configs: []\n")
    lab.write("/etc/gpuscope/server.env", "GPUSCOPE_LISTEN=127.0.0.1:9471\n")
    # The lab's container cannot make user namespaces.
    lab.write("/etc/systemd/system/gpuscope-server.service.d/lab.conf", "[Service]\nPrivateUsers=no\n")
    code, said = install(lab, "server")
    assert (code, said.count("gpuscope-server.service runs and answers at http://127.0.0.1:9471")) == (0, 1), (
        said
    )


def test_uninstall_leaves_no_unit_but_the_data(lab: SystemdLab) -> None:
    lab.inside("rm", "-rf", "/etc/systemd/system/gpuscope-server.service.d")
    lab.inside("gpuscope", "render", "systemd", "--uninstall")
    assert lab.inside("sh", "-c", "ls /etc/systemd/system | grep gpuscope || true") == ""
    assert lab.inside("systemctl", "list-units", "--all", "--no-legend", "gpuscope-*") == ""
    assert lab.inside("ls", "-A", str(Path(TEXTFILE).parent)) == ""
    assert "gpuscope-up" in lab.inside("ls", "/var/lib/private")
