"""Signs requests to AWS (Signature Version 4), and finds the credentials for it.

Credentials are an access key of the configuration, of the environment, or of the shared credentials file. Roles
and the metadata services of machines and containers are not asked.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from gpuscope.judge.notify.channel import SendError

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
