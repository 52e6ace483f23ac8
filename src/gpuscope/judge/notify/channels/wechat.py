"""WeChat Work: a message of an app. The app's access token is asked for and kept two hours."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    PLAIN_HTTP,
    ComposedMessage,
    SecretText,
    SendError,
    Told,
    cut_bytes,
    encode,
    join_url,
    read_channel_http,
    read_plain_url,
    read_secret,
    read_texts,
    request,
    url_host,
)
from gpuscope.judge.notify.channels import ChannelKind
from gpuscope.judge.notify.message_texts import Messages, default_template
from gpuscope.judge.notify.notification import Notification

API_URL = "https://qyapi.weixin.qq.com/cgi-bin/"
MAX_MESSAGE_BYTES = 2048
"""WeChat cuts a longer one."""
TOKEN_SECONDS = 7200.0
TOKEN_EXPIRED = 42001
_RETRIED = tuple(status for status in range(200, 600) if status != 200)
DEFAULTS = {
    key: default_template(f"wechat.default.{key}")
    for key in ("message", "to_user", "to_party", "to_tag", "agent_id")
}
TEXTS = """
{{ define "wechat.default.message" }}{{ template "__subject" . }}
{{ template "__text" . }}{{ end }}
{{ define "wechat.default.to_user" }}{{ end }}
{{ define "wechat.default.to_party" }}{{ end }}
{{ define "wechat.default.to_tag" }}{{ end }}
{{ define "wechat.default.agent_id" }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WechatConfig:
    kind: ClassVar[str] = "wechat"
    api_secret: SecretText
    """A template."""
    corp_id: str
    """A template."""
    api_url: str = API_URL
    send_resolved: bool = False
    http: HttpConfig = PLAIN_HTTP
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    message_type: str = "text"

    def target(self) -> str:
        return url_host(self.api_url)


@dataclass(frozen=True, slots=True)
class WechatGlobals:
    api_url: str
    api_secret: SecretText
    corp_id: str


def _read_globals(table: ConfigMapping) -> WechatGlobals:
    return WechatGlobals(
        read_plain_url(table, "wechat_api_url", API_URL),
        read_secret(table, "wechat_api_secret"),
        table.text("wechat_api_corp_id"),
    )


def _read(table: ConfigMapping, http: HttpConfig, own: WechatGlobals) -> WechatConfig:
    api_secret = read_secret(table, "api_secret") or own.api_secret
    corp_id = table.text("corp_id") or own.corp_id
    if not api_secret:
        table.fail("api_secret", "is missing, and so is wechat_api_secret in global")
    if not corp_id:
        table.fail("corp_id", "is missing, and so is wechat_api_corp_id in global")
    return WechatConfig(
        api_secret=api_secret,
        corp_id=corp_id,
        api_url=read_plain_url(table, "api_url", own.api_url),
        send_resolved=table.switch("send_resolved", False),
        http=read_channel_http(table, http),
        texts=read_texts(table, DEFAULTS),
        message_type=table.one_of("message_type", "text", ("", "text", "markdown")) or "text",
    )


class WechatSender:
    def __init__(self, config: WechatConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages
        self._token = ""
        self._token_until = 0.0

    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages
        texts = {key: messages.title(text, notification) for key, text in config.texts.items()}
        message = messages.fit(
            config.texts["message"], notification, lambda text: cut_bytes(text, MAX_MESSAGE_BYTES)
        )
        recipients = {
            "touser": texts["to_user"],
            "toparty": texts["to_party"],
            "totag": texts["to_tag"],
            "agentid": texts["agent_id"],
        }
        contents = {kind: message.text if kind == config.message_type else "" for kind in ("text", "markdown")}
        document: dict[str, object] = {
            **{kind: {"content": text} for kind, text in contents.items()},
            **{key: text for key, text in recipients.items() if text},
            "safe": "0",
            "msgtype": config.message_type,
        }
        return ComposedMessage(document, message.told)

    def _access_token(self, notification: Notification, timeout_seconds: float) -> str:
        config = self._config
        if not self._token or time.monotonic() > self._token_until:
            query = {
                "corpsecret": self._messages.expand(config.api_secret.reveal(), notification),
                "corpid": self._messages.expand(config.corp_id, notification),
            }
            url = join_url(config.api_url, "gettoken", query)
            answer = _json(request(url, b"", config.http, timeout_seconds, method="GET", content_type="").body)
            token = answer.get("access_token")
            if not isinstance(token, str) or not token:
                raise SendError("WeChat gave no token: is api_secret that of corp_id?", may_retry=False)
            self._token, self._token_until = token, time.monotonic() + TOKEN_SECONDS
        return self._token

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        token = self._access_token(notification, timeout_seconds)
        document, told = self.compose(notification)
        url = join_url(config.api_url, "message/send", {"access_token": token})
        response = request(url, encode(document), config.http, timeout_seconds, retried_statuses=_RETRIED)
        answer = _json(response.body)
        code = answer.get("errcode", 0)
        if code:
            if code == TOKEN_EXPIRED:
                self._token = ""
            raise SendError(f"WeChat: {str(answer.get('errmsg'))[:200]}", may_retry=code == TOKEN_EXPIRED)
        return told


def _json(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise SendError("the answer of WeChat is not JSON", may_retry=True)
    return answer


KIND = ChannelKind(
    name="wechat",
    summary="an app of WeChat Work",
    sender=WechatSender,
    read=_read,
    read_globals=_read_globals,
    texts=TEXTS,
    secret_keys=("api_secret", "wechat_api_secret"),
)
