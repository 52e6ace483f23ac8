"""Builds scrape targets from discovered addresses: applies relabel_configs, sets URL and labels.

Labels that begin with `__` exist only during relabelling; `instance` defaults to the address. A target that a
rule drops, or that has no address, becomes a `DroppedTarget` for the API.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from gpuscope.base.config_values import parse_config_duration
from gpuscope.base.time_text import duration_text
from gpuscope.history.scrape.config import ScrapeJob, TargetGroup
from gpuscope.history.scrape.relabel import relabel
from gpuscope.history.store.tick import scrape_target_name


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    job: ScrapeJob
    url: str
    labels: tuple[tuple[str, str], ...]
    discovered: dict[str, str] = field(compare=False, hash=False, repr=False)
    interval: float = 0.0
    timeout: float = 0.0
    interval_text: str = ""  # as relabelling left it, for the API: `7200s` stays so
    timeout_text: str = ""

    @property
    def name(self) -> str:
        """The target's name in the store; stable across restarts."""
        return scrape_target_name(self.labels, self.url)

    def offset(self, salt: str = "") -> float:
        """Offset of the scrape within the interval, in seconds: evenly spread, stable across restarts."""
        digest = hashlib.blake2b(f"{salt}{self.name}".encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 * self.interval

    def wait_seconds(self, now: float, salt: str = "") -> float:
        return (self.offset(salt) - now) % self.interval


@dataclass(frozen=True, slots=True)
class DroppedTarget:
    job: str
    discovered: dict[str, str]
    why: str


def build_targets(job: ScrapeJob, groups: tuple[TargetGroup, ...]) -> Iterator[ScrapeTarget | DroppedTarget]:
    """Several may be equal: containers without a port have the same address, for example."""
    for group in groups:
        for address in group.targets:
            yield build_target(job, discovered_labels(job, group, address))


def discovered_labels(job: ScrapeJob, group: TargetGroup, address: str) -> dict[str, str]:
    labels = {
        "job": job.name,
        "__scheme__": job.scheme,
        "__metrics_path__": job.metrics_path,
        "__scrape_interval__": duration_text(round(1000 * job.interval)),
        "__scrape_timeout__": duration_text(round(1000 * job.timeout)),
        **{f"__param_{name}": values[0] for name, values in job.params if values},
        **group.labels,
        "__address__": address,
    }
    return {name: value for name, value in labels.items() if value != ""}


def build_target(job: ScrapeJob, discovered: dict[str, str]) -> ScrapeTarget | DroppedTarget:
    labels = relabel(discovered, job.relabel)
    if labels is None:
        return DroppedTarget(job.name, discovered, "relabel_configs")
    address = labels.get("__address__", "")
    if not address:
        return DroppedTarget(job.name, discovered, "no address")
    if "/" in address or any(char.isspace() for char in address):
        return DroppedTarget(job.name, discovered, f"{address!r} is not a host and port")
    try:
        interval = parse_config_duration(interval_text := labels.get("__scrape_interval__", ""))
        timeout = parse_config_duration(timeout_text := labels.get("__scrape_timeout__", ""))
    except ValueError as error:
        return DroppedTarget(job.name, discovered, str(error))
    if interval < 0.1 or not 0 < timeout <= interval:
        return DroppedTarget(job.name, discovered, "scrape interval or timeout out of range after relabelling")
    kept = {name: value for name, value in labels.items() if not name.startswith("__")}
    kept.setdefault("instance", address)
    return ScrapeTarget(
        job,
        _url(job, labels, address),
        tuple(sorted(kept.items())),
        discovered,
        interval,
        timeout,
        interval_text,
        timeout_text,
    )


def _url(job: ScrapeJob, labels: dict[str, str], address: str) -> str:
    params = {name: list(values) for name, values in job.params}
    for name, value in sorted(labels.items()):
        if name.startswith("__param_"):
            # Relabelling sees and changes only the first value; removing the label has no effect.
            params.setdefault(name.removeprefix("__param_"), [])[:1] = [value]
    path = labels.get("__metrics_path__", "/metrics")
    url = f"{labels.get('__scheme__', 'http')}://{address}{path if path.startswith('/') else '/' + path}"
    if not any(params.values()):
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(sorted(params.items()), doseq=True)}"


# The health of a scrape target, as reported by its loop or by another engine.


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHealth:
    """Times are in seconds since the epoch; None means unknown, or not since this process started."""

    labels: Mapping[str, str]
    url: str = ""
    up: bool = False
    scraped: bool = True  # False: not scraped yet
    error: str = ""
    first_try: float | None = None
    last_success: float | None = None

    @property
    def instance(self) -> str:
        return self.labels.get("instance", "")

    @property
    def job(self) -> str:
        return self.labels.get("job", "")
