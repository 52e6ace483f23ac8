"""Web configuration files: the effect of each key, over real TLS connections, and errors."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import threading
from pathlib import Path

import bcrypt
import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.cli.wiring.listeners import build_server
from gpuscope.serve.http.messages import Handler, Request, Response, text
from gpuscope.serve.web_config import (
    TokenBucket,
    WebConfig,
    load_web_config,
    parse_go_duration,
    with_headers,
)
from tests.server.certificates import Certificate, make_certificate
from tests.server.http.support import hello

STORED = bcrypt.hashpw(b"s:cret", bcrypt.gensalt(4)).decode()
CLIENT_CA = "client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca-cert.pem"


def respond(handler: Handler) -> Response:
    async def run() -> Response:
        return await handler(Request("GET", "/"))

    return asyncio.run(run())


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "web.yml"
    path.write_text(text)
    return path


def with_password(user: str, password: str) -> Request:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Request("GET", "/", [("authorization", f"Basic {encoded}")])


# Passwords


def statuses(config: WebConfig, *requests: Request, client: str = "10.0.0.1") -> list[int]:
    async def ask() -> list[int]:
        assert config.guard is not None
        answers = [await config.guard(request, client) for request in requests]
        return [200 if answer is None else answer.status for answer in answers]

    return asyncio.run(ask())


def test_passwords(tmp_path: Path) -> None:
    config = load_web_config(written(tmp_path, f"basic_auth_users:\n  ann: {STORED}\n"))
    good = with_password("ann", "s:cret")
    wrong = (
        with_password("ann", "guess"),
        with_password("bob", "s:cret"),
        with_password("ann", "nul\0"),
        Request("GET", "/"),
        Request("GET", "/", [("authorization", "Basic ???")]),
        Request("GET", "/", [("authorization", "Bearer s:cret")]),
    )
    assert statuses(config, good, good, *wrong) == [200, 200, *[401] * 6]


def test_wrong_passwords_are_limited_and_logged_and_verified_users_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(max_password_attempts_per_address=3, max_client_log_lines=2)
    config = load_web_config(written(tmp_path, f"basic_auth_users: {{ann: {STORED}}}"), limits)
    good, bad = with_password("ann", "s:cret"), with_password("eve", "guess")
    before = LIMITS_REACHED.counts()["max_password_attempts_per_address"]
    assert statuses(config, good) == [200]
    assert statuses(config, *[bad] * 5, good) == [401, 401, 401, 429, 429, 200]
    assert statuses(config, bad, client="10.0.0.2") == [401]
    assert LIMITS_REACHED.counts()["max_password_attempts_per_address"] == before + 2
    assert [record.message for record in caplog.records] == [
        "refused a login from 10.0.0.1: wrong user or password"
    ] * 2


def test_attempts_from_many_addresses_are_limited_per_user(tmp_path: Path) -> None:
    limits = Limits(max_password_attempts_per_user=2)
    config = load_web_config(written(tmp_path, f"basic_auth_users: {{ann: {STORED}}}"), limits)
    before = LIMITS_REACHED.counts()["max_password_attempts_per_user"]
    found = [statuses(config, with_password("ann", "guess"), client=f"10.0.0.{n}") for n in range(3)]
    assert found == [[401], [401], [429]]
    assert LIMITS_REACHED.counts()["max_password_attempts_per_user"] == before + 1


def test_many_wrong_passwords_block_neither_query_threads_nor_verified_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_web_config(
        written(tmp_path, f"basic_auth_users: {{ann: {STORED}}}"), Limits(max_password_queue=8)
    )
    good = with_password("ann", "s:cret")
    assert statuses(config, good) == [200]
    is_over, threads = threading.Event(), set()

    def slow(password: bytes, stored: bytes) -> bool:
        threads.add(threading.current_thread().name)
        is_over.wait()
        return False

    monkeypatch.setattr(bcrypt, "checkpw", slow)

    async def crowd() -> tuple[Response | None, list[Response | None]]:
        assert config.guard is not None
        guard = config.guard
        guesses = [guard(with_password(f"user{n}", "guess"), f"10.0.{n}.1") for n in range(50)]
        waiting = [asyncio.ensure_future(guess) for guess in guesses]
        try:
            known = await guard(good, "10.0.0.1")
            await asyncio.sleep(0)  # all have asked
            await asyncio.to_thread(lambda: None)  # the default pool is free
        finally:
            is_over.set()
        return known, await asyncio.gather(*waiting)

    before = LIMITS_REACHED.counts()["max_password_queue"]
    known, others = asyncio.run(crowd())
    assert known is None
    assert [one.status for one in others if one is not None] == [401] * 8 + [503] * 42
    assert LIMITS_REACHED.counts()["max_password_queue"] == before + 42
    assert 0 < len(threads) <= 2
    assert all(name.startswith("gpuscope-password") for name in threads)


# TLS


def answer_over_tls(config: WebConfig, folder: Path, client: Certificate | None = None) -> bytes:
    async def ask() -> bytes:
        server = build_server(hello, config, Limits())
        port = await server.start("127.0.0.1", 0)
        trust = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        if client is not None:
            trust.load_cert_chain(client.cert, client.key)
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trust, server_hostname="localhost"
            )
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer
        except OSError as error:
            return repr(error).encode()
        finally:
            await server.stop()

    return asyncio.run(ask())


def test_tls_from_files_and_inline(tmp_path: Path) -> None:
    own = make_certificate(tmp_path)
    files = load_web_config(written(tmp_path, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"))
    assert answer_over_tls(files, tmp_path).endswith(b"hello\n")
    lines = ["tls_server_config:"]
    for name, path in (("cert", own.cert), ("key", own.key)):
        lines += [f"  {name}: |", *(f"    {line}" for line in path.read_text().splitlines())]
    inline = load_web_config(written(tmp_path, "\n".join(lines)))
    assert answer_over_tls(inline, tmp_path).endswith(b"hello\n")


def test_versions_suites_and_curves(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    chosen = """tls_server_config:
      cert_file: cert.pem
      key_file: key.pem
      min_version: TLS12
      max_version: TLS12
      cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]
      prefer_server_cipher_suites: false
      curve_preferences: [X25519, CurveP256]
    """
    config = load_web_config(written(tmp_path, chosen))
    assert config.tls is not None
    context = config.tls.context
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2,) * 2
    old = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"]
    assert old == ["ECDHE-ECDSA-AES256-GCM-SHA384"]
    assert not context.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert answer_over_tls(config, tmp_path).endswith(b"hello\n")


@pytest.mark.parametrize(
    ("allowed", "sans", "gets_in"),
    [
        ("[node1.example]", "DNS:node1.example", True),
        ("[node1.example]", "DNS:other.example,DNS:node1.example", True),
        ("[node1.example]", "DNS:other.example", False),
        ("['*.example']", "DNS:node1.example", False),
        ("[example]", "email:ann@example", False),
        ("[ann@example]", "email:ann@example", True),
        ("['spiffe://cluster/prometheus']", "URI:spiffe://cluster/prometheus", True),
        ("[10.0.0.1]", "IP:10.0.0.1", True),
        ("['2001:db8::1']", "IP:2001:db8::1", True),
        ("['2001:db8::2']", "IP:2001:db8::1", False),
        ("[]", "DNS:node1.example", False),
    ],
)
def test_client_allowed_sans(tmp_path: Path, allowed: str, sans: str, gets_in: bool) -> None:
    make_certificate(tmp_path)
    ca = make_certificate(tmp_path, "ca")
    client = make_certificate(tmp_path, "client", sans, ca)
    tls = f"tls_server_config: {{cert_file: cert.pem, key_file: key.pem, {CLIENT_CA}"
    by_ca = load_web_config(written(tmp_path, tls + "}"))
    assert answer_over_tls(by_ca, tmp_path, client).endswith(b"hello\n"), "the CA alone lets it in"
    config = load_web_config(written(tmp_path, f"{tls}, client_allowed_sans: {allowed}}}"))
    assert answer_over_tls(config, tmp_path, client).endswith(b"hello\n") is gets_in
    assert not answer_over_tls(config, tmp_path).endswith(b"hello\n"), "without a certificate nobody gets in"


# Headers, rate limit, HTTP/2


def test_headers_are_added_to_every_response(tmp_path: Path) -> None:
    config = load_web_config(
        written(
            tmp_path,
            """http_server_config:
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: deny
    X-Content-Type-Options: nosniff
    X-XSS-Protection: ''
    Content-Security-Policy: default-src 'self'
