"""The image's health check: exit 0 if one of $HEALTH_URL's addresses answers below status 500, else 1.

Only the standard library, without site packages: it runs every 30 s. A request for a login or a redirect is an
answer. A certificate is not verified: the server is this container, addressed as 127.0.0.1.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 2
FIRST_SERVER_ERROR = 500
# `up` and `server`, or an agent: the image does not know which command it was given.
DEFAULT_URLS = "http://127.0.0.1:9470/-/healthy http://127.0.0.1:9400/-/healthy"


def check(url: str) -> str:
    """The reason why it is not healthy; empty if it is."""
    context = ssl._create_unverified_context() if url.startswith("https:") else None  # noqa: S323
    try:
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS, context=context).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}" if error.code >= FIRST_SERVER_ERROR else ""
    except OSError as error:
        return f"{url}: {error}"
    return ""


def main() -> int:
    reasons = [check(url) for url in os.environ.get("HEALTH_URL", DEFAULT_URLS).split()]
    if "" in reasons:
        return 0
    sys.stderr.write("; ".join(reasons) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
