"""The fixtures of this folder's tests."""

from tests.fake_nvml.fixtures import driver, nvml

__all__ = ["driver", "nvml"]
