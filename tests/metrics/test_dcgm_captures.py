"""`--as dcgm-exporter` prints dcgm-exporter's lines for the same card values.

The recordings are others' (`tests/recordings.py`); without them these tests are skipped by name, and
`test_dcgm_small_captures.py` holds the same with cards of our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver as driver_or_skip
from tests.metrics.dcgm_card_values import Machine, card_values, closing_machines, put_cards
from tests.recordings import recording

__all__ = ["driver_or_skip"]

MakeMachine = Callable[..., Machine]

RUNNING = {  # numbers that grow with time in the recording's driver: only their series are compared
    *(f"DCGM_FI_DEV_{name}_VIOLATION" for name in ("POWER", "THERMAL", "SYNC_BOOST")),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
}
OWN_WAY = {
    # The recording's driver let DCGM watch no health at all; ours judges what it reads.
    "DCGM_EXP_GPU_HEALTH_STATUS",
    # dcgm-exporter gives a sample of 0 the label rows of the machine's last GPU; ours its own.
    "DCGM_EXP_XID_ERRORS_COUNT",
    # How often it sampled until it was recorded.
    "DCGM_EXP_CLOCK_EVENTS_COUNT",
    # Our driver counts errors on each link, the recording's does not.
    *(
        f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL"
        for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
    ),
}


def recorded(name: str) -> Path:
    return recording(f"captures/dcgm-exporter/{name}")


@pytest.fixture
def driver(driver_or_skip: FakeDriver, tmp_path: Path) -> Iterator[FakeDriver]:
    recorded("default-counters.csv")
    fake = FakeDriver(tmp_path / "cards", driver_version="550.163.01", cuda_version=12040)
    yield fake
    fake.heal()


@pytest.fixture
def machine(driver: FakeDriver, tmp_path: Path) -> Iterator[MakeMachine]:
    with closing_machines(driver, tmp_path) as make:

        def make_model(model: str, counters: str, *argv: str) -> Machine:
            put_cards(driver, card_values(recorded(f"{model.lower()}.card-values.yaml")), model)
            return make("-f", str(recorded(counters)), *argv)

        yield make_model


def name_of(line: str) -> str:
    return line.split()[2] if line.startswith("#") else re.split(r"[{ ]", line)[0]


def comparable(text: str) -> list[str]:
    """The lines without those that cannot be equal; changing numbers without their value."""
    lines = []
    for line in text.splitlines():
        name = name_of(line)
        if name in OWN_WAY:
            continue
        lines.append(line.rpartition(" ")[0] if name in RUNNING and not line.startswith("#") else line)
    return lines


@pytest.mark.parametrize(
    ("model", "name", "counters"),
    [
        ("H100", "h100.default", "default-counters.csv"),
        ("H100", "h100.dcp", "dcp-metrics-included.csv"),
        ("A100", "a100.default", "default-counters.csv"),
    ],
)
def test_the_same_lines_in_the_same_order(model: str, name: str, counters: str, machine: MakeMachine) -> None:
    output = machine(model, counters).scrape()
    expected = recorded(f"{name}.metrics").read_text()
    assert output.splitlines() == expected.splitlines()


def test_the_1_x_names(machine: MakeMachine) -> None:
    """The file has the PCIe rows twice. dcgm-exporter prints their series twice, which Prometheus refuses."""
    output = machine("H100", "1.x-compatibility-metrics.csv", "-o").scrape()
    expected = recorded("h100.1x-names.metrics").read_text().splitlines()
    assert output.splitlines() == list(dict.fromkeys(expected))


def test_every_row(machine: MakeMachine) -> None:
    output = machine("H100", "every-row.csv").scrape()
    assert comparable(output) == comparable(recorded("h100.every-row.metrics").read_text())


def test_one_xid_is_one_event_for_the_whole_window(driver: FakeDriver, machine: MakeMachine) -> None:
    ours = machine("H100", "every-row.csv")
    ours.scrape()
    driver.xid(1, 48)
    known = recorded("h100.after-xid48.metrics").read_text().splitlines()
    expected = [line for line in known if re.match(r"DCGM_FI_DEV_XID_ERRORS\{|.*xid=\"48\"", line)]
    assert len(expected) == 2
    for _ in range(40):
        lines = ours.scrape().splitlines()
        assert [line for line in lines if re.match(r"DCGM_FI_DEV_XID_ERRORS\{|.*xid=\"", line)] == expected


def test_an_ecc_error_shows_after_one_collect_interval(driver: FakeDriver, machine: MakeMachine) -> None:
    ours = machine("H100", "every-row.csv")
    driver.set(2, ecc_uncorrected_volatile_dram=99)
    start = 'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="2"'
    (line,) = [line for line in ours.scrape().splitlines() if line.startswith(start)]
    assert line.endswith(f" {99 + 61 + 62 + 63 + 64}"), "the other locations' errors are in the card values"
