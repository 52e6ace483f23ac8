"""The source `nccl-ras`: which services are asked, by which node and how often, and what is said of a job."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuscope.agent.families import load_family
from gpuscope.agent.owners.proc import Proc
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Owner, Pid, Process, Snapshot, Uuid
from gpuscope.model.readings.snapshot import CollectiveJob
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nccl_ras import SOURCE, NcclRas
from gpuscope.vendors.nvidia.nccl_ras.endpoints import (
    DEFAULT_PORT,
    RasEndpoint,
    parse_environment,
    parse_ipv4_addresses,
    parse_ipv6_addresses,
    parse_listeners,
)
from gpuscope.vendors.nvidia.nccl_ras.ras_protocol import NotNccl, ReplyTooLarge
from tests.fake_nccl import RasCommunicator, RasJob, RasRank, World
from tests.fakes import FakeClock, gpu
from tests.owners.trees import ProcTree

HOSTS = ("10.0.0.1", "10.0.0.2")
UID = 1000


@dataclass
class Node:
    """A machine made of files, whose RAS services answer with `documents`."""

    folder: Path
    address: str = HOSTS[0]
    clock: FakeClock = field(default_factory=FakeClock)
    documents: dict[int, bytes | Exception] = field(default_factory=dict)
    """By port."""
    asked: list[tuple[int, bool]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    gpus: int = 8

    def __post_init__(self) -> None:
        self.tree = ProcTree(self.folder)
        self.source = NcclRas(Proc(str(self.folder)), self._answer, "n1", self.clock.monotonic)

    def _answer(self, endpoint: RasEndpoint, json: bool) -> bytes:
        self.asked.append((endpoint.port, json))
        document = self.documents[endpoint.port]
        if isinstance(document, Exception):
            raise document
        return document

    def add(
        self,
        pid: int,
        *gpus: int,
        namespace_pid: int | None = None,
        uid: int = UID,
        listeners: dict[int, int] | None = None,
        address: str = "",
        owner: Owner | None = None,
        **environment: str,
    ) -> None:
        """A process on these GPUs; in its network, `listeners` have ports by number and user."""
        folder = self.tree.add(pid, uid=uid, environ=environment)
        ids = f"Pid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\t{namespace_pid or pid}\n"
        (folder / "status").write_text(f"Name:\tpython\n{ids}")
        network = folder / "net"
        network.mkdir(exist_ok=True)
        rows = "".join(
            f"   {number}: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 "
            f"{who:5}        0 123 1 0 100 0 0 10 0\n"
            for number, (port, who) in enumerate((listeners or {DEFAULT_PORT: uid}).items())
        )
        (network / "tcp").write_text("  sl  local_address rem_address   st tx_queue\n" + rows)
        (network / "fib_trie").write_text(f"Main:\n  |-- {address or self.address}\n     /32 host LOCAL\n")
        (folder / "ns").mkdir(exist_ok=True)
        shared = self.folder / f"network-{address}"
        shared.touch()
        if not (folder / "ns/net").exists():
            os.link(shared, folder / "ns/net")  # the same inode: the same namespace
        for number in gpus or (0,):
            self.processes.append(
                Process(pid=Pid(pid), gpu_uuid=Uuid(f"GPU-{number}"), owner=owner or Owner(user="ann"))
            )

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            node="n1",
            taken_at=0.0,
            devices=tuple(gpu(number) for number in range(self.gpus)),
            processes=tuple(self.processes),
        )

    def read(self) -> tuple[CollectiveJob, ...]:
        self.source.observe(self.snapshot)
        reading = self.source.read(frozenset(Tier)).collectives
        assert reading is not ABSENT
        return reading.jobs

    def after(self, seconds: float) -> tuple[CollectiveJob, ...]:
        """Reads every five seconds, as the worker does."""
        jobs: tuple[CollectiveJob, ...] = ()
        for _ in range(int(seconds / 5)):
            self.clock.pass_seconds(5)
            jobs = self.read()
        return jobs

    def lines(self) -> list[str]:
        self.source.observe(self.snapshot)
        reading = self.source.read(frozenset(Tier)).collectives
        snapshot = Snapshot(
            node="n1",
            taken_at=0.0,
            devices=self.snapshot.devices,
            processes=self.snapshot.processes,
            collectives=reading,
        )
        text = encode_text(load_family("native").build(Settings()).to_families(snapshot)).decode()
        return [line for line in text.splitlines() if line.startswith("gpuscope_nccl")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "proc")


def with_world(node: Node, *, per_host: int = 4, hosts: tuple[str, ...] = HOSTS) -> World:
    """The job's processes on this node, and its status."""
    world = World(hosts, per_host)
    world.launch(10)
    for number in range(per_host):
        node.add(1000 + number, number)
    node.documents[DEFAULT_PORT] = world.job.to_json()
    return world


