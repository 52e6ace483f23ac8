"""The table of limits on everything that a client, a scrape target or a query can make large.

A field of `Limits` is a setting (`--max-connections`, `GPUSCOPE_MAX_CONNECTIONS`) with its default, its group
(the commands that have it), a help text and the reason for the default. Code that enforces a limit reads it
from a `Limits` and calls `LIMITS_REACHED.count("max_connections")` on each refusal; `/metrics` exports both as
`gpuscope_limit` and `gpuscope_limit_reached_total`. Limits on the driver, on local files and on services of the
node (kubelet, Docker, slurmrestd) are constants (`MAX_*`) next to the code, because no client can reach them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from gpuscope.base.setting_values import parse_bytes, parse_positive, parse_positive_duration

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
    # Group "http": every HTTP listener (agent, up, server)
    max_connections: int = _limit(
        512,
        parse_positive,
        "http",
        "maximum open connections per listener, including TLS handshakes",
        why="512 idle connections take 20 MiB; lowered automatically to fit the limit on open files",
    )
    max_request_head_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "http",
        "maximum size of a request head",
        why="browsers and proxies stop at 8 to 32 KiB; long PromQL in a URL stays below 64 KiB",
        metavar="64KiB",
    )
    max_connections_per_address: int = _limit(
        128,
        parse_positive,
        "http",
        "maximum connections per client address (IPv6: per /64), or concurrent requests per client of a proxy",
        why="a browser opens 6; a quarter of max_connections; add proxies to --proxy-auth-from",
    )
    tls_handshake_timeout: float = _limit(
        10.0,
        parse_positive_duration,
        "http",
        "timeout of a TLS handshake",
        why="three round trips; a slow connection needs 2 s",
        metavar="10s",
    )
    request_head_timeout: float = _limit(
        30.0,
        parse_positive_duration,
        "http",
        "timeout of a request head, and of a new connection until its first byte",
        why="a client on a slow connection needs a few seconds",
        metavar="30s",
    )
    request_body_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "timeout of a request body",
        why="the largest body, 16 MiB, at 1.1 Mbit/s; Prometheus' remote write has a timeout of 30 s",
        metavar="2m",
    )
    max_request_bodies_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "http",
        "maximum size of all request bodies in memory; one client address may use half",
        why="four of the largest bodies; above it the response is 503 with Retry-After, and senders retry",
        metavar="64MiB",
    )
    client_stall_timeout: float = _limit(
        60.0,
        parse_positive_duration,
        "http",
        "timeout without a received body byte; also the period over which --min-response-rate is measured",
        why="longer than a laptop needs to change its network",
        metavar="60s",
    )
    min_response_rate: int = _limit(
        8 << 10,
        parse_bytes,
        "http",
        "minimum rate in bytes per second at which a client must receive a response",
        why="64 kbit/s; a rate and not a timeout, because a large response may take long on a slow connection",
        metavar="8KiB",
    )
    keep_alive_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "http",
        "timeout of an idle connection",
        why="longer than the intervals of scrapers and dashboards, so that they keep their connections",
        metavar="2m",
    )
    max_client_log_lines: int = _limit(
        10,
        parse_positive,
        "http",
        "maximum log lines per minute and kind that clients can cause; one more line counts the rest",
        why="enough to identify the client; 10 kinds at this rate write 2 MB a day",
    )
    max_password_attempts_per_address: int = _limit(
        5,
        parse_positive,
        "http",
        "failed logins per client address before a wait of up to 15 minutes",
        why="people mistype two or three times",
    )
    max_password_attempts_per_user: int = _limit(
        10,
        parse_positive,
        "http",
        "failed logins per user before a wait of up to 1 minute",
        why="higher, with a shorter wait: an attacker must not be able to lock a user out for long",
    )
    max_password_queue: int = _limit(
        32,
        parse_positive,
        "http",
        "maximum queued password checks; two run at the same time",
        why="bcrypt takes 0.2 s each, so the last one waits 3 s",
    )

    # Group "query": PromQL (up, server)
    query_max_samples: int = _limit(
        50_000_000,
        parse_positive,
        "query",
        "maximum samples in memory per query; 16 bytes each",
        why="Prometheus' default; query_max_total_samples, which Prometheus does not have, is reached first",
    )
    query_max_total_samples: int = _limit(
        20_000_000,
        parse_positive,
        "query",
        "maximum samples in memory of all queries; a query waits up to 10 s for free memory",
        why="320 MB: a day of 1,000 series at 5 s; without it, 20 queries could use 20 times as much",
    )
    query_timeout: float = _limit(
        120.0,
        parse_positive_duration,
        "query",
        "maximum run time of a query",
        why="Prometheus' default",
        metavar="2m",
    )
    query_max_concurrency: int = _limit(
        20,
        parse_positive,
        "query",
        "maximum concurrent large queries; others wait, and each wait counts as reaching the limit",
        why="Prometheus' default",
    )
    query_log_max_bytes: int = _limit(
        64 << 20,
        parse_bytes,
        "query",
        "size at which the query log is renamed to FILE.1 and a new file is started",
        why="about 120,000 queries; at most two files exist",
        metavar="64MiB",
    )

    query_max_label_bytes: int = _limit(
        128 << 20,
        parse_bytes,
        "query",
        "maximum label text that one query creates (label_replace, label_join, count_values); a 64th per label",
        why="a label_replace over 100,000 series creates 20 MB including tuples; nested ones created 20 GB",
        metavar="128MiB",
    )
    query_max_selectors: int = _limit(
        1_000,
        parse_positive,
        "query",
        "maximum match[] parameters per request",
        why="federation and dashboards send tens; each takes 0.2 ms or more",
    )
    query_max_large_responses: int = _limit(
        8,
        parse_positive,
        "query",
        "maximum concurrent responses above 1 MiB; further ones get 503",
        why="a result stays in memory until the client has received it, so slow clients must be few",
    )

    idle_audit_max_bytes: int = _limit(
        4 << 20,
        parse_bytes,
        "query",
        "maximum size of the idle policy's audit log; the file before it is kept too",
        why="an entry of a holder with 8 GPUs is 800 bytes: 5,000 actions, and as many before them",
        metavar="4MiB",
    )
    report_max_concurrency: int = _limit(
        2,
        parse_positive,
        "query",
        "maximum concurrent usage reports and receipts; further ones get 503",
        why="a year reads millions of samples for seconds; queries and the page keep their threads",
    )
    mcp_max_concurrency: int = _limit(
        4,
        parse_positive,
        "query",
        "maximum concurrent questions of assistants over /mcp; further ones get 503",
        why="an assistant asks one after the other; a loop of calls must not take the page's threads",
    )
    report_max_rows: int = _limit(
        10_000,
        parse_positive,
        "query",
        "maximum rows of a usage report over HTTP; its total has the others",
        why="a row is 250 bytes of JSON, and a page cannot show more; `gpuscope report` prints all",
    )

    engine_max_response_bytes: int = _limit(
        128 << 20,
        parse_bytes,
        "query",
        "maximum size of a response of the --store engine that is read here; others are not limited",
        why="the live picture of 1,000 nodes of 8 GPUs is 60 MB",
        metavar="128MiB",
    )

    engine_max_answers_bytes: int = _limit(
        320 << 20,
        parse_bytes,
        "query",
        "maximum memory of all responses of the --store engine that are being read, without their text",
        why="the live picture of 1,000 nodes of 8 GPUs takes half; small texts decode to 30 times their size",
        metavar="320MiB",
    )

    findings_max_range: float = _limit(
        31 * 86400.0,
        parse_positive_duration,
        "query",
        "maximum range of findings over time (/api/findings?since=)",
        why="a month; each day of 1,000 GPUs takes some seconds of the engine once, and 2 MB",
        metavar="31d",
    )

    # Group "scrape": targets and their responses (server)
    scrape_max_targets: int = _limit(
        10_000,
        parse_positive,
        "scrape",
        "maximum targets of all jobs; further ones are not scraped",
        why="each target keeps a connection open; 100 times the fleet of the benchmark",
    )
    scrape_max_body_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "scrape",
        "maximum size of a target's decompressed response, unless body_size_limit is set",
        why="room for 250,000 samples of 130 bytes; node_exporter sends 60 KiB",
        metavar="32MiB",
    )
    scrape_max_pending_bytes: int = _limit(
        256 << 20,
        parse_bytes,
        "scrape",
        "maximum size of all targets' responses in memory; above it only those below 1 MiB are accepted",
        why="eight responses of the maximum size, half of the memory that an attack may use",
        metavar="256MiB",
    )
    scrape_max_samples: int = _limit(
        250_000,
        parse_positive,
        "scrape",
        "maximum samples per scrape, unless sample_limit is set",
        why="an agent with 8 GPUs sends 3,500, node_exporter 500; Prometheus has no limit",
    )
    scrape_max_line_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "maximum length of a line in a target's response",
        why="sixteen label values of the maximum length",
        metavar="1MiB",
    )
    scrape_max_labels: int = _limit(
        512,
        parse_positive,
        "scrape",
        "maximum labels per series, unless label_limit is higher",
        why="far more than exporters write; Prometheus has no limit",
    )
    scrape_max_label_name_bytes: int = _limit(
        1024,
        parse_bytes,
        "scrape",
        "maximum length of a label name, unless label_name_length_limit is higher",
        why="the longest label name that Kubernetes allows has 317 bytes",
        metavar="1KiB",
    )
    scrape_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "scrape",
        "maximum length of a label value, unless label_value_length_limit is higher",
        why="long URLs and command lines fit; Prometheus has no limit",
        metavar="64KiB",
    )
    scrape_max_metadata_bytes: int = _limit(
        1 << 20,
        parse_bytes,
        "scrape",
        "maximum metadata (names, help, units) per target; the rest is missing from /api/v1/metadata",
        why="twenty times the metadata of node_exporter, 50 KiB",
        metavar="1MiB",
    )

    discovery_max_body_bytes: int = _limit(
        8 << 20,
        parse_bytes,
        "scrape",
        "maximum size of an http_sd_configs answer, or of a page or event of a Kubernetes API server",
        why="10,000 targets with 800 bytes of labels each; a page of 100 pods has 1 to 2 MB",
        metavar="8MiB",
    )
    discovery_max_objects: int = _limit(
        20_000,
        parse_positive,
        "scrape",
        "maximum objects of one kind and namespace that a kubernetes_sd_configs entry keeps",
        why="twice scrape_max_targets, about 100 MB of labels; namespaces and selectors select fewer",
    )

    # Group "write": the remote-write receiver (up, server)
    write_max_request_bytes: int = _limit(
        16 << 20,
        parse_bytes,
        "write",
        "maximum size of a remote-write request, compressed",
        why="Prometheus sends at most 2,000 samples per request, about 100 KiB",
        metavar="16MiB",
    )
    write_max_decoded_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "write",
        "maximum size of a remote-write request, decompressed",
        why="Prometheus' limit",
        metavar="32MiB",
    )
    write_max_samples: int = _limit(
        500_000,
        parse_positive,
        "write",
        "maximum series, samples, histograms and exemplars per remote-write request",
        why="decoding takes about 2 s and 100 MiB; Prometheus sends 2,000",
    )
    write_max_symbols: int = _limit(
        200_000,
        parse_positive,
        "write",
        "maximum symbols per remote-write 2.0 request",
        why="20 MiB; 2,000 series with ten distinct labels each have 20,000",
    )
    write_max_labels: int = _limit(
        512,
        parse_positive,
        "write",
        "maximum labels per series in a remote-write request; only a series with more is refused",
        why="as for scrapes; a request with one series could have two million labels, 400 MiB",
    )
    write_max_label_name_bytes: int = _limit(
        1024,
        parse_bytes,
        "write",
        "maximum length of a label name in a remote-write request; a series with a longer one is refused",
        why="as for scrapes",
        metavar="1KiB",
    )
    write_max_label_value_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "write",
        "maximum length of a label value in a remote-write request; a series with a longer one is refused",
        why="as for scrapes",
        metavar="64KiB",
    )

    # Group "rules": rule files and their templates (up, server)
    template_max_bytes: int = _limit(
        256 << 10,
        parse_bytes,
        "rules",
        "maximum size of a template's text; a longer one is refused when its file is loaded",
        why="Alertmanager's own mail template has 14 KiB",
        metavar="256KiB",
    )
    template_max_output_bytes: int = _limit(
        8 << 20,
        parse_bytes,
        "rules",
        "maximum output of a template or of one of its functions; each printed value counts 64 bytes more",
        why="Alertmanager's own mail about 500 alerts has 1.7 MB; printf could pad to any width",
        metavar="8MiB",
    )
    template_max_text_bytes: int = _limit(
        32 << 20,
        parse_bytes,
        "rules",
        "maximum size of all texts and lists that a template's functions read and return, added up",
        why="3 s; Alertmanager's own mail about 500 alerts takes 2 MB",
        metavar="32MiB",
    )
    template_max_steps: int = _limit(
        1_000_000,
        parse_positive,
        "rules",
        "maximum nodes that a template may evaluate before it is stopped",
        why="1 s; Alertmanager's own mail about 500 alerts takes 59,000 and 0.4 s",
    )
    template_max_depth: int = _limit(
        100,
        parse_positive,
        "rules",
        "maximum nesting depth of blocks, parentheses and template calls in a template",
        why="public rule files nest 4 deep; each level takes five frames of Python's stack",
    )

    # Group "store": the history (up, server)
    max_series: int | None = _limit(
        None,
        parse_positive,
        "store",
        "maximum series in the history; eight that have ended count as one, and so does each 2 KiB of label "
        "text; further new series are refused (default: a quarter of the machine's or container's memory, at "
        "2.5 KiB each)",
        why="all series of the retention time are in memory; without a limit 2.4 million took 5.5 GB",
    )
    max_new_series: int = _limit(
        200_000,
        parse_positive,
        "store",
        "maximum new series per scrape target or remote-write client address within ten minutes",
        why="300 MiB; an agent with 8 GPUs has 3,500 series",
    )

    # Group "rules": rule evaluation and alerts (up, server)
    rules_max_alerts: int = _limit(
        100_000,
        parse_positive,
        "rules",
        "maximum alerts of one rule; a rule whose expression gives more fails and changes nothing",
        why="about 100 MiB with three annotations each; 1,000 nodes with 8 GPUs and ten alerts each are 80,000",
    )
    rules_max_template_queries: int = _limit(
        500,
        parse_positive,
        "rules",
        "maximum queries that the annotations of one rule run in an evaluation; further alerts keep the texts "
        "of an earlier evaluation and are updated in a later one",
        why="0.4 s of CPU; 10,000 alerts with two queries each would take 14 s, as long as the usual interval",
    )
    alertmanager_queue_capacity: int = _limit(
        10_000,
        parse_positive,
        "rules",
        "maximum alerts queued for one Alertmanager; the oldest are dropped",
        why="Prometheus' default; alerts that still fire are sent again after a minute",
    )
    alertmanagers_max: int = _limit(
        100,
        parse_positive,
        "rules",
        "maximum Alertmanagers that alerts are sent to; further ones that discovery finds get none",
        why="each has a thread and a queue; a cluster of Alertmanagers has two or three",
    )

    # Group "alerts": notifications and Alertmanager's API (up, server)
    max_alerts: int = _limit(
        50_000,
        parse_positive,
        "alerts",
        "maximum alerts kept at the same time; each 2 KiB of text counts as one; further new ones are refused "
        "until others are resolved; a quarter is for this server's own rules",
        why="100 MiB; a fleet of 8,000 GPUs with five alerts per GPU; senders send again what still fires",
    )
    max_alert_groups: int = _limit(
        10_000,
        parse_positive,
        "alerts",
        "maximum groups of alerts; an alert that would start another group waits until a group is gone; "
        "a quarter is for this server's own rules",
        why="each group sends its own messages, and nobody reads as many",
    )
    max_alert_bytes: int = _limit(
        64 << 10,
        parse_bytes,
        "alerts",
        "maximum size of labels, annotations and URL of an alert that a client sends; a larger one is refused",
        why="as for labels of scrapes; alerts have a few hundred bytes",
        metavar="64KiB",
    )
    max_alerts_request_bytes: int = _limit(
        16 << 20,
        parse_bytes,
        "alerts",
        "maximum size of a request with alerts or a silence",
        why="10,000 alerts of 1.6 KiB; Prometheus sends 256 alerts per request",
        metavar="16MiB",
    )
    max_alerts_request_values: int = _limit(
        500_000,
        parse_positive,
        "alerts",
        "maximum JSON values in a request with alerts or a silence",
        why="10,000 alerts with 40 labels and annotations; 16 MiB of [] would be 400 MiB in memory",
    )
    max_silences: int = _limit(
        10_000,
        parse_positive,
        "alerts",
        "maximum silences, including those that expired in the last five days; further ones are refused",
        why="users have tens of silences",
    )
    max_silence_bytes: int = _limit(
        16 << 10,
        parse_bytes,
        "alerts",
        "maximum size of a silence: matchers, comment, author, annotations; each matcher counts 200 bytes more",
        why="a list of 1,000 nodes in a matcher has 10 KiB; 10,000 silences of this size take 300 MiB",
        metavar="16KiB",
    )
    max_silence_patterns: int = _limit(
        1_000,
        parse_positive,
        "alerts",
        'maximum matchers of all silences that are not name="value" (=~, !~ and !=); further ones are refused',
        why="each is compared with every alert; a regular expression takes up to 300 KiB while it is compared",
    )
    max_notification_history: int = _limit(
        1000,
        parse_positive,
        "alerts",
        "maximum messages in the history of notifications; the oldest are removed first",
        why="at most 10 KiB each; a fleet with ten messages a day has three months",
    )

    # Group "page": the page's live stream (up, server)
    max_live_streams: int = _limit(
        200,
        parse_positive,
        "page",
        "maximum open streams of /api/live/stream; a page without one asks for the whole picture instead",
        why="one per visible browser tab; below max_connections, so that other requests get through",
    )
    live_max_subjects: int = _limit(
        80_000,
        parse_positive,
        "page",
        "maximum nodes, GPUs, MIG instances and processes of the live picture; others are left out, and "
        "nodes that push unverified before the rest",
        why="220 MiB; 1,000 nodes with 8 GPUs and 7 instances each have 65,000",
    )
    live_max_gone_nodes: int = _limit(
        10_000,
        parse_positive,
        "page",
        "maximum nodes of the live picture that were there within a day and are gone; others are left out",
        why="1,000 nodes whose address changes ten times a day; 100 of them are looked up at a time",
    )
    live_stream_lifetime: float = _limit(
        300.0,
        parse_positive_duration,
        "page",
        "time after which a live stream ends; the page resumes it",
        why="a login that was revoked sees the fleet for at most this long",
        metavar="5m",
    )
    live_stream_kept_bytes: int = _limit(
        8 << 20,
        parse_bytes,
        "page",
        "differences kept for pages that resume; a page that is further behind gets the whole picture",
        why="a minute of 8,000 GPUs; an hour of 32 GPUs",
        metavar="8MiB",
    )
    audit_log_max_bytes: int = _limit(
        10 << 20,
        parse_bytes,
        "page",
        "size at which the audit log is renamed to audit.log.1 and a new file is started",
        why="40,000 changes; silences and users change a few times a day",
        metavar="10MiB",
    )


def limit_rows(*groups: str) -> tuple[Field[Any], ...]:
    """The limits of these groups, or of all groups."""
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
"""Shared by the whole process, like its /metrics."""
