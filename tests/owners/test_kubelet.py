"""The kubelet and the pods: what it gave away, what UIDs are called, and what if it does not answer."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.collect.allocations import Allocations
from gpuscope.errors import SourceError
from gpuscope.owners.claims import Claim
from gpuscope.owners.kubelet import GOOD_FOR_SECONDS, Kubelet, build_kubelet
from gpuscope.owners.pod_book import PodBook, PodSource, build_pod_book, label_filter
from gpuscope.owners.pod_list import decode_pod_list
from gpuscope.owners.pod_logs import read_pod_logs
from gpuscope.owners.pod_resources import decode_list, list_claims
from gpuscope.owners.pods import NO_PODS, Pod, PodContainer, index_pods
from gpuscope.owners.pods_api import decode_pods
from gpuscope.readings import ABSENT, Device, Uuid
from gpuscope.settings import Settings
from tests.owners.fake_kubelet import claimed, container, devices, field, pod, running_kubelet
from tests.owners.trees import CONTAINER, POD_UID, add_pod_log


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
        claims = list_claims(str(kubelet.path), ["example.com/gpu"])
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
        assert len(list_claims(str(kubelet.path), timeout=60.0)) == pods


@given(st.binary(max_size=200))
def test_any_answer_is_claims_and_pods_or_an_error(answer: bytes) -> None:
    for decode in (
        lambda: decode_list(answer),
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
    (links / f"train-0_ml_main-{CONTAINER}.log").touch()
    (links / f"train-0_ml_main-{'a' * 64}.log").touch()
    (links / f"train-0_ml_side-{'b' * 30}").touch()
    pods = {one.name: one for one in read_pod_logs(str(logs))}
    assert pods.keys() == {"train-0", "etcd"}
    train = pods["train-0"]
    assert (train.uid, train.namespace) == (POD_UID, "ml")
    assert train.container(CONTAINER) == PodContainer("main", CONTAINER)
    assert train.container("c" * 64) is None, "two containers: which one it is cannot be guessed"
    only = pods["etcd"].container("c" * 64)
    assert only is not None
    assert only.name == "etcd"


def test_a_static_pod_is_found_by_its_hash_and_a_new_pod_wins_over_an_ended_namesake() -> None:
    ended = Pod(uid="old", namespace="ml", name="train-0", running=False)
    pods = index_pods([ended, EXPECTED])
    assert pods.find(EXPECTED.other_uid, ABSENT) is EXPECTED
    assert pods.find(ABSENT, CONTAINER) is EXPECTED
    assert pods.by_name["ml", "train-0"] is EXPECTED


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class Script:
    """Answers, or fails, as it is told."""

    def __init__(self) -> None:
        self.claims: tuple[Claim, ...] | None = (Claim(device_id="GPU-1", namespace="ml", pod="a"),)
        self.pods: list[Pod] | None = [EXPECTED]

    def list_claims(self) -> tuple[Claim, ...]:
        if self.claims is None:
            raise SourceError("no claims")
        return self.claims

    def list_pods(self) -> list[Pod]:
        if self.pods is None:
            raise OSError("no pods")
        return self.pods


def test_a_good_answer_outlives_a_failure_for_a_minute() -> None:
    script, clock = Script(), Clock()
    kubelet = Kubelet(script.list_claims, clock)
    book = PodBook([PodSource("logs", script.list_pods)], clock=clock)
    kubelet.read(frozenset())
    book.read(frozenset())
    claims, pods = kubelet.claims(), book.pods()
    assert claims is not ABSENT
    script.claims, script.pods = (*claims,), [EXPECTED]
    kubelet.read(frozenset())
    book.read(frozenset())
    assert kubelet.claims() is claims
    assert book.pods() is pods, "the same answer is the same object: nothing is matched anew"
    script.claims = script.pods = None
    clock.at += GOOD_FOR_SECONDS - 1
    with pytest.raises(SourceError, match="no claims"):
        kubelet.read(frozenset())
    with pytest.raises(SourceError, match="logs: no pods"):
        book.read(frozenset())
    assert (kubelet.claims(), book.pods()) == (claims, pods)
    clock.at += 2
    assert kubelet.claims() is ABSENT
    assert book.pods() is NO_PODS


def test_pods_are_asked_of_the_first_that_answers_and_of_a_richer_one_for_labels() -> None:
    plain = Pod(uid=POD_UID, namespace="ml", name="train-0")
    asked: list[str] = []

    def answering(name: str, pods: list[Pod] | None) -> PodSource:
        def read() -> list[Pod]:
            asked.append(name)
            if pods is None:
                raise SourceError("no")
            return pods

        return PodSource(name, read, has_labels=name != "logs")

    sources = [answering("socket", None), answering("logs", [plain]), answering("https", [EXPECTED])]
    book = PodBook(sources)
    assert book.read(frozenset()).failures == {"socket": 1}
    assert asked == ["socket", "logs"]
    assert book.pods().by_uid[POD_UID] is plain
    asked.clear()
    book = PodBook(sources, want_labels=True)
    book.read(frozenset())
    assert asked == ["socket", "logs", "https"]
    assert book.pods().by_uid[POD_UID].labels == (("app", "train"),)


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
    book = build_pod_book(settings)
    assert not book.read(frozenset()).failures
    assert book.pods().by_uid[POD_UID].name == "train-0"
    kubelet = build_kubelet(settings)
    with pytest.raises(SourceError, match="No such file"):
        kubelet.read(frozenset())
    with running_kubelet(tmp_path / "pod-resources/kubelet.sock") as fake:
        fake.answer = lambda context: ANSWER
        kubelet.read(frozenset())
        claims = kubelet.claims()
        assert claims is not ABSENT
        assert len(claims) == 5

        def rate_limit(context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return b""

        fake.answer = rate_limit
        with pytest.raises(SourceError, match="RESOURCE_EXHAUSTED: rejected by rate limit"):
            kubelet.read(frozenset())
        assert kubelet.claims() is claims


def test_the_pods_socket_is_asked_first_where_there_is_one(tmp_path: Path) -> None:
    add_pod_log(tmp_path / "pods", "ml", "by-the-logs", POD_UID, "main")
    settings = Settings(
        pods_socket=str(tmp_path / "pods-api/pods-api.sock"),
        path_pod_logs=str(tmp_path / "pods"),
    )
    with running_kubelet(tmp_path / "pods-api/pods-api.sock") as fake:
        metadata = field(1, "by-the-socket") + field(3, "ml") + field(5, POD_UID)
        fake.answer = lambda context: field(1, field(1, metadata))
        book = build_pod_book(settings)
        assert not book.read(frozenset()).failures
        assert fake.asked == ["/v1alpha1.Pods/ListPods"]
        assert book.pods().by_uid[POD_UID].name == "by-the-socket"
        fake.answer = lambda context: b"\xff"
        assert book.read(frozenset()).failures == {"pods-api": 1}
        assert book.pods().by_uid[POD_UID].name == "by-the-logs"


def test_claims_are_matched_anew_only_when_something_changed() -> None:
    claims = (
        Claim(device_id="GPU-0::1", namespace="ml", pod="train-0"),
        Claim(device_id="GPU-x", pod="b", namespace=""),
    )
    pods = index_pods([EXPECTED])
    allocations = Allocations([lambda: claims, lambda: ABSENT], lambda: pods)
    devices = [Device(uuid=Uuid("GPU-0"), index=0)]
    made = allocations.allocations(devices)
    assert made is not ABSENT
    first, unknown = made
    assert (first.gpu_uuid, first.replica, first.pod_uid) == ("GPU-0", "1", POD_UID)
    assert (unknown.gpu_uuid, unknown.device_id) == (ABSENT, "GPU-x")
    assert allocations.allocations([Device(uuid=Uuid("GPU-0"), index=0, power_watts=5.0)]) is made
    assert allocations.allocations([Device(uuid=Uuid("GPU-x"), index=0)]) is not made


def test_a_pod_known_to_have_ended_holds_nothing() -> None:
    claims = (Claim(device_id="GPU-0", namespace="ml", pod="done"),)
    pods = index_pods([Pod(uid="u", namespace="ml", name="done", running=False)])
    assert Allocations([lambda: claims], lambda: pods).allocations([]) == ()


def test_nobody_to_ask_is_absent_not_empty() -> None:
    assert Allocations([lambda: ABSENT], lambda: NO_PODS).allocations([]) is ABSENT
