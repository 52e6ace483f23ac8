"""The table of all limits on clients, scrape targets, files and queries.

A field of `Limits` is a row and a setting (`--max-connections`, `GPUSCOPE_MAX_CONNECTIONS`): its default, its
group (the commands that have it), what it limits, and the reason for the default. Code that enforces a limit
reads it from a `Limits` and calls `LIMITS_REACHED.count("max_connections")` for each refusal; `/metrics` shows
both as `gpuscope_limit` and `gpuscope_limit_reached_total`. Limits on the driver and on local files are
constants (`MAX_*`) next to the code: clients cannot reach them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from gpuscope.setting_values import parse_bytes, parse_positive, parse_positive_duration

T = TypeVar("T")


def _limit(
    default: T, parse: Callable[[str], Any], group: str, help_text: str, *, why: str, metavar: str = "N"
) -> T:
    # The declared type is that of the value, as in dataclasses.field(): it is a Field only in the class body.
    row: T = field(
        default=default,
        metadata={"parse": parse, "help": help_text, "metavar": metavar, "group": group, "why": why},
    )
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    # group "http": every HTTP listener (agent, up, server)
    max_connections: int = _limit(
        512,
        parse_positive,
        "http",
        "open connections per listener, including TLS handshakes",
        why="512 idle connections take 20 MiB; reduced if the process may not open so many files",
    )
    max_request_head_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "http",
        "size of a request's head (request line and headers)",
        why="browsers and proxies allow 8 to 32 KiB; long PromQL in a URL fits into 64 KiB",
        metavar="64KiB",
    )
    max_connections_per_address: int = _limit(
        128,
        parse_positive,
        "http",
        "connections per client address (IPv6: per /64); concurrent requests per client of a trusted proxy",
        why="a browser opens 6; a quarter of all leaves room for others; list proxies in --proxy-auth-from",
    )
    tls_handshake_timeout: float = _limit(
        10.0,
        parse_positive_duration,
        "http",
        "time for a TLS handshake",
        why="three round trips; 2 s on a bad connection",
        metavar="10s",
    )
    request_head_timeout: float = _limit(
        30.0,
        parse_positive_duration,
        "http",
        "time to receive a request's head, and time from connecting to its first byte",
        why="a client on a bad connection needs a few seconds",
        metavar="30s",
    )
    request_body_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "time to receive a request's body",
        why="the largest body, 16 MiB, at 1.1 Mbit/s; Prometheus' sender times out after 30 s",
        metavar="2m",
    )
    max_request_bodies_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "http",
        "total size of request bodies in memory; one client address may use half of it",
        why="four of the largest bodies; beyond it the response is 503 with Retry-After, and senders retry",
        metavar="64MiB",
    )
    client_stall_timeout: float = _limit(
        60.0,
        parse_positive_duration,
        "http",
        "time without progress of a body; also the interval over which --min-answer-rate is measured",
        why="longer than a laptop needs to change networks",
        metavar="60s",
    )
    min_answer_rate: int = _limit(
        8 << 10,
        parse_bytes,
        "http",
        "minimum rate in bytes per second at which a client must read a response",
        why="64 kbit/s; a rate instead of a time, because large responses over slow connections take long",
        metavar="8KiB",
    )
    keep_alive_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "time after which an idle connection is closed",
        why="longer than the intervals of scrapers and dashboards, so that they can reuse connections",
        metavar="2m",
    )
    max_client_log_lines: int = _limit(
        10,
        parse_positive,
        "http",
        "log lines per minute and kind that clients can cause; one more line counts the suppressed ones",
        why="enough to identify the client; 10 kinds at this rate write 2 MB a day",
    )
    max_password_attempts_per_address: int = _limit(
        5,
        parse_positive,
        "http",
        "wrong passwords or tokens per client address before it is blocked, for up to 15 minutes",
        why="a person mistypes two or three times",
    )
    max_password_attempts_per_user: int = _limit(
        10,
        parse_positive,
        "http",
        "wrong passwords per user before attempts are blocked, for up to 1 minute",
        why="more attempts and a shorter block, because an attacker must not lock a user out",
    )
    max_password_queue: int = _limit(
        32,
        parse_positive,
        "http",
        "passwords queued for checking; two are checked at a time",
        why="bcrypt takes 0.2 s per password: the last one waits 3 s",
    )

    # group "query": PromQL (up, server)
    query_max_samples: int = _limit(
        50_000_000,
        parse_positive,
        "query",
        "samples one query may hold in memory; 16 bytes each",
        why="Prometheus' default; query_max_total_samples, which Prometheus does not have, is lower",
    )
    query_max_total_samples: int = _limit(
        20_000_000,
        parse_positive,
        "query",
        "samples all queries together may hold in memory; a query waits up to 10 s for them",
        why="320 MB: a day of 1,000 series at 5 s; without it, 20 queries could use 20 times as much memory",
    )
    query_timeout: float = _limit(
        120.0, parse_positive_duration, "query", "query time limit", why="Prometheus' default", metavar="2m"
    )
    query_max_concurrency: int = _limit(
        20,
        parse_positive,
        "query",
        "large queries evaluated at the same time; others wait, and each of them counts as reaching it",
        why="Prometheus' default",
    )
    query_log_max_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "query",
        "size at which the file query_log_file is renamed to FILE.1 and a new one is started",
        why="about 120,000 queries; the disk holds at most twice as many",
        metavar="64MiB",
    )

    query_max_label_bytes: int = _limit(
        128 << 20,
        parse_bytes,
        "query",
        "label text one query may create (label_replace, label_join, count_values); a 64th of it per label",
        why="label_replace over 100,000 series creates 20 MB; nested calls could create 20 GB",
        metavar="128MiB",
    )
    query_max_selectors: int = _limit(
        1_000,
        parse_positive,
        "query",
        "match[] parameters per request",
        why="federation and dashboards send tens; each takes 0.2 ms or more",
    )
    query_max_large_answers: int = _limit(
        8,
        parse_positive,
        "query",
        "responses above 1 MiB sent at the same time; further ones are refused with 503",
        why="the result stays in memory until the client has read it",
    )

    engine_max_answer_bytes: int = _limit(
        256 << 20,
        parse_bytes,
        "query",
        "size of a response of the --store engine that is read whole; responses passed on are not limited",
        why="the live picture of 1,000 nodes of 8 GPUs is 60 MB; decoding takes four times that for a moment",
        metavar="256MiB",
    )

    # group "scrape": targets and their responses (server)
    scrape_max_targets: int = _limit(
        10_000,
        parse_positive,
        "scrape",
        "targets of all jobs; further ones are not scraped",
        why="each has an open connection; a hundred times the fleet of the benchmark",
    )
    scrape_max_body_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "scrape",
        "uncompressed size of a target's response, unless body_size_limit is set",
        why="room for 250,000 samples of 130 bytes; node_exporter sends 60 KiB",
        metavar="32MiB",
    )
    scrape_max_pending_bytes: int = _limit(
        256 << 20,
        parse_bytes,
        "scrape",
        "total size of responses in memory; beyond it only responses below 1 MiB are read",
        why="eight of the largest responses; half of the memory that an attack may use",
        metavar="256MiB",
    )
    scrape_max_samples: int = _limit(
        250_000,
        parse_positive,
        "scrape",
        "samples per scrape, unless sample_limit is set",
        why="an agent with 8 GPUs sends 3,500, node_exporter 500; Prometheus has no limit",
    )
    scrape_max_line_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "length of a line in a target's response",
        why="sixteen label values of maximum length; a line is parsed as a whole",
        metavar="1MiB",
    )
    scrape_max_labels: int = _limit(
        512,
        parse_positive,
        "scrape",
        "labels per series, unless label_limit allows more",
        why="exporters use far fewer; Prometheus has no limit",
    )
    scrape_max_label_name_bytes: int = _limit(
        1024,
        parse_bytes,
        "scrape",
        "length of a label name, unless label_name_length_limit allows more",
        why="the longest label Kubernetes allows has 317 bytes",
        metavar="1KiB",
    )
    scrape_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "scrape",
        "length of a label value, unless label_value_length_limit allows more",
        why="long URLs and command lines fit; Prometheus has no limit",
        metavar="64KiB",
    )
    scrape_max_metadata_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "metadata (names, help, units) kept per target; the rest is missing in /api/v1/metadata",
        why="twenty times the 50 KiB of node_exporter",
        metavar="1MiB",
    )

    # group "write": the remote-write receiver (up, server)
    write_max_request_bytes: int = _limit(
        16 << 20,
        parse_bytes,
        "write",
        "compressed size of a remote-write request",
        why="Prometheus sends at most 2,000 samples per request, about 100 KiB",
        metavar="16MiB",
    )
    write_max_decoded_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "write",
        "decompressed size of a remote-write request",
        why="Prometheus' limit",
        metavar="32MiB",
    )
    write_max_samples: int = _limit(
        500_000,
        parse_positive,
        "write",
        "series, samples, histograms and exemplars per remote-write request",
        why="decoding them takes about 2 s and 100 MiB; Prometheus sends 2,000",
    )
    write_max_symbols: int = _limit(
        200_000,
        parse_positive,
        "write",
        "strings in the symbol table of a remote-write 2.0 request",
        why="20 MiB; 2,000 series with ten unique labels have 20,000",
    )
    write_max_labels: int = _limit(
        512,
        parse_positive,
        "write",
        "labels per series in a remote-write request; a series with more is refused, the others are stored",
        why="as for scrapes; one series could have two million labels, 400 MiB",
    )
    write_max_label_name_bytes: int = _limit(
        1024,
        parse_bytes,
        "write",
        "length of a label name in a remote-write request; a series with a longer one is refused",
        why="as for scrapes",
        metavar="1KiB",
    )
    write_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "write",
        "length of a label value in a remote-write request; a series with a longer one is refused",
        why="as for scrapes",
        metavar="64KiB",
    )

    # group "store": the history (up, server)
    max_series: int | None = _limit(
        None,
        parse_positive,
        "store",
        "series in the store; 2 KiB of label text count as one more; further new series are refused "
        "(default: a quarter of the memory of the machine or container, at 2.5 KiB per series)",
        why="every series within the retention is in memory; 2.4 million take 5.5 GB",
    )
    max_new_series: int = _limit(
        200_000,
        parse_positive,
        "store",
        "new series per scrape target or remote writer's address within ten minutes; more are refused",
        why="300 MiB; an agent with 8 GPUs has 3,500 series",
    )

    # group "alerts": notifications and Alertmanager's API (up, server)
    max_alerts: int = _limit(
        50_000,
        parse_positive,
        "alerts",
        "alerts kept at the same time; further new ones are refused until others are resolved",
        why="2 KiB each; a fleet of 8,000 GPUs with five alerts per GPU; senders send again what still fires",
    )
    max_alert_groups: int = _limit(
        10_000,
        parse_positive,
        "alerts",
        "groups of alerts; alerts beyond it wait until a group is gone",
        why="each group is a message; nobody reads more",
    )
    max_alert_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "alerts",
        "size of the labels and annotations of an alert that a client sends; a larger one is refused",
        why="as for labels of scrapes; alerts have a few hundred bytes",
        metavar="64KiB",
    )
    max_alerts_request_bytes: int = _limit(
        16 << 20,
        parse_bytes,
        "alerts",
        "size of a request with alerts or a silence",
        why="10,000 alerts of 1.6 KiB; Prometheus sends 256 alerts per request",
        metavar="16MiB",
    )
    max_silences: int = _limit(
        10_000,
        parse_positive,
        "alerts",
        "silences, expired ones of the last five days included; further ones are refused",
        why="each alert is compared with each silence; people have tens",
    )


def limit_rows(*groups: str) -> tuple[Field[Any], ...]:
    """Return the rows of these groups, or all rows."""
    return tuple(row for row in fields(Limits) if not groups or row.metadata["group"] in groups)


def limit_names(*groups: str) -> tuple[str, ...]:
    return tuple(row.name for row in limit_rows(*groups))


class LimitCounter:
    """Counts how often each limit was reached since the process started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(limit_names(), 0)

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


LIMITS_REACHED = LimitCounter()
"""One per process, like its /metrics."""
