"""Reads the providers of a job, and runs one until a condition holds, without a scraper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from gpuscope.base.yaml_file import TextLoader
from gpuscope.history.scrape.config import ScrapeConfig, ScrapeJob, read_config
from gpuscope.history.scrape.job_options import DnsProviderConfig, ProviderConfig
from gpuscope.history.scrape.providers import TargetProvider
from gpuscope.history.scrape.providers.dns_provider import DnsProvider
from gpuscope.history.scrape.target import discovered_labels
from tests.waiting import wait_in_loop_for

Step = Callable[[TargetProvider], bool]


def run_provider(build: Callable[[ThreadPoolExecutor], TargetProvider], *steps: Step) -> TargetProvider:
    """Each step is called until it is true; it may change what the provider finds."""

    async def run(provider: TargetProvider) -> None:
        task = asyncio.create_task(provider.run(lambda: None))
        try:
            for step in steps:
                await wait_in_loop_for(lambda done=step: done(provider) or task.done(), step.__name__)  # type: ignore[misc]
                assert not task.done(), task.result() if task.done() else ""
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with ThreadPoolExecutor(2) as workers:
        provider = build(workers)
        asyncio.run(run(provider))
    return provider


def addresses(provider: TargetProvider) -> list[str]:
    return [target for group in provider.groups() for target in group.targets]


def finds(*wanted: str) -> Step:
    def found(provider: TargetProvider) -> bool:
        return addresses(provider) == list(wanted)

    return found


def failing(at_least: int = 1) -> Step:
    def failed(provider: TargetProvider) -> bool:
        return provider.failures >= at_least

    return failed


def does(action: Callable[[], object]) -> Step:
    def done(provider: TargetProvider) -> bool:
        action()
        return True

    return done


def read_job(job: str) -> tuple[ScrapeConfig, tuple[ProviderConfig, ...]]:
    read = read_config(yaml.load(f"scrape_configs: [{{job_name: j, {job}}}]", TextLoader), "p.yml", Path())
    return read, read.jobs[0].providers


def dns_targets(config: DnsProviderConfig, resolv_conf: Path, port: int, job: str) -> list[dict[str, str]]:
    """Discovered labels once every name was looked up."""
    refreshed: list[bool] = []

    async def refresh(provider: DnsProvider) -> None:
        task = asyncio.create_task(provider.run(lambda: refreshed.append(True)))
        try:
            await wait_in_loop_for(lambda: refreshed, "a lookup")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    provider = DnsProvider(config, resolv_conf=resolv_conf, port=port)
    asyncio.run(refresh(provider))
    groups = provider.groups()
    scraped = ScrapeJob(job, interval=3600.0)
    return [discovered_labels(scraped, group, group.targets[0]) for group in groups]
