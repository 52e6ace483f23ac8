"""`kubernetes_sd_configs` with API servers that change, fail and lie: the last valid targets stay."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.job_options import KubernetesProviderConfig
from gpuscope.history.scrape.providers.kubernetes_client import KubernetesClient
from gpuscope.history.scrape.providers.kubernetes_objects import (
    read_endpoint_slice,
    read_node,
    read_pod,
    read_service,
)
from gpuscope.history.scrape.providers.kubernetes_provider import (
    KubernetesProvider,
    endpoint_slice_targets,
    node_targets,
    pod_targets,
)
from tests.scrape import kubernetes_scene
from tests.scrape.fake_kubernetes import FakeKubernetes, serving_kubernetes
from tests.scrape.provider_scene import addresses, does, failing, finds, run_provider


def kubernetes(
    server: FakeKubernetes, role: str = "pod", *, max_bytes: int = 1 << 20, max_objects: int = 1000, **more: Any
) -> Callable[[ThreadPoolExecutor], KubernetesProvider]:
    config = KubernetesProviderConfig(role, f"http://{server.address}", **more)
    return lambda workers: KubernetesProvider(config, workers, max_bytes, max_objects)


def simple_pod(name: str, ip: str, pad: int = 0) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "ports": [{"containerPort": 1}]}]}
    metadata = {"name": name, "namespace": "ml", "annotations": {"pad": "x" * pad}}
    return {"metadata": metadata, "spec": spec, "status": {"podIP": ip}}


def test_pods_are_listed_in_pages_and_then_watched() -> None:
    with serving_kubernetes() as server:
        for n in range(250):
            server.put("pods", simple_pod(f"p{n:03d}", f"10.0.{n // 250}.{n % 250}"))
        many = [f"10.0.0.{n}:1" for n in range(250)]
        run_provider(
            kubernetes(server), finds(*many), lambda provider: bool(server.watches),
            does(lambda: server.put("pods", simple_pod("p000", "10.9.9.9"))), finds("10.9.9.9:1", *many[1:]),
            does(lambda: server.remove("pods", "ml/p001")), finds("10.9.9.9:1", *many[2:]),
        )  # fmt: skip
    lists = [query for _, _, query, _ in server.requests if "watch" not in query]
    assert [query.get("continue", "") for query in lists] == ["", "100", "200"]


def test_an_api_server_that_fails_keeps_the_targets(caplog: pytest.LogCaptureFixture) -> None:
    with serving_kubernetes() as server:
        server.put("pods", simple_pod("a", "10.0.0.1"))

        def fail() -> None:
            server.status = 403
            server.end_watches()

        def recover() -> None:
            server.put("pods", simple_pod("b", "10.0.0.2"))
            server.status = 200

        run_provider(
            kubernetes(server), finds("10.0.0.1:1"), lambda provider: bool(server.watches), does(fail),
            failing(), finds("10.0.0.1:1"), does(recover),
            # The watch continues where it ended; the fake has no history, so a new event shows that it does.
            lambda provider: bool(server.watches),
            does(lambda: server.put("pods", simple_pod("c", "10.0.0.3"))), finds("10.0.0.1:1", "10.0.0.3:1"),
        )  # fmt: skip
    assert "give the service account `list` and `watch` on pods" in caplog.text


def test_a_watch_that_missed_changes_lists_again() -> None:
    gone = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
    with serving_kubernetes() as server:
        server.put("pods", simple_pod("a", "10.0.0.1"))

        def miss() -> None:
            server.objects["pods"]["ml/b"] = simple_pod("b", "10.0.0.2")
            server.send_line("pods", gone.encode())

        run_provider(
            kubernetes(server), finds("10.0.0.1:1"), lambda provider: bool(server.watches), does(miss),
            finds("10.0.0.1:1", "10.0.0.2:1"),
        )  # fmt: skip


def test_slices_wait_for_pods_and_services() -> None:
    with serving_kubernetes() as server:
        kubernetes_scene.fill(server)
        server.fails["services"] = 500
        found = run_provider(
            kubernetes(server, "endpointslice"), failing(), finds(), does(server.fails.clear),
            lambda provider: len(addresses(provider)) > 4,
        )  # fmt: skip
    assert "10.1.0.1:9401" in addresses(found), "a port of the pod that the service does not have"


def test_a_page_that_is_too_large_is_asked_for_in_parts() -> None:
    before = LIMITS_REACHED.counts()["discovery_max_body_bytes"]
    with serving_kubernetes() as server:
        for n in range(8):
            server.put("pods", simple_pod(f"p{n}", f"10.0.0.{n}", pad=3000))
        run_provider(kubernetes(server, max_bytes=10_000), finds(*(f"10.0.0.{n}:1" for n in range(8))))
    assert LIMITS_REACHED.counts()["discovery_max_body_bytes"] > before


def test_the_number_of_objects_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    before = LIMITS_REACHED.counts()["discovery_max_objects"]
    with serving_kubernetes() as server:
        server.put("pods", simple_pod("a", "10.0.0.1"))
        server.put("pods", simple_pod("b", "10.0.0.2"))
        found = run_provider(
            kubernetes(server, max_objects=2), finds("10.0.0.1:1", "10.0.0.2:1"),
            lambda provider: bool(server.watches),
            does(lambda: server.put("pods", simple_pod("c", "10.0.0.3"))),
            lambda provider: LIMITS_REACHED.counts()["discovery_max_objects"] > before,
        )  # fmt: skip
        assert len(addresses(found)) == 2
        run_provider(kubernetes(server, max_objects=2), failing())
    assert "narrow them with namespaces or selectors" in caplog.text


def certificate(folder: Path) -> ssl.SSLContext:
    """`ca.crt` in the folder vouches for it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl: not found; it makes the certificate")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out ca.crt"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    return context


