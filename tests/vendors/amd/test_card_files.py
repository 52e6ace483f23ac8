"""Files of the kernel that are missing, refuse, fail or contain no number; and small files that are parsed."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from gpuscope.vendors.amd.amdgpu.card_names import model_name, parse_names
from gpuscope.vendors.amd.amdgpu.card_reader import highest_level
from gpuscope.vendors.amd.amdgpu.ras_counts import parse_bad_pages, parse_err_count
from gpuscope.vendors.drm.card_files import CardFiles, parse_properties
from gpuscope.vendors.drm.pcie_link import parse_link_speed
from tests.vendors.amd.failing_files import FailingFiles


def files_of(folder: Path, guard: FailingFiles | None = None) -> CardFiles:
    return CardFiles(str(folder), "amdgpu: GPU 0", guard)


def test_a_number_and_a_zero(tmp_path: Path) -> None:
    (tmp_path / "busy").write_text("42\n")
    (tmp_path / "idle").write_text("0\n")
    files = files_of(tmp_path)
    assert (files.number("busy"), files.number("idle"), files.scaled("busy", 0.01)) == (42, 0, 0.42)
    assert files.answered == 3
    assert files.failures == {}


def test_a_missing_file_is_absent_no_failure_and_not_looked_for_again(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    assert files.number("later") is ABSENT
    (tmp_path / "later").write_text("1\n")
    assert files.number("later") is ABSENT
    files.retry_refused()
    assert files.number("later") == 1
    assert files.failures == {}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES])
def test_a_refused_file_is_named_once_and_not_read_again(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "busy").write_text("42\n")
    guard = FailingFiles({"busy": code})
    files = files_of(tmp_path, guard)
    with caplog.at_level(logging.INFO, "gpuscope.source"):
        for _ in range(3):
            assert files.number("busy") is ABSENT
        files.retry_refused()
        assert files.number("busy") is ABSENT
    assert guard.entered == ["busy", "busy"]
    assert files.failures == {}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"source amdgpu: GPU 0 does not give busy ({errno.errorcode[code]}); its number is absent"]


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EIO, errno.EPERM, errno.ENODEV, errno.ETIMEDOUT])
def test_a_failing_file_is_named_and_read_again(tmp_path: Path, code: int) -> None:
    (tmp_path / "busy").write_text("42\n")
    guard = FailingFiles({"busy": code})
    files = files_of(tmp_path, guard)
    assert files.number("busy") is ABSENT
    assert files.failures == {"busy": errno.errorcode[code]}
    guard.codes.clear()
    files.begin()
    assert files.number("busy") == 42
    assert files.failures == {}


@pytest.mark.parametrize(
    ("content", "failures"),
    [
        (b"N/A\n", {}),
        (b"", {}),
        (b"\n", {}),
        (b"Query currently inaccessible\n", {"file": "inaccessible"}),
        (b"12 apples\n", {"file": "not a number"}),
        (b"\xff\xfe\n", {"file": "not a number"}),
    ],
)
def test_a_file_without_a_number_is_absent(tmp_path: Path, content: bytes, failures: dict[str, str]) -> None:
    (tmp_path / "file").write_bytes(content)
    files = files_of(tmp_path)
    assert files.number("file") is ABSENT
    assert files.failures == failures


def test_a_read_that_has_not_returned_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "busy").write_text("42\n")
    guard = FailingFiles(skipped={"busy"})
    assert files_of(tmp_path, guard).number("busy") is ABSENT
    assert guard.entered == []


def test_names_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "ras").mkdir()
    (tmp_path / "ras/umc_err_count").touch()
    files = files_of(tmp_path)
    assert files.names("ras") == ["umc_err_count"]
    assert files.names("hwmon") == []
    assert files.failures == {}


def test_properties() -> None:
    text = "simd_count 1216\nlocation_id 49408\nsibling_map 1,1,\nhive_id 18446744073709551615\n\nbroken\n"
    assert parse_properties(text) == {
        "simd_count": 1216, "location_id": 49408, "hive_id": 18446744073709551615,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("ue: 0\nce: 3\n", {"uncorrected": 0, "corrected": 3}),
        ("ue: 1\nce: 40\nde: 2\n", {"uncorrected": 1, "corrected": 40, "deferred": 2}),
        ("new: 4\nue: x\nce: 1", {"corrected": 1}),
        ("", {}),
    ],
)
def test_error_counts(text: str, counts: dict[str, int]) -> None:
    assert parse_err_count(text) == counts


def test_bad_pages_by_state() -> None:
    text = "0x01 : 0x1000 : R\n0x02 : 0x1000 : R\n0x03 : 0x1000 : P\n0x04 : 0x1000 : F\nbad\n"
    assert parse_bad_pages(text) == {"retired": 2.0, "pending": 1.0, "failed": 1.0}
    assert parse_bad_pages("") == {"retired": 0.0, "pending": 0.0, "failed": 0.0}


@pytest.mark.parametrize(
    ("text", "generation"),
    [("16.0 GT/s PCIe", 4.0), ("2.5 GT/s", 1.0), ("64.0 GT/s PCIe", 6.0), ("7 GT/s", ABSENT), ("x", ABSENT)],
)
def test_link_speeds(text: str, generation: float) -> None:
    assert parse_link_speed(text) == generation


@pytest.mark.parametrize(
    ("text", "hertz"),
    [
        ("0: 500Mhz\n1: 2365Mhz *\n2: 2660Mhz\n", 2.66e9),
        ("S: 19Mhz\n0: 132Mhz\n1: 2100Mhz *\n", 2.1e9),
        ("0: 0Mhz *\n", ABSENT),
        ("", ABSENT),
        ("0: fast *", ABSENT),
    ],
)
def test_the_highest_level_of_a_clock(text: str, hertz: float) -> None:
    assert highest_level(text) == hertz


def test_names_of_models(tmp_path: Path) -> None:
    ids = tmp_path / "usr/share/libdrm/amdgpu.ids"
    ids.parent.mkdir(parents=True)
    ids.write_text("# List\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\nxyz,\t00,\tno\n")
    assert model_name("AMD Instinct MI300X OAM", 0x74A1, 0, str(tmp_path)) == "AMD Instinct MI300X OAM"
    assert model_name(ABSENT, 0x744C, 0xC8, str(tmp_path)) == "AMD Radeon RX 7900 XTX"
    assert model_name(ABSENT, 0x74B5, 0, str(tmp_path)) == "AMD Instinct MI300X VF"
    assert model_name(ABSENT, 0x9999, 1, str(tmp_path)) == "AMD 1002:9999"
    assert model_name(ABSENT, 0x744C, 0xC8, "/nowhere") == "AMD 1002:744c"


def test_a_list_of_names_with_anything_in_it() -> None:
    assert parse_names(["744C, C8, A, B and C", ",,", "1, 2"]) == {(0x744C, 0xC8): "A, B and C"}
