"""The Helm chart with the real helm: what each mode contains, and wrong values are refused by path.

test_helm_manifests.py checks the manifests with the schemas of Kubernetes.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuscope import __version__
from gpuscope.agent.families import family_names
from gpuscope.cli import main
from gpuscope.history.scrape.config import read_config
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
    volumes_of,
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


def refusal(helm: Path, folder: Path, values: dict[str, Any]) -> str:
    (folder / "v.json").write_text(json.dumps(values))
    done = run_helm(helm, folder, "template", "gs", CHART, "-f", folder / "v.json")
    assert done.returncode != 0, values
    return done.stderr


WRONG_VALUES: dict[str, dict[str, Any]] = {
    "/prometheusRule/files/0": {"prometheusRule": {"enabled": True, "files": ["gpus"]}},
    "/agent/families/1": {"agent": {"families": ["native", "dcmg"]}},
    "/textfile/families/0": {"textfile": {"families": ["session"]}},
    "/textfile/families": {"textfile": {"families": []}},
    "/textfile/hostPath": {"textfile": {"hostPath": "/"}},
    "/textfile/interval": {"textfile": {"interval": "0s"}},
    "/tolerations/0": {"tolerations": [{"keys": "nvidia.com/gpu"}]},
    "/agent/extraEnv/0": {"agent": {"extraEnv": [{"value": "without a name"}]}},
    "/agent/updateStrategy": {"agent": {"updateStrategy": {"kind": "OnDelete"}}},
    "/agent/affinity": {"agent": {"affinity": {"requiredDuringScheduling": {}}}},
    "/agent/resourceNames/0": {"agent": {"resourceNames": ["gpu"]}},
    "/serviceMonitor/relabelings/0": {"serviceMonitor": {"relabelings": [{"source_labels": ["a"]}]}},
    "/gpu-session-monitoring/nodes": {"gpu-session-monitoring": {"nodes": ["gpu-1", "gpu-1"]}},
    "/server/extraScrapeConfigs/0": {"server": {"extraScrapeConfigs": [{"name": "x"}]}},
}


@pytest.mark.parametrize("path", WRONG_VALUES)
def test_a_wrong_entry_is_refused_with_its_path(helm: Path, tmp_path: Path, path: str) -> None:
    assert path in refusal(helm, tmp_path, WRONG_VALUES[path])


def test_the_schema_knows_the_families_and_rule_files_that_exist() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["definitions"]["families"]["items"]["enum"] == list(family_names())
    files = schema["properties"]["prometheusRule"]["properties"]["files"]["items"]["enum"]
    assert files == sorted(file.stem for file in (ROOT / "deploy/prometheus/rules").glob("*.yml"))


KUBERNETES_OWN = {"valueFrom", "rollingUpdate", "claims", "nodeAffinity", "podAffinity", "podAntiAffinity"}
"""Objects whose content the API server checks."""


def open_objects(schema: Any, at: str = "") -> Iterator[str]:
    """Paths of objects with properties that take any other key, too."""
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and at.rpartition("/")[2] not in {*KUBERNETES_OWN, "global"}:
        is_list_of_kubernetes = "required" in schema and "properties" not in schema
        if schema.get("additionalProperties", True) is True and not is_list_of_kubernetes:
            yield at
    for key, inner in schema.items():
        yield from open_objects(inner, f"{at}/{key}")


def test_no_object_of_the_schema_takes_unknown_keys() -> None:
    assert list(open_objects(json.loads((CHART / "values.schema.json").read_text()))) == [
        "/definitions/resources/properties/claims/items"
    ]


def test_values_of_an_earlier_version_are_accepted(helm: Path, tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` brings the defaults of the chart that was installed."""
    template(helm, tmp_path, {"kubelet": {"podLogsDir": "/var/log/pods"}, "agent": {"families": []}})


FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "default": ({}, ["--families=native"]),
    "with a server beside Prometheus": ({"server": {"enabled": True}}, ["--families=native"]),
    "with a server of its own": (
        {"server": {"enabled": True}, "serviceMonitor": {"enabled": False}},
        ["--families=native,host"],
    ),
    "with an engine": (
        {"server": {"enabled": True, "store": "http://p:9090"}, "serviceMonitor": {"enabled": False}},
        ["--families=native"],
    ),
    "chosen": ({"agent": {"families": ["native", "dcgm"]}}, ["--families=native,dcgm"]),
    "stand-in": ({"agent": {"extraArgs": ["--as=dcgm-exporter", "--kubernetes"]}}, []),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_agent_does_not_repeat_a_node_exporter(helm: Path, tmp_path: Path, name: str) -> None:
    values, expected = FAMILIES[name]
    (agent, *_) = containers_of(of_kind(template(helm, tmp_path, values), "DaemonSet", "-agent"))
    assert [word for word in agent["args"] if word.startswith("--families")] == expected