""",
        )
    )

    async def own(request: Request) -> Response:
        return text("hello", 200, (("content-security-policy", "ours"),))

    answer = respond(config.wrap(own))
    assert answer.headers == (
        ("content-security-policy", "ours"),
        ("strict-transport-security", "max-age=31536000"),
        ("x-frame-options", "deny"),
    )
    assert respond(with_headers(hello, ())).headers == ()


def test_the_rate_limit_is_shared_by_all_clients(tmp_path: Path) -> None:
    config = load_web_config(written(tmp_path, "rate_limit: {interval: 1h, burst: 2}"))
    handler = config.wrap(hello)
    statuses = [respond(handler).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert load_web_config(written(tmp_path, "rate_limit: {interval: 0, burst: 2}")).bucket is None


def test_the_bucket_refills_up_to_its_burst() -> None:
    now = [100.0]
    bucket = TokenBucket(0.5, 2, lambda: now[0])
    assert [bucket.allows() for _ in range(3)] == [True, True, False]
    now[0] += 0.5
    assert [bucket.allows() for _ in range(2)] == [True, False]
    now[0] += 1000
    assert [bucket.allows() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1.0), ("100ms", 0.1), ("1m30s", 90.0), ("1.5h", 5400.0), (0, 0.0), ("0s", 0.0)]
)
def test_intervals_are_go_durations(text: object, seconds: float) -> None:
    assert parse_go_duration(text) == pytest.approx(seconds)


def test_http2_gives_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_web_config(written(tmp_path, "http_server_config: {http2: false}"))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        load_web_config(written(tmp_path, "http_server_config: {http2: true}"))
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "http2 is not supported; clients get HTTP/1.1"
    ]


# Mistakes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("basic_auth_users: {ann: plain}", "not a bcrypt hash"),
        ("tls_server_config: {cert_file: c.pem}", "key_file"),
        ("tls_server_config: {cert_file: c.pem, key_file: k.pem}", "tls_server_config"),
        ("tls: {}", "unknown section 'tls'"),
        ("- a", "must be a mapping"),
        ("a: [", "line 1, column "),
        ("? [a]\n: b", "line 1, column 3: a key that is not a text"),
        ("rate_limit: {}\nrate_limit: {}", "line 2, column 1: the key rate_limit is also in line 1"),
        ("basic_auth_users:\n\tann: x", "line 2, column 1: a tab; indent with spaces"),
        ("a: &a [*a]", "refers to itself"),
        ("http_server_config: {http2: 0x" + "f" * 5000 + "}", "line 1, column 29: a number of 5002 characters"),
        ("a: 2026-13-45", "not valid YAML"),
        ("a: !!int ''", "not valid YAML"),
        ("a: !!bool x", "not valid YAML"),
        (
            "tls_server_config: {client_allowed_san: [a]}",
            "unknown key 'client_allowed_san' in tls_server_config",
        ),
        ("http_server_config: {http3: true}", "unknown key 'http3' in http_server_config"),
        ("http_server_config: {http2: 1}", "must be true or false"),
        ("http_server_config: {headers: {Server: x}}", "'Server' cannot be configured"),
        ("http_server_config: {headers: {x-frame-options: deny}}", "'x-frame-options' cannot be configured"),
        ("http_server_config: {headers: {X-Frame-Options: allow}}", "must be one of deny, sameorigin"),
        ('http_server_config: {headers: {X-XSS-Protection: "1\\nx: y"}}', "printable"),
        ("rate_limit: {interval: 1, burst: 1}", "must be a duration"),
        ("rate_limit: {interval: 1s, burst: many}", "burst"),
        ("rate_limit: {interval: 1s}", "every request would be refused"),
        ("rate_limit: {every: 1s}", "unknown key 'every' in rate_limit"),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        load_web_config(written(tmp_path, text))
    assert "web.yml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ("min_version: TLS14", "unknown 'TLS14'"),
        ("max_version: [TLS12]", "unknown"),
        ("client_auth_type: Sometimes", "unknown 'Sometimes'"),
        ("client_auth_type: RequireAnyClientCert", "use RequireAndVerifyClientCert"),
        ("client_auth_type: RequestClientCert, client_allowed_sans: [a]", "needs client_auth_type"),
        ("client_ca_file: cert.pem", "no client_auth_type"),
        ("client_allowed_sans: [a]", "needs client_auth_type"),
        ("cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]", "unknown 'TLS_RSA_WITH_RC4_128_SHA'"),
        ("curve_preferences: [P256]", "unknown 'P256'"),
        ("cipher_suites: TLS_AES_128_GCM_SHA256", "must be a list"),
        ("prefer_server_cipher_suites: perhaps", "must be true or false"),
    ],
)
def test_mistakes_in_tls(tmp_path: Path, keys: str, complaint: str) -> None:
    make_certificate(tmp_path)
    with pytest.raises(UsageError, match=complaint):
        load_web_config(
            written(tmp_path, f"tls_server_config: {{cert_file: cert.pem, key_file: key.pem, {keys}}}")
        )


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.yml"):
        load_web_config(tmp_path / "no.yml")
