"""Expositions of a metric family, printed by the agent with simulated or fake hardware."""

from __future__ import annotations

import functools
import os
import subprocess

from tests.fake_nvml.driver import FakeDriver
from tests.integration.agent_process import GPUSCOPE

FAMILIES = ("native", "host", "dcgm", "dcgm_legacy", "nvidia_smi", "sessions")


@functools.cache
def of_demo(family: str) -> str:
    return _once("--source", "demo", "--families", family)


def of_driver(driver: FakeDriver, family: str) -> str:
    return _once("--source", "nvml", "--families", family, env=driver.env)


def _once(*flags: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*GPUSCOPE, "agent", "--once", *flags],
        capture_output=True,
        env={**os.environ, **(env or {})},
        check=True,
    )
    return done.stdout.decode()
