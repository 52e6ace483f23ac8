"""Runs the idle policy of `up` and `server` once a minute: reads the server's judgement and the accounts of the
holders, warns, runs the command.

Warnings are alerts that the notifier sends; it also tells when a channel has accepted them. An engine that does
not answer is logged once; nothing is decided without fresh numbers. SIGHUP reads the policy again and runs it
at once; an invalid one is logged, and the previous one stays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.command_runner import Command
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.files import write_atomically
from gpuscope.base.settings import Settings, home_file, home_path
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.checks.judgement import JudgedMoment
from gpuscope.judge.notify.idle_policy.idle_holders import IdleReading, IsVerified, read_idle_holders
from gpuscope.judge.notify.idle_policy.policy_file import IdlePolicy, load_policy
from gpuscope.judge.notify.idle_policy.policy_state import FILE_NAME, PolicyAudit
from gpuscope.judge.notify.idle_policy.policy_steps import PolicyAction, PolicySteps
from gpuscope.judge.rules.alert_state import AlertSink
from gpuscope.model.series import Labels
from gpuscope.serve.api.status import ReloadStatus

log = logging.getLogger("gpuscope.idle_policy")
INTERVAL_SECONDS: Final = 60.0
COMMAND_SECONDS: Final = 30.0
STATE_FILE: Final = "idle_policy_state.json"
MAX_STATE_BYTES: Final = 16 << 20


class WarningSink(AlertSink, Protocol):
    def delivered_at(self, alerts: Iterable[Labels]) -> dict[Labels, float]:
        """When a channel last accepted a message that had each of these alerts in full."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyTrust:
    """What this server knows about whose samples the policy reads."""

    no_login: str = ""
    """Why nothing may run, where anybody can write samples."""
    is_verified: IsVerified | None = None
    """None: an engine behind `--store`, of which only the operator knows who writes to it."""


class IdlePolicyThread:
    """`run_once` is the whole work; the thread calls it each minute."""

    def __init__(
        self,
        settings: Settings,
        new_engine: Callable[[], QueryEngine],
        sink: WarningSink,
        trust: PolicyTrust,
        judged: Callable[[], JudgedMoment | None],
        clock: Clock | None = None,
    ) -> None:
        """`judged` has the server's judgement of who leaves GPUs idle; it is called in this thread."""
        self._path = home_file(settings.idle_policy, "idle_policy")
        policy = load_policy(self._path)
        folder = home_path(settings.data, "data")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._steps = PolicySteps(policy, trust.no_login)
        self._trust = trust
        self._new_engine = new_engine
        self._judged = judged
        self._sink = sink
        self._clock = clock or SystemClock()
        self._audit = PolicyAudit(folder / FILE_NAME, settings.idle_audit_max_bytes)
        self._state = folder / STATE_FILE
        self._saved = b""
        self._stepped_at: float | None = None
        self._load_state()
        self._episode = EpisodeLog(log, "idle policy")
        self._reloaded: IdlePolicy | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-idle-policy", daemon=True)
        self._warn_of_commands(policy)

    def __enter__(self) -> IdlePolicyThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=COMMAND_SECONDS)

    def _warn_of_commands(self, policy: IdlePolicy) -> None:
        if policy.is_dry_run or not (policy.command or policy.pod_command):
            return
        if self._trust.no_login:
            log.warning("the idle policy runs no command: %s", self._trust.no_login)
        elif self._trust.is_verified is None and not policy.trusts_store:
            log.warning(
                "the idle policy runs no command: whoever can write to the engine of --store could end work; "
                "if only agents can, set `trust_store: true` in %s",
                self._path,
            )
        else:
            log.warning("the idle policy runs commands; --idle-policy %s", self._path)

    def reload(self, status: ReloadStatus) -> None:
        """Read the file again; a wrong one leaves the policy as it is."""
        try:
            policy = load_policy(self._path)
        except UsageError as error:
            status.policy_failed(str(error))
            log.error("the idle policy was not reloaded: %s; the previous one stays", error)
            return
        status.policy_succeeded()
        log.info("the idle policy was reloaded")
        self._warn_of_commands(policy)
        self._reloaded = policy
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self.run_once()
                self._episode.succeeded()
            except GpuscopeError as error:
                self._episode.failed(str(error))
            except Exception:  # this thread must go on: it sends all warnings
                log.exception("idle policy")
            self._wake.wait(INTERVAL_SECONDS)

    def run_once(self) -> None:
        policy, self._reloaded = self._reloaded, None
        if policy is not None:
            self._steps.use(policy)
        now, monotonic = self._clock.now(), self._clock.monotonic()
        elapsed = 0.0 if self._stepped_at is None else monotonic - self._stepped_at
        reading = asyncio.run(self._read(now, self._judged()))
        self._note_deliveries(now)
        step = self._steps.step(reading, now, elapsed)
        self._stepped_at = monotonic
        if step.alerts:
            self._sink.take(step.alerts)
        for action in step.actions:
            is_written = self._audit.write(action, now)
            if action.kind == "run":
                self._run_command(action, now, is_written=is_written)
        self._save_state()

    def _note_deliveries(self, now: float) -> None:
        pending = self._steps.undelivered()
        delivered_at = self._sink.delivered_at([labels for _, labels, _ in pending])
        for key, labels, warned_at in pending:
            # A later time than now is that of an earlier idle time, before the clock was set back.
            if warned_at <= (at := delivered_at.get(labels, 0.0)) <= now:
                self._steps.delivered(key, at)

    async def _read(self, now: float, judged: JudgedMoment | None) -> IdleReading:
        engine = self._new_engine()
        try:
            agents = self._steps.policy.slurm_agents
            return await read_idle_holders(engine, int(now * 1000), judged, self._is_verified, agents)
        finally:
            await engine.close()

    def _is_verified(self, labels: Mapping[str, str]) -> bool:
        known = self._trust.is_verified
        return self._steps.policy.trusts_store if known is None else known(labels)

    def _run_command(self, action: PolicyAction, now: float, *, is_written: bool) -> None:
        """Only what the audit log has may run."""
        if not is_written:
            self._steps.command_failed(action.holder)
            return
        try:
            command = Command(
                action.command[0], COMMAND_SECONDS, program=action.command[0], if_missing="install it"
            )
            answer = command.run(*action.command[1:])
            result = {"exit_code": answer.exit_code}
            error = "" if answer.ok else answer.error_line()
        except GpuscopeError as failure:
            result, error = {}, str(failure)
        outcome = "failed" if error else "done"
        self._audit.write(action, self._clock.now(), result=outcome, error=error, **result)
        if error:
            log.error("idle policy: %s: %s", " ".join(action.command), error)
            self._steps.command_failed(action.holder)
        else:
            log.warning("idle policy: ran %s", " ".join(action.command))

    def _save_state(self) -> None:
        state = json.dumps(self._steps.to_json()).encode()
        if state == self._saved:
            return
        try:
            write_atomically(self._state, state, mode=0o600)
            self._saved = state
        except OSError as error:
            log.error("idle policy: %s cannot be written: %s", self._state, error)

    def _load_state(self) -> None:
        try:
            if self._state.stat().st_size <= MAX_STATE_BYTES:
                document = json.loads(self._state.read_bytes())
                self._steps.from_json(document if isinstance(document, dict) else {})
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            log.warning("idle policy: %s cannot be read, holders may be warned again: %s", self._state, error)
