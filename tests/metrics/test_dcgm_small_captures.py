"""As `test_dcgm_captures.py`, with two cards of our own: driver values in, dcgm-exporter's lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuscope.vendors.nvidia.families.dcgm.table import DEFAULT_COUNTERS, OPT_IN_COUNTERS
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver as driver_or_skip
from tests.goldens import check_golden
from tests.metrics.dcgm_card_values import Machine, card_values, closing_machines, put_cards

__all__ = ["driver_or_skip"]

MakeMachine = Callable[..., Machine]
CARDS = Path(__file__).parents[1] / "captures" / "dcgm-exporter" / "two-h100.card-values.yaml"
SHIPPED = "/etc/dcgm-exporter/"


@pytest.fixture
def driver(driver_or_skip: FakeDriver, tmp_path: Path) -> Iterator[FakeDriver]:
    fake = FakeDriver(tmp_path / "cards", driver_version="550.163.01", cuda_version=12040)
    put_cards(fake, card_values(CARDS), "H100")
    yield fake
    fake.heal()


@pytest.fixture
def machine(driver: FakeDriver, tmp_path: Path) -> Iterator[MakeMachine]:
    with closing_machines(driver, tmp_path) as make:
        yield make


@pytest.mark.parametrize(
    ("golden", "argv"),
    [
        ("two-h100.default", ()),
        ("two-h100.default", ("-f", SHIPPED + "dcp-metrics-included.csv")),
        ("two-h100.1x-names", ("-o", "-f", SHIPPED + "1.x-compatibility-metrics.csv")),
    ],
)
def test_shipped_counters(golden: str, argv: tuple[str, ...], machine: MakeMachine) -> None:
    output = machine(*argv).scrape()
    check_golden(Path("dcgm") / f"{golden}.metrics", output.encode())


def lines_of(output: str, start: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(start)]


def test_one_xid_is_one_event_for_the_whole_window(
    driver: FakeDriver, machine: MakeMachine, tmp_path: Path
) -> None:
    counters = tmp_path / "xids.csv"
    counters.write_text("DCGM_FI_DEV_XID_ERRORS,gauge,last\nDCGM_EXP_XID_ERRORS_COUNT,gauge,events\n")
    ours = machine("-f", str(counters))
    ours.scrape()
    driver.xid(1, 48)
    for _ in range(40):
        output = ours.scrape()
        counted = [line for line in lines_of(output, "DCGM_EXP_XID_ERRORS_COUNT{") if 'xid="48"' in line]
        assert [line.rpartition(" ")[2] for line in counted] == ["1"]
        assert [line for line in lines_of(output, "DCGM_FI_DEV_XID_ERRORS{") if line.endswith(" 48")]


def test_an_ecc_error_shows_after_one_collect_interval(
    driver: FakeDriver, machine: MakeMachine, tmp_path: Path
) -> None:
    counters = tmp_path / "ecc.csv"
    counters.write_text("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL,counter,errors\n")
    ours = machine("-f", str(counters))
    found = []
    for errors in (99, 101):
        driver.set(1, ecc_uncorrected_volatile_dram=errors)
        (line,) = lines_of(ours.scrape(), 'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="1"')
        found.append(int(line.rpartition(" ")[2]))
    assert found[1] - found[0] == 2, "the errors of the other locations are in both"


def test_every_row_of_nvidias_files(driver: FakeDriver, machine: MakeMachine, tmp_path: Path) -> None:
    counters = tmp_path / "every-row.csv"
    rows = {row.id: row for row in (*OPT_IN_COUNTERS, *DEFAULT_COUNTERS)}.values()
    counters.write_text("".join(f'{row.name},{row.type},"{row.help}"\n' for row in rows))
    ours = machine("-f", str(counters))
    driver.xid(1, 48)
    for _ in range(3):
        output = ours.scrape()
    check_golden(Path("dcgm") / "two-h100.every-row.metrics", output.encode())
    assert output.count('xid="48"} 1\n') == 1
