"""What differs between releases of NVIDIA's driver, from 470 on: NVML's field ids, nvidia-smi's words.

Releases are compared by their first two numbers (580.95 of 580.95.05). A version that cannot be parsed counts
as the newest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuscope.model.readings.absent import Maybe

Release = tuple[int, int]
NEWEST: Final[Release] = (1_000_000, 0)


class ThrottleTimeIds(NamedTuple):
    """Field ids of the time that clocks were held back, in nanoseconds."""

    sw_thermal_slowdown: int
    hw_thermal_slowdown: int
    hw_power_brake_slowdown: int


# NVML_FI_DEV_CLOCKS_EVENT_REASON_* of nvml.h and of the packages nvidia-ml-py. Up to 12.570.172 there are none:
# 251 to 268 are settings of power smoothing. 12.575.51 and 13.580.65 insert them at 251, so that 269 to 271 are
# such settings; from 13.580.82 to 13.615.71 the settings have their old ids again. A wrong id gives a setting.
_THROTTLE_TIMES: Final[tuple[tuple[Release, ThrottleTimeIds | None], ...]] = (
    ((580, 82), ThrottleTimeIds(269, 270, 271)),
    ((575, 0), ThrottleTimeIds(251, 252, 253)),
    ((0, 0), None),
)

# In --help-query-gpu nvidia-smi 470 lists only clocks_throttle_reasons; 535.261 and 550.163 list
# clocks_event_reasons. NVML has had the new word since 535 (nvidia-ml-py 12.535.77; not in 11.525.150).
_EVENT_REASONS_SINCE: Final[Release] = (535, 0)

# nvidia-smi answers them with "[Requested functionality has been deprecated]", which is no number.
_REMOVED_SMI_FIELDS: Final = (
    ((590, 0), ("display_mode", "power.management", "clocks.applications.", "clocks.default_applications.")),
    ((0, 0), ()),
)


def parse_release(driver_version: Maybe[str]) -> Release:
    """`535.183.06` is (535, 183)."""
    parts = driver_version.split(".")[:2] if isinstance(driver_version, str) else []
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        return NEWEST
    return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0


def throttle_time_ids(driver_version: Maybe[str]) -> ThrottleTimeIds | None:
    """None: this driver does not count them."""
    release = parse_release(driver_version)
    return next(ids for since, ids in _THROTTLE_TIMES if release >= since)


def removed_smi_fields(driver_version: Maybe[str]) -> tuple[str, ...]:
    """Beginnings of the query fields that this driver's nvidia-smi does not answer any more."""
    release = parse_release(driver_version)
    return next(fields for since, fields in _REMOVED_SMI_FIELDS if release >= since)


def says_event_reasons(driver_version: Maybe[str]) -> bool:
    """Whether nvidia-smi names fields `clocks_event_reasons`; before, `clocks_throttle_reasons`."""
    return parse_release(driver_version) >= _EVENT_REASONS_SINCE