def test_folders_of_the_node_are_neither_made_nor_logs(helm: Path, tmp_path: Path) -> None:
    """Except the folder of text files, which is ours. Root could read every log of a mounted /var/log/pods."""
    for mode in ("everything", "sessions by interval", "host path"):
        for document in template(helm, tmp_path, MODES[mode], "--kube-version", "1.37"):
            for volume in volumes_of(document):
                folder = volume.get("hostPath", {})
                assert volume["name"] == "textfile" or folder.get("type", "Directory") == "Directory", volume
                assert folder.get("path") != "/var/log/pods"


@pytest.mark.parametrize(
    ("textfile", "message"),
    [
        ({"file": "gpu_sessions.prom", "families": ["dcgm_legacy"]}, "choose another name"),
        ({}, "leave sessions out"),
        ({"hostPath": "/var/lib/node_exporter/textfile_collector/"}, "leave sessions out"),
    ],
)
def test_two_writers_of_the_same_series_are_refused(
    helm: Path, tmp_path: Path, textfile: dict[str, Any], message: str
) -> None:
    assert message in refusal(helm, tmp_path, {**SEED, "textfile": {"enabled": True, **textfile}})
    template(helm, tmp_path, {**SEED, "textfile": {"enabled": True, **textfile, "hostPath": "/run/prometheus"}})


@pytest.mark.parametrize(
    ("schedule", "interval"), [("* * * * *", "1m"), ("*/30 * * * *", "30m"), ("0 6 * * *", "")]
)
def test_beside_cron_jobs_a_pod_waits_to_remove_their_file(
    helm: Path, tmp_path: Path, schedule: str, interval: str
) -> None:
    values = {**SEED, "collection": {"schedule": schedule}}
    values["gpu-session-monitoring"] = {"enabled": True, "nodes": ["gpu-1", "gpu-2"]}
    documents = template(helm, tmp_path, values)
    cleanup = of_kind(documents, "DaemonSet", "-cleanup")["spec"]["template"]["spec"]
    (container,) = cleanup["containers"]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "TEXTFILE": "/textfile/gpu_sessions.prom",
        "WRITE_INTERVAL": interval,
        "LINGER_SECONDS": "12",
    }
    assert cleanup["terminationGracePeriodSeconds"] > 12
    terms = cleanup["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchFields"][0]["values"] for term in terms["nodeSelectorTerms"]] == [["gpu-1"], ["gpu-2"]]
    assert "hostPID" not in cleanup
    long_running = template(helm, tmp_path, MODES["sessions by interval"])
    names = [one["metadata"]["name"] for one in long_running if one["kind"] == "DaemonSet"]
    assert names == ["gs-gpuscope-agent", "gpu-session-metrics-collector"], "it is in the same pod"


def test_notes_offer_only_tests_that_exist(helm: Path, tmp_path: Path) -> None:
    for values in (MODES["default"], MODES["textfile"], MODES["store"], {"service": {"enabled": False}}):
        (tmp_path / "v.json").write_text(json.dumps(values))
        done = run_helm(helm, tmp_path, "install", "gs", CHART, "--dry-run=client", "-f", tmp_path / "v.json")
        notes = done.stdout.rpartition("NOTES:")[2]
        assert ("helm test" in notes) == ("helm.sh/hook: test" in done.stdout), values


def test_the_server_s_links_have_the_ingress_address(helm: Path, tmp_path: Path) -> None:
    for values, url in (
        ({"host": "gpus.example.org"}, "http://gpus.example.org"),
        ({"host": "a.example", "path": "/gpu/", "tlsSecret": "tls"}, "https://a.example/gpu"),
    ):
        server = {"enabled": True, "ingress": {"enabled": True, **values}}
        (container,) = containers_of(of_kind(template(helm, tmp_path, {"server": server}), "StatefulSet"))
        assert f"--external-url={url}" in container["args"]


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
        # Not sh: bash makes two words of {a,b}.
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True)
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
        "textfile": {"enabled": True, "families": ["dcgm_legacy"]},
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
        "agent": 0, "collector": 0, "cleanup": 0, "nv-hostengine": 0, "dcgmi": 65532, "server": 65532,
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
    shown: dict[str, Any] = {}
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
    textfile = {"enabled": True, "families": ["dcgm_legacy"]}
    values = {**SEED, "textfile": textfile, "collection": {"interval": "30s"}}
    documents = template(helm, tmp_path, values)
    for name, file, interval in (
        ("gpuscope-textfile", "gpuscope.prom", "60s"),
        ("gpu-session-metrics-collector", "gpu_sessions.prom", "30s"),
    ):
        writer, cleanup = containers_of(of_kind(documents, "DaemonSet", name))
        assert {"name": "TEXTFILE", "value": f"/textfile/{file}"} in cleanup["env"]
        assert {"name": "WRITE_INTERVAL", "value": interval} in cleanup["env"]
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
