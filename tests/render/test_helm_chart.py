"""The Helm chart with the real helm: what each mode contains, and wrong values are refused by path.

test_helm_manifests.py checks the manifests with the schemas of Kubernetes.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuscope import __version__
from gpuscope.cli import main
from gpuscope.scrape.config import read_config
from tests.render.helm_chart import (
    ALL_MONITORS,
    CHART,
    MODES,
    ROOT,
    SEED,
    containers_of,
    of_kind,
    run_helm,
    template,
)


def test_the_chart_is_linted_and_has_the_version_of_the_program(helm: Path, tmp_path: Path) -> None:
    done = run_helm(helm, tmp_path, "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


WRONG = {
    "agent.port=ninety": "/agent/port",
    "agent.prot=9400": "/agent",
    "profiling.dcgm=true": "/profiling/dcgm",
    "collection.schedule=hourly": "/collection/schedule",
    "collection.interval=soon": "/collection/interval",
    "textfile.file=a.txt": "/textfile/file",
    "server.store=prometheus": "/server/store",
    "driver.access=magic": "/driver/access",
    "web.basicAuthUsers.ann=plain": "/web/basicAuthUsers/ann",
    "web.basicAuthUsers.ann=$2y$10$cut": "/web/basicAuthUsers/ann",
    "kubelet.podsApi=yes": "/kubelet/podsApi",
    "image.digest=latest": "/image/digest",
    "agent.resources.requests.memory=64MB": "/agent/resources/requests/memory",
    "gpuSessionMonitoring.enabled=true": "gpuSessionMonitoring",
}


@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_value_is_refused_with_its_path(helm: Path, tmp_path: Path, value: str) -> None:
    done = run_helm(helm, tmp_path, "template", "gs", CHART, "--set", value)
    assert done.returncode != 0
    assert WRONG[value] in done.stderr


def test_an_unknown_rule_file_is_refused(helm: Path, tmp_path: Path) -> None:
    values = {"prometheusRule": {"enabled": True, "files": ["gpus"]}}
    (tmp_path / "v.json").write_text(json.dumps(values))
    done = run_helm(helm, tmp_path, "template", "gs", CHART, "-f", tmp_path / "v.json")
    assert 'there is no rule file "gpus"' in done.stderr


def keys(value: Any, schema: Any, at: str = "") -> set[str]:
    """Paths of values that the schema has no property for."""
    if not isinstance(value, dict) or "properties" not in schema:
        return set()
    missing = {f"{at}.{key}" for key in value if key not in schema["properties"]}
    for key, inner in value.items():
        if key in schema["properties"]:
            missing |= keys(inner, schema["properties"][key], f"{at}.{key}")
    return missing


def test_the_helm_commands_of_the_guide_render(helm: Path) -> None:
    """As a reader types them: what a shell and helm make of `{+191}` is part of it."""
    guide = (ROOT / "docs/guides/kubernetes.md").read_text()
    commands = re.findall(r"^helm upgrade (?:--install )?(\S+ deploy/helm/gpuscope .*)$", guide, re.MULTILINE)
    assert len(commands) >= 5
    for arguments in commands:
        line = f"{helm} template {arguments.replace('--reuse-values', '')}"
        done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_schema_values_and_documentation_have_the_same_keys() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert keys(values, schema) == set()
    assert set(schema["properties"]) - {"global"} == set(values)
    page = (ROOT / "docs/kubernetes.md").read_text()
    for section, inner in values.items():
        names = [section] if not isinstance(inner, dict) or not inner else [f"{section}.{key}" for key in inner]
        for name in names:
            assert f"`{name}`" in page, f"docs/kubernetes.md does not explain {name}"


def test_only_pods_that_need_it_run_as_root_and_none_is_privileged(helm: Path, tmp_path: Path) -> None:
    everything = {
        **SEED,
        "server": {"enabled": True},
        "textfile": {"enabled": True},
        "profiling": {"dcgm": "sidecar"},
    }
    users = {}
    for document in template(helm, tmp_path, everything):
        for container in containers_of(document):
            context = container["securityContext"]
            assert not context.get("privileged"), container["name"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            added = context["capabilities"].get("add", [])
            assert added == (["SYS_ADMIN"] if container["name"] == "nv-hostengine" else [])
            users[container["name"]] = context.get("runAsUser", 65532)
    assert users == {
        "agent": 0, "collector": 0, "nv-hostengine": 0, "dcgmi": 65532, "server": 65532,
        "test-agent": 65532, "test-server": 65532,
    }  # fmt: skip
    (agent,) = containers_of(of_kind(template(helm, tmp_path, MODES["no pods"]), "DaemonSet"))
    assert agent["securityContext"]["runAsUser"] == 65532
    assert agent["resources"]["requests"] == {"cpu": "50m", "memory": "64Mi"}


def test_the_tutorial_s_values_give_its_cron_job(helm: Path, tmp_path: Path) -> None:
    job = of_kind(template(helm, tmp_path, SEED), "CronJob")
    assert job["metadata"]["name"] == "gpu-session-metrics-collector"
    assert job["spec"]["schedule"] == "*/1 * * * *"
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == SEED["nodeSelector"]
    assert pod["tolerations"] == SEED["tolerations"]
    assert pod["containers"][0]["resources"] == SEED["collection"]["resources"]
    (folder,) = [one["hostPath"]["path"] for one in pod["volumes"] if one["name"] == "textfile"]
    assert folder == "/var/lib/node_exporter/textfile_collector"


def test_each_listed_node_has_a_cron_job_of_its_own(helm: Path, tmp_path: Path) -> None:
    long = "a-node-with-a-very-long-name.cluster.example.org"
    values = {"gpu-session-monitoring": {"enabled": True, "nodes": ["gpu-1", long, f"{long}.x"]}}
    jobs = [one for one in template(helm, tmp_path, values) if one["kind"] == "CronJob"]
    names = {job["metadata"]["name"] for job in jobs}
    assert len(names) == 3
    assert all(len(name) <= 52 for name in names)
    chosen = set()
    for job in jobs:
        affinity = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        chosen |= set(term["matchFields"][0]["values"])
    assert chosen == {"gpu-1", long, f"{long}.x"}


NOTES = {
    "seed": "it runs on ONE GPU node per tick",
    "sessions on nodes": "gpu-1, gpu-2.example.org",
    "sessions by interval": "on all GPU nodes, every 30s",
    "textfile": "gpuscope render helm-values --for kube-prometheus-stack",
    "no pods": "agent.podAttribution is false",
    "server without claim": "are lost when the pod ends",
    "default": "kubectl label node NAME accelerator=nvidia",
    "everything": "web.basicAuthUsers is set without web.scrapeCredentialsSecret",
}


@pytest.mark.parametrize("mode", NOTES)
def test_notes_say_what_is_covered(helm: Path, tmp_path: Path, mode: str) -> None:
    (tmp_path / "v.json").write_text(json.dumps(MODES[mode]))
    options = ("--dry-run=client", "-n", "gpu", "-f", tmp_path / "v.json")
    done = run_helm(helm, tmp_path, "install", "gs", CHART, *options)
    assert done.returncode == 0, done.stderr
    assert NOTES[mode] in done.stdout.rpartition("NOTES:")[2]


def test_rules_and_dashboards_are_in_the_chart_unchanged(helm: Path, tmp_path: Path) -> None:
    documents = template(helm, tmp_path, {**ALL_MONITORS, **MODES["dashboards"]})
    shown = {}
    for document in documents:
        if document["kind"] == "ConfigMap":
            assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
            shown |= {name: json.loads(text) for name, text in document["data"].items()}
    files = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
    assert shown == {file.name: json.loads(file.read_text()) for file in files}
    assert len(shown) > 5
    rules = [one["spec"] for one in documents if one["kind"] == "PrometheusRule"]
    groups = sorted(group["name"] for one in rules for group in one["groups"])
    written = [yaml.safe_load(file.read_text()) for file in (ROOT / "deploy/prometheus/rules").glob("*.yml")]
    assert groups == sorted(group["name"] for one in written for group in one["groups"])
    done = run_helm(helm, tmp_path, "package", CHART, "-d", tmp_path)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("gpuscope-*.tgz"))) as archive:
        names = archive.getnames()
    assert "gpuscope/files/rules/gpuscope-gpu.yml" in names
    assert f"gpuscope/files/dashboards/{files[0].name}" in names


def test_the_server_s_configuration_is_read_by_the_program(helm: Path, tmp_path: Path) -> None:
    documents = template(
        helm, tmp_path, {"server": {"enabled": True, "extraScrapeConfigs": [{"job_name": "x"}]}}
    )
    text = of_kind(documents, "Secret", "-server")["stringData"]["prometheus.yml"]
    config = read_config(yaml.safe_load(text), "prometheus.yml", tmp_path)
    assert config.warnings == ()
    assert [job.name for job in config.jobs] == ["gpuscope", "x"]
    (provider,) = config.jobs[0].providers
    assert provider.mechanism == "kubernetes"
    role = of_kind(documents, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@pytest.mark.parametrize("chart", ["kube-prometheus-stack", "prometheus"])
def test_helm_values_for_a_node_exporter(chart: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "helm-values", "--for", chart, "--textfile-folder", "/run/prometheus"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)["prometheus-node-exporter"]
    assert "--collector.textfile.directory=/run/prometheus" in values["extraArgs"]
    assert len(values["extraArgs"]) == 3, "Helm replaces lists: the chart's own arguments are repeated"
    assert values["extraHostVolumeMounts"][0]["hostPath"] == "/run/prometheus"
    assert ("prometheus" in values) == (chart == "kube-prometheus-stack")


def test_helm_values_refuse_a_relative_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "helm-values", "--for", "prometheus", "--textfile-folder", "x"]) == 2
    assert "--textfile-folder: 'x' is not an absolute path" in capsys.readouterr().err


def test_writers_of_text_files_are_not_ready_when_their_file_is_old(helm: Path, tmp_path: Path) -> None:
    """A node exporter goes on exporting an old file. A CronJob's pod ends: its file has the alert only."""
    values = {**SEED, "textfile": {"enabled": True}, "collection": {"interval": "30s"}}
    documents = template(helm, tmp_path, values)
    for name, file, interval in (
        ("gpuscope-textfile", "gpuscope.prom", "60s"),
        ("gpu-session-metrics-collector", "gpu_sessions.prom", "30s"),
    ):
        (writer,) = containers_of(of_kind(documents, "DaemonSet", name))
        assert f"--output=/textfile/{file}" in writer["args"]
        environment = {one["name"]: one.get("value") for one in writer["env"]}
        assert environment["HEALTH_FILE"] == f"/textfile/{file}"
        assert environment["HEALTH_FILE_INTERVAL"] == interval
        assert writer["readinessProbe"]["exec"]["command"][-1].endswith("/healthcheck.py")
    (scheduled,) = containers_of(of_kind(template(helm, tmp_path, SEED), "CronJob"))
    assert "readinessProbe" not in scheduled


@pytest.mark.parametrize(
    "values", [SEED, {"textfile": {"enabled": True}}, {}], ids=["cron job", "writer", "none"]
)
def test_the_alert_for_an_old_text_file_is_installed_with_its_writer(
    helm: Path, tmp_path: Path, values: dict[str, Any]
) -> None:
    documents = template(helm, tmp_path, values)
    alerts = [
        rule.get("alert")
        for document in documents
        if document["kind"] == "PrometheusRule"
        for group in document["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert alerts.count("GPUTextfileOld") == (1 if values else 0)
    assert "SourceDown" in alerts
