"""The conversation with a RAS service, and its documents: good ones, cut ones, large ones, other programs'."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import SourceTimeout, UnusableAnswer
from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.nccl_ras import ras_protocol
from gpuscope.vendors.nvidia.nccl_ras.ras_protocol import NotNccl, ReplyTooLarge, ask_status
from gpuscope.vendors.nvidia.nccl_ras.ras_status import parse_json, parse_text
from tests.fake_nccl import FakeRas, RasCommunicator, RasJob, RasRank, World, serving

HOSTS = ("10.0.0.1", "10.0.0.2")


def world(behind: tuple[int, ...] = (), *, silent: tuple[int, ...] = (), dead: tuple[int, ...] = ()) -> World:
    made = World(HOSTS, per_host=4)
    made.launch(6650)
    for number in behind:
        made.ranks[number].launched = 6649
    for number in silent:
        made.ranks[number].silent = True
    for number in dead:
        made.ranks[number].dead = True
    return made


def ask(fake: FakeRas, *, json: bool = True, clock: Callable[[], float] | None = None) -> bytes:
    with serving(fake), socket.create_connection(("127.0.0.1", fake.port)) as connection:
        return ask_status(connection, json=json, **({} if clock is None else {"clock": clock}))


def test_json_is_asked_for_and_read() -> None:
    fake = FakeRas()
    fake.json = world().job.to_json()
    assert ask(fake) == fake.json
    assert fake.commands == [b"CLIENT PROTOCOL 2", b"SET FORMAT json", b"STATUS"]


def test_an_old_nccl_answers_with_text() -> None:
    fake = FakeRas()
    fake.text, fake.knows_json = world().job.to_text(), False
    assert ask(fake) == fake.text
    assert fake.commands[-1] == b"VERBOSE STATUS"


def test_text_can_be_wanted() -> None:
    fake = FakeRas()
    fake.text = world().job.to_text()
    assert ask(fake, json=False) == fake.text


@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"\x00" * 4096, b"OK\n"],
    ids=["http", "ssh", "nothing", "binary", "ok"],
)
def test_another_program_on_the_port_is_not_nccl(said: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(said)

    with pytest.raises(NotNccl):
        ask(FakeRas(talk))


def test_a_program_that_says_nothing_is_given_up() -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(b"SERVER")
        while connection.recv(100):
            pass

    times = iter([0.0, 1.0, 99.0])
    with pytest.raises(SourceTimeout):
        ask(FakeRas(talk), clock=lambda: next(times))


def test_an_endless_reply_is_cut_off() -> None:
    sent = []

    def talk(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"SERVER PROTOCOL 2\n")
        connection.recv(100)
        connection.sendall(b"OK\n")
        connection.recv(100)
        try:
            for _ in range(1024):  # a gibibyte
                connection.sendall(b"x" * (1 << 20))
                sent.append(1)
        except OSError:
            pass

    with pytest.raises(ReplyTooLarge, match="4 MiB"):
        ask(FakeRas(talk))
    assert len(sent) < 100


def test_a_reply_that_drips_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_protocol, "STATUS_SECONDS", 0.05)

    def talk(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"SERVER PROTOCOL 2\n")
        connection.recv(100)
        connection.sendall(b"OK\n{")
        connection.recv(100)
        connection.settimeout(5)
        connection.recv(100)  # until the other end gives up

    with pytest.raises(SourceTimeout):
        ask(FakeRas(talk))


def test_json_names_the_rank_that_is_behind() -> None:
    status = parse_json(world(behind=(5,)).job.to_json())
    (communicator,) = status.communicators
    assert (status.version, communicator.size, communicator.running) == ("2.29.1", 8, True)
    (rank,) = communicator.behind
    assert (rank.rank, rank.host, rank.pid) == (5, "10.0.0.2", 1001)
    assert (rank.operation, rank.launched, rank.furthest, rank.waiting) == ("AllReduce", 6649, 6650, 7)
    assert communicator.members[5].operations == 6649


def test_json_names_the_ranks_that_do_not_answer() -> None:
    (communicator,) = parse_json(world(silent=(2,), dead=(7,)).job.to_json()).communicators
    assert [(rank.rank, rank.dead) for rank in communicator.silent] == [(2, False), (7, True)]
    assert communicator.behind == ()


def test_a_rank_that_has_left_a_communicator_is_not_missing() -> None:
    text = world(silent=(2,)).job.to_json().replace(b'"unresponsive": true', b'"unresponsive": false')
    (communicator,) = parse_json(text).communicators
    assert communicator.silent == ()


@pytest.mark.parametrize(
    "rank", [RasRank("h", 1, leaving=True), RasRank("h", 1, init_state=7)], ids=["leaving", "joining"]
)
def test_a_communicator_that_is_set_up_or_torn_down_does_not_run(rank: RasRank) -> None:
    job = RasJob([RasCommunicator([rank, RasRank("h", 2)])])
    assert not parse_json(job.to_json()).communicators[0].running


def test_errors_of_ranks_are_counted() -> None:
    ranks = [RasRank("h", 1, async_error=6), RasRank("h", 2, init_state=2), RasRank("h", 3, init_state=7)]
    (communicator,) = parse_json(RasJob([RasCommunicator(ranks)]).to_json()).communicators
    assert communicator.failed == 2


def test_a_job_that_ends_while_it_answers_is_not_half_a_job() -> None:
    whole = world().job.to_json()
    for end in range(0, len(whole) - 2, 97):
        with pytest.raises(UnusableAnswer):
            parse_json(whole[:end])
    text = world(behind=(1,)).job.to_text()
    for end in range(0, text.index(b"Warnings"), 41):
        with pytest.raises(UnusableAnswer):
            parse_text(text[:end])


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        (b'"rank": 0', b'"rank": -1'),
        (b'"rank": 0', b'"rank": true'),
        (b'"pid": 1000', b'"pid": "1000"'),
        (b'"host": "10.0.0.1"', b'"host": "a\\nb"'),
        (b'"AllReduce": 6650', b'"AllReduce": []'),
        (b'"communicators": [', b'"communicators": 7, "others": ['),
        (b'"init_state": 0', b'"init_state": {}'),
    ],
)
def test_values_of_another_kind_are_refused(what: bytes, instead: bytes) -> None:
    with pytest.raises(UnusableAnswer):
        parse_json(world().job.to_json().replace(what, instead, 1))


@given(st.binary(max_size=400) | st.from_regex(rb'\{"nccl_version": "2", "communicators": \[.{0,80}\]\}'))
def test_any_bytes_are_a_status_or_unusable(document: bytes) -> None:
    for parse in (parse_json, parse_text):
        with suppress(UnusableAnswer):
            parse(document)


@given(st.lists(st.sampled_from(world(behind=(1, 2), silent=(3,), dead=(4,)).job.to_text().split(b"\n"))))
def test_any_order_of_lines_is_a_status_or_unusable(lines: list[bytes]) -> None:
    with suppress(UnusableAnswer):
        parse_text(b"\n".join([b"NCCL version 2.27.3 compiled", *lines, b"Warnings"]))


def test_text_says_the_same_of_the_ranks_that_differ() -> None:
    for made in (
        world(),
        world(behind=(5,)),
        world(behind=(1, 2, 5)),
        world(silent=(2,), dead=(7,), behind=(0,)),
    ):
        expected, said = parse_json(made.job.to_json()), parse_text(made.job.to_text())
        assert said.nodes == 2
        for mine, theirs in zip(said.communicators, expected.communicators, strict=True):
            assert (mine.size, mine.behind, mine.behind_count) == (
                theirs.size,
                theirs.behind,
                theirs.behind_count,
            )
            assert (mine.silent, mine.running) == (theirs.silent, theirs.running)
            assert mine.id == (theirs.id if theirs.behind or theirs.silent else "0-0")


def test_text_counts_ranks_that_it_does_not_name() -> None:
    (communicator,) = parse_text(world(behind=(0, 1, 2, 3, 4)).job.to_text()).communicators
    assert (communicator.behind, communicator.behind_count) == ((), 5)


GUIDE = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs
          per node  per process
      3          8            1
      1          7            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      4         31           31

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE,MISMATCH
    1         2         4         1         4         8      INIT      OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different collective operation counts
  25 ranks have launched up to operation 6650
  5 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 5) managed by process 483074 on node 172.16.64.210
  Rank 3 has not launched any operations -- [process information not found]
"""
"""The forms of NCCL 2.24, put together from its user guide."""


def test_the_text_of_the_first_version_is_understood() -> None:
    status = parse_text(GUIDE.encode())
    world, *others = status.communicators
    assert (status.version, status.nodes, len(others)) == ("2.24.3", 4, 2)
    assert [(rank.rank, rank.pid, rank.launched) for rank in world.behind] == [
        (0, 483072, 6649),
        (2, 483074, 6649),
        (3, -1, 0),
    ]
    assert (world.behind_count, world.behind[0].operation, world.behind[0].waiting) == (6, "collective", 25)
    assert [(rank.rank, rank.pid, rank.host) for rank in world.silent] == [(21, -1, "unknown")]
    assert not others[0].running


def test_a_communicator_whose_ranks_leave_it_does_not_run() -> None:
    text = GUIDE.replace(
        "  Communicator ranks have different collective",
        "  Communicator ranks have different status\n  2 ranks have status FINALIZE\n"
        "  Rank 4 -- GPU 4 managed by process 507289 on node 172.16.64.210\n"
        "  Communicator ranks have different collective",
    )
    assert not parse_text(text.encode()).communicators[0].running
    assert parse_text(GUIDE.encode()).communicators[0].running
    assert parse_text(b"NCCL version 2.24.3 x\nWarnings\n").nodes is ABSENT
