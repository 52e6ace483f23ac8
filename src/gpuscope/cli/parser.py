"""The argument parser: help in groups with common options first, errors in one sentence.

A command lists its settings; this module assigns them to groups, the same for all commands. Limits come last,
because their defaults rarely need a change.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import Field
from typing import Any, NoReturn

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import limit_names
from gpuscope.base.setting_values import SOURCE_GROUP
from gpuscope.base.settings import env_name, setting_rows
from gpuscope.base.source_plan import source_setting_names

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (SOURCE_GROUP, (
        "source", "families", "interval", "counters", "fields", "node", "expected_gpus", "full_commands",
        "idle_after", "state_dir", "integrated_gpus", *source_setting_names(SOURCE_GROUP), "dcgm_interval",
        "dcgm_fields", "dcgm_hostname_label", "path_procfs", "path_sysfs", "path_rootfs",
    )),
    ("GPU owners: containers, pods, jobs", (
        "kubelet_socket", "pods_socket", "path_pod_logs", "kubelet_url", "kubelet_insecure", "kubernetes_api",
        "kubelet_interval", "pod_labels", "resource_names", "container_sockets", "cri_sockets", "job_map_dir",
    )),
    ("simulated fleet", (*source_setting_names("simulated fleet"), "demo_nodes")),
    ("scraping, remote write, other engines", (
        "config", "targets", "scrape_interval", "store", "store_tenant", "store_http_config", "remote_write",
        "remote_write_http_config", "remote_write_interval",
    )),
    ("history and queries", (
        "data", "store_interval", "retention", "rollup_retention",
        "retention_bytes", "query_lookback", "admin_api", "gpu_rate",
    )),
    ("rules, alerts and notifications", (
        "rules", "evaluation_interval", "alerting", "notify", "heartbeat", "external_url", "idle_policy",
        "digest", "digest_every", "digest_by", "co2", "time_zone",
    )),
    ("address, TLS and login", (
        "listen", "stand_in", "web_config_file", "login", "session_lifetime", "allowed_hosts", "grafana_url",
        "proxy_auth_header", "proxy_auth_from", "default_role",
    )),
    ("limits; docs/security.md explains each", limit_names()),
    ("logging", ("log_level",)),
)  # fmt: skip

OTHER_PROGRAMS_OPTIONS = {
    "--port": "--listen",
    "--host": "--listen",
    "--bind": "--listen",
    "--address": "--listen",
    "--web.listen-address": "--listen",
    "--config.file": "--config",
    "--storage.tsdb.path": "--data",
    "--storage.tsdb.retention.time": "--retention",
    "--hostname": "--node",
    "--url": "--server",
}
"""What a user may try first, in Prometheus' and other programs' words."""


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one sentence, without the usage text."""

    def error(self, message: str) -> NoReturn:
        if unknown := _UNKNOWN.fullmatch(message):
            message = self._about_unknown(unknown[1])
        elif missing := _MISSING.fullmatch(message):
            message = f"missing: {missing[1]}"
        elif choice := _WRONG_CHOICE.fullmatch(message):
            choices = choice[3].replace("'", "")
            name = "" if "|" in choice[1] else f"{choice[1]}: "  # such a metavar lists the choices itself
            message = f"{name}{choice[2]} is not one of {choices}"
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def _about_unknown(self, word: str) -> str:
        option = word.partition("=")[0]
        if option in self._option_string_actions:  # behind a subcommand, which does not have it
            return f"give {option} directly after `{self.prog}`"
        kind = "option" if word.startswith("-") else "argument"
        meant = self._meant(option)
        return f"unknown {kind} {word}" + (f" (did you mean {meant}?)" if meant else "")

    def _meant(self, option: str) -> str | None:
        """Our name for another program's option, else one with similar letters, else the beginning of it."""
        known = self._option_string_actions
        ours = OTHER_PROGRAMS_OPTIONS.get(option)
        near = difflib.get_close_matches(option, known, 1, 0.75)
        begins = (flag for flag in known if option.startswith(flag + "-"))
        return next((flag for flag in (ours, *near, *begins) if flag in known), None)


# argparse's messages, which change with its version: a message that does not match is printed as it is.
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+).*", re.DOTALL)
_MISSING = re.compile(r"the following arguments are required: (.+)")
_WRONG_CHOICE = re.compile(r"argument (\S+): invalid choice: ('.*') \(choose from (.+)\)", re.DOTALL)


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str], common: Iterable[str]) -> None:
    """Adds a flag per setting, the `common` ones before the groups; absent flags are not in the namespace."""
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
    """Joins the values of a repeated list flag."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: object = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, str(values) if before is None else f"{before},{values}")