def test_a_job_is_joined_to_processes_and_gpus(node: Node) -> None:
    with_world(node)
    (job,) = node.read()
    assert (job.name, job.uid, job.followed, job.version) == ("10.0.0.1:1000", UID, True, "2.29.1")
    assert (job.ranks, job.missing, job.behind, job.stalled_seconds) == (8, 0, 0, 0.0)
    assert [(rank.rank, rank.pid, rank.gpu_uuid, rank.operations) for rank in job.local] == [
        (number, 1000 + number, f"GPU-{number}", 10) for number in range(4)
    ]


def test_series_have_owner_gpu_and_rank(node: Node) -> None:
    with_world(node, per_host=1)
    lines = node.lines()
    owner = 'user="ann",namespace="",pod="",container="",slurm_job=""'
    assert f'gpuscope_nccl_job_ranks{{nccl_job="10.0.0.1:1000",{owner}}} 2' in lines
    assert f'gpuscope_nccl_job_missing_ranks{{nccl_job="10.0.0.1:1000",{owner}}} 0' in lines
    place = 'rank="0",pid="1000",gpu="0",uuid="GPU-0"'
    at = 'nccl_job="10.0.0.1:1000",uid="1000",host="10.0.0.1",host_pid="1000"'
    assert f"gpuscope_nccl_rank_info{{{at},{place}}} 1" in lines
    assert f'gpuscope_nccl_rank_operations_total{{nccl_job="10.0.0.1:1000",{place}}} 10' in lines
    assert 'gpuscope_nccl_requests_total{result="answered"} 1' in lines


def test_a_machine_without_such_jobs_has_no_series(node: Node) -> None:
    assert node.lines() == []
    node.add(1000, 0, listeners={22: 0})
    assert node.lines() == []
    assert node.asked == []


def test_a_job_is_asked_once_in_fifteen_seconds(node: Node) -> None:
    with_world(node)
    node.read()
    node.after(600)
    assert 600 / 20 <= len(node.asked) <= 600 / 15


def test_the_nodes_of_a_job_agree_who_asks(tmp_path: Path) -> None:
    """Four agents that do not talk: all requests together are at most one in 15 seconds after the start."""
    hosts = tuple(f"10.0.0.{number}" for number in (4, 3, 2, 1))
    nodes = [Node(tmp_path / str(number), address) for number, address in enumerate(hosts)]
    for node in nodes:
        with_world(node, hosts=hosts)
        node.read()
        node.after(300)
        node.asked.clear()
    jobs = [node.after(3600) for node in nodes]
    assert [job.followed for (job,) in jobs] == [True, False, False, False], "rank 0 is on the first"
    assert {job.name for (job,) in jobs} == {"10.0.0.1:1000"}
    assert sum(len(node.asked) for node in nodes) <= 3600 / 15
    assert all(len(job.local) == 4 for (job,) in jobs)
    assert all(job.ranks is ABSENT and job.local[0].operations is ABSENT for (job,) in jobs[1:])


def test_the_next_node_follows_when_the_lowest_rank_does_not_answer(tmp_path: Path) -> None:
    node = Node(tmp_path, HOSTS[1])
    world = with_world(node)
    assert [job.followed for job in node.read()] == [False]
    for rank in world.ranks[:4]:
        rank.dead = True
    node.documents[DEFAULT_PORT] = world.job.to_json()
    (job,) = node.after(1300)
    assert (job.followed, job.missing, job.name) == (True, 4, "10.0.0.1:1000")


def test_a_moment_of_difference_is_no_stall(node: Node) -> None:
    world = with_world(node)
    node.read()
    for count in range(11, 60):
        world.launch(count, count % 8)
        node.documents[DEFAULT_PORT] = world.job.to_json()
        (job,) = node.after(20)
        assert (job.behind, job.stalled) == (1, ())
        assert job.stalled_seconds is not ABSENT
        assert job.stalled_seconds < 20


