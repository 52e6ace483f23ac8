"""The scrape configuration that the settings name: a file, a list of targets, or nothing."""

from __future__ import annotations

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_file
from gpuscope.history.scrape.config import ScrapeConfig, load_config, simple_config
from gpuscope.history.scrape.discovery import targets_from_argument


def read_scrape_config(settings: Settings) -> ScrapeConfig:
    """From --config, --targets, or neither: a server may receive remote write only."""
    if settings.config and settings.targets:
        raise UsageError(
            "--config and --targets: give only one of them; the configuration file can list targets too"
        )
    if settings.config:
        return load_config(home_file(settings.config, "config"), settings)
    if settings.targets:
        return simple_config(*targets_from_argument(settings.targets), settings.scrape_interval, settings)
    return ScrapeConfig()
