"""The kubelet and the pods: what it gave away, what UIDs are called, and what if it does not answer."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.allocation_matching import AllocationClaim, AllocationMatcher
from gpuscope.agent.owners.pod_reader import (
    PodMethod,
    PodReader,
    build_pod_reader,
    decode_pod_list,
    label_filter,
    pod_worker,
    read_pod_logs,
)
from gpuscope.agent.owners.pod_resources import decode_pod_resources, kubelet_worker, list_pod_resources
from gpuscope.agent.owners.pods import NO_PODS, Pod, PodContainer, decode_pods, index_pods
from gpuscope.agent.worker import KUBELET_GOOD_FOR_SECONDS
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.fakes import FakeClock
from tests.owners.fake_kubelet import claimed, container, devices, field, pod, running_kubelet
from tests.owners.trees import CONTAINER, POD_UID, add_log_link, add_pod_log


def some_label(name: str) -> bool:
    return name == "app"


ANSWER = b"".join(
    (
        pod("ml", "train-0", container("main", devices("nvidia.com/gpu", "GPU-1", "GPU-2"))),
        pod("ml", "shared-a", container("c", devices("nvidia.com/gpu.shared", "GPU-3::0"))),
        pod("ml", "mig", container("c", devices("nvidia.com/mig-1g.5gb", "MIG-x"))),
        pod("ml", "dra", container("c", claimed("gpu.nvidia.com", "gpu-0"), claimed("other.io", "nic-0"))),
        pod("ml", "nic", container("c", devices("nvidia.com/hostdev", "0000:01:00.0"))),
        pod("ml", "own", container("c", devices("example.com/gpu", "GPU-9"))),
        pod("kube-system", "dns", container("dns")),
    )
)


def test_what_the_kubelet_gave_away(tmp_path: Path) -> None:
    with running_kubelet(tmp_path / "kubelet.sock") as kubelet:
        kubelet.answer = lambda context: ANSWER
        claims = list_pod_resources(str(kubelet.path), ["example.com/gpu"]).claims
    assert [(claim.pod, claim.container, claim.resource, claim.device_id) for claim in claims] == [
        ("train-0", "main", "nvidia.com/gpu", "GPU-1"),
        ("train-0", "main", "nvidia.com/gpu", "GPU-2"),
        ("shared-a", "c", "nvidia.com/gpu.shared", "GPU-3::0"),
        ("mig", "c", "nvidia.com/mig-1g.5gb", "MIG-x"),
        ("dra", "c", "gpu.nvidia.com", "gpu-0"),
        ("own", "c", "example.com/gpu", "GPU-9"),
    ]
    assert {claim.namespace for claim in claims} == {"ml"}


def test_six_megabytes_of_pods(tmp_path: Path) -> None:
    pods = 600
    many = b"".join(
        pod(
            "ml", f"pod-{n}", container("main", devices("nvidia.com/gpu", f"GPU-{n}")), field(4, b"\1" * 11_000)
        )
        for n in range(pods)
    )
    assert len(many) > 6_000_000
    with running_kubelet(tmp_path / "kubelet.sock") as kubelet:
        kubelet.answer = lambda context: many
        assert len(list_pod_resources(str(kubelet.path), timeout=60.0).claims) == pods


@given(st.binary(max_size=200))
def test_any_answer_is_claims_and_pods_or_an_error(answer: bytes) -> None:
    for decode in (
        lambda: decode_pod_resources(answer),
        lambda: decode_pods(answer, some_label),
        lambda: decode_pod_list(answer, some_label),
    ):
        with suppress(SourceError):
            decode()


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["items", "metadata", "uid", "name", "status", "labels"]), inner),
    ),
)


@given(json_values)
def test_any_json(value: object) -> None:
    with suppress(SourceError):
        decode_pod_list(json.dumps(value).encode(), some_label)


EXPECTED = Pod(
    uid=POD_UID,
    namespace="ml",
    name="train-0",
    labels=(("app", "train"),),
    containers=(PodContainer("main", CONTAINER, "img:1"), PodContainer("setup")),
    other_uid="d76e26fba3bf2bfd215eb29011d55250",
    running=True,
)


def test_pods_of_the_pods_socket() -> None:
    metadata = b"".join(
        (
            field(1, "train-0"),
            field(3, "ml"),
            field(5, POD_UID),
            field(11, field(1, "app") + field(2, "train")),
            field(11, field(1, "secret") + field(2, "x")),
            field(12, field(1, "kubernetes.io/config.hash") + field(2, EXPECTED.other_uid)),
        )
    )
    status = field(1, "Running") + field(
        8, field(1, "main") + field(6, "img:1") + field(8, f"containerd://{CONTAINER}")
    )
    status += field(10, field(1, "setup"))
    answer = field(1, field(1, metadata) + field(2, b"") + field(3, status)) + field(1, b"")
    assert decode_pods(answer, some_label) == [EXPECTED]


def test_pods_of_a_json_list() -> None:
    item = {
        "metadata": {
            "name": "train-0",
            "namespace": "ml",
            "uid": POD_UID,
            "labels": {"app": "train", "secret": "x"},
            "annotations": {"kubernetes.io/config.hash": EXPECTED.other_uid},
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "image": "img:1", "containerID": f"cri-o://{CONTAINER}"},
            ],
            "initContainerStatuses": [{"name": "setup"}],
        },
    }
    assert decode_pod_list(json.dumps({"items": [item]}).encode(), some_label) == [EXPECTED]
    assert decode_pod_list(b'{"items": null}', some_label) == []


def test_pods_of_the_log_folder(tmp_path: Path) -> None:
    logs = tmp_path / "pods"
    add_pod_log(logs, "ml", "train-0", POD_UID, "main", "side")
    add_pod_log(logs, "kube-system", "etcd", "d76e26fba3bf2bfd215eb29011d55250", "etcd")
    (logs / "no-underscores").mkdir()
    (logs / "a_b").mkdir()
    (logs / "a_file_here").touch()
    links = tmp_path / "containers"
    links.mkdir()
    add_log_link(links, "ml", "train-0", POD_UID, "main", CONTAINER)
    add_log_link(links, "ml", "train-0", POD_UID, "main", "a" * 64)
    add_log_link(links, "ml", "train-0", POD_UID, "side", "b" * 30)
    (links / f"train-0_ml_main-{'d' * 64}.log").touch()  # not a link
    pods = {one.name: one for one in read_pod_logs(str(logs))}
    assert pods.keys() == {"train-0", "etcd"}
    train = pods["train-0"]
    assert (train.uid, train.namespace) == (POD_UID, "ml")
    assert train.container(CONTAINER) == PodContainer("main", CONTAINER)
    assert train.container("c" * 64) is None, "two containers: which one it is cannot be guessed"
    only = pods["etcd"].container("c" * 64)
    assert only is not None
    assert only.name == "etcd"


def test_links_alone_name_pods_of_folders_that_are_not_there(tmp_path: Path) -> None:
    """What a container sees that mounts /var/log/containers and no log."""
    links = tmp_path / "containers"
    links.mkdir()
    add_log_link(links, "ml", "train-0", POD_UID, "main", CONTAINER)
    add_log_link(links, "ml", "train-0", POD_UID, "side", "b" * 64)
    long_name = "x" * 120
    add_log_link(links, "ml", long_name, "0" * 32, "y" * 60, "c" * 64)
    (links / "loop.log").symlink_to("loop.log")
    pods = index_pods(read_pod_logs(str(tmp_path / "pods")))
    train = pods.find(POD_UID, ABSENT)
    assert train is not None
    assert (train.namespace, train.name) == ("ml", "train-0")
    assert train.container(CONTAINER) == PodContainer("main", CONTAINER)
    assert pods.find(ABSENT, "b" * 64) is train
    cut = pods.find("0" * 32, "c" * 64)
    assert cut is not None, "the link's name has no whole id; its target has the pod's UID"
    assert cut.name == long_name
    links.rename(tmp_path / "hidden")
    with pytest.raises(OSError, match="pods"):
        read_pod_logs(str(tmp_path / "pods"))


def test_a_static_pod_is_found_by_its_hash_and_a_new_pod_wins_over_an_ended_namesake() -> None:
    ended = Pod(uid="old", namespace="ml", name="train-0", running=False)
    pods = index_pods([ended, EXPECTED])
    assert pods.find(EXPECTED.other_uid, ABSENT) is EXPECTED
    assert pods.find(ABSENT, CONTAINER) is EXPECTED
    assert pods.by_name["ml", "train-0"] is EXPECTED


def test_a_good_answer_outlives_a_failure_for_a_minute(tmp_path: Path) -> None:
    logs, clock = tmp_path / "pods", FakeClock()
    add_pod_log(logs, "ml", "train-0", POD_UID, "main")
    settings = Settings(
        kubelet_socket=str(tmp_path / "kubelet.sock"),
        pods_socket=str(tmp_path / "none/pods-api.sock"),
        path_pod_logs=str(logs),
    )
    kubelet, pods = kubelet_worker(settings, clock), pod_worker(settings, clock)
    with running_kubelet(tmp_path / "kubelet.sock") as fake:
        fake.answer = lambda context: ANSWER
        kubelet.read_once()
        pods.read_once()
        claims, names = kubelet.fresh(), pods.fresh()
        assert claims is not ABSENT
        assert names is not ABSENT
        kubelet.read_once()
        pods.read_once()
    assert kubelet.fresh() is claims
    assert pods.fresh() is names, "the same answer is the same object: nothing is matched again"
    logs.rename(tmp_path / "hidden")
    clock.pass_seconds(KUBELET_GOOD_FOR_SECONDS - 1)
    kubelet.read_once()
    pods.read_once()
    assert [worker.status().up for worker in (kubelet, pods)] == [False, False]
    assert "pod-logs: " in pods.status().why
    assert (kubelet.fresh(), pods.fresh()) == (claims, names)
    clock.pass_seconds(2)
    assert kubelet.fresh() is ABSENT
    assert pods.fresh() is ABSENT


def test_pods_are_asked_of_the_first_that_answers_and_of_a_richer_one_for_labels() -> None:
    plain = Pod(uid=POD_UID, namespace="ml", name="train-0")
    asked: list[str] = []

    def answering(name: str, pods: list[Pod] | None) -> PodMethod:
        def list_pods() -> list[Pod]:
            asked.append(name)
            if pods is None:
                raise SourceError("no")
            return pods

        return PodMethod(name, list_pods, has_labels=name != "logs")

    methods = [answering("socket", None), answering("logs", [plain]), answering("https", [EXPECTED])]
    result = PodReader(methods).read()
    assert result.failures == {"socket": 1}
    assert asked == ["socket", "logs"]
    assert result.value.by_uid[POD_UID] is plain
    asked.clear()
    result = PodReader(methods, want_labels=True).read()
    assert asked == ["socket", "logs", "https"]
    assert result.value.by_uid[POD_UID].labels == (("app", "train"),)
    result = PodReader(methods[2:]).read()
    assert result.value.by_uid[POD_UID].labels is ABSENT, "none are wanted, so nobody knows that it has none"


def test_labels_by_allow_list() -> None:
    keep = label_filter(["app", "team.io/*"])
    assert [name for name in ("app", "apps", "team.io/x", "xteam.io/x", "") if keep(name)] == [
        "app",
        "team.io/x",
    ]
    assert label_filter(["*"])("anything")
    assert not label_filter([])("anything")


def test_built_from_settings(tmp_path: Path) -> None:
    add_pod_log(tmp_path / "pods", "ml", "train-0", POD_UID, "main")
    settings = Settings(
        kubelet_socket=str(tmp_path / "pod-resources/kubelet.sock"),
        pods_socket=str(tmp_path / "pods-api/pods-api.sock"),
        path_pod_logs=str(tmp_path / "pods"),
    )
    result = build_pod_reader(settings).read()
    assert not result.failures
    assert result.value.by_uid[POD_UID].name == "train-0"
    kubelet = kubelet_worker(settings, FakeClock())
    kubelet.read_once()
    assert "No such file" in kubelet.status().why
    with running_kubelet(tmp_path / "pod-resources/kubelet.sock") as fake:
        fake.answer = lambda context: ANSWER
        kubelet.read_once()
        claims = kubelet.fresh()
        assert claims is not ABSENT
        assert len(claims) == 5

        def rate_limit(context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return b""

        fake.answer = rate_limit
        kubelet.read_once()
        assert "RESOURCE_EXHAUSTED: rejected by rate limit" in kubelet.status().why
        assert kubelet.fresh() is claims


def test_gpus_under_an_unknown_resource_name_are_reported_and_other_claims_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the form of their ids: a network card is not reported."""
    both = container(
        "c",
        devices("nvidia.com/gpu", "GPU-0"),
        devices("example.com/a100", "GPU-1"),
        devices("rdma/hca", "mlx5_0"),
        devices("gpu.intel.com/i915", "card0-1"),
    )
    settings = Settings(kubelet_socket=str(tmp_path / "kubelet.sock"))
    with running_kubelet(tmp_path / "kubelet.sock") as fake:
        fake.answer = lambda _: pod("ml", "train", both)
        kubelet = kubelet_worker(settings, FakeClock())
        kubelet.read_once()
        status, claims = kubelet.status(), kubelet.fresh()
        named = kubelet_worker(replace(settings, resource_names=("example.com/a100",)), FakeClock())
        named.read_once()
    assert not status.up
    assert status.why == (
        "the kubelet allocated devices of example.com/a100, which is not known as a GPU resource: "
        "their pods are not shown; set --resource-names example.com/a100"
    )
    assert f"source kubelet: {status.why}" in caplog.messages
    assert claims is not ABSENT
    assert [claim.device_id for claim in claims] == ["GPU-0", "card0-1"]
    assert named.status().up


