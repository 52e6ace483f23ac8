"""The table of all limits on what clients, scrape targets and queries can make large.

A field of `Limits` is a row and a setting (`--max-connections`, `GPUSCOPE_MAX_CONNECTIONS`): default, group
(the commands that have it), help, and the reason for the default. Code that enforces a limit reads it from a
`Limits` and calls `LIMITS_REACHED.count("max_connections")` for each refusal; `/metrics` has both as
`gpuscope_limit` and `gpuscope_limit_reached_total`. Limits on the driver and on files of this machine are
constants (`MAX_*`) next to the code, because clients cannot reach them.
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
    # The type is wrong on purpose, as in dataclasses.field(): the value is a Field only in the class body.
    row: T = field(
        default=default,
        metadata={"parse": parse, "help": help_text, "metavar": metavar, "group": group, "why": why},
    )
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    # Group "http": every HTTP listener (agent, up, server)
    max_connections: int = _limit(
        512,
        parse_positive,
        "http",
        "connections open at once on one listener, TLS handshakes included",
        why="512 idle connections take 20 MiB; lower if the process may not open that many files",
    )
    max_request_head_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "http",
        "size of a request head",
        why="browsers and proxies stop at 8 to 32 KiB; long PromQL in a URL stays below 64 KiB",
        metavar="64KiB",
    )
    max_connections_per_address: int = _limit(
        128,
        parse_positive,
        "http",
        "connections of one client address (IPv6: one /64); requests at once of a trusted proxy's client",
        why="a browser opens 6; a quarter of all leaves room for others; list a proxy in --proxy-auth-from",
    )
    tls_handshake_timeout: float = _limit(
        10.0,
        parse_positive_duration,
        "http",
        "time for a TLS handshake",
        why="three round trips; a slow connection needs 2 s",
        metavar="10s",
    )
    request_head_timeout: float = _limit(
        30.0,
        parse_positive_duration,
        "http",
        "time to receive a request head, and from connecting to its first byte",
        why="a client on a slow connection needs a few seconds",
        metavar="30s",
    )
    request_body_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "time to receive a request body",
        why="the largest body, 16 MiB, at 1.1 Mbit/s; Prometheus' remote write times out after 30 s",
        metavar="2m",
    )
    max_request_bodies_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "http",
        "total size of request bodies in memory; one client address may use half",
        why="four of the largest bodies; above it the response is 503 with Retry-After, and senders retry",
        metavar="64MiB",
    )
    client_stall_timeout: float = _limit(
        60.0,
        parse_positive_duration,
        "http",
        "time without a byte of a body; also the interval at which --min-answer-rate is checked",
        why="longer than a laptop needs to change its network",
        metavar="60s",
    )
    min_answer_rate: int = _limit(
        8 << 10,
        parse_bytes,
        "http",
        "bytes per second of a response that a client must read, on average over --client-stall-timeout",
        why="64 kbit/s; a rate, because the time depends on the size of the response",
        metavar="8KiB",
    )
    keep_alive_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "time an idle connection stays open",
        why="longer than the pause between two requests of scrapers and dashboards",
        metavar="2m",
    )
    max_client_log_lines: int = _limit(
        10,
        parse_positive,
        "http",
        "log lines per minute and kind that clients can cause; one more line has the number of the others",
        why="enough to identify the client; 10 kinds at this rate write 2 MB a day",
    )
    max_password_attempts_per_address: int = _limit(
        5,
        parse_positive,
        "http",
        "wrong passwords or tokens of one client address before it must wait, up to 15 minutes",
        why="a person mistypes two or three times",
    )
    max_password_attempts_per_user: int = _limit(
        10,
        parse_positive,
        "http",
        "wrong passwords for one user before an attempt must wait, up to 1 minute",
        why="higher and shorter, so that nobody can lock out another user for long",
    )
    max_password_queue: int = _limit(
        32,
        parse_positive,
        "http",
        "passwords waiting to be checked; two are checked at once",
        why="bcrypt takes 0.2 s each, so the last one waits 3 s",
    )

    # Group "query": PromQL (up, server)
    query_max_samples: int = _limit(
        50_000_000,
        parse_positive,
        "query",
        "samples one query may hold in memory; 16 bytes each",
        why="Prometheus' default; query_max_total_samples, which Prometheus does not have, is reached first",
    )
    query_max_total_samples: int = _limit(
        20_000_000,
        parse_positive,
        "query",
        "samples that all queries together may hold in memory; further queries wait up to 10 s",
        why="320 MB: a day of 1,000 series at 5 s; without it, 20 queries could hold 20 times as much",
    )
    query_timeout: float = _limit(
        120.0, parse_positive_duration, "query", "query time limit", why="Prometheus' default", metavar="2m"
    )
    query_max_concurrency: int = _limit(
        20,
        parse_positive,
        "query",
        "large queries evaluated at once; others wait, and each that waits counts as reaching the limit",
        why="Prometheus' default",
    )
    query_log_max_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "query",
        "size at which the query_log_file is renamed to FILE.1 and a new one is started",
        why="about 120,000 queries; at most twice that is on disk",
        metavar="64MiB",
    )

    query_max_label_bytes: int = _limit(
        128 << 20,
        parse_bytes,
        "query",
        "label text that one query may create (label_replace, label_join, count_values); one label: a 64th",
        why="a label_replace over 100,000 series creates 20 MB with its tuples; nested ones created 20 GB",
        metavar="128MiB",
    )
    query_max_selectors: int = _limit(
        1_000,
        parse_positive,
        "query",
        "match[] parameters of one request",
        why="federation and dashboards send tens; each takes 0.2 ms or more",
    )
    query_max_large_answers: int = _limit(
        8,
        parse_positive,
        "query",
        "responses above 1 MiB sent at once; further requests get 503",
        why="a result stays in memory until the client has read it, so slow clients must be few",
    )

    # Group "scrape": targets and their responses (server)
    scrape_max_targets: int = _limit(
        10_000,
        parse_positive,
        "scrape",
        "targets of all jobs together; further ones are not scraped",
        why="each keeps a connection open; a hundred times the benchmark's number",
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
        "total size of responses in memory, of all targets; above it only those below 1 MiB are read",
        why="eight of the largest responses allowed",
        metavar="256MiB",
    )
    scrape_max_samples: int = _limit(
        250_000,
        parse_positive,
        "scrape",
        "samples of one scrape, unless sample_limit is set",
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
        "labels of a series, unless label_limit is higher",
        why="far above what exporters write; Prometheus has no limit",
    )
    scrape_max_label_name_bytes: int = _limit(
        1024,
        parse_bytes,
        "scrape",
        "length of a label name, unless label_name_length_limit is higher",
        why="the longest label Kubernetes allows has 317 bytes",
        metavar="1KiB",
    )
    scrape_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "scrape",
        "length of a label value, unless label_value_length_limit is higher",
        why="long URLs and command lines fit; Prometheus has no limit",
        metavar="64KiB",
    )
    scrape_max_metadata_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "metric names, help and units stored per target; the rest is missing from /api/v1/metadata",
        why="twenty times node_exporter's 50 KiB",
        metavar="1MiB",
    )

    # Group "write": received remote write (up, server)
    write_max_request_bytes: int = _limit(
        16 << 20,
        parse_bytes,
        "write",
        "size of a remote-write request, compressed",
        why="Prometheus sends at most 2,000 samples per request, about 100 KiB",
        metavar="16MiB",
    )
    write_max_decoded_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "write",
        "size of a remote-write request, decompressed",
        why="Prometheus' limit",
        metavar="32MiB",
    )
    write_max_samples: int = _limit(
        500_000,
        parse_positive,
        "write",
        "series, samples, histograms and exemplars in one remote-write request",
        why="decoding them takes about 2 s and 100 MiB; Prometheus sends 2,000",
    )
    write_max_symbols: int = _limit(
        200_000,
        parse_positive,
        "write",
        "strings in the symbol table of one remote-write 2.0 request",
        why="20 MiB; 2,000 series with ten distinct labels have 20,000",
    )
    write_max_labels: int = _limit(
        512,
        parse_positive,
        "write",
        "labels of a series in a remote-write request; a series with more is refused, others are kept",
        why="as for scrapes; a request of one series could have two million labels, 400 MiB",
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

    # Group "store": the history (up, server)
    max_series: int | None = _limit(
        None,
        parse_positive,
        "store",
        "series in the history; 2 KiB of label text count as one; further new series are refused "
        "(default: a quarter of the memory, or of the container's limit, at 2.5 KiB per series)",
        why="every series of the retention time is in memory; without a limit 2.4 million took 5.5 GB",
    )
    max_new_series: int = _limit(
        200_000,
        parse_positive,
        "store",
        "new series of a scrape target, or of a remote-write client address, per ten minutes",
        why="300 MiB; an agent with 8 GPUs has 3,500 series; a Prometheus with 57 such agents sends 200,000",
    )


def limit_rows(*groups: str) -> tuple[Field[Any], ...]:
    """The rows of these groups; without groups, all rows."""
    return tuple(row for row in fields(Limits) if not groups or row.metadata["group"] in groups)


def limit_names(*groups: str) -> tuple[str, ...]:
    return tuple(row.name for row in limit_rows(*groups))


class LimitCounter:
    """Counts how many times each limit was reached since the process started."""

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
"""One per process, like /metrics."""
