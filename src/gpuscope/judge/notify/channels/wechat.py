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
    ComposedMessage,
    SecretText,
    SendError,
    Told,
    cut_bytes,
    encode,
    join_url,
    request,
)
from gpuscope.judge.notify.channels import ApiGlobals, ApiUrlConfig, ChannelKind, JsonSender, read_entry
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
class WechatConfig(ApiUrlConfig):
    kind: ClassVar[str] = "wechat"
    api_secret: SecretText
    """A template."""
    corp_id: str
    """A template."""
    send_resolved: bool = False
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    message_type: str = "text"


def _read_globals(table: ConfigMapping) -> tuple[ApiGlobals, str]:
    read_api = ApiGlobals.reader("wechat", API_URL, "api_secret")
    return read_api(table), table.text("wechat_api_corp_id")


def _read(table: ConfigMapping, http: HttpConfig, own: tuple[ApiGlobals, str]) -> WechatConfig:
    api, corp_id = own
    api_secret, corp_id = api.read_secret(table, "api_secret"), table.text("corp_id") or corp_id
    if not corp_id:
        table.fail("corp_id", "is missing, and so is wechat_api_corp_id in global")
    return read_entry(
        WechatConfig,
        table,
        http,
        api_secret=api_secret,
        corp_id=corp_id,
        api_url=api.read_url(table),
        message_type=table.one_of("message_type", "text", ("", "text", "markdown")) or "text",
    )


class WechatSender(JsonSender[WechatConfig]):
    def __init__(self, config: WechatConfig, messages: Messages) -> None:
        super().__init__(config, messages)
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
