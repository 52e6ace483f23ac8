"""Discovers the targets of a job, or the Alertmanagers of an entry of `alertmanagers`: static ones, those in
file_sd files, and those of target providers.

If a file becomes unreadable or invalid, its last valid targets stay, as in Prometheus: a half-written file must
not end every series of a fleet.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gpuscope.base.config_values import ConfigMapping, load_yaml
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import UsageError
from gpuscope.base.files import read_regular_text
from gpuscope.base.limits import Limits
from gpuscope.base.settings import home_path
from gpuscope.history.scrape.config import TargetGroup, glob_files, read_group
from gpuscope.history.scrape.job_options import (
    SUPPORTED_KINDS,
    DnsProviderConfig,
    HttpProviderConfig,
    ProviderConfig,
)
from gpuscope.history.scrape.providers import TargetProvider
from gpuscope.history.scrape.providers.dns_provider import DnsProvider
from gpuscope.history.scrape.providers.http_provider import HttpProvider
from gpuscope.history.scrape.providers.kubernetes_provider import KubernetesProvider
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample

log = logging.getLogger("gpuscope.scrape")

# Runs target providers as tasks of the scraper's event loop, and combines their changes into few updates.
#
# A watch of a busy cluster changes many times a second, and each update relabels every target. So updates are
# at least `min_update_seconds` apart, as in Prometheus; the first one is immediate.

MIN_UPDATE_SECONDS = 5.0
PAUSE_AFTER_DEFECT_SECONDS = 30.0


def build_provider(config: ProviderConfig, workers: Executor, limits: Limits) -> TargetProvider:
    if isinstance(config, DnsProviderConfig):
        return DnsProvider(config)
    max_bytes = limits.discovery_max_body_bytes
    if isinstance(config, HttpProviderConfig):
        return HttpProvider(config, workers, max_bytes)
    return KubernetesProvider(config, workers, max_bytes, limits.discovery_max_objects)


class ProviderRunner:
    def __init__(
        self, update_targets: Callable[[], None], min_update_seconds: float = MIN_UPDATE_SECONDS
    ) -> None:
        """`update_targets` is called in the event loop when targets changed."""
        self._update_targets = update_targets
        self._min_update_seconds = min_update_seconds
        self._tasks: dict[TargetProvider, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._updated_at = float("-inf")
        self._past_failures: Counter[str] = Counter()

    async def run_only(self, wanted: Iterable[TargetProvider]) -> None:
        """Starts those that do not run, stops all others."""
        wanted = tuple(wanted)
        gone = [provider for provider in self._tasks if provider not in wanted]
        await self._stop(gone)
        for provider in wanted:
            if provider not in self._tasks:
                name = f"{provider.config.mechanism} discovery"
                self._tasks[provider] = asyncio.create_task(self._run(provider), name=name)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._stop(list(self._tasks))

    async def _stop(self, providers: list[TargetProvider]) -> None:
        tasks = [self._tasks.pop(provider) for provider in providers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for provider in providers:
            self._past_failures[provider.config.mechanism] += provider.failures

    async def _run(self, provider: TargetProvider) -> None:
        while True:
            try:
                await provider.run(self._changed)
            except Exception:
                log.exception("%s discovery failed; its targets stay", provider.config.mechanism)
            await asyncio.sleep(PAUSE_AFTER_DEFECT_SECONDS)

    def _changed(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            due_at = max(loop.time(), self._updated_at + self._min_update_seconds)
            self._timer = loop.call_at(due_at, self._update)

    def _update(self) -> None:
        self._timer = None
        self._updated_at = asyncio.get_running_loop().time()
        self._update_targets()

    def families(self) -> Iterator[MetricFamily]:
        failures = self._past_failures.copy()
        for provider in list(self._tasks):
            failures[provider.config.mechanism] += provider.failures
        yield MetricFamily(
            "gpuscope_discovery_failures_total",
            "counter",
            "Failed refreshes of dns_sd_configs, http_sd_configs and kubernetes_sd_configs.",
            [Sample(LabelSet((("mechanism", kind),)), failures[kind]) for kind in SUPPORTED_KINDS],
        )


MAX_FILE_BYTES = 32 << 20


@dataclass(slots=True)
class _File:
    episode: EpisodeLog
    stamp: tuple[int, int, int] = (0, 0, 0)
    groups: tuple[TargetGroup, ...] = ()


class TargetSources(Protocol):
    """Where targets come from."""

    @property
    def name(self) -> str: ...
    @property
    def static(self) -> tuple[TargetGroup, ...]: ...
    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def providers(self) -> tuple[ProviderConfig, ...]: ...


J = TypeVar("J", bound=TargetSources)


@dataclass(slots=True)
class Discovery(Generic[J]):
    """One job's target groups; `groups` reads files that changed since the last call."""

    job: J
    providers: tuple[TargetProvider, ...] = ()
    _files: dict[Path, _File] = field(default_factory=dict)

    def groups(self) -> tuple[TargetGroup, ...]:
        groups = list(self.job.static)
        paths = sorted({path for pattern in self.job.files for path in glob_files(pattern)})
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
        for path in paths:
            known = self._files.get(path)
            if known is None:
                known = self._files[path] = _File(EpisodeLog(log, f"targets in {path}", level=logging.ERROR))
            self._refresh(path, known)
            groups += known.groups
        for provider in self.providers:
            groups += provider.groups()
        return tuple(groups)

    def _refresh(self, path: Path, known: _File) -> None:
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp == known.stamp:
                return
            if state.st_size > MAX_FILE_BYTES:
                raise UsageError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
            groups = read_target_file(path)
        except (UsageError, OSError) as error:
            known.episode.failed(f"{str(error).removeprefix(f'{path}: ')}; keeping the last valid targets")
            return
        known.episode.succeeded()
        known.stamp, known.groups = stamp, groups


