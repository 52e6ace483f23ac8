"""The image's health check: exit 0 if $HEALTH_URL answers with a status below 500, else 1 with the reason.

Only the standard library, without site packages: it runs every 30 s. A request for a login or a redirect is an
answer. A certificate is not verified: the server is this container, addressed as 127.0.0.1.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4
FIRST_SERVER_ERROR = 500


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


if __name__ == "__main__":
    sys.exit(check(os.environ.get("HEALTH_URL", "http://127.0.0.1:9400/-/healthy")) or 0)
