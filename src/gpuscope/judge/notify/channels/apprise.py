"""Any other channel, through apprise, which is imported when its first message is sent (44 MB).

apprise sleeps between two requests of one service; here that delays only its own channel's thread. Its log
messages may repeat a URL: they are kept out of our log, and a reason is shown without the parts of the URL.
`check_apprise_urls` asks a short-lived process whether apprise accepts the URLs of `--notify`, the only place
where it can be named.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import SplitResult

from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.channel import NOBODY_TOLD, SecretText, SendError, Told
from gpuscope.judge.notify.channels import ChannelKind, UrlForm
from gpuscope.judge.notify.message_texts import PLAIN_TEXT, SUBJECT, Messages
from gpuscope.judge.notify.notification import FIRING, Notification

MISSING = "apprise is not installed; install it with: pip install 'gpuscope[apprise]'"
CHECK_SECONDS = 60.0
MAX_REASON_CHARACTERS = 200
_MIN_SECRET_CHARACTERS = 4
_OVERFLOW = re.compile(r"[?&]overflow=([^&#]*)", re.IGNORECASE)
_CHECK = """
import json, logging, sys, apprise
logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
print(json.dumps([bool(apprise.Apprise().add(url)) for url in json.load(sys.stdin)]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseConfig:
    kind: ClassVar[str] = "apprise"
    url: SecretText
    scheme: str
    send_resolved: bool = True

    def target(self) -> str:
        return self.scheme


def _parse_url(url: str, parts: SplitResult) -> AppriseConfig:
    return AppriseConfig(url=SecretText(url), scheme=url.partition(":")[0])


def check_apprise_urls(configs: Sequence[AppriseConfig], origin: str = "--notify") -> None:
    """Raises UsageError for the first URL that apprise does not accept. URLs go through standard input: an
    argument would show their secrets to every user of the machine."""
    if not configs:
        return
    if importlib.util.find_spec("apprise") is None:
        raise UsageError(f"{origin} {configs[0].scheme}://…: {MISSING}")
    urls = json.dumps([config.url.reveal() for config in configs])
    command = [sys.executable, "-c", _CHECK]
    try:
        run = subprocess.run(command, input=urls, capture_output=True, text=True, timeout=CHECK_SECONDS)
        accepted = json.loads(run.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return  # it is found when the first message is sent
    for config, is_accepted in zip(configs, accepted, strict=True):
        if not is_accepted:
            raise UsageError(f"{origin} {config.scheme}://…: {_unknown(config)}")


def _unknown(config: AppriseConfig) -> str:
    return f"neither gpuscope nor apprise has a channel for {config.scheme}:// URLs of this form"


class AppriseSender:
    def __init__(self, config: AppriseConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages
        self._client: Any = None

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        apprise = _import()
        client = self._client = self._client or self._open(apprise)
        is_firing = notification.status == FIRING
        message = self._messages.fit(PLAIN_TEXT, notification)
        with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
            result = client.notify(
                title=self._messages.title(SUBJECT, notification),
                body=message.text,
                notify_type="failure" if is_firing else "success",
                body_format="text",
                timeout=timeout_seconds,  # of all requests and the pauses between them
            )
            reason = self._without_secrets(log.getvalue())
        if result.status.name == "TIMEOUT":
            reason = f"no answer within {timeout_seconds:g} s"
        if not result:
            name = f"apprise could not send to {self._config.scheme}://…"
            raise SendError(f"{name}: {reason}" if reason else name, may_retry=True)
        overflow = _OVERFLOW.search(self._config.url.reveal())
        # Otherwise the service, or apprise, may have cut the message, and does not say so.
        is_split = overflow is None or overflow[1].lower() == "split"
        return message.told if is_split else NOBODY_TOLD

    def _open(self, apprise: Any) -> Any:
        client = apprise.Apprise()
        url = self._config.url.reveal()
        if not _OVERFLOW.search(url):
            # Without it a service refuses a message that is too long for it.
            url += f"{'&' if '?' in url else '?'}overflow=split"
        if not client.add(url):
            raise SendError(_unknown(self._config), may_retry=False)
        return client

    def _without_secrets(self, text: str) -> str:
        """Any part of the URL may be one: a token stands where other schemes have a host."""
        shown = " ".join(text.split())
        for part in re.split(r"[/:@?&=]+", self._config.url.reveal().partition("://")[2]):
            if len(part) >= _MIN_SECRET_CHARACTERS:
                shown = shown.replace(part, "…")
        return shown[:MAX_REASON_CHARACTERS]


def _import() -> Any:
    try:
        import apprise  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise SendError(MISSING, may_retry=False) from None
    logger = logging.getLogger("apprise")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return apprise


KIND = ChannelKind(
    name="apprise",
    summary="[apprise](https://github.com/caronc/apprise), after `pip install 'gpuscope[apprise]'`; checked at "
    "the start",
    sender=AppriseSender,
    url=UrlForm((), "any other scheme", _parse_url),
    check=check_apprise_urls,
)
