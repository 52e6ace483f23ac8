"""The command line's parser: help in groups with common options first, errors in one sentence.

A command lists the settings it takes; which heading each stands under is decided here, for all commands
alike. The limits come last: their defaults are right for nearly everybody.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import Field
from typing import Any, NoReturn

from gpuscope.errors import UsageError
from gpuscope.limits import limit_names
from gpuscope.setting_values import SOURCE_GROUP
from gpuscope.settings import env_name, setting_rows
from gpuscope.source_plan import source_setting_names

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("what is collected", (
        "source", "families", "interval", "counters", "fields", "node", "expected_gpus", "full_commands",
        "idle_after", "state_dir", *source_setting_names(SOURCE_GROUP), "dcgm_interval",
        "dcgm_fields", "dcgm_hostname_label", "path_procfs", "path_sysfs", "path_rootfs",
    )),
    ("who holds a GPU: containers, pods, jobs", (
        "kubelet_socket", "pods_socket", "path_pod_logs", "kubelet_url", "kubelet_insecure", "kubernetes_api",
        "kubelet_interval", "pod_labels", "resource_names", "container_sockets", "cri_sockets", "job_map_dir",
    )),
    ("simulated fleet", (*source_setting_names("simulated fleet"), "demo_nodes")),
    ("what is scraped, sent on, or asked elsewhere", (
        "config", "targets", "scrape_interval", "store", "store_tenant", "store_http_config", "remote_write",
        "remote_write_http_config", "remote_write_interval",
    )),
    ("alerts and notifications", ("alerting", "notify", "heartbeat", "external_url")),
    ("history and queries", (
        "data", "store_interval", "retention", "retention_bytes", "query_lookback", "admin_api",
    )),
    ("address, TLS and login", (
        "listen", "stand_in", "web_config_file", "login", "session_lifetime", "allowed_hosts",
        "proxy_auth_header", "proxy_auth_from",
    )),
    ("limits; docs/security.md explains each", limit_names()),
    ("everywhere", ("log_level",)),
)  # fmt: skip


class CommandParser(argparse.ArgumentParser):
    """argparse, but a mistake is one sentence and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        unknown = re.fullmatch(r"unrecognized arguments: (\S+).*", message, re.DOTALL)
        if unknown:
            kind = "option" if unknown[1].startswith("-") else "argument"
            message = f"unknown {kind} {unknown[1]}"
            near = difflib.get_close_matches(unknown[1].partition("=")[0], self._option_string_actions, 1, 0.75)
            if near:
                message += f" (did you mean {near[0]}?)"
        raise UsageError(f"{message}; see `{self.prog} --help`")


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str], common: Iterable[str]) -> None:
    """A flag for each of these settings, the `common` ones before all headings; absent flags stay out of the
    namespace."""
    rows = {row.name: row for row in setting_rows()}
    for name in common:
        _add(parser, rows[name])
    rest = set(names).difference(common)
    for title, members in GROUPS:
        shown = [name for name in members if name in rest]
        if shown:
            group = parser.add_argument_group(title)
            for name in shown:
                _add(group, rows[name])


def _add(parser: argparse._ActionsContainer, row: Field[Any]) -> None:
    flag = "--" + row.name.replace("_", "-")
    help_text = f"{row.metadata['help']} [{env_name(row)}]".replace("%", "%%")
    keywords: dict[str, Any] = {"dest": row.name, "default": argparse.SUPPRESS, "help": help_text}
    if isinstance(row.default, bool):
        parser.add_argument(flag, action="store_const", const="true", **keywords)
    else:
        action = _Repeatable if isinstance(row.default, tuple) else "store"
        parser.add_argument(flag, action=action, metavar=row.metadata["metavar"], **keywords)


class _Repeatable(argparse.Action):
    """A list given in several flags, or with commas in one: every part of it counts."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: object = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, str(values) if before is None else f"{before},{values}")
