"""Compile the fake CUDA driver: C sources in, the path of a libcuda.so.1 out. cuda.h comes from PyPI."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.fake_nvml.build import Unavailable, cached_header, compile_library

SOURCES = Path(__file__).parent / "src"
HEADER_PACKAGE = "nvidia-cuda-runtime>=13,<14"
SONAME = "libcuda.so.1"


def library() -> Path:
    """The built library, compiled on first use. Raises Unavailable, at once when it did so before."""
    found = _library_or_reason()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@cache
def _library_or_reason() -> Path | str:
    try:
        header = cached_header(HEADER_PACKAGE, "cuda-13", "cuda.h")
        return compile_library("fake_cuda", SONAME, SOURCES, header)
    except Unavailable as missing:
        return str(missing)
