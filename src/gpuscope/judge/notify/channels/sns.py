"""Amazon SNS: a message to a topic, a phone number or an endpoint, signed with an access key.

`role_arn` and credentials of metadata services are accepted in a file, and each message then fails with the
reason: the other receivers of the file are not affected.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlencode, urlsplit

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NO_SECRET,
    ComposedMessage,
    SecretText,
    SendError,
    Told,
    cut,
    finish,
    read_texts,
    request,
)
from gpuscope.judge.notify.channels import ChannelKind, HttpChannelConfig, JsonSender, read_entry
from gpuscope.judge.notify.message_texts import default_template
from gpuscope.judge.notify.notification import Notification

# Signs requests to AWS (Signature Version 4), and finds the credentials for it.
#
# Credentials are an access key of the configuration, of the environment, or of the shared credentials file.
# Roles and the metadata services of machines and containers are not asked.

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def find_credentials(profile: str, environment: Mapping[str, str] = os.environ) -> AwsCredentials:
    """Of a profile if it is named, else of the environment, else of the default profile."""
    key, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not profile and key and secret:
        return AwsCredentials(key, secret, environment.get("AWS_SESSION_TOKEN", ""))
    name = profile or environment.get("AWS_PROFILE") or "default"
    default_path = Path(environment.get("HOME", "/")) / ".aws" / "credentials"
    path = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or default_path)
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, "utf-8")
        section: Mapping[str, str] = parser[name] if parser.has_section(name) else {}
    except (configparser.Error, OSError, UnicodeDecodeError):
        section = {}
    key, secret = section.get("aws_access_key_id", ""), section.get("aws_secret_access_key", "")
    if not key or not secret:
        raise SendError(
            "no AWS access key: give access_key and secret_key in sigv4, or AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, or profile {name!r} in the shared credentials file",
            may_retry=False,
        )
    return AwsCredentials(key, secret, section.get("aws_session_token", ""))


def sign_post(
    url: str,
    body: bytes,
    content_type: str,
    credentials: AwsCredentials,
    *,
    region: str,
    service: str,
    now: float,
) -> tuple[tuple[str, str], ...]:
    """The headers to send with a POST that has no query; `host` and `content-type` are sent too, and signed."""
    parts = urlsplit(url)
    time = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    own = {"x-amz-date": time}
    if credentials.session_token:
        own["x-amz-security-token"] = credentials.session_token
    signed = {"host": parts.netloc.rpartition("@")[2], **own}
    if content_type:
        signed["content-type"] = content_type
    names = ";".join(sorted(signed))
    headers = "".join(f"{name}:{signed[name].strip()}\n" for name in sorted(signed))
    canonical = "\n".join(("POST", parts.path or "/", "", headers, names, hashlib.sha256(body).hexdigest()))
    scope = f"{time[:8]}/{region}/{service}/aws4_request"
    text = "\n".join((_ALGORITHM, time, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={credentials.access_key}/{scope}"
    authorization = f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
    return (*own.items(), ("authorization", authorization))


MAX_MESSAGE_BYTES = 256 * 1024
MAX_SMS_BYTES = 1600
MAX_SUBJECT_CHARACTERS = 100
"""SNS refuses a longer one."""
CONTENT_TYPE = "application/x-www-form-urlencoded"
_TARGETS = {"topic_arn": "TopicArn", "phone_number": "PhoneNumber", "target_arn": "TargetArn"}
DEFAULTS = {
    **dict.fromkeys(_TARGETS, ""),
    "api_url": "",
    "subject": default_template("sns.default.subject"),
    "message": default_template("sns.default.message"),
}
TEXTS = """
{{ define "sns.default.subject" }}{{ template "__subject" . }}{{ end }}
{{ define "sns.default.message" }}{{ template "__text" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsConfig(HttpChannelConfig):
    kind: ClassVar[str] = "sns"
    region: str = ""
    """Of the environment if it is empty."""
    access_key: str = ""
    secret_key: SecretText = NO_SECRET
    profile: str = ""
    role_arn: str = ""
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Names and values are templates."""

    def target(self) -> str:
        return next((self.texts[key] for key in _TARGETS if self.texts[key]), "")


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> SnsConfig:
    texts = read_texts(table, DEFAULTS)
    if sum(not texts[key] for key in _TARGETS) % 2:  # Alertmanager's own check: all three pass it
        table.fail("topic_arn", "give topic_arn, phone_number or target_arn")
    table.switch("use_aws_http_client", False)  # about Alertmanager's own HTTP client
    signing = table.table("sigv4")
    access_key, secret_key = signing.text("access_key"), signing.text("secret_key")
    if bool(access_key) != bool(secret_key):
        signing.fail("access_key", "give access_key and secret_key, or neither")
    role_arn = signing.text("role_arn")
    if signing.text("external_id") and not role_arn:
        signing.fail("external_id", "is for role_arn, which is missing")
    config = read_entry(
        SnsConfig,
        table,
        http,
        region=signing.text("region"),
        access_key=access_key,
        secret_key=SecretText(secret_key),
        profile=signing.text("profile"),
        role_arn=role_arn,
        texts=texts,
        attributes=table.labels("attributes"),
    )
    signing.switch("use_fips_sts_endpoint", False)
    signing.text("service_name")
    finish(signing)
    return config


class SnsSender(JsonSender[SnsConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        """The fields of the form."""
        config, messages = self._config, self._messages
        most = MAX_SMS_BYTES if config.texts["phone_number"] else MAX_MESSAGE_BYTES

        def shorten(text: str) -> str:
            return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")

        message = messages.fit(config.texts["message"], notification, shorten)
        form = {"Action": "Publish", "Version": "2010-03-31", "Message": message.text}
        for key, name in _TARGETS.items():
            if config.texts[key]:
                form[name] = messages.expand(config.texts[key], notification)
        if form.get("TopicArn", "").endswith(".fifo"):
            form["MessageDeduplicationId"] = form["MessageGroupId"] = notification.group_hash
        if config.texts["subject"]:
            form["Subject"] = cut(messages.title(config.texts["subject"], notification), MAX_SUBJECT_CHARACTERS)
        attributes = {
            messages.expand(name, notification): messages.expand(value, notification)
            for name, value in config.attributes.items()
        }
        whole = messages.expand(config.texts["message"], notification)
        if shorten(whole) != whole:
            attributes["truncated"] = "true"
        for at, (name, value) in enumerate(sorted(attributes.items()), 1):
            entry = f"MessageAttributes.entry.{at}"
            form |= {
                f"{entry}.Name": name,
                f"{entry}.Value.DataType": "String",
                f"{entry}.Value.StringValue": value,
            }
        return ComposedMessage(form, message.told)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        if config.role_arn:
            raise SendError("role_arn is not supported here: give an access key", may_retry=False)
        region = config.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
        if not region:
            raise SendError("no AWS region: give region in sigv4, or AWS_REGION", may_retry=False)
        if config.access_key:
            credentials = AwsCredentials(config.access_key, config.secret_key.reveal())
        else:
            credentials = find_credentials(config.profile)
        form, told = self.compose(notification)
        body = urlencode(form).encode()
        suffix = ".cn" if region.startswith("cn-") else ""
        url = self._messages.expand(config.texts["api_url"], notification)
        url = url or f"https://sns.{region}.amazonaws.com{suffix}/"
        headers = sign_post(url, body, CONTENT_TYPE, credentials, region=region, service="sns", now=time.time())
        request(url, body, config.http, timeout_seconds, content_type=CONTENT_TYPE, headers=headers)
        return told


KIND = ChannelKind(
    name="sns",
    summary="Amazon SNS, with an access key",
    sender=SnsSender,
    read=_read,
    texts=TEXTS,
    secret_keys=("secret_key",),
)
