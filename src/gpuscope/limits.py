"""Every limit on what a client, a scrape target or a query can make large: one table.

A field of `Limits` is a row and a setting (`--max-connections`, `GPUSCOPE_MAX_CONNECTIONS`): its default, its
group (which commands take it), what it bounds and why the default is what it is. Code that enforces a limit
takes the number from a `Limits` and calls `LIMITS_REACHED.count("max_connections")` each time it refuses
something; `/metrics` shows both as `gpuscope_limit` and `gpuscope_limit_reached_total`. Bounds on the driver
and on files of this machine stay constants (`MAX_*`) next to the code: no client can reach them.
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
    # group "http": every HTTP listener (agent, up, server)
    max_connections: int = _limit(
        512,
        parse_positive,
        "http",
        "connections open at once on one listener, TLS handshakes included",
        why="512 idle connections cost 20 MiB; lower where the process may not open that many files",
    )
    max_request_head_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "http",
        "size of a request's head",
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
        why="three round trips; a bad line needs 2 s",
        metavar="10s",
    )
    request_head_timeout: float = _limit(
        30.0,
        parse_positive_duration,
        "http",
        "time from the first byte of a request's head to its last, and from connecting to the first byte",
        why="a client on a bad line needs a few seconds",
        metavar="30s",
    )
    request_body_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "time from the first byte of a request's body to its last",
        why="the largest body, 16 MiB, at 1.1 Mbit/s; Prometheus' own sender gives up after 30 s",
        metavar="2m",
    )
    max_request_bodies_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "http",
        "request bodies in memory, all together; one client address may hold half",
        why="four of the largest bodies; above it the answer is 503 with Retry-After, and senders try again",
        metavar="64MiB",
    )
    client_stall_timeout: float = _limit(
        60.0,
        parse_positive_duration,
        "http",
        "time without a byte of a body; also how often --min-answer-rate is looked at",
        why="longer than a laptop takes to change its network",
        metavar="60s",
    )
    min_answer_rate: int = _limit(
        8 << 10,
        parse_bytes,
        "http",
        "bytes per second a client must take of an answer, on average over --client-stall-timeout",
        why="64 kbit/s; a rate and not a time, because a large answer over a slow line rightly takes long",
        metavar="8KiB",
    )
    keep_alive_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "time an idle connection stays open",
        why="longer than scrapers and dashboards pause, which would connect anew each time",
        metavar="2m",
    )
    max_client_log_lines: int = _limit(
        10,
        parse_positive,
        "http",
        "log lines per minute and kind that clients can cause; one more line counts the rest",
        why="enough to see who it is; 10 kinds at this rate fill 2 MB a day",
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
        why="more, and shorter: who fails on purpose as somebody else must not keep that user out for long",
    )
    max_password_queue: int = _limit(
        32,
        parse_positive,
        "http",
        "passwords waiting to be checked; two are checked at once",
        why="bcrypt takes 0.2 s each: the last of them waits 3 s",
    )

    # group "query": PromQL (up, server)
    query_max_samples: int = _limit(
        50_000_000,
        parse_positive,
        "query",
        "samples one query may hold in memory; 16 bytes each",
        why="Prometheus' own default; query_max_total_samples, which has none there, is reached before",
    )
    query_max_total_samples: int = _limit(
        20_000_000,
        parse_positive,
        "query",
        "samples all queries together may hold, one alone included; others wait 10 s for them",
        why="320 MB: a day of 1,000 series at 5 s; without it, 20 queries could hold 20 times as much",
    )
    query_timeout: float = _limit(
        120.0, parse_positive_duration, "query", "query time limit", why="Prometheus' own default", metavar="2m"
    )
    query_max_concurrency: int = _limit(
        20,
        parse_positive,
        "query",
        "large queries evaluated at once; others wait, and each that does counts as reaching it",
        why="Prometheus' own default",
    )
    query_log_max_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "query",
        "size at which the file of query_log_file is renamed to FILE.1 and begun anew",
        why="about 120,000 queries; twice that is on disk at most",
        metavar="64MiB",
    )

    query_max_label_bytes: int = _limit(
        128 << 20,
        parse_bytes,
        "query",
        "label text one query may make (label_replace, label_join, count_values); one label a 64th of it",
        why="a label_replace over 100,000 series makes 20 MB, its tuples included; nested ones made 20 GB",
        metavar="128MiB",
    )
    query_max_selectors: int = _limit(
        1_000,
        parse_positive,
        "query",
        "match[] parameters of one request",
        why="federation and dashboards send tens; each is parsed and looked up by itself, 0.2 ms or more",
    )
    query_max_large_answers: int = _limit(
        8,
        parse_positive,
        "query",
        "answers above 1 MiB sent at once; more are answered 503",
        why="the result stays in memory until the client has taken it, so slow clients must be few",
    )

    engine_max_answer_bytes: int = _limit(
        256 << 20,
        parse_bytes,
        "query",
        "size of an answer of the engine of --store that is read whole; answers passed on to clients are not",
        why="the live picture of 1,000 nodes of 8 GPUs is 60 MB; decoding takes four times that for a moment",
        metavar="256MiB",
    )

    # group "scrape": targets and what they answer (server)
    scrape_max_targets: int = _limit(
        10_000,
        parse_positive,
        "scrape",
        "targets of all jobs together; further ones are not scraped",
        why="each keeps a connection open; a hundred times the fleet of the benchmark",
    )
    scrape_max_body_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "scrape",
        "size of a target's answer, unpacked, where body_size_limit does not say otherwise",
        why="room for 250,000 samples of 130 bytes; node_exporter sends 60 KiB",
        metavar="32MiB",
    )
    scrape_max_pending_bytes: int = _limit(
        256 << 20,
        parse_bytes,
        "scrape",
        "answers in memory at once, of all targets; above it only those below 1 MiB are read",
        why="eight of the largest answers allowed, half of what an attack may take",
        metavar="256MiB",
    )
    scrape_max_samples: int = _limit(
        250_000,
        parse_positive,
        "scrape",
        "samples of one scrape, where sample_limit does not say otherwise",
        why="an agent with 8 GPUs sends 3,500, node_exporter 500; Prometheus has no limit",
    )
    scrape_max_line_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "length of a line in a target's answer",
        why="sixteen label values of the greatest length; a line is read in one piece",
        metavar="1MiB",
    )
    scrape_max_labels: int = _limit(
        512,
        parse_positive,
        "scrape",
        "labels of a series, where label_limit does not allow more",
        why="far above what exporters write; Prometheus has no limit",
    )
    scrape_max_label_name_bytes: int = _limit(
        1024,
        parse_bytes,
        "scrape",
        "length of a label's name, where label_name_length_limit does not allow more",
        why="the longest label Kubernetes allows has 317 bytes",
        metavar="1KiB",
    )
    scrape_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "scrape",
        "length of a label's value, where label_value_length_limit does not allow more",
        why="long URLs and command lines fit; Prometheus has no limit",
        metavar="64KiB",
    )
    scrape_max_metadata_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "names, help and units remembered of one target; the rest is left out of /api/v1/metadata",
        why="twenty times what node_exporter has, 50 KiB",
        metavar="1MiB",
    )

    # group "write": remote write received (up, server)
    write_max_request_bytes: int = _limit(
        16 << 20,
        parse_bytes,
        "write",
        "size of a remote-write request, compressed",
        why="Prometheus sends at most 2,000 samples in one, about 100 KiB",
        metavar="16MiB",
    )
    write_max_decoded_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "write",
        "size of a remote-write request, decompressed",
        why="Prometheus' own limit",
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
        "strings in the table of one remote-write 2.0 request",
        why="20 MiB; 2,000 series with ten labels of their own have 20,000",
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
        "length of a label's name in a remote-write request; a series with a longer one is refused",
        why="as for scrapes",
        metavar="1KiB",
    )
    write_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "write",
        "length of a label's value in a remote-write request; a series with a longer one is refused",
        why="as for scrapes",
        metavar="64KiB",
    )

    # group "store": the history (up, server)
    max_series: int | None = _limit(
        None,
        parse_positive,
        "store",
        "series in the history, 2 KiB of label text counting as one; new ones beyond it are refused "
        "(default: a quarter of the memory, or of the container's, at 2.5 KiB each)",
        why="every series of the retention time is in memory; without a limit 2.4 million took 5.5 GB",
    )
    max_new_series: int = _limit(
        200_000,
        parse_positive,
        "store",
        "new series of a scrape target, or of a remote writer's address, within ten minutes; more are refused",
        why="300 MiB; an agent with 8 GPUs has 3,500 series, a Prometheus that forwards 300 of them 200,000",
    )


def limit_rows(*groups: str) -> tuple[Field[Any], ...]:
    """The rows of these groups, or all."""
    return tuple(row for row in fields(Limits) if not groups or row.metadata["group"] in groups)


def limit_names(*groups: str) -> tuple[str, ...]:
    return tuple(row.name for row in limit_rows(*groups))


class LimitCounter:
    """How often each limit was reached since the process started."""

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
"""For the whole process, as its /metrics are."""
