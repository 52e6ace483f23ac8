"""containerd's and CRI-O's word on containers, from a real gRPC server on a unix socket."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.agent.owners.attribution import ContainerInfo
from gpuscope.agent.owners.container_runtimes import (
    LIST_CONTAINERS,
    CriReader,
    cri_worker,
    decode_containers,
    list_containers,
)
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.agent.owners.process_lookup import ProcessLookup
from gpuscope.agent.owners.users import UserNames
from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.owners import build_outside
from gpuscope.model.readings import ABSENT, Pid, Process, Uuid
from tests.examples import examples
from tests.fakes import FakeClock
from tests.owners.fake_kubelet import field, running_kubelet
from tests.owners.immediate_lookup import ImmediateLookup
from tests.owners.trees import CONTAINER, POD_UID, ProcTree, pod_cgroup

ID, OTHER = "a" * 64, "b" * 64
NO_KUBELET = "/none/here/kubelet.sock"
DIGEST = "sha256:" + "c" * 64


def label(key: str, value: str) -> bytes:
    return field(8, field(1, key) + field(2, value))


def container(
    container_id: str,
    name: str = "",
    image: str = "",
    *,
    asked_for: str = "",
    ref: str = "",
    labels: bytes = b"",
) -> bytes:
    """As the runtimes send it, with fields that nobody here reads."""
    spec = field(1, image) + (field(18, asked_for) if asked_for else b"")
    return field(
        1,
        field(1, container_id)
        + field(2, "f" * 64)
        + field(3, field(1, name) + field(2, 3))
        + field(4, spec)
        + field(5, ref)
        + field(6, 1)
        + field(7, 1_700_000_000_000_000_000)
        + labels
        + field(9, field(1, "io.kubernetes.container.hash") + field(2, "1234")),
    )


def kubernetes(name: str) -> bytes:
    return label("io.kubernetes.pod.name", "train-0") + label("io.kubernetes.container.name", name)


def test_names_and_images_are_listed_once_for_each_new_container(tmp_path: Path) -> None:
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = lambda context: (
            container(ID, "main", "pytorch:2") + container(OTHER, "side", "envoy:1")
        )
        names = CriReader([str(runtime.path)])
        assert names.read().value == {}
        assert not runtime.asked, "nobody is wanted"
        names.want(frozenset([ID, "e" * 64]))
        assert names.read().value == {ID: ContainerInfo("main", "pytorch:2"), "e" * 64: ContainerInfo()}
        names.want(frozenset([ID]))
        kept = names.read().value
        assert kept == {ID: ContainerInfo("main", "pytorch:2")}, "who is gone is forgotten"
        assert names.read().value is kept
        assert runtime.asked == [LIST_CONTAINERS]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (container(ID, "main", "img:1", labels=kubernetes("trainer")), ContainerInfo("trainer", "img:1")),
        (container(ID, "main", DIGEST, asked_for="img:2"), ContainerInfo("main", "img:2")),
        (container(ID, "main", "c" * 64, asked_for="img:2"), ContainerInfo("main", "img:2")),
        (container(ID, "main", DIGEST, ref="img@" + DIGEST), ContainerInfo("main", "img@" + DIGEST)),
        (container(ID, "main", DIGEST, ref=DIGEST), ContainerInfo("main", DIGEST)),
        (container(ID, "main", "img@" + DIGEST, asked_for="img:2"), ContainerInfo("main", "img@" + DIGEST)),
        (container(ID), ContainerInfo()),
        (field(1, field(1, ID)), ContainerInfo()),
        (field(1, field(1, ID) + field(3, 7) + field(4, 7) + field(8, 7)), ContainerInfo()),
    ],
)
def test_the_name_from_the_label_and_the_image_as_people_know_it(told: bytes, expected: ContainerInfo) -> None:
    assert decode_containers(told, {ID}) == {ID: expected}


def test_only_the_wanted_are_kept_and_the_first_of_twins() -> None:
    answer = (
        container(OTHER, "x") + container(ID, "one") + container(ID, "two") + field(2, "later") + field(1, 5)
    )
    assert decode_containers(answer, {ID}) == {ID: ContainerInfo("one")}


@pytest.mark.parametrize("name", ['a"} 1\n# HELP x', "\0\x1b[31m", "../../etc", "名\u202e", "x" * 100_000])
def test_hostile_names_are_text_of_bounded_length(tmp_path: Path, name: str) -> None:
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = lambda context: container(ID, name, name, labels=label(name, name))
        told = list_containers(str(runtime.path), {ID})
    assert told == {ID: ContainerInfo(name[:256], name[:256])}


def test_a_name_that_is_no_utf8() -> None:
    told = decode_containers(field(1, field(1, ID) + field(3, field(1, b"a\xff\xfe"))), {ID})
    assert told == {ID: ContainerInfo("a\ufffd\ufffd")}


def test_a_socket_that_is_not_there_is_said_and_asked_again(tmp_path: Path) -> None:
    names = CriReader([str(tmp_path / "c.sock")])
    names.want(frozenset([ID]))
    with pytest.raises(SourceMissing, match=r"c\.sock: No such file"):
        names.read()
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = lambda context: container(ID, "x")
        known = names.read().value
    assert known == {ID: ContainerInfo("x", ABSENT)}


def test_what_is_known_stays_while_the_runtime_restarts(tmp_path: Path) -> None:
    names, clock = CriReader([str(tmp_path / "c.sock")]), FakeClock()
    worker = cri_worker(names, Settings(), clock)
    names.want(frozenset([ID]))
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = lambda context: container(ID, "x")
        worker.read_once()
    names.want(frozenset([ID, OTHER]))
    worker.read_once()
    assert not worker.status().up
    clock.pass_seconds(3600.0)
    assert worker.fresh() == {ID: ContainerInfo("x")}


@pytest.mark.parametrize("answer", [b"\xff" * 40, b"\x0a\x7f", field(1, b"\x0a\x7fabc"), b"\x0b"])
def test_a_runtime_that_answers_garbage_does_not_silence_another(tmp_path: Path, answer: bytes) -> None:
    with running_kubelet(tmp_path / "bad.sock") as bad, running_kubelet(tmp_path / "good.sock") as good:
        bad.answer = lambda context: answer
        good.answer = lambda context: container(ID, "x")
        names = CriReader([str(bad.path), str(good.path)])
        names.want(frozenset([ID, OTHER]))
        reading = names.read()
        assert reading.value == {ID: ContainerInfo("x")}, "the other may be the silent one's: asked again"
        assert [str(bad.path) in why for why in reading.failures] == [True]
        with pytest.raises(SourceError):
            list_containers(str(bad.path), {ID})


def test_a_containerd_without_cri_is_no_failure_beside_a_runtime_that_has_it(tmp_path: Path) -> None:
    def unimplemented(context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService")
        return b""

    with running_kubelet(tmp_path / "docker.sock") as docker, running_kubelet(tmp_path / "k3s.sock") as k3s:
        docker.answer = unimplemented
        k3s.answer = lambda context: container(ID, "x")
        names = CriReader([str(docker.path), str(k3s.path)])
        names.want(frozenset([ID, OTHER]))
        result = names.read()
        assert not result.failures
        assert result.value == {ID: ContainerInfo("x"), OTHER: ContainerInfo()}
        alone = CriReader([str(docker.path)])
        alone.want(frozenset([ID]))
        for _ in range(2):
            with pytest.raises(SourceMissing, match=r"docker\.sock: UNIMPLEMENTED: unknown service"):
                alone.read()


def test_a_runtime_that_hangs_is_given_up(tmp_path: Path) -> None:
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = runtime.hang
        with pytest.raises(SourceError, match=r"c\.sock did not answer"):
            list_containers(str(runtime.path), {ID}, timeout=0.05)
    with socket(AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen()
        with pytest.raises(SourceError, match="did not answer"):
            list_containers(str(tmp_path / "mute.sock"), {ID}, timeout=0.05)


def test_auto_asks_the_usual_places_that_exist_under_the_machines_root(tmp_path: Path) -> None:
    names = CriReader(["auto"], str(tmp_path))
    names.want(frozenset([ID]))
    with pytest.raises(SourceMissing, match=r"no CRI socket: .*run/crio/crio\.sock"):
        names.read()
    with running_kubelet(tmp_path / "run/crio/crio.sock") as runtime:
        runtime.answer = lambda context: container(ID, "x")
        result = names.read()
    assert not result.failures
    assert result.value == {ID: ContainerInfo("x")}


def test_an_unreadable_place(tmp_path: Path) -> None:
    """A short name: it is a part of the socket's path, which may have 107 characters."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/containerd").symlink_to("x" * 300)  # looking there fails, for root as well
    names = CriReader(["auto"], str(tmp_path))
    names.want(frozenset([ID]))
    with running_kubelet(tmp_path / "run/k3s/containerd/containerd.sock") as runtime:
        runtime.answer = lambda context: container(ID, "x")
        known = names.read().value
    assert known == {ID: ContainerInfo("x")}


