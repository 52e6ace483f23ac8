"""The chart's server: targets, a claim that keeps its data, TLS and basic auth, ingress, policies."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuscope.history.scrape.config import read_config
from tests.engines import running_prometheus
from tests.labs.kubernetes_configuration import API_ADDRESS, NODE
from tests.labs.kubernetes_lab import KubernetesLab
from tests.render.kubernetes.lab_scene import (
    NAMESPACE,
    PASSWORD,
    RELEASE,
    USER,
    LabServer,
    Scene,
    get,
    status_of,
)
from tests.scrape.test_providers_against_prometheus import QUICK, all_targets, differences, scraping
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
SERVER = f"{RELEASE}-gpuscope-server"


def test_the_server_finds_the_agent_and_prometheus_finds_the_same_targets(
    scene: Scene, pods: None, tmp_path: Path
) -> None:
    pki = scene.lab.pki
    client = {
        "api_server": f"https://{API_ADDRESS}:443",
        "tls_config": {
            "ca_file": str(pki / "ca.crt"),
            "cert_file": str(pki / "admin.crt"),
            "key_file": str(pki / "admin.key"),
        },
    }
    jobs = [
        {"job_name": role, "kubernetes_sd_configs": [{"role": role, **client, **more}]}
        for role, more in (("pod", {}), ("endpointslice", {"attach_metadata": {"node": True}}), ("node", {}))
    ]
    document = {"global": {"scrape_interval": "1h"}, "scrape_configs": jobs}
    assert read_config(document, "f", tmp_path).warnings == ()
    with running_prometheus(yaml.safe_dump(document), flags=QUICK) as url, scraping(document, tmp_path) as ours:

        def both() -> tuple[list[str], list[str]]:
            theirs = json.loads(get(f"{url}/api/v1/targets?state=any") or '{"data": {}}')["data"]
            return all_targets(theirs) if theirs else [], all_targets(ours.targets_json("any"))

        wait_for(lambda: both()[0] and both()[0] == both()[1], "the same targets", lambda: differences(*both()))
        assert len(both()[0]) >= 6, "pods of two namespaces, a service's endpoints and the node"


def test_the_server_scrapes_the_agent(scene: Scene, pods: None) -> None:
    server = scene.install_server()
    wait_for(lambda: server.query('gpuscope_allocation_used{pod="mig"}'), "a scrape")
    (up,) = server.query("up")
    assert up["metric"]["instance"] == NODE
    (row,) = server.query('gpuscope_allocation_used{pod="mig"}')
    assert row["metric"]["namespace"] == "ml", "honor_labels keeps the pod's namespace"
    scene.helm_test()


@pytest.fixture
def volume(lab: KubernetesLab) -> Iterator[Path]:
    """A persistent volume for one claim: a folder of the node that belongs to nobody in the pod."""
    folder = lab.folder / "volume"
    folder.mkdir(mode=0o700)
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "lab-volume"},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": str(folder)},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
                        ]
                    }
                },
            },
        }
    )
    yield folder
    lab.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait", check=False)
    lab.kubectl("delete", "pvc", "--all", "-n", NAMESPACE, "--wait")
    lab.kubectl("delete", "pv", "lab-volume", "--wait")
    shutil.rmtree(folder)


def test_history_and_tokens_are_kept_in_the_claim(scene: Scene, volume: Path) -> None:
    """Over the end of the pod, and over an uninstall: Helm leaves the claims of a StatefulSet."""
    scene.lab.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")  # a StatefulSet's claims cannot be added
    server = scene.install_server("--set", "server.persistence.enabled=true")
    (claim,) = scene.lab.get("pvc", "-n", NAMESPACE)["items"]
    assert (claim["status"]["phase"], claim["spec"]["volumeName"]) == ("Bound", "lab-volume")
    wait_for(lambda: server.query("up==1"), "a scrape")
    first = float(server.query("timestamp(up)")[0]["value"][1])
    # fsGroup gave the folder to the server's group; the program's own files are its user's.
    assert any(path.is_file() and path.stat().st_uid == 65532 for path in volume.rglob("*"))

    def oldest() -> float:
        found = server.query("min_over_time(timestamp(up)[1h:1s])")
        return float(found[0]["value"][1]) if found else first + 1

    scene.lab.kubectl("delete", "pod", f"{SERVER}-0", "-n", NAMESPACE, "--wait")
    scene.lab.kubectl("rollout", "status", f"sts/{SERVER}", "-n", NAMESPACE, "--timeout=120s")
    server = LabServer(scene.server_url(), server.token)
    wait_for(lambda: oldest() <= first, "the history from before the pod's end", lambda: server.query("up"))
    scene.lab.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    scene.install("--set", "server.enabled=true", "--set", "server.scrapeInterval=1s")
    server = LabServer(scene.server_url(), server.token)
    wait_for(lambda: oldest() <= first, "the history from before the uninstall", lambda: server.query("up"))


def test_tls_and_basic_auth_from_the_probe_to_the_query(scene: Scene, web_values: list[str]) -> None:
    """helm waits for the probes; the server scrapes the agent; helm test logs in; others are refused."""
    scene.install(
        *web_values, "--set", "server.enabled=true", "--set", "server.persistence.enabled=false",
        "--set", "server.scrapeInterval=1s",
    )  # fmt: skip
    credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    login = {"Authorization": f"Basic {credentials}"}
    authority = scene.lab.pki / "ca.crt"
    addresses = {
        "agent": scene.agent_pod()["status"]["podIP"] + ":9400",
        "server": scene.agent_pod("server")["status"]["podIP"] + ":9470",
    }
    for part, address in addresses.items():
        assert status_of(f"http://{address}/metrics")[0] in (0, 400), f"{part} speaks plain HTTP"
        assert status_of(f"https://{address}/metrics", authority)[0] == 401, part
        assert status_of(f"https://{address}/metrics", authority, login)[0] == 200, part
    url = f"https://{addresses['server']}/api/v1/query?query=up"
    up = wait_for(
        lambda: [
            row["metric"]["instance"]
            for row in json.loads(status_of(url, authority, login)[1])["data"]["result"]
            if row["value"][1] == "1"
        ],
        "a scrape over TLS with the password",
    )
    assert up == [NODE]
    scene.helm_test()
    # Probes without a password are connections without a request: nothing to log. The node has no kernel log.
    for target in (f"ds/{RELEASE}-gpuscope-agent", f"sts/{SERVER}"):
        log = scene.lab.kubectl("logs", "-n", NAMESPACE, target)
        problems = [line for line in log.splitlines() if "WARNING" in line or "ERROR" in line]
        assert [line for line in problems if "source kernel-log" not in line] == []


def test_helm_test_fails_for_a_wrong_password(scene: Scene, web_values: list[str]) -> None:
    scene.lab.kubectl(
        "create", "secret", "generic", "wrong", "-n", NAMESPACE, f"--from-literal=username={USER}",
        "--from-literal=password=no",
    )  # fmt: skip
    scene.install(*web_values, "--set", "web.scrapeCredentialsSecret=wrong")
    with pytest.raises(AssertionError, match="Failed"):
        scene.helm_test()
    log = scene.lab.kubectl("logs", "-n", NAMESPACE, f"{RELEASE}-gpuscope-test", check=False)
    assert "answers 401" in log
    scene.lab.kubectl("delete", "secret", "wrong", "-n", NAMESPACE)


def test_the_api_server_accepts_ingress_and_network_policies(scene: Scene) -> None:
    """The lab has no controller and no network plugin that would enforce them."""
    scene.install(
        "--set", "server.enabled=true", "--set", "server.persistence.enabled=false",
        "--set", "server.ingress.enabled=true", "--set", "server.ingress.host=gpus.example.org",
        "--set", "server.ingress.tlsSecret=web-tls", "--set", "networkPolicy.enabled=true",
    )  # fmt: skip
    (ingress,) = scene.lab.get("ingress", "-n", NAMESPACE)["items"]
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "gpus.example.org"
    service = rule["http"]["paths"][0]["backend"]["service"]
    (port,) = scene.lab.get("service", service["name"], "-n", NAMESPACE)["spec"]["ports"]
    assert port["name"] == service["port"]["name"]
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in scene.lab.get("networkpolicies", "-n", NAMESPACE)["items"]
    }
    assert set(policies) == {f"{RELEASE}-gpuscope-agent", SERVER}
    for part, spec in (("agent", policies[f"{RELEASE}-gpuscope-agent"]), ("server", policies[SERVER])):
        labels = scene.agent_pod(part)["metadata"]["labels"]
        assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    host = {"Host": "gpus.example.org"}
    assert status_of(f"{scene.server_url()}/", headers=host)[0] == 200, "the ingress' host is an allowed one"
    assert status_of(f"{scene.server_url()}/", headers={"Host": "other.example.org"})[0] == 421
