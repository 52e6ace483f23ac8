"""Manifests that the Helm chart renders, and the examples beside it, checked with published schemas.

Kubernetes' own schemas of 1.27 to 1.37 for every mode; the CRDs of the Prometheus operator, of KEDA and of the
GPU operator, as their Go modules have them, for objects of those.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gpuscope.history.promql import parse
from tests.labs.debian_programs import LabUnavailable
from tests.labs.go_programs import PROGRAMS, module_folder
from tests.render.helm_chart import ALL_MONITORS, EXAMPLES, MODES, ROOT, VERSIONS, template

OPERATOR_GROUP = "monitoring.coreos.com/"


@pytest.fixture(scope="module")
def valid() -> set[tuple[str, str]]:
    """Documents already checked, with their version: most modes have the same ones."""
    return set()


def check_documents(
    documents: list[dict[str, Any]], versions: tuple[str, ...], valid: set[tuple[str, str]]
) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert names
    assert len(names) == len(set(names))
    for document in documents:
        text = json.dumps(document, sort_keys=True)
        for version in versions:
            if (text, version) in valid or document["apiVersion"].startswith(OPERATOR_GROUP):
                continue
            # It falls back to an older schema where it has none of this version.
            assert kubernetes_validate.validate(document, version, strict=True) == version
            valid.add((text, version))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_valid_for_every_kubernetes(
    helm: Path, tmp_path: Path, mode: str, valid: set[tuple[str, str]]
) -> None:
    """As rendered for the newest, which has the objects of the older ones too."""
    documents = template(helm, tmp_path, MODES[mode], "--kube-version", VERSIONS[-1])
    check_documents(documents, VERSIONS, valid)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_mode_rendered_for_a_version_is_valid_for_it(helm: Path, tmp_path: Path, version: str) -> None:
    for values in MODES.values():
        check_documents(template(helm, tmp_path, values, "--kube-version", version), (version,), set())


def test_a_wrong_manifest_is_found(helm: Path, tmp_path: Path) -> None:
    documents = template(helm, tmp_path, {})
    (daemon_set,) = [one for one in documents if one["kind"] == "DaemonSet"]
    daemon_set["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        check_documents(documents, VERSIONS[:1], set())


LABELS = {"agent": {"exportedPodLabels": ["team"]}}


@pytest.mark.parametrize(("version", "mode", "mounted"), [
    ("1.36", LABELS, False), ("1.37", {}, False), ("1.37", LABELS, True),
    ("1.37", {**LABELS, "kubelet": {"podsApi": False}}, False),
    ("1.36", {"kubelet": {"podsApi": True}}, True), ("1.37", {"agent": {"podAttribution": False}}, False),
])  # fmt: skip
def test_the_pods_api_is_mounted_where_kubelets_have_it(
    helm: Path, tmp_path: Path, version: str, mode: dict[str, Any], mounted: bool
) -> None:
    """And where the labels are wanted: a pod that mounts a folder which the kubelet lacks does not start."""
    documents = template(helm, tmp_path, mode, "--kube-version", version)
    (daemon_set,) = [one for one in documents if one["kind"] == "DaemonSet"]
    pod = daemon_set["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == volumes
    assert ("pods-api" in volumes) == mounted


class CrdLoader(yaml.CSafeLoader):
    """A bare = is a string in CRDs; YAML 1.1 has a type of its own for it."""


CrdLoader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: node.value)


def crd_schemas(module: str, version: str, *paths: str) -> dict[str, Any]:
    """The schema of each kind's stored version, from the CRDs of a Go module; unknown keys are mistakes."""
    try:
        folder = module_folder(module, version)
    except LabUnavailable as missing:
        pytest.skip(f"{module}: {missing}")
    schemas = {}
    for path in paths:
        crd = yaml.load((folder / path).read_text(), CrdLoader)
        (stored,) = [one for one in crd["spec"]["versions"] if one["storage"]]
        schemas[crd["spec"]["names"]["kind"]] = closed(stored["schema"]["openAPIV3Schema"])
    return schemas


def closed(schema: Any) -> Any:
    """An API server drops unknown keys; here they are mistakes."""
    if isinstance(schema, dict):
        inner = {key: closed(value) for key, value in schema.items()}
        if isinstance(inner.get("pattern"), str):
            inner["pattern"] = inner["pattern"].replace("^(?i)", "(?i)^")  # Python wants flags first
        if "properties" in inner and inner.get("type") == "object" and "additionalProperties" not in inner:
            named = set(inner["properties"]) - {"metadata"}
            return inner | ({"additionalProperties": False} if named else {})
        return inner
    return [closed(one) for one in schema] if isinstance(schema, list) else schema


def test_operator_objects_match_their_crds(helm: Path, tmp_path: Path) -> None:
    program = PROGRAMS["prometheus-operator"]
    files = [
        f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        for kind in ("servicemonitors", "podmonitors", "prometheusrules")
    ]
    schemas = crd_schemas(program.module, program.version, *files)
    for values in (ALL_MONITORS, {**ALL_MONITORS, **MODES["web"]}):
        documents = template(helm, tmp_path, values)
        checked = [one for one in documents if one["apiVersion"].startswith(OPERATOR_GROUP)]
        assert {one["kind"] for one in checked} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
        for document in checked:
            jsonschema.validate(document, schemas[document["kind"]])


def test_keda_examples_match_keda_s_crds() -> None:
    program = PROGRAMS["keda-operator"]
    files = [f"config/crd/bases/keda.sh_{kind}.yaml" for kind in ("scaledobjects", "triggerauthentications")]
    schemas = crd_schemas(program.module, program.version, *files)
    kinds = []
    for path in sorted(EXAMPLES.glob("keda-*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            jsonschema.validate(document, schemas[document["kind"]])
            kinds.append(document["kind"])
    assert kinds == ["TriggerAuthentication", "ScaledObject", "ScaledObject"]


def test_the_documented_patch_of_the_gpu_operator_matches_its_crd() -> None:
    program = PROGRAMS["gpu-operator"]
    file = "deployments/gpu-operator/crds/nvidia.com_clusterpolicies_crd.yaml"
    schemas = crd_schemas(program.module, program.version, file)
    page = (ROOT / "docs/kubernetes.md").read_text()
    (patch,) = re.findall(r"patch clusterpolicies.nvidia.com/cluster-policy .*?'(\{.*?\})'", page, re.DOTALL)
    spec = json.loads(patch)["spec"]
    exporter = schemas["ClusterPolicy"]["properties"]["spec"]["properties"]["dcgmExporter"]
    assert list(spec) == ["dcgmExporter"]
    jsonschema.validate(spec["dcgmExporter"], exporter)


def test_examples_are_valid() -> None:
    for version in VERSIONS:
        document = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
        assert kubernetes_validate.validate(document, version, strict=True) == version
    adapter = yaml.safe_load((EXAMPLES / "prometheus-adapter-values.yaml").read_text())
    metrics = {rule["name"]["as"] for rule in adapter["rules"]["custom"]}
    assert "gpu_utilization_percent" in metrics
    for path in EXAMPLES.glob("keda-*.yaml"):
        *_, scaled = yaml.safe_load_all(path.read_text())
        parse(scaled["spec"]["triggers"][0]["metadata"]["query"])
