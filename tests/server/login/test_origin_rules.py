from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.serve.http import connection_limits
from gpuscope.serve.http.connection_limits import limit_key, parse_address
from gpuscope.serve.http.messages import Request
from gpuscope.serve.login.access_rules import (
    ClientRequest,
    HostRule,
    cross_site_error,
    is_own_origin,
    parse_networks,
    read_client_request,
    split_host,
)
from tests.examples import examples

LOOPBACK = HostRule.build("127.0.0.1", [])
EVERYWHERE = HostRule.build("", ["gpus.example", "*.Cluster.example."], ["node7.lan", "node7"])


def client_request(method: str = "POST", host: str = "localhost:9470", **headers: str) -> ClientRequest:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return ClientRequest(method, "/api/login", pairs, "10.0.0.5", "10.0.0.5", host, False, False)


@pytest.mark.parametrize("host", ["localhost", "localhost:9470", "127.0.0.1:1", "[::1]:9470", "LOCALHOST.:80"])
def test_loopback_names_pass(host: str) -> None:
    assert LOOPBACK.allows(host)
    assert EVERYWHERE.allows(host)


@pytest.mark.parametrize(
    "host",
    [
        "", None, "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:9470",
        "localhost@evil.example", "localhost/evil", "localhost:x", "localhost:123456", "[localhost",
        "local host", "localhost, evil.example", "http://localhost",
    ],
)  # fmt: skip
def test_other_host_names_are_refused(host: str | None) -> None:
    assert not LOOPBACK.allows(host)
    assert not EVERYWHERE.allows(host)


def test_host_names_of_a_server_on_all_addresses() -> None:
    for host in (
        "10.1.2.3:9470",
        "[fe80::1]:9470",
        "node7",
        "NODE7.lan:9470",
        "gpus.example",
        "a.cluster.example",
    ):
        assert EVERYWHERE.allows(host), host
        assert not LOOPBACK.allows(host), host
    assert not EVERYWHERE.allows("cluster.example.evil")
    assert HostRule.build("10.1.2.3", []).allows("10.1.2.3:9470")
    assert not HostRule.build("10.1.2.3", [], ["node7"]).allows("node7")
    assert HostRule.build("127.0.0.1", ["*"]).allows("whatever")


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "origin": "http://localhost:9470"},
        {"sec_fetch_site": "?"},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost"},
        {"origin": "http://localhost:9470.evil.example"},
        {"origin": "http://localhost:9470@evil.example"},
        {"origin": "file://localhost:9470"},
        {"origin": "localhost:9470"},
    ],
)
def test_cross_site_posts_are_refused(headers: dict[str, str]) -> None:
    assert cross_site_error(client_request(**headers))


@pytest.mark.parametrize(
    "headers", [{}, {"sec_fetch_site": "same-origin"}, {"origin": "http://localhost:9470"}]
)
def test_same_origin_and_non_browser_requests_pass(headers: dict[str, str]) -> None:
    assert not cross_site_error(client_request(**headers))


def test_two_origin_headers_are_refused() -> None:
    pairs = [("origin", "http://localhost:9470"), ("origin", "http://localhost:9470")]
    assert cross_site_error(ClientRequest("POST", "/", pairs, "", "", "localhost:9470", False, False))


def test_cross_site_subresources_are_refused_and_links_are_allowed() -> None:
    assert cross_site_error(client_request("GET", sec_fetch_site="cross-site", sec_fetch_mode="no-cors"))
    link = client_request(
        "GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"
    )
    frame = client_request(
        "GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe"
    )
    assert not cross_site_error(link, is_page=True)
    assert cross_site_error(link), "not to the API"
    assert cross_site_error(frame, is_page=True), "nor in a frame"
    assert cross_site_error(frame)
    assert not cross_site_error(client_request("GET", sec_fetch_site="same-origin", sec_fetch_mode="cors"))


def test_default_ports_are_the_same_origin() -> None:
    assert is_own_origin("https://gpus.example", client_request(host="gpus.example:443"))
    assert is_own_origin("http://gpus.example:80", client_request(host="gpus.example"))
    assert not is_own_origin("https://gpus.example", client_request(host="gpus.example:80"))


def request(peer: str, *headers: tuple[str, str]) -> Request:
    return Request("GET", "/", headers, peer=peer)


PROXIES = parse_networks(["10.0.0.0/24", "fd00::/8"], "--proxy-auth-from")
FORWARDED = (
    ("host", "inner"),
    ("x-forwarded-for", "6.6.6.6, 1.2.3.4, 10.0.0.9"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "gpus.example"),
)


def test_forwarded_headers_count_from_the_proxy_only() -> None:
    inside = read_client_request(request("10.0.0.1", *FORWARDED), PROXIES)
    assert (inside.client, inside.host, inside.secure) == ("1.2.3.4", "gpus.example", True)
    mapped = read_client_request(request("::ffff:10.0.0.1", *FORWARDED), PROXIES)
    assert mapped.through_proxy
    for peer in ("10.0.1.1", "127.0.0.1", "", "testclient"):
        outside = read_client_request(request(peer, *FORWARDED), PROXIES)
        assert (outside.client, outside.host, outside.secure) == (peer, "inner", False)
    broken = read_client_request(request("10.0.0.1", ("x-forwarded-for", "1.2.3.4, <script>")), PROXIES)
    assert broken.client == "10.0.0.1"


def test_an_ipv6_network_has_one_limit_key() -> None:
    assert limit_key("2001:db8::1") == limit_key("2001:db8::ffff:1") != limit_key("2001:db8:0:1::1")
    assert limit_key("::ffff:1.2.3.4") == limit_key("1.2.3.4") != limit_key("1.2.3.5")
    assert limit_key("fe80::1%eth0")


def test_a_wrong_network_is_named() -> None:
    with pytest.raises(UsageError, match="--proxy-auth-from: 'proxy' is not an address"):
        parse_networks(["10.0.0.1", "proxy"], "--proxy-auth-from")


@settings(max_examples=examples(200))
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_host_and_origin_are_handled(host: str, origin: str) -> None:
    split_host(host)
    cross_site_error(client_request(host=host, origin=origin))
    if LOOPBACK.allows(host):
        assert split_host(host)[0] in ("localhost", "127.0.0.1", "::1")  # type: ignore[index]


header_text = st.text(st.characters(max_codepoint=255), max_size=40)


@settings(max_examples=examples(100))
@given(header_text, header_text)
def test_any_forwarded_headers_are_handled(addresses: str, host: str) -> None:
    found = read_client_request(
        request("10.0.0.1", ("x-forwarded-for", addresses), ("x-forwarded-host", host)), PROXIES
    )
    assert limit_key(found.client)


def test_addresses_are_parsed_and_long_text_is_not_cached() -> None:
    longest = "0000:0000:0000:0000:0000:ffff:192.168.100.228"
    assert str(parse_address(longest)) == "192.168.100.228"
    assert str(parse_address("fe80::1%" + "z" * 10_000)) == "fe80::1"
    before = connection_limits.parse_short_address.cache_info().misses
    assert parse_address("1" * 10_000) is None
    assert connection_limits.parse_short_address.cache_info().misses == before