def build_discoveries(
    jobs: Iterable[J], before: Sequence[Discovery[J]], workers: Executor, limits: Limits
) -> list[Discovery[J]]:
    """Targets that providers of the same configuration found before stay until the first answer."""
    known = {
        (discovery.job.name, provider.config): provider.groups()
        for discovery in before
        for provider in discovery.providers
    }
    discoveries = []
    for job in jobs:
        providers = tuple(build_provider(provider, workers, limits) for provider in job.providers)
        for provider in providers:
            provider.adopt(known.get((job.name, provider.config), ()))
        discoveries.append(Discovery(job, providers))
    return discoveries


def read_target_file(path: Path) -> tuple[TargetGroup, ...]:
    """A file_sd file: a list of {targets, labels} in JSON or YAML."""
    document: object
    if path.suffix == ".json":
        try:
            document = json.loads(read_regular_text(path))
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: {error}") from None
    else:
        document = load_yaml(path)
    if not isinstance(document, list):
        raise UsageError(f"{path}: must be a list of target groups, each with targets and labels")
    groups = []
    for at, entry in enumerate(document):
        group = read_group(ConfigMapping(entry, f"{path}: [{at}]", path.parent))
        labels = {**group.labels, "__meta_filepath": str(path)}
        groups.append(replace(group, labels=labels))
    return tuple(groups)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a list of addresses may exceed the length limit of file names
        return False


def targets_from_argument(text: str) -> tuple[tuple[TargetGroup, ...], tuple[str, ...]]:
    """Parses `--targets`: a file_sd file, which is watched, or comma-separated addresses."""
    path = home_path(text, "targets")
    if path.suffix in (".json", ".yml", ".yaml"):
        if not _is_file(path):
            raise UsageError(f"--targets {text}: there is no such file")
        read_target_file(path)
        return (), (str(path.absolute()),)
    if _is_file(path):
        try:
            lines = read_regular_text(path).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--targets {text}: {error}") from None
        words = [line.split("#", 1)[0].strip() for line in lines]
    else:
        words = [word.strip() for word in text.split(",")]
    addresses = tuple(word for word in words if word)
    if not addresses:
        raise UsageError(f"--targets {text!r}: names no target; give HOST:PORT,HOST:PORT or a file")
    return (read_group(ConfigMapping({"targets": list(addresses)}, f"--targets {text}", Path())),), ()