def test_the_pods_socket_is_asked_first_where_there_is_one(tmp_path: Path) -> None:
    add_pod_log(tmp_path / "pods", "ml", "by-the-logs", POD_UID, "main")
    settings = Settings(
        pods_socket=str(tmp_path / "pods-api/pods-api.sock"),
        path_pod_logs=str(tmp_path / "pods"),
    )
    with running_kubelet(tmp_path / "pods-api/pods-api.sock") as fake:
        metadata = field(1, "by-the-socket") + field(3, "ml") + field(5, POD_UID)
        fake.answer = lambda context: field(1, field(1, metadata))
        reader = build_pod_reader(settings)
        result = reader.read()
        assert not result.failures
        assert fake.asked == ["/v1alpha1.Pods/ListPods"]
        assert result.value.by_uid[POD_UID].name == "by-the-socket"
        fake.answer = lambda context: b"\xff"
        result = reader.read()
        assert result.failures == {"pods-api": 1}
        assert result.value.by_uid[POD_UID].name == "by-the-logs"


def test_a_missing_pods_socket_is_no_failure_and_is_found_when_the_kubelet_makes_it(tmp_path: Path) -> None:
    """A chart or an older kubelet may leave the folder without the socket."""
    add_pod_log(tmp_path / "pods", "ml", "by-the-logs", POD_UID, "main")
    socket = tmp_path / "pods-api/pods-api.sock"
    socket.parent.mkdir()
    reader = build_pod_reader(Settings(pods_socket=str(socket), path_pod_logs=str(tmp_path / "pods")))
    result = reader.read()
    assert not result.failures
    assert result.value.by_uid[POD_UID].name == "by-the-logs"
    with running_kubelet(socket) as fake:
        fake.answer = lambda context: field(1, field(1, field(1, "late") + field(3, "ml") + field(5, POD_UID)))
        assert reader.read().value.by_uid[POD_UID].name == "late"


