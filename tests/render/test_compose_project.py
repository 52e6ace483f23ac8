"""The compose project: valid for compose itself, with the promised ports, owners, secrets and restarts."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuscope.cli import main
from gpuscope.serve.render.compose import count_gpu_devices
from tests.engines import engine

PROFILES = {
    "single": {"agent", "prometheus", "alertmanager", "grafana"},
    "up": {"gpuscope"},
    "node": {"node-agent", "node-exporter"},
    "master": {"node-exporter", "slurm-exporter", "master-prometheus", "master-alertmanager", "master-grafana"},
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return render(tmp_path / "project")


def render(folder: Path, *options: str) -> Path:
    argv = ["render", "compose", "--nodes", "gpu1,gpu2", "--slurm", "head", "--instance", "lab1", *options]
    assert main([*argv, "--out", str(folder)]) == 0
    return folder


def config(project: Path, profile: str, *, gpus: str = "demo") -> dict[str, Any]:
    """What compose makes of the files; it reads them, no Docker is needed."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(project),
        "COMPOSE_FILE": f"compose.yaml:compose.{gpus}.yaml:compose.slurm.yaml",
        "COMPOSE_ENV_FILES": "/dev/null",
    }
    command: list[str | Path] = [engine("docker-compose"), "--profile", profile, "config", "--format", "json"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "level=warn" not in done.stderr, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("gpus", ["nvidia", "devices", "demo"])
def test_compose_accepts_every_profile_with_every_gpu_access(project: Path, profile: str, gpus: str) -> None:
    services = config(project, profile, gpus=gpus)["services"]
    assert set(services) == PROFILES[profile]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name


def test_published_ports_of_one_server_are_the_known_ones(project: Path) -> None:
    services = config(project, "single")["services"]
    published = {
        name: [(port["host_ip"], port["published"]) for port in service.get("ports", [])]
        for name, service in services.items()
    }
    assert published == {
        "agent": [],
        "prometheus": [("127.0.0.1", "9090")],
        "alertmanager": [("127.0.0.1", "9093")],
        "grafana": [("0.0.0.0", "3000")],
    }


def test_no_address_of_a_bridge_is_written_anywhere(project: Path) -> None:
    for path in project.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert "172." not in path.read_text(), path


def test_data_is_in_named_volumes_and_configuration_is_read_only(project: Path) -> None:
    for profile in PROFILES:
        for name, service in config(project, profile)["services"].items():
            for mount in service.get("volumes", []):
                assert mount["type"] == "volume" or mount.get("read_only"), (name, mount)


def test_the_password_is_a_file_that_other_users_of_the_machine_cannot_reach(project: Path) -> None:
    secret = project / "secrets" / "grafana_admin_password"
    assert len(secret.read_text().strip()) >= 20
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    grafana = config(project, "single")["services"]["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_admin_password"
    assert secret.read_text().strip() not in json.dumps(config(project, "single"))


def test_rendering_again_keeps_the_password_and_the_settings(project: Path) -> None:
    secret, settings = project / "secrets" / "grafana_admin_password", project / ".env"
    password = secret.read_text()
    settings.write_text("COMPOSE_FILE=compose.yaml\n")
    render(project, "--force")
    assert secret.read_text() == password
    assert settings.read_text() == "COMPOSE_FILE=compose.yaml\n"


def test_rendering_again_keeps_what_the_user_edits_and_replaces_the_rest(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = project / "prometheus/master/targets/gpuscope.yml"
    edited = [targets, project / "alertmanager/alertmanager.yml"]
    for path in edited:
        path.write_text(path.read_text() + "# mine\n")
    rules = project / "rules/gpuscope-gpu.rules.yml"
    rules.write_text("groups: []\n")
    render(project, "--force")
    assert all(path.read_text().endswith("# mine\n") for path in edited)
    assert rules.read_text() != "groups: []\n"
    assert f"{targets} (kept as it was)\n" in capsys.readouterr().out


def test_settings_that_are_kept_against_the_options_are_named(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    render(project)
    assert not caplog.messages
    render(project, "--gpu-access", "demo")
    assert caplog.messages == [
        f"{project}/.env was kept: it has COMPOSE_FILE=compose.yaml:compose.nvidia.yaml:compose.slurm.yaml; "
        "for this call's options change it to COMPOSE_FILE=compose.yaml:compose.demo.yaml:compose.slurm.yaml"
    ]


def test_the_settings_have_the_command_that_renders_the_project_again(tmp_path: Path) -> None:
    options = ["--language", "ko", "--gpu-access", "devices", "--gpu-count", "3", "--page-url", "http://a/?b&c"]
    first = render(tmp_path / "first", *options)
    line = (first / ".env").read_text().splitlines()[0]
    program, *argv = shlex.split(line.removeprefix("# Rendered with: "))
    assert program == "gpuscope"
    assert main([*argv, "--out", str(tmp_path / "second")]) == 0
    for path in first.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert path.read_text() == (tmp_path / "second" / path.relative_to(first)).read_text(), path


def test_gpu_access_is_chosen_in_the_settings_and_has_a_device_for_each_gpu(tmp_path: Path) -> None:
    project = render(tmp_path / "p", "--gpu-access", "devices", "--gpu-count", "3")
    chosen = "COMPOSE_FILE=compose.yaml:compose.devices.yaml:compose.slurm.yaml\n"
    assert chosen in (project / ".env").read_text()
    assert "GPUSCOPE_NODE=lab1\n" in (project / ".env").read_text()
    assert "GPUSCOPE_ALLOWED_HOSTS=localhost,lab1\n" in (project / ".env").read_text()
    agent = config(project, "single", gpus="devices")["services"]["agent"]
    sources = [device["source"] for device in agent["devices"]]
    assert sources == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]


def test_a_missing_file_of_the_machine_is_not_made_a_folder(project: Path) -> None:
    mounts = [
        mount
        for profile in ("single", "master")
        for service in config(project, profile, gpus="devices")["services"].values()
        for mount in service.get("volumes", [])
        if mount["type"] == "bind" and mount["source"].startswith("/usr")
    ]
    assert len(mounts) >= 9
    # compose leaves the setting out of its output when it is false
    assert not [mount for mount in mounts if mount.get("bind", {}).get("create_host_path")]


def test_without_slurm_the_master_has_no_slurm_exporter(tmp_path: Path) -> None:
    assert main(["render", "compose", "--instance", "lab1", "--out", str(tmp_path / "p")]) == 0
    assert "COMPOSE_FILE=compose.yaml:compose.nvidia.yaml\n" in (tmp_path / "p" / ".env").read_text()


def test_gpu_devices_are_counted_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    assert count_gpu_devices(tmp_path) == 2


@pytest.mark.parametrize("profile", ["single", "master"])
def test_prometheus_starts_from_the_files_as_they_are_mounted(project: Path, profile: str) -> None:
    mounted = project / "prometheus" / profile
    (mounted / "rules").symlink_to(project / "rules")  # as the compose file mounts it
    done = subprocess.run(
        [engine("promtool"), "check", "config", mounted / "prometheus.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rule files found" in done.stdout
    assert "query_log_file: /prometheus/query.log" in (mounted / "prometheus.yml").read_text()


def test_amtool_accepts_the_alertmanager_file(project: Path) -> None:
    path = project / "alertmanager" / "alertmanager.yml"
    assert subprocess.run([engine("amtool"), "check-config", path], capture_output=True).returncode == 0


@pytest.mark.parametrize(("profile", "service"), [("single", "grafana"), ("master", "master-grafana")])
def test_grafana_finds_its_data_source_and_dashboards_where_they_are_mounted(
    tmp_path: Path, profile: str, service: str
) -> None:
    project = render(tmp_path / "project", "--language", "zh", "--page-url", "http://lab1:9470")
    grafana = config(project, profile)["services"][service]
    mounts = {one["target"]: Path(one["source"]) for one in grafana["volumes"] if one["type"] == "bind"}
    provisioning = mounts["/etc/grafana/provisioning/dashboards"] / "gpuscope.yml"
    provider = yaml.safe_load(provisioning.read_text())["providers"][0]
    dashboards = sorted(mounts[provider["options"]["path"]].glob("*.json"))
    assert len(dashboards) == 8
    assert json.loads((dashboards[0].parent / "gpuscope-fleet.json").read_text())["title"] == "gpuscope: 集群"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounts[str(home.parent)] / home.name).is_file()
    source_file = mounts["/etc/grafana/provisioning/datasources"] / "gpuscope.yml"
    source = yaml.safe_load(source_file.read_text())["datasources"][0]
    # Grafana fills in variables of its environment.
    assert source["url"].removeprefix("$") in grafana["environment"]
    prometheus = project / f"prometheus/{profile}/prometheus.yml"
    interval = yaml.safe_load(prometheus.read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