def test_a_failing_runtime_is_the_workers_to_report(tmp_path: Path) -> None:
    names = CriReader([str(tmp_path / "c.sock")])
    names.want(frozenset([ID]))
    worker = cri_worker(names, Settings(), SystemClock())
    worker.read_once()
    status = worker.status()
    assert (status.name, status.up, status.failures) == ("cri", False, 1)
    assert "c.sock" in status.why


def test_nobody_is_asked_unless_the_settings_allow_it() -> None:
    outside = build_outside(Settings(kubelet_socket=NO_KUBELET), SystemClock(), {})
    assert not outside.workers
    assert outside.names().containers(frozenset([ID]), frozenset([OTHER])) == {}


def test_pods_containers_are_asked_of_cri_and_never_of_docker(tmp_path: Path) -> None:
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = lambda context: container(OTHER, "main", "img:1")
        outside = build_outside(
            Settings(
                kubelet_socket=NO_KUBELET,
                container_sockets=(str(tmp_path / "no-docker.sock"),),
                cri_sockets=(str(runtime.path),),
            ),
            SystemClock(),
            {},
        )
        docker, cri = outside.workers
        names = outside.names()
        first = names.containers(frozenset(), frozenset([OTHER]))
        docker.read_once()
        assert docker.status().up, "it was asked for nobody"
        cri.read_once()
        told = names.containers(frozenset([ID]), frozenset([OTHER]))
        assert (first, told) == ({}, {OTHER: ContainerInfo("main", "img:1")})
        assert names.containers(frozenset([ID]), frozenset([OTHER])) is told
        cri.read_once()
        assert names.containers(frozenset([ID]), frozenset([OTHER])) == told, "an unknown one has no name"


