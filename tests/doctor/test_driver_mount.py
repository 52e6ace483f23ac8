"""A driver that is not mounted into a container: the fix is the line of the manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.vendors.nvidia import doctor as driver
from tests.doctor.test_machine_checks import context, file, words


def no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_missing_driver_mount_names_the_line_of_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test before may have loaded a driver library into this process.
    monkeypatch.setattr("gpuscope.vendors.nvidia.doctor.ctypes.CDLL", no_library)
    assert "nvidia-modprobe" in words(driver.device_files(context(tmp_path)))
    in_a_pod = context(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert "runtimeClassName: nvidia" in words(driver.device_files(in_a_pod))
    assert "runtimeClassName: nvidia" in words(driver.driver_library(in_a_pod))
    file(tmp_path / ".dockerenv")
    assert "compose.nvidia.yaml" in words(driver.device_files(context(tmp_path)))
