"""Throw-away certificates and kubeconfig files for the Kubernetes lab, made by openssl in one folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.labs.debian_programs import LabUnavailable, run

CLIENT = "extendedKeyUsage=clientAuth"
USERS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "front-proxy": "/CN=front-proxy-client",
}


def make_pki(folder: Path, api_address: str, node_name: str, node_address: str) -> None:
    """`ca.crt`, a certificate and key for each part, `sa.key`, and USER.kubeconfig."""
    if shutil.which("openssl") is None:
        raise LabUnavailable("openssl is not installed; it makes the certificates")
    folder.mkdir()
    _openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lab-ca -keyout ca.key -out ca.crt "
        "-addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
    )
    names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    servers = {
        "apiserver": f"IP:{api_address},{names}",
        "kubelet": f"IP:{node_address},DNS:{node_name}",
        "adapter": f"IP:{node_address},DNS:adapter.default.svc",
    }
    for name, alternatives in servers.items():
        make_certificate(folder, name, f"/CN={name}", f"subjectAltName={alternatives}")
    clients = {**USERS, "node": f"/O=system:nodes/CN=system:node:{node_name}"}
    for name, subject in clients.items():
        make_certificate(folder, name, subject, CLIENT)
        (folder / f"{name}.kubeconfig").write_text(json.dumps(_kubeconfig(folder, name, api_address)))
    _openssl(folder, "genrsa -out sa.key 2048")
    _openssl(folder, "rsa -in sa.key -pubout -out sa.pub")


def make_certificate(folder: Path, name: str, subject: str, extension: str) -> None:
    """`NAME.crt` and `NAME.key`, signed by the lab's authority."""
    _openssl(folder, f"req -newkey rsa:2048 -nodes -subj {subject} -keyout {name}.key -out {name}.csr")
    (folder / f"{name}.ext").write_text(extension + "\n")
    _openssl(
        folder,
        f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext "
        f"-out {name}.crt",
    )


def _openssl(folder: Path, arguments: str) -> None:
    run("openssl", *arguments.split(), cwd=folder)


def _kubeconfig(folder: Path, user: str, api_address: str) -> object:
    cluster = {"server": f"https://{api_address}:443", "certificate-authority": str(folder / "ca.crt")}
    client = {"client-certificate": str(folder / f"{user}.crt"), "client-key": str(folder / f"{user}.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": user, "user": client}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
        "current-context": "lab",
    }
