"""Any other channel, through apprise, which is imported when its first message is sent (44 MB).

apprise sleeps between two requests of one service; here that delays only its own channel's thread.
"""

from __future__ import annotations

from typing import Any

from gpuscope.notify.channel_configs import AppriseConfig
from gpuscope.notify.channels import SendError
from gpuscope.notify.default_messages import plain_body, subject
from gpuscope.notify.message_templates import Messages
from gpuscope.notify.notification import FIRING, Notification

MISSING = "apprise is not installed; install it with: pip install 'gpuscope[apprise]'"


class AppriseSender:
    def __init__(self, config: AppriseConfig, messages: Messages) -> None:
        self._config = config
        self._client: Any = None

    def send(self, notification: Notification, timeout_seconds: float) -> None:
        client = self._client = self._client or self._open()
        is_firing = notification.status == FIRING
        accepted = client.notify(
            title=subject(notification),
            body=plain_body(notification),
            notify_type="failure" if is_firing else "success",
            body_format="text",
        )
        if not accepted:
            raise SendError(f"apprise could not send to {self._config.scheme}://…", may_retry=True)

    def _open(self) -> Any:
        try:
            import apprise  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise SendError(MISSING, may_retry=False) from None
        client = apprise.Apprise()
        separator = "&" if "?" in self._config.url.reveal() else "?"
        # Without it a service refuses a message that is too long for it.
        if not client.add(f"{self._config.url.reveal()}{separator}overflow=split"):
            raise SendError(
                f"apprise does not know {self._config.scheme}:// URLs of this form", may_retry=False
            )
        return client
