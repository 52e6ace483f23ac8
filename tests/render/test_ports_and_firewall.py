"""The table of ports agrees with the program's own defaults, and the firewall commands with the table."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpuscope.agent.families.stand_in import DEFAULT_PORT, own_listener
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.serving import DEFAULT_LISTEN
from gpuscope.serve.render.ports import AGENT_PORT, LOCAL, PORTS, RENDERERS, ROLES, firewall_lines, ports_of
from gpuscope.serve.stand_ins import load_stand_in, stand_in_names


def test_the_agent_and_every_stand_in_listen_on_a_port_of_the_table() -> None:
    assert AGENT_PORT == DEFAULT_PORT
    numbers = {row.number for row in PORTS}
    for name in stand_in_names():
        plan, _ = load_stand_in(name).configure(Settings(), (), {})
        assert plan.port in numbers, name


def test_the_page_says_on_which_address_the_agent_listens() -> None:
    assert own_listener(Settings()).host == ""
    assert DEFAULT_LISTEN == ("127.0.0.1", 9470)
    page = " ".join((Path(__file__).parents[2] / "docs/ports.md").read_text().split())
    assert "`gpuscope agent`, like other exporters, listens on all addresses without a login" in page
    assert "`gpuscope up` and `gpuscope server` listen on 127.0.0.1" in page


def test_each_port_has_one_row() -> None:
    numbers = [row.number for row in PORTS]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("program", RENDERERS)
def test_commands_open_what_others_need_and_nothing_without_a_login(program: str, role: str) -> None:
    lines = firewall_lines(program, role, "10.1.0.0/16")
    text = "\n".join(lines)
    for row in ports_of(role):
        is_open = any(f"{form}{row.number}" in text for form in ("port ", 'port="', "tcp:"))
        assert is_open == (row.opened_to != LOCAL and not row.optional), row
    assert "10.1.0.0/16" in text
    for line in lines:
        shlex.split(line)  # quotes are closed


def test_firewalld_rules_for_ipv6_name_the_family() -> None:
    assert 'family="ipv6"' in firewall_lines("firewalld", "node", "fd00::/8")[0]
