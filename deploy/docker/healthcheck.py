"""The image's health check: exit 0 if one of $HEALTH_URL's addresses answers below status 500, else 1.

Only the standard library, without site packages: it runs every 30 s. A request for a login or a redirect is an
answer, unless $HEALTH_USER is set: then basic auth is sent and must be accepted. A certificate is not verified:
the server is this container, addressed as 127.0.0.1, or a service of the same chart.
With $HEALTH_FILE it checks the age of that file instead: a writer of text files has no address. The file may be
three times as old as $HEALTH_FILE_INTERVAL, at least 300 s, which is what `gpuscope doctor` calls old.
"""

import base64
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_SECONDS = 2
FIRST_CLIENT_ERROR, FIRST_SERVER_ERROR = 400, 500
# `up` and `server`, or an agent: the image does not know which command it was given.
DEFAULT_URLS = "http://127.0.0.1:9470/-/healthy http://127.0.0.1:9400/-/healthy"

OLD_SECONDS = 300.0
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def check_file(path: str, interval: str) -> str:
    """The reason why the file is too old; empty if it is not."""
    unit = interval.lstrip("0123456789.")
    seconds = float(interval.removesuffix(unit)) * SECONDS[unit]
    try:
        age_seconds = time.time() - Path(path).stat().st_mtime
    except OSError as error:
        return f"{path}: {error.strerror}"
    is_old = age_seconds > max(OLD_SECONDS, 3 * seconds)
    return f"{path} is {age_seconds / 60:.0f} minutes old: nothing writes it any more" if is_old else ""


def check(url: str) -> str:
    """The reason why it is not healthy; empty if it is."""
    context = ssl._create_unverified_context() if url.startswith("https:") else None  # noqa: S323
    request = urllib.request.Request(url)  # noqa: S310
    user = os.environ.get("HEALTH_USER", "")
    if user:
        credentials = f"{user}:{os.environ.get('HEALTH_PASSWORD', '')}".encode()
        request.add_header("Authorization", "Basic " + base64.b64encode(credentials).decode())
    first_error = FIRST_CLIENT_ERROR if user else FIRST_SERVER_ERROR
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}" if error.code >= first_error else ""
    except OSError as error:
        return f"{url}: {error}"
    return ""


def main() -> int:
    path = os.environ.get("HEALTH_FILE", "")
    if path:
        reason = check_file(path, os.environ.get("HEALTH_FILE_INTERVAL", "60s"))
        sys.stderr.write(f"{reason}\n" if reason else "")
        return 1 if reason else 0
    reasons = [check(url) for url in os.environ.get("HEALTH_URL", DEFAULT_URLS).split()]
    if "" in reasons:
        return 0
    sys.stderr.write("; ".join(reasons) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
