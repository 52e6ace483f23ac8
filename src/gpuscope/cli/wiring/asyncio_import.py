"""Imports asyncio without TLS, for an agent that serves plain HTTP.

asyncio imports `ssl` if it can: OpenSSL's libraries and the tables that `ssl` makes of them are 4 MiB, a tenth
of what an agent may use. Afterwards `ssl` can be imported as usual, for clients that use blocking sockets; only
asyncio's own TLS is missing. Has no effect once asyncio or ssl is imported.
"""

from __future__ import annotations

import importlib
import sys


def import_asyncio_without_tls() -> None:
    if "asyncio" in sys.modules or "ssl" in sys.modules:
        return
    # None is Python's documented mark of a module that must not be found; asyncio works without ssl.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("asyncio")
    finally:
        del sys.modules["ssl"]
