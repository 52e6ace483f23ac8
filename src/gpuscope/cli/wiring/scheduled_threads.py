"""The threads of `up` and `server` that the settings enable: the idle policy and the mailed usage report."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, date, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from typing import TYPE_CHECKING, Final

from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.files import write_atomically
from gpuscope.base.settings import Settings, home_path
from gpuscope.base.time_text import parse_rfc3339, to_local
from gpuscope.cli.wiring.login import Web
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.store import Store
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.channels import parse_notify_url
from gpuscope.judge.notify.channels.email import EmailConfig, one_header_line
from gpuscope.judge.notify.smtp_client import deliver_mail
from gpuscope.judge.reports.rates import parse_rates
from gpuscope.judge.reports.report_range import digest_range, last_due, next_digest
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.reports.usage.usage_text import text_lines, to_html
from gpuscope.serve.api.status import ReloadStatus
from gpuscope.serve.live.judging import Judging

if TYPE_CHECKING:
    from gpuscope.cli.wiring.idle_policy import IdlePolicyThread, WarningSink

# Mails a usage report each day, week or month: as text and as the HTML page, through notify's mail sender.
#
# Those sent are kept in the data folder: after a restart none is sent twice, and those that were due while
# the server was down are sent late. A mail server that does not answer is tried again every ten minutes. When
# the clock jumps, nothing is sent for an hour: most jumps are corrected by then.

log = logging.getLogger("gpuscope.digest")
STATE_FILE: Final = "digest_sent.txt"
CHECK_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 600.0
SEND_SECONDS: Final = 60.0
JUMP_SECONDS: Final = 300.0
"""Between two checks, against the monotonic clock."""
SETTLED_SECONDS: Final = 3600.0
MAX_SENT: Final = 64
"""Days kept of those sent."""


class DigestThread:
    """`run_once` is the whole work; the thread calls it each minute."""

    def __init__(
        self, settings: Settings, new_engine: Callable[[], QueryEngine], clock: Clock | None = None
    ) -> None:
        config = parse_notify_url(settings.digest, "--digest")
        if not isinstance(config, EmailConfig):
            raise UsageError("--digest: a usage report is sent by mail; for example mailto://HOST?to=…&from=…")
        self._config = config
        self._grouping = parse_grouping(settings.digest_by, "--digest-by")
        self._rates = parse_rates(settings.gpu_rate, origin="--gpu-rate") if settings.gpu_rate else None
        self._co2 = settings.co2
        self._every = settings.digest_every
        self._zone = settings.time_zone
        self._new_engine = new_engine
        self._clock = clock or SystemClock()
        folder = home_path(settings.data, "data")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state = folder / STATE_FILE
        self._try_again_at = 0.0
        self._sent: set[date] = set()
        """In case the file cannot be written: a full disk must not repeat the mail each minute."""
        self._clock_offset = self._clock.now() - self._clock.monotonic()
        self._episode = EpisodeLog(log, "usage digest")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-digest", daemon=True)

    def __enter__(self) -> DigestThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=SEND_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            try:
                self.run_once()
            except Exception:  # the next one may work
                log.exception("usage digest")

    def run_once(self) -> bool:
        """Whether one was sent."""
        now = self._clock.now()
        self._wait_after_jump(now)
        self._sent |= self._read_sent()
        if not self._sent:  # the first start: the next one is the first
            self._remember(last_due(now, self._every, self._zone))
            return False
        due = next_digest(now, self._every, self._zone, self._sent)
        if due is None or self._clock.monotonic() < self._try_again_at:
            return False
        try:
            report = asyncio.run(self._report(due))
            deliver_mail(self._config, *self._mail(report, due), SEND_SECONDS)
        except (GpuscopeError, SendError) as error:
            self._try_again_at = self._clock.monotonic() + RETRY_SECONDS
            self._episode.failed(str(error))
            return False
        self._episode.succeeded()
        self._remember(due)
        return True

    def _wait_after_jump(self, now: float) -> None:
        offset, before = now - self._clock.monotonic(), self._clock_offset
        self._clock_offset = offset
        if abs(offset - before) > JUMP_SECONDS:
            self._try_again_at = self._clock.monotonic() + SETTLED_SECONDS

    async def _report(self, due: date) -> UsageReport:
        start, end = (round(1000 * seconds) for seconds in digest_range(due, self._every, self._zone))
        question = UsageQuestion(self._grouping, start, end, self._rates, self._co2, zone=self._zone)
        engine = self._new_engine()
        try:
            return await usage_report(engine, question)
        finally:
            await engine.close()

    def _mail(self, report: UsageReport, due: date) -> tuple[EmailMessage, str, list[str]]:
        mail = EmailMessage(policy=SMTP)
        mail["Subject"] = one_header_line(f"GPU usage by {report.by}, {self._every} until {due}")
        mail["From"], mail["To"] = one_header_line(self._config.sender), one_header_line(self._config.to)
        mail["Date"] = format_datetime(datetime.fromtimestamp(self._clock.now(), UTC))
        mail["Message-Id"] = make_msgid(domain=self._config.sender.rpartition("@")[2].strip("> ") or "gpuscope")
        lines = text_lines(report, "usage", lambda text: "".join(c if c.isprintable() else "?" for c in text))
        mail.set_content("\n".join(lines) + "\n", cte="quoted-printable")
        mail.add_alternative(to_html(report, "usage"), subtype="html", cte="quoted-printable")
        recipients = [recipient.strip() for recipient in self._config.to.split(",") if recipient.strip()]
        return mail, self._config.sender, recipients

    def _read_sent(self) -> set[date]:
        try:
            return {self._day(line) for line in self._state.read_text("ascii").split()}
        except (OSError, ValueError):
            return set()

    def _day(self, text: str) -> date:
        """A line of the file. Older versions kept the instant at which the report was due."""
        return to_local(parse_rfc3339(text), self._zone).date() if "T" in text else date.fromisoformat(text)

    def _remember(self, due: date) -> None:
        self._sent = set(sorted({*self._sent, due})[-MAX_SENT:])
        try:
            lines = "".join(f"{day}\n" for day in sorted(self._sent))
            write_atomically(self._state, lines.encode(), mode=0o600)
        except OSError as error:
            log.error("usage digest: %s cannot be written: %s", self._state, error)


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
            from gpuscope.cli.wiring.scheduled_threads import DigestThread

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
