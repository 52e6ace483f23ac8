"""The Prometheus operator runs a real Prometheus on the chart's ServiceMonitor, PodMonitor and rules.

The operator writes the StatefulSet and the configuration; a pod with Prometheus and the operator's own reloader
uses them. So what is asserted is what Prometheus scraped, not what a manifest says.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gpuscope.model.doctor_check import Verdict
from gpuscope.serve.doctor.server_reachability import check_data, parse_server_url
from tests.labs.debian_programs import LabUnavailable
from tests.labs.go_programs import PROGRAMS, go_program, module_folder
from tests.labs.kubernetes_configuration import API_ADDRESS, NODE
from tests.labs.prometheus_images import PROMETHEUS_IMAGE, RELOADER_IMAGE, prometheus_archive, reloader_archive
from tests.ports import free_port
from tests.render.kubernetes.lab_scene import MIG, NAMESPACE, RELEASE, WHOLE, Scene, get
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
MONITORS = (
    "--set", "serviceMonitor.labels.release=stack", "--set", "prometheusRule.labels.release=stack",
    "--set", "podMonitor.enabled=true", "--set", "podMonitor.labels.release=stack",
    "--set", "serviceMonitor.interval=1s", "--set", "serviceMonitor.scrapeTimeout=1s",
    "--set", "podMonitor.interval=1s", "--set", "podMonitor.scrapeTimeout=1s",
)  # fmt: skip
JOBS = {f"{kind}/{NAMESPACE}/{RELEASE}-gpuscope-agent/0" for kind in ("serviceMonitor", "podMonitor")}


@dataclass(frozen=True, slots=True)
class OperatedPrometheus:
    url: str

    def api(self, path: str, **parameters: str) -> Any:
        text = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        return json.loads(text)["data"] if text else {}

    def query(self, promql: str) -> list[Any]:
        found: list[Any] = self.api("query", query=promql).get("result", [])
        return found

    def targets(self) -> list[Any]:
        """Of our two monitors; Prometheus keeps no others."""
        found: list[Any] = self.api("targets", state="active").get("activeTargets", [])
        return [one for one in found if one["scrapePool"] in JOBS]

    def healthy_pools(self, scheme: str) -> set[str]:
        return {
            one["scrapePool"]
            for one in self.targets()
            if one["health"] == "up" and one["scrapeUrl"].startswith(f"{scheme}://")
        }


@pytest.fixture(scope="module")
def prometheus(scene: Scene) -> Iterator[OperatedPrometheus]:
    lab = scene.lab
    try:
        for archive in (prometheus_archive(lab.folder), reloader_archive(lab.folder)):
            lab.add_image(archive)
        operator = go_program("prometheus-operator")
        module = PROGRAMS["prometheus-operator"]
        crds = module_folder(module.module, module.version) / "example/prometheus-operator-crd"
    except LabUnavailable as missing:
        pytest.skip(f"Prometheus operator: {missing}")
    lab.kubectl("apply", "--server-side", "-f", crds)  # client-side, an annotation would be too long
    lab.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    pki = lab.pki
    lab.spawn(
        "operator", operator, f"-apiserver=https://{API_ADDRESS}:443",
        f"-ca-file={pki}/ca.crt", f"-cert-file={pki}/admin.crt", f"-key-file={pki}/admin.key",
        f"-web.listen-address=127.0.0.1:{free_port()}", f"-prometheus-config-reloader={RELOADER_IMAGE}",
        f"-namespaces={NAMESPACE}", "-config-reloader-memory-limit=0",
    )  # fmt: skip
    scene.install(*MONITORS)
    lab.apply(*prometheus_documents())

    def address() -> str:
        found = scene.pods(NAMESPACE, "operator.prometheus.io/name=lab")
        return str(found[0]["status"].get("podIP", "")) if found else ""

    lab.wait_until(address, "the operator starts no Prometheus")
    running = OperatedPrometheus(f"http://{address()}:9090")
    lab.wait_until(lambda: get(f"{running.url}/-/ready"), "Prometheus is not ready")
    yield running
    lab.kubectl("delete", "prometheus", "lab", "-n", NAMESPACE, "--wait")


def prometheus_documents() -> list[dict[str, Any]]:
    """The least that a Prometheus of the operator needs; the selectors are kube-prometheus-stack's."""
    chosen = {"matchLabels": {"release": "stack"}}
    named = {"name": "lab", "namespace": NAMESPACE}
    read = {"verbs": ["get", "list", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": named,
            "rules": [
                {"apiGroups": [""], "resources": ["services", "endpoints", "pods"], **read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], **read},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lab"},
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "Prometheus",
            "metadata": named,
            "spec": {
                "replicas": 1,
                "image": PROMETHEUS_IMAGE,
                "imagePullPolicy": "Never",
                "version": "v3.5.0",
                "serviceAccountName": "lab",
                "serviceMonitorSelector": chosen,
                "podMonitorSelector": chosen,
                "ruleSelector": chosen,
            },
        },
    ]


