from __future__ import annotations

import pytest

from gpuscope.model.readings import ABSENT, Device, Uuid
from gpuscope.model.readings.device import NO_VALUES


def test_an_absent_reading_has_no_truth_value() -> None:
    with pytest.raises(TypeError):
        bool(ABSENT)
    with pytest.raises(TypeError):
        ABSENT or 0  # noqa: B018 - the mistake this guards against


def test_a_new_device_has_only_absent_numbers() -> None:
    device = Device(uuid=Uuid("GPU-1"), index=0)
    assert device.power_watts is ABSENT
    assert device.clock_hertz == {}


def test_nothing_stays_empty() -> None:
    with pytest.raises(TypeError):
        NO_VALUES["gpu"] = 1.0  # type: ignore[index]
