"""Pods over HTTPS from a kubelet or an API server: the token, the certificate, and what a refusal says."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.agent.owners.kubernetes_https import api_server_url, get
from gpuscope.agent.owners.pod_reader import decode_pod_list
from gpuscope.base.errors import SourceError
from tests.local_server import QuietHandler, serving_http

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account: its token and the cluster's authority, which here is the server itself."""
    subprocess.run(
        (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=node "
            f"-addext subjectAltName=IP:127.0.0.1 -keyout {tmp_path}/key -out {tmp_path}/ca.crt"
        ).split(),
        check=True,
        capture_output=True,
    )
    (tmp_path / "token").write_text("first\n")
    return tmp_path


class Answers(QuietHandler):
    status = 200
    body = b"{}"
    seen: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        self.answer(self.body, status=self.status)


@contextmanager
def kubelet(
    account: Path, status: int = 200, body: bytes = b"{}"
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    seen: list[tuple[str, str]] = []
    handler = type("Handler", (Answers,), {"status": status, "body": body, "seen": seen})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", account / "key")
    with serving_http(handler, tls=context) as port:
        yield f"https://127.0.0.1:{port}", seen


def test_pods_with_the_token_of_the_moment(account: Path) -> None:
    body = json.dumps({"items": [{"metadata": {"name": "a", "namespace": "ml", "uid": "u"}}]}).encode()
    with kubelet(account, body=body) as (url, seen):
        (pod,) = decode_pod_list(get(f"{url}/pods", account=account), lambda name: True)
        (account / "token").write_text("second")
        get(f"{url}/pods?x=1", account=account)
    assert (pod.namespace, pod.name, pod.uid) == ("ml", "a", "u")
    assert seen == [("/pods", "Bearer first"), ("/pods?x=1", "Bearer second")]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_says_what_to_grant(account: Path, status: int) -> None:
    with kubelet(account, status) as (url, _), pytest.raises(SourceError, match="nodes/pods"):
        get(f"{url}/pods", account=account)


def test_a_certificate_of_its_own_making_needs_consent(
    account: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("account")
    with kubelet(account) as (url, seen):
        with pytest.raises(SourceError, match="does not answer"):
            get(f"{url}/pods", account=elsewhere)
        assert seen == [], "the token is not shown to strangers"
        assert get(f"{url}/pods", account=elsewhere, insecure=True) == b"{}"


def test_other_answers_and_wrong_addresses(account: Path) -> None:
    with kubelet(account, 500) as (url, _), pytest.raises(SourceError, match="answers 500"):
        get(f"{url}/pods", account=account)
    with pytest.raises(SourceError, match="https"):
        get("http://127.0.0.1:1/pods", account=account)


def test_the_api_server_is_asked_for_this_node_only() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert api_server_url(environment, "n/1&x") == (
        "https://[fd00::1]:6443/api/v1/pods?fieldSelector=spec.nodeName%3Dn%2F1%26x&resourceVersion=0"
    )
    with pytest.raises(SourceError, match="not in a Kubernetes pod"):
        api_server_url({}, "n")
