"""`gpuscope render grafana`: its flags and how they become files."""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

from gpuscope.base.errors import UsageError
from gpuscope.cli.output import add_out, write_rendered


def add_language(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.grafana.dashboard_texts import ENGLISH, LANGUAGES

    parser.add_argument(
        "--language",
        choices=LANGUAGES,
        default=ENGLISH,
        help=f"language of the dashboards' titles and help ({ENGLISH})",
    )


def add_grafana(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.grafana import DEFAULT_PAGE_URL, DEFAULT_PROMETHEUS_URL

    add_language(parser)
    parser.add_argument(
        "--page-url",
        metavar="URL",
        default=DEFAULT_PAGE_URL,
        help=f"gpuscope's page as users reach it, for links to it; '' for none ({DEFAULT_PAGE_URL})",
    )
    parser.add_argument(
        "--prometheus-url",
        metavar="URL",
        default=DEFAULT_PROMETHEUS_URL,
        help=f"Prometheus or gpuscope server as Grafana reaches it ({DEFAULT_PROMETHEUS_URL})",
    )
    add_out(parser, required=True)


def run_grafana(args: argparse.Namespace) -> int:
    from gpuscope.serve.render.grafana import DASHBOARDS_FOLDER, GrafanaPlan, grafana_files

    plan = GrafanaPlan(
        language=args.language,
        page_url=check_url(args.page_url, "--page-url") if args.page_url else "",
        prometheus_url=check_url(args.prometheus_url, "--prometheus-url"),
        dashboards_path=str(args.out.absolute() / DASHBOARDS_FOLDER),
    )
    write_rendered(args, grafana_files(plan))
    return 0


def check_url(text: str, flag: str) -> str:
    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).netloc:
        raise UsageError(f"{flag}: {text!r} is not a URL; for example http://server:9470")
    return text.rstrip("/")