def test_the_rank_that_is_behind_is_named(node: Node) -> None:
    world = with_world(node)
    world.launch(6649)
    world.launch(6650, 5)
    node.documents[DEFAULT_PORT] = world.job.to_json()
    node.read()
    (job,) = node.after(120)
    (rank,) = job.stalled
    assert (rank.rank, rank.host, rank.host_pid, rank.reason) == (5, "10.0.0.2", 1001, "behind")
    assert (rank.operation, rank.launched, rank.furthest, rank.waiting) == ("AllReduce", 6649, 6650, 7)
    assert rank.seconds == job.stalled_seconds
    assert 100 <= rank.seconds <= 120
    place = 'rank="5",host="10.0.0.2",host_pid="1001"'
    lines = node.lines()
    assert any(line.startswith("gpuscope_nccl_stalled_rank_seconds") and place in line for line in lines)
    assert any('operation="AllReduce",launched="6649",furthest="6650",waiting="7"' in line for line in lines)
    world.launch(6651)
    node.documents[DEFAULT_PORT] = world.job.to_json()
    (job,) = node.after(20)
    assert (job.stalled, job.stalled_seconds) == ((), 0.0)


def test_a_process_that_does_not_answer_is_named(node: Node) -> None:
    world = with_world(node)
    world.ranks[2].silent = True
    node.documents[DEFAULT_PORT] = world.job.to_json()
    node.read()
    (job,) = node.after(120)
    assert [(rank.rank, rank.reason, rank.pid) for rank in job.stalled] == [(2, "silent", 1002)]


def test_who_waits_in_another_communicator_is_not_to_blame(node: Node) -> None:
    """A chain: ranks 0 and 1 wait for 2, which waits in its other communicator for 3."""
    with_world(node)
    zero, one, two, three = (RasRank("10.0.0.1", 1000 + number, number) for number in range(4))

    def at(rank: RasRank, launched: int) -> RasRank:
        return RasRank(rank.host, rank.pid, rank.gpu, launched)

    everybody = RasCommunicator([at(rank, 5) for rank in (zero, one, two, three)], "0xa")
    first = RasCommunicator([at(zero, 9), at(one, 9), at(two, 8)], "0xb")
    second = RasCommunicator([at(two, 4), at(three, 3)], "0xc")
    node.documents[DEFAULT_PORT] = RasJob([everybody, first, second]).to_json()
    node.read()
    (job,) = node.after(120)
    assert [(rank.rank, rank.communicator) for rank in job.stalled] == [(3, "c")]


def test_a_deadlock_names_all_who_are_in_it(node: Node) -> None:
    with_world(node)
    first = RasCommunicator([RasRank("10.0.0.1", 1000, 0, 9), RasRank("10.0.0.1", 1001, 1, 8)], "0xb")
    second = RasCommunicator([RasRank("10.0.0.1", 1000, 0, 3), RasRank("10.0.0.1", 1001, 1, 4)], "0xc")
    node.documents[DEFAULT_PORT] = RasJob([first, second]).to_json()
    node.read()
    (job,) = node.after(120)
    assert {rank.rank for rank in job.stalled} == {0, 1}


def test_a_communicator_that_is_torn_down_does_not_stall(node: Node) -> None:
    world = with_world(node)
    world.launch(11, 3)
    world.ranks[0].leaving = True
    node.documents[DEFAULT_PORT] = world.job.to_json()
    node.read()
    (job,) = node.after(600)
    assert (job.stalled_seconds, job.stalled) == (0.0, ())


def test_an_old_nccl_is_followed_by_the_node_of_rank_0(tmp_path: Path) -> None:
    world = World(HOSTS, 4)
    world.launch(10, 6)
    followed = {}
    for number, address in enumerate(HOSTS):
        node = Node(tmp_path / str(number), address)
        for local in range(4):
            node.add(1000 + local, local, RANK=str(4 * number + local), WORLD_SIZE="8")
        node.documents[DEFAULT_PORT] = world.job.to_text()
        node.read()
        (followed[number],) = node.after(120)
    assert (followed[0].followed, followed[1].followed) == (True, False)
    assert [(rank.rank, rank.host, rank.host_pid) for rank in followed[0].stalled] == [(6, "10.0.0.2", 1002)]
    assert followed[0].behind == 1
    assert followed[0].local == (), "text does not say which process is which rank"


def test_a_reply_that_is_too_large_is_asked_for_as_text(node: Node) -> None:
    world = with_world(node, hosts=HOSTS[:1])
    node.documents[DEFAULT_PORT] = ReplyTooLarge("its reply is larger than 4 MiB")
    assert node.read() == ()
    node.documents[DEFAULT_PORT] = world.job.to_text()
    (job,) = node.after(20)
    assert job.ranks == 4
    assert node.asked == [(DEFAULT_PORT, True), (DEFAULT_PORT, False)]


