"""`dns_sd_configs` with name servers that fail and lie: targets of names that fail stay."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpuscope.history.scrape.job_options import DnsProviderConfig
from gpuscope.history.scrape.providers.dns_provider import DnsProvider
from tests.scrape import fake_dns
from tests.scrape.provider_scene import addresses, does, failing, finds, run_provider


@pytest.fixture
def dns_server() -> Any:
    with fake_dns.serving_dns() as server:
        yield server


def dns(
    server: fake_dns.FakeDns, folder: Path, *names: str, kind: str = "SRV"
) -> Callable[[ThreadPoolExecutor], DnsProvider]:
    resolv_conf = folder / "resolv.conf"
    resolv_conf.write_text(f"nameserver {server.address}\n")
    config = DnsProviderConfig(names, kind, 1, 0.02)
    return lambda workers: DnsProvider(config, resolv_conf=resolv_conf, port=server.port)


def test_names_that_fail_keep_their_targets_and_names_that_are_gone_do_not(
    dns_server: fake_dns.FakeDns, tmp_path: Path
) -> None:
    zone: fake_dns.Zone = {
        ("a.example.", fake_dns.SRV): [fake_dns.srv("x", 1)],
        ("b.example.", fake_dns.SRV): [fake_dns.srv("y", 2)],
    }
    dns_server.zone = zone

    def break_a_and_remove_b() -> None:
        dns_server.zone = {("a.example.", fake_dns.SRV): fake_dns.SERVER_FAILURE}

    run_provider(
        dns(dns_server, tmp_path, "a.example", "b.example"), finds("x:1", "y:2"), does(break_a_and_remove_b),
        failing(), finds("x:1"),
    )  # fmt: skip


def test_a_large_answer_is_asked_for_over_tcp(dns_server: fake_dns.FakeDns, tmp_path: Path) -> None:
    dns_server.zone = {("a.example.", fake_dns.SRV): [fake_dns.srv(f"h{n}", n) for n in range(400)]}
    found = run_provider(
        dns(dns_server, tmp_path, "a.example"), lambda provider: len(addresses(provider)) == 400
    )
    assert found.failures == 0
    assert ("tcp", "a.example.") in dns_server.questions


def test_forged_answers_are_ignored(dns_server: fake_dns.FakeDns, tmp_path: Path) -> None:
    """Another id, another question, and noise arrive before the real answer."""
    real: fake_dns.Zone = {("a.example.", fake_dns.SRV): [fake_dns.srv("real", 1)]}
    forged: fake_dns.Zone = {("a.example.", fake_dns.SRV): [fake_dns.srv("forged", 6)]}

    def answers(question: bytes) -> list[bytes]:
        wrong_id = bytes([question[0] ^ 1]) + question[1:]
        other = question.replace(b"\x01a\x07example", b"\x01b\x07example")
        lies = [fake_dns.make_answer(wrong_id, forged), fake_dns.make_answer(other, {**forged, **real})]
        return [*lies, b"", b"noise", question, fake_dns.make_answer(question, real)]

    dns_server.udp_answers = answers
    run_provider(dns(dns_server, tmp_path, "a.example"), finds("real:1"))


def test_name_servers_and_search_domains_are_tried_in_order(
    dns_server: fake_dns.FakeDns, tmp_path: Path
) -> None:
    dns_server.zone = {("a.second.", fake_dns.SRV): [fake_dns.srv("x", 1)]}
    build = dns(dns_server, tmp_path, "a")
    (tmp_path / "resolv.conf").write_text(
        f"nameserver 127.255.255.254\nnameserver {dns_server.address}\nsearch first second\noptions ndots:1\n"
    )
    run_provider(build, finds("x:1"))
    assert [name for _, name in dns_server.questions[:2]] == ["a.first.", "a.second."]


def test_an_unreadable_resolv_conf_is_a_failure(dns_server: fake_dns.FakeDns, tmp_path: Path) -> None:
    build = dns(dns_server, tmp_path, "a")
    (tmp_path / "resolv.conf").unlink()
    run_provider(build, failing())


LOOP = struct.pack(">6H", 0, 0x8180, 1, 1, 0, 0) + b"\xc0\x0c" + b"\0\1\0\1"
BROKEN = [b"", LOOP, LOOP[:11], LOOP[:12] + b"\x40a\0\0\1\0\1", b"\xff" * 600]


def test_broken_answers_are_ignored(dns_server: fake_dns.FakeDns, tmp_path: Path) -> None:
    """Of any shape, also with the id and the question that were asked: the real answer follows."""
    real: fake_dns.Zone = {("a.example.", fake_dns.SRV): [fake_dns.srv("real", 1)]}
    random = Random(3)

    def answers(question: bytes) -> list[bytes]:
        head = question[:2] + struct.pack(">5H", 0x8180, 1, 3, 0, 0) + question[12:]
        noise = [random.randbytes(random.randrange(300)) for _ in range(100)]
        broken = [question[:2] + message[2:] for message in BROKEN]
        return [*broken, *noise, *(head + part for part in noise), fake_dns.make_answer(question, real)]

    dns_server.udp_answers = answers
    assert run_provider(dns(dns_server, tmp_path, "a.example"), finds("real:1")).failures == 0


def test_broken_answers_alone_are_a_failure(dns_server: fake_dns.FakeDns, tmp_path: Path) -> None:
    dns_server.udp_answers = lambda question: [question[:2] + message[2:] for message in BROKEN]
    run_provider(dns(dns_server, tmp_path, "a.example"), failing())


def test_names_that_do_not_fit_into_a_question_are_failures(
    dns_server: fake_dns.FakeDns, tmp_path: Path
) -> None:
    run_provider(dns(dns_server, tmp_path, "a" * 64, "a..b", ".".join(["abcdefgh"] * 40)), failing(3))
