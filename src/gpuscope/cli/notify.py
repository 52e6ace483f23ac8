"""Send a test message: to a URL as for --notify, or to a receiver of an alerting file.

The message is marked as a test and sent at once: routes, silences and time intervals do not apply.
"""

from __future__ import annotations

import argparse
import time

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.settings import Settings, home_file
from gpuscope.cli.output import printable

SETTINGS = ("alerting", "notify", "external_url")
COMMON = ("alerting",)
USAGE = "gpuscope notify test CHANNEL [options]"
EPILOG = """examples:
  gpuscope notify test ntfy://ntfy.sh/my-topic
  gpuscope notify test 'mailto://me:secret@smtp.example.org?to=ops@example.org'
  gpuscope notify test oncall --alerting alertmanager.yml
"""
TIMEOUT_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("test",), metavar="test", help="what to do")
    parser.add_argument("channel", metavar="CHANNEL", help="a URL, or a receiver of --alerting")
    parser.add_argument("--resolved", action="store_true", help="send the message of a resolved alert")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.judge.notify.alerting_config import AlertingConfig, build_channels, load_alerting
    from gpuscope.judge.notify.channel import SendError
    from gpuscope.judge.notify.channels import check_channels
    from gpuscope.judge.notify.default_alerting import EVERYBODY, default_alerting
    from gpuscope.judge.notify.notification import sample_notification

    config: AlertingConfig
    if "://" in args.channel or args.channel.startswith("mailto:"):
        config, receiver = default_alerting([args.channel]), EVERYBODY
        check_channels(config.receivers[receiver].channels, "notify test")
    elif not settings.alerting:
        raise UsageError(
            f"notify test: {args.channel!r} is not a URL; give the file that has this receiver with --alerting"
        )
    else:
        config, receiver = load_alerting(home_file(settings.alerting, "alerting")), args.channel
        if receiver not in config.receivers:
            known = ", ".join(config.receivers)
            raise UsageError(f"{settings.alerting}: there is no receiver {receiver!r}; there are {known}")
    channels = build_channels(config)[receiver]
    if not channels:
        raise UsageError(f"{settings.alerting}: receiver {receiver!r} has no channel")
    url = settings.external_url or "http://127.0.0.1:9470"
    notification = sample_notification(receiver, url.rstrip("/"), time.time(), is_resolved=args.resolved)
    failures = []
    for channel in channels:
        name = printable(str(channel.key))
        try:
            channel.sender.send(notification, TIMEOUT_SECONDS)
        except SendError as error:
            failures.append(f"{name}: {printable(str(error), 500)}")
        else:
            print(f"{name}: accepted")
    if failures:
        raise GpuscopeError("; ".join(failures))
    return 0