def test_the_operators_prometheus_scrapes_both_monitors_and_loads_the_rules(
    scene: Scene, prometheus: OperatedPrometheus, pods: None
) -> None:
    scene.install(*MONITORS)
    scene.lab.wait_until(lambda: prometheus.healthy_pools("http") == JOBS, "Prometheus scrapes both monitors")
    rows = wait_for(lambda: prometheus.query('gpuscope_allocation_used{pod="mig"}'), "the pod's own labels")
    assert {(row["metric"]["namespace"], row["metric"]["resource"]) for row in rows} == {("ml", MIG)}
    assert {row["metric"]["instance"] for row in rows} == {NODE}
    wait_for(lambda: prometheus.query('ALERTS{alertname="Watchdog"}'), "the rules of the PrometheusRule")
    rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] == "err"} == {}


def test_a_service_monitor_with_tls_and_basic_auth_really_scrapes(
    scene: Scene, prometheus: OperatedPrometheus, web_values: list[str]
) -> None:
    """The operator gives Prometheus the password from the secret that the monitors name."""
    scene.install(*MONITORS, *web_values)
    scene.lab.wait_until(
        lambda: prometheus.healthy_pools("https") == JOBS,
        f"Prometheus scrapes both monitors over TLS: {prometheus.targets()}",
    )
    gpus = wait_for(lambda: prometheus.query("count by (job) (gpuscope_gpu_info)"), "GPUs over TLS")
    assert {row["value"][1] for row in gpus} == {str(len(scene.driver.cards))}
    # The same monitors with a wrong password: the login is what made the scrapes above work.
    lab = scene.lab
    lab.kubectl("create", "secret", "generic", "stale", "-n", NAMESPACE, "--from-literal=username=scraper",
                "--from-literal=password=no")  # fmt: skip
    scene.install(*MONITORS, *web_values, "--set", "web.scrapeCredentialsSecret=stale")
    refused = lab.wait_until(
        lambda: [one["lastError"] for one in prometheus.targets() if one["health"] == "down"],
        "a wrong password is refused",
    )
    assert all("401" in error for error in refused)


def test_a_label_clash_is_found_by_the_doctor_and_ended_by_honor_labels(
    scene: Scene, prometheus: OperatedPrometheus
) -> None:
    """As with a ServiceMonitor without `honorLabels`, whose targets have a namespace and a pod of their own."""
    scene.start_pod("clash", WHOLE)
    renamed = 'gpuscope_allocation_used{exported_pod="clash"}'
    clash = ("--set", "serviceMonitor.honorLabels=false", "--set", "podMonitor.honorLabels=false")
    scene.install(*MONITORS, *clash)
    scene.lab.wait_until(lambda: prometheus.query(renamed), "Prometheus renames the pod's labels")
    found = [one for one in check_data(parse_server_url(prometheus.url)) if "exported_namespace" in one.what]
    assert [one.verdict for one in found] == [Verdict.BAD]
    assert "honorLabels: true" in found[0].fix
    scene.install(*MONITORS)
    scene.lab.wait_until(
        lambda: prometheus.query('gpuscope_allocation_used{pod="clash"}') and not prometheus.query(renamed),
        "the line that the doctor names",
    )
    assert not [one for one in check_data(parse_server_url(prometheus.url)) if "exported_" in one.what]
    scene.lab.kubectl("delete", "pod", "clash", "-n", "ml", "--wait")
