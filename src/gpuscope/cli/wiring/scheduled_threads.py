"""The threads of `up` and `server` that the settings enable: the idle policy and the mailed usage report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.login import Web
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.store import Store
from gpuscope.serve.api.status import ReloadStatus
from gpuscope.serve.live.judging import Judging

if TYPE_CHECKING:
    from gpuscope.cli.wiring.digest import DigestThread
    from gpuscope.cli.wiring.idle_policy import IdlePolicyThread, WarningSink


NO_LOGIN: Final = "this server has no login: every user of this machine can write samples; use --login always"


class ScheduledThreads:
    """Started by `with`. Raises UsageError for a wrong file or URL."""

    def __init__(
        self,
        settings: Settings,
        new_engine: Callable[[], QueryEngine],
        sink: WarningSink,
        web: Web,
        judging: Judging,
        store: Store | None = None,
    ) -> None:
        """`store` is None if another engine has the samples."""
        self._idle_policy: IdlePolicyThread | None = None
        self._digest: DigestThread | None = None
        self._running = ExitStack()
        if settings.idle_policy:
            from gpuscope.cli.wiring.idle_policy import IdlePolicyThread, PolicyTrust

            trust = PolicyTrust(NO_LOGIN if web.is_open else "", None if store is None else store.is_verified)
            self._idle_policy = IdlePolicyThread(settings, new_engine, sink, trust, lambda: judging.idle)
        if settings.digest:
            from gpuscope.cli.wiring.digest import DigestThread

            self._digest = DigestThread(settings, new_engine)

    def __enter__(self) -> ScheduledThreads:
        for thread in (self._idle_policy, self._digest):
            if thread is not None:
                self._running.enter_context(thread)
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def reload(self, status: ReloadStatus) -> None:
        """Read the policy's file again, if there is one."""
        if self._idle_policy is not None:
            self._idle_policy.reload(status)