def test_another_program_on_the_port_is_one_log_line(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with_world(node)
    node.documents[DEFAULT_PORT] = NotNccl("it is not NCCL that listens there: it answered 'HTTP/1.1 400'")
    with caplog.at_level(logging.INFO):
        node.read()
        node.after(3600)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "port 28028 of process 1000: it is not NCCL that listens there" in caplog.text
    assert len(node.asked) <= 12, "it is asked less and less often"


def test_a_job_that_fails_to_answer_keeps_its_numbers_for_a_minute_only(node: Node) -> None:
    with_world(node)
    assert len(node.read()) == 1
    node.documents[DEFAULT_PORT] = SourceError("Connection reset by peer")
    assert len(node.after(40)) == 1
    assert node.after(60) == ()


def test_a_job_that_ends_is_forgotten(node: Node) -> None:
    with_world(node)
    node.read()
    node.processes.clear()
    assert node.read() == ()


def test_two_jobs_of_a_user_on_one_port_are_kept_apart(node: Node) -> None:
    """The kernel gives a connection to one of the processes that share the port."""
    first, second = World(HOSTS[:1], 2, first_pid=1000), World(HOSTS[:1], 2, first_pid=1002)
    first.launch(5)
    second.launch(7)
    for number in range(4):
        node.add(1000 + number, number)
    for turn in range(12):
        node.documents[DEFAULT_PORT] = (first, second)[turn % 2].job.to_json()
        jobs = node.after(20)
    assert {(job.name, job.ranks, job.behind, job.local[0].operations) for job in jobs} == {
        ("10.0.0.1:1000", 2, 0, 5),
        ("10.0.0.1:1002", 2, 0, 7),
    }
    assert [rank.pid for job in jobs for rank in job.local] == [1000, 1001, 1002, 1003]


def test_jobs_with_ports_of_their_own_are_both_asked(node: Node) -> None:
    for number, port in enumerate((5001, 5002)):
        world = World(HOSTS[:1], 1, first_pid=1000 + number)
        node.documents[port] = world.job.to_json()
        node.add(1000 + number, number, listeners={5001: UID, 5002: UID}, NCCL_RAS_ADDR=f"localhost:{port}")
    assert [job.name for job in node.read()] == ["10.0.0.1:1000", "10.0.0.1:1001"]


def test_the_port_of_another_user_is_not_asked(node: Node) -> None:
    node.add(1000, 0, uid=UID, listeners={DEFAULT_PORT: 2000})
    node.add(1001, 1, uid=UID, NCCL_RAS_ADDR="10.9.9.9:22", listeners={22: 0})
    assert node.read() == ()
    assert node.asked == []


def test_a_job_that_switched_ras_off_is_not_asked(node: Node) -> None:
    node.add(1000, 0, NCCL_RAS_ENABLE="0")
    assert node.read() == ()
    assert node.asked == []


def test_pids_of_a_container_are_translated(node: Node) -> None:
    world = World(("10.244.0.7",), 2, first_pid=7)
    for number in range(2):
        node.add(4000 + number, number, namespace_pid=7 + number, address="10.244.0.7")
    node.documents[DEFAULT_PORT] = world.job.to_json()
    (job,) = node.read()
    assert [(rank.rank, rank.host_pid, rank.pid, rank.gpu_uuid) for rank in job.local] == [
        (0, 7, 4000, "GPU-0"),
        (1, 8, 4001, "GPU-1"),
    ]


def test_a_pid_that_two_containers_have_is_nobodys(node: Node) -> None:
    world = World(HOSTS[:1], 2, first_pid=7)
    node.add(4000, 0, namespace_pid=7)
    node.add(5000, 1, namespace_pid=7)
    node.add(4001, 2, namespace_pid=8)
    node.documents[DEFAULT_PORT] = world.job.to_json()
    (job,) = node.read() or node.after(20)
    assert [(rank.rank, rank.pid) for rank in job.local] == [(1, 4001)]


def test_the_same_pid_on_another_node_is_not_this_one(node: Node) -> None:
    node.add(1000, 0)
    node.documents[DEFAULT_PORT] = World(("10.0.0.9",), 1).job.to_json()
    assert node.read() == ()


def test_one_process_with_several_gpus_has_its_ranks_in_their_order(node: Node) -> None:
    ranks = [RasRank("10.0.0.1", 1000, gpu) for gpu in (1, 0)]  # a container numbers its GPUs from 0
    node.add(1000, 6, 3)
    node.documents[DEFAULT_PORT] = RasJob([RasCommunicator(ranks)]).to_json()
    (job,) = node.read()
    assert {rank.rank: rank.gpu_uuid for rank in job.local} == {1: "GPU-3", 0: "GPU-6"}
    node.processes.pop()
    (job,) = node.after(20)
    assert all(rank.gpu_uuid is ABSENT for rank in job.local), "two ranks on one GPU cannot be"


def test_owners_that_differ_are_nobodys_job(node: Node) -> None:
    with_world(node, per_host=2)
    assert any('user="ann"' in line for line in node.lines())
    node.processes[1] = Process(pid=Pid(1001), gpu_uuid=Uuid("GPU-1"), owner=Owner(user="bob"))
    (ranks,) = [line for line in node.lines() if line.startswith("gpuscope_nccl_job_ranks")]
    assert 'user=""' in ranks


def test_simulated_processes_are_never_asked(node: Node) -> None:
    with_world(node)
    node.source.observe(Snapshot(node="n", taken_at=0.0, simulated=True, processes=tuple(node.processes)))
    node.source.read(frozenset(Tier))
    assert node.asked == []


def test_thousands_of_ranks_have_few_series(node: Node) -> None:
    world = World(tuple(f"10.0.{number // 250}.{number % 250 + 1}" for number in range(128)), 8)
    world.launch(5)
    world.launch(6, *range(300, 800))
    for number in range(8):
        node.add(1000 + number, number, address="10.0.0.1")
    node.documents[DEFAULT_PORT] = world.job.to_json()
    node.read()
    (job,) = node.after(120)
    assert (job.ranks, job.behind, len(job.stalled)) == (1024, 500, 16)
    assert len(node.lines()) < 80


@pytest.mark.parametrize(
    ("environment", "port", "rank"),
    [
        (b"", DEFAULT_PORT, ABSENT),
        (b"NCCL_RAS_ADDR=localhost:5000\0RANK=3\0", 5000, 3),
        (b"NCCL_RAS_ADDR=[::1]:5000\0SLURM_PROCID=0\0", 5000, 0),
        (b"NCCL_RAS_ADDR=localhost\0RANK=x\0", DEFAULT_PORT, ABSENT),
        (b"NCCL_RAS_ADDR=localhost:0\0", DEFAULT_PORT, ABSENT),
        (b"NCCL_RAS_ADDR=localhost:99999\0", DEFAULT_PORT, ABSENT),
        (b"NCCL_RAS_ENABLE=0\0", None, ABSENT),
    ],
)
def test_the_environment_has_port_and_rank(environment: bytes, port: int | None, rank: object) -> None:
    assert parse_environment(environment) == (port, rank)


def test_the_kernels_tables_are_understood() -> None:
    """As Linux 6.8 prints them."""
    tcp = (
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        b"   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 9 1 0 0\n"
        b"   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 0\n"
        b"   2: 0100007F:A0F2 0100007F:6D7C 01 00000000:00000000 00:00000000 00000000  1000        0 7 1 0 0\n"
        b"   3: 0100007F:6D7D 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 9 1 0 0\n"
    )
    assert list(parse_listeners(tcp)) == [("127.0.0.1", 28028, 1000), ("127.0.0.1", 22, 0)]
    tcp6 = (
        b"  sl  local_address                         remote_address                        st\n"
        b"   0: 00000000000000000000000001000000:6D7C 00000000000000000000000000000000:0000 0A "
        b"00000000:00000000 00:00000000 00000000  1000        0 1 1 0 0\n"
    )
    assert list(parse_listeners(tcp6)) == [("::1", 28028, 1000)]
    assert list(parse_listeners(b"x\ny z")) == []
    trie = (
        b"Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
        b"     +-- 10.0.0.0/8 2 0 2\n        |-- 10.0.0.0\n           /8 link UNICAST\n"
        b"        |-- 10.1.2.3\n           /32 host LOCAL\n        |-- 10.255.255.255\n"
        b"           /32 link BROADCAST\n"
    )
    assert parse_ipv4_addresses(trie) == {"10.1.2.3"}
    inet6 = (
        b"fe800000000000000242acfffe110002 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n"
    )
    assert parse_ipv6_addresses(inet6) == {"fe80::242:acff:fe11:2", "::1"}


def test_it_looks_for_jobs_every_five_seconds() -> None:
    assert SOURCE.interval_seconds(Settings(interval=1.0)) == 5.0
