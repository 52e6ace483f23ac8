"""One cluster for all tests of this folder, with the chart installed for GPUs of the fake driver.

Files may run in any order and alone: each installs the values it needs with `scene.install`, which replaces
those of the test before, and makes its own pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import bcrypt
import pytest

from tests.fake_nvml.build import Unavailable
from tests.labs.debian_programs import LabUnavailable
from tests.labs.gpuscope_images import image_archives, image_name
from tests.labs.kubernetes_lab import KubernetesLab, kubernetes_lab
from tests.labs.kubernetes_pki import make_certificate
from tests.render.kubernetes.lab_scene import (
    MIG,
    NAMESPACE,
    PASSWORD,
    RELEASE,
    REPLICAS,
    SHARED,
    SHARED_GPU,
    USER,
    WHOLE,
    WHOLE_GPUS,
    Scene,
    driver_values,
    make_driver,
)


@pytest.fixture(scope="package")
def lab() -> Iterator[KubernetesLab]:
    try:
        archives = image_archives("gpuscope", "dcgm-exporter", "dcgm-exporter-root")
        with kubernetes_lab() as running_lab:
            for archive in archives.values():
                running_lab.add_image(archive)
            running_lab.kubectl("create", "namespace", "ml")
            yield running_lab
    except LabUnavailable as missing:
        pytest.skip(f"Kubernetes: {missing}")


@pytest.fixture(scope="package")
def scene(lab: KubernetesLab) -> Scene:
    """The chart is installed, and the node offers whole, shared and MIG devices."""
    try:
        driver, migs = make_driver(lab.driver_folder)
    except Unavailable as missing:
        pytest.skip(str(missing))
    made = Scene(lab, driver, driver_values(lab, image_name("gpuscope")), migs)
    lab.offer_devices(WHOLE, [driver.cards[gpu].uuid for gpu in WHOLE_GPUS])
    lab.offer_devices(SHARED, [f"{driver.cards[SHARED_GPU].uuid}::{replica}" for replica in range(REPLICAS)])
    lab.offer_devices(MIG, migs)
    seconds = made.install()
    print(f"helm install --wait: {seconds:.1f} s")
    return made


@pytest.fixture(scope="module")
def pods(scene: Scene) -> Iterator[None]:
    """A pod holds a whole GPU, two share one, and one holds a MIG instance."""
    for name, resource in (("train", WHOLE), ("web-a", SHARED), ("web-b", SHARED), ("mig", MIG)):
        scene.start_pod(name, resource)
    yield
    scene.lab.kubectl("delete", "pods", "--all", "-n", "ml", "--wait")


@pytest.fixture
def web_values(scene: Scene) -> list[str]:
    """Values for TLS and basic auth, with the secrets that they name."""
    lab = scene.lab
    names = ",".join(f"DNS:{RELEASE}-gpuscope-{part}.{NAMESPACE}.svc" for part in ("agent", "server"))
    make_certificate(lab.pki, "web", "/CN=gpuscope", f"subjectAltName={names}")
    lab.kubectl(
        "create", "secret", "tls", "web-tls", "-n", NAMESPACE, f"--cert={lab.pki}/web.crt",
        f"--key={lab.pki}/web.key", check=False,
    )  # fmt: skip
    lab.kubectl(
        "create", "secret", "generic", "scrape", "-n", NAMESPACE, f"--from-literal=username={USER}",
        f"--from-literal=password={PASSWORD}", check=False,
    )  # fmt: skip
    values = {
        "web": {
            "tlsSecret": "web-tls",
            "basicAuthUsers": {USER: bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()},
            "scrapeCredentialsSecret": "scrape",
        }
    }
    path = lab.folder / "web.json"
    path.write_text(json.dumps(values))
    return ["-f", str(path)]