def test_the_service_account_is_used_in_a_cluster(tmp_path: Path) -> None:
    """The token is read for each request, because Kubernetes replaces it."""
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "namespace").write_text("ml")
    with serving_kubernetes(certificate(tmp_path)) as server:
        server.put("pods", simple_pod("a", "10.0.0.1"))
        host, port = server.address.split(":")
        environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

        def build(workers: ThreadPoolExecutor) -> KubernetesProvider:
            config = KubernetesProviderConfig("pod", own_namespace=True)
            return KubernetesProvider(
                config, workers, 1 << 20, 10,
                connect=lambda config, limit: KubernetesClient(
                    config, limit, environment=environment, account=tmp_path
                ),
            )  # fmt: skip

        def rotate() -> None:
            (tmp_path / "token").write_text("two\n")
            server.end_watches()

        run_provider(
            build, finds("10.0.0.1:1"), lambda provider: bool(server.watches), does(rotate),
            lambda provider: any("two" in token for *_, token in server.requests),
        )  # fmt: skip
    assert {namespace for _, namespace, _, _ in server.requests} == {"ml"}
    assert server.requests[0][3] == "Bearer one"


def test_outside_a_cluster_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def build(workers: ThreadPoolExecutor) -> KubernetesProvider:
        connect = lambda config, limit: KubernetesClient(config, limit, environment={})  # noqa: E731
        return KubernetesProvider(KubernetesProviderConfig("pod"), workers, 1, 1, connect=connect)

    run_provider(build, failing())
    assert "set api_server" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "status",
                    "labels",
                    "name",
                    "ports",
                    "containers",
                    "podIP",
                    "addresses",
                    "endpoints",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "ports", "endpoints"]), JSON))
def test_any_object_gives_targets_or_none(value: dict[str, Any]) -> None:
    nodes = {"": read_node(value)}
    pods = {"/": read_pod(value)}
    list(node_targets("k", nodes[""]))
    list(pod_targets("k", pods["/"], nodes))
    list(endpoint_slice_targets("k", read_endpoint_slice(value), {"": read_service(value)}, pods, nodes))