def test_claims_are_matched_anew_only_when_something_changed() -> None:
    claims = (
        AllocationClaim(device_id="GPU-0::1", namespace="ml", pod="train-0"),
        AllocationClaim(device_id="GPU-x", pod="b", namespace=""),
    )
    pods = index_pods([EXPECTED])
    allocations = AllocationMatcher([lambda: claims, lambda: ABSENT], lambda: pods)
    devices = [make_device(uuid=Uuid("GPU-0"), index=0)]
    made = allocations.allocations(devices)
    assert made is not ABSENT
    first, unknown = made
    assert (first.gpu_uuid, first.replica, first.pod_uid) == ("GPU-0", "1", POD_UID)
    assert (unknown.gpu_uuid, unknown.device_id) == (ABSENT, "GPU-x")
    assert allocations.allocations([make_device(uuid=Uuid("GPU-0"), index=0, power_watts=5.0)]) is made
    assert allocations.allocations([make_device(uuid=Uuid("GPU-x"), index=0)]) is not made


def test_a_pod_known_to_have_ended_holds_nothing() -> None:
    claims = (AllocationClaim(device_id="GPU-0", namespace="ml", pod="done"),)
    pods = index_pods([Pod(uid="u", namespace="ml", name="done", running=False)])
    assert AllocationMatcher([lambda: claims], lambda: pods).allocations([]) == ()


def test_nobody_to_ask_is_absent_not_empty() -> None:
    assert AllocationMatcher([lambda: ABSENT], lambda: NO_PODS).allocations([]) is ABSENT