def test_a_process_in_a_pod_gets_its_name_and_image(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "proc")
    tree.add(7, cgroup=pod_cgroup())
    tree.add(8, cgroup=f"0::/../cri-containerd-{OTHER}.scope\n")  # as the agent's own pod shows
    proc = Proc(str(tree.root))
    lookup = ImmediateLookup(ProcessLookup(proc, UserNames(str(tmp_path))))
    told = container(CONTAINER, "main", DIGEST, asked_for="pytorch:2") + container(OTHER, "own", "gpuscope:1")
    with running_kubelet(tmp_path / "c.sock") as runtime:
        runtime.answer = lambda context: told
        given = Settings(kubelet_socket=NO_KUBELET, cri_sockets=(str(runtime.path),))
        outside = build_outside(given, SystemClock(), {})
        enricher = ProcessEnricher(60.0, proc, lookup, outside.names())
        processes = [Process(pid=Pid(pid), gpu_uuid=Uuid("GPU-0")) for pid in (7, 8)]
        before = enricher.advance(processes, simulated=False, now=1.0, monotonic=1.0)
        assert [one.owner.container for one in before] == [ABSENT, ABSENT], "nobody waits for the runtime"
        assert not any(one.looked_up for one in before), "they are published when the runtime has answered"
        outside.workers[0].read_once()
        after = enricher.advance(processes, simulated=False, now=2.0, monotonic=2.0)
    assert all(one.looked_up for one in after)
    owners = [(one.owner.pod_uid, one.owner.container, one.owner.image) for one in after]
    assert owners == [(POD_UID, "main", "pytorch:2"), (ABSENT, "own", "gpuscope:1")]


@settings(max_examples=examples(150))
@given(
    st.one_of(st.binary(max_size=80), st.binary(max_size=60).map(lambda body: field(1, field(1, ID) + body)))
)
def test_any_answer(answer: bytes) -> None:
    with suppress(SourceError):
        assert decode_containers(answer, {ID}).keys() <= {ID}


@settings(max_examples=examples(150))
@given(st.text(max_size=300), st.text(max_size=300))
def test_any_name(name: str, image: str) -> None:
    told = decode_containers(container(ID, "ignored" if name else "", image, labels=kubernetes(name)), {ID})
    assert told == {ID: ContainerInfo(name[:256] or ABSENT, image[:256] or ABSENT)}
