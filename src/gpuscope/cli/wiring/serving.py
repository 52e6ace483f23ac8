"""Parts that `up` and `server` share: opening the store, and serving HTTP until a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import Limits
from gpuscope.base.settings import Settings, home_path
from gpuscope.cli.wiring.heap import collect_regularly, return_large_blocks, trim_heap_regularly
from gpuscope.cli.wiring.listeners import build_server
from gpuscope.cli.wiring.login import Web
from gpuscope.cli.wiring.service_manager import local_url, tell_systemd_ready
from gpuscope.history.store import Store, StoreError, StoreOptions
from gpuscope.history.store.folder import claim_folder
from gpuscope.serve.api.status import store_status
from gpuscope.serve.api_types.session_json import ServerAnswer
from gpuscope.serve.http.messages import Handler
from gpuscope.serve.http.server import Server

log = logging.getLogger("gpuscope")

DEFAULT_LISTEN = ("127.0.0.1", 9470)
GRACE_SECONDS = 3.0
"""How long the server waits for running requests before it stops."""


def open_store(settings: Settings, *, simulated: bool = False) -> Store:
    """The store in the data folder. Refuses a folder with real history for a demo, and the other way round."""
    folder = home_path(settings.data, "data")
    options = StoreOptions(
        retention_ms=int(settings.retention * 1000),
        rollup_retention_ms=int(settings.rollup_retention * 1000),
        retention_bytes=settings.retention_bytes,
        max_series=settings.max_series,
        max_new_series=settings.max_new_series,
    )
    try:
        store = Store(folder, options)
        try:
            claim_folder(store, simulated=simulated)
        except BaseException:
            store.close()
            raise
        return store
    except StoreError as error:
        raise UsageError(f"--data {folder}: {error}") from None
    except OSError as error:
        raise UsageError(f"--data {folder}: {error.strerror}; choose another folder") from None


def embedded_status(settings: Settings, store: Store, web: Web) -> Callable[[], ServerAnswer]:
    return store_status(
        store,
        home_path(settings.data, "data"),
        settings.retention,
        settings.retention_bytes,
        has_login=web.access.authenticator is not None,
    )


def serve(
    app: Handler,
    listen: tuple[str, int],
    web: Web,
    limits: Limits,
    on_hangup: Callable[[], None] | None = None,
    background: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
) -> None:
    """Serves until SIGINT or SIGTERM. SIGHUP calls `on_hangup`; two calls never overlap. `background` runs in
    the same event loop until then."""
    server = build_server(app, web.config, limits, web.access.proxies)
    asyncio.run(_serve(server, listen, web, on_hangup, background))


async def _serve(
    server: Server,
    listen: tuple[str, int],
    web: Web,
    on_hangup: Callable[[], None] | None,
    background: Sequence[Callable[[], Coroutine[None, None, None]]],
) -> None:
    # With Python's 5 ms an event loop waits 20 ms for each of its system calls while four queries run; a switch
    # takes microseconds.
    sys.setswitchinterval(0.0003)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if on_hangup is not None:
        # In the event loop: a plain handler could be interrupted by the next signal and finish after it.
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    port = await server.start(*listen)
    return_large_blocks()
    tasks = [loop.create_task(run()) for run in (trim_heap_regularly, collect_regularly, *background)]
    log.info("gpuscope is at %s", web.url((listen[0], port)))
    tell_systemd_ready(local_url(server.scheme, listen[0], port))
    await stop.wait()
    for task in tasks:
        task.cancel()
    await server.stop(GRACE_SECONDS)
