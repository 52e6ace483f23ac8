"""Prometheus' Python parser and ours give the same result for every exposition."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as their_openmetrics
from prometheus_client.parser import text_string_to_metric_families as their_text

from gpuscope.model.exposition.parser import parse_once
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import OPENMETRICS, of_gpu, running_agent
from tests.integration.expositions import FAMILIES, of_demo

__all__ = ["driver"]


def key(name: str, labels: dict[str, str]) -> str:
    return name + json.dumps(sorted(labels.items()))


def ours(text: str, *, openmetrics: bool = False) -> dict[str, float]:
    found: dict[str, float] = {}
    for pairs, _, value in parse_once(text, openmetrics=openmetrics):
        labels = dict(pairs)
        series = key(labels.pop("__name__"), {name: text for name, text in labels.items() if text})
        assert series not in found, "a series stands once"
        found[series] = value
    return found


def theirs(text: str, *, openmetrics: bool = False) -> dict[str, float]:
    read = their_openmetrics if openmetrics else their_text
    families: Iterable[Any] = read(text)
    names = set(re.findall(r"^\w+", text, re.MULTILINE))
    return {
        # Their parser adds `_total` to counters without it, such as DCGM's.
        key(
            sample.name if sample.name in names else sample.name.removesuffix("_total"),
            {name: text for name, text in sample.labels.items() if text},
        ): sample.value
        for family in families
        for sample in family.samples
    }


def same(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(
        value == other[name] or (math.isnan(value) and math.isnan(other[name])) for name, value in one.items()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_parsers_agree_on_every_family(family: str) -> None:
    text = of_demo(family)
    mine = ours(text)
    assert mine
    assert same(mine, theirs(text))


def test_parsers_agree_on_openmetrics_with_hostile_names(driver: FakeDriver) -> None:
    driver.gpus(2)
    driver.mig(1, [Mig(gi=7)])
    names: tuple[str | bytes, ...] = ('a"b', "c\\d", "e\nf", b"\xff", "训练")
    driver.processes(0, [Process(pid, name=name) for pid, name in enumerate(names, 1)])
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(lambda series: of_gpu(series, "gpuscope_gpu_up") == 1)
        text = agent.text(OPENMETRICS)
    mine = ours(text, openmetrics=True)
    assert len(mine) > 300
    assert same(mine, theirs(text, openmetrics=True))
