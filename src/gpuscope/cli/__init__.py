"""The command line: `gpuscope COMMAND …`. Each command is a module in this folder, imported on use.

A command module defines `SETTINGS` (its settings), `add_arguments` and `run`, which returns the exit code. It
may define `COMMON` (settings that the help shows first), `SETTINGS_OF_OWN_FLAGS` (settings with a different
flag), `USAGE`, `EPILOG`, `LOG_LEVEL` and `parse`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from gpuscope import __version__
from gpuscope.base.errors import GpuscopeError, LibraryMissing, UsageError
from gpuscope.base.limits import limit_names
from gpuscope.base.settings import Settings, load_settings, setting_rows
from gpuscope.base.source_plan import source_setting_names
from gpuscope.cli.output import LineFormatter, escape_controls
from gpuscope.cli.parser import CommandParser, add_settings

COMMANDS = {
    "up": "run agent, history, PromQL and web page for this machine in one process",
    "agent": "serve this machine's GPU metrics to Prometheus",
    "server": "scrape a fleet, store its history and serve the Prometheus API and the web page",
    "textfile": "write metrics to a file for node_exporter's textfile collector",
    "snapshot": "show GPUs and their processes now, of this machine or a fleet",
    "top": "watch GPUs and their processes in the terminal, of this machine or a fleet",
    "free": "find free GPUs, of this machine or a fleet",
    "query": "run a PromQL query on a gpuscope server or any Prometheus",
    "findings": "show what is wrong on a server's GPUs, who can act, and the next step",
    "report": "report GPU-hours by user, pod, job, node or model: held, busy, idle, energy, cost",
    "job": "print the receipt of a Slurm job or pod: GPUs requested, held and used, idle time, energy, notes",
    "explain": "explain an XID, a throttle reason, a GPU state or a metric, and what to do",
    "alerts": "list the alerts of a server, and the channels that fail",
    "silence": "silence alerts for a time: add, list, expire",
    "notify": "send a test message through a channel",
    "mcp": "answer an assistant (Model Context Protocol) over standard input, from a server's data",
    "load": "load GPUs with a known amount of work, and compare what the monitor shows",
    "doctor": "check this machine, explain problems and show how to fix them",
    "nodecheck": "check this node's GPUs for Slurm's HealthCheckProgram; drain and resume the node",
    "fields": "list all fields: id, name, unit, families, and availability on this machine",
    "render": "write ready files: Prometheus, Alertmanager, Grafana, compose, systemd, Helm values, firewall",
    "rules": "check, test and list Prometheus rule files",
    "store": "manage the history: stat, check, export, backup, delete",
    "user": "manage users and API tokens of `up` and `server`",
    "completion": "print a completion script for your shell",
}

EXIT_CODES = """exit codes:
  0 success   1 problem found   2 wrong usage or settings   3 no GPU readable   4 server unreachable"""

COLLECTING_SETTINGS = (
    "source", "node", "expected_gpus", "full_commands", "state_dir", "integrated_gpus",
    *source_setting_names(),
    "path_procfs", "path_sysfs", "path_rootfs",
    "idle_after", "kubelet_socket", "pods_socket", "path_pod_logs", "kubelet_url", "kubelet_insecure",
    "kubernetes_api", "kubelet_interval", "pod_labels", "resource_names", "container_sockets", "cri_sockets",
    "job_map_dir",
)  # fmt: skip
"""Settings of every command that reads this machine's GPUs."""

HISTORY_SETTINGS = (
    "data", "retention", "rollup_retention", "retention_bytes", "query_lookback", "admin_api", "gpu_rate",
    *limit_names("query", "write", "store", "rules"),
)  # fmt: skip
"""Settings of the commands that store history and serve queries."""

WEB_SETTINGS = (
    "web_config_file", "login", "session_lifetime", "allowed_hosts", "grafana_url",
    "proxy_auth_header", "proxy_auth_from",
    "default_role",
    *limit_names("http", "page"),
)  # fmt: skip
"""Settings of the commands that serve the page."""

ALERT_SETTINGS = (
    "rules", "evaluation_interval", "alerting", "notify", "heartbeat", "external_url", "idle_policy", "digest",
    "digest_every", "digest_by", "co2", "time_zone",
    *limit_names("rules", "alerts"),
)  # fmt: skip
"""Settings of the commands that evaluate rules and send notifications."""

EVERY_SETTING = tuple(row.name for row in setting_rows())
"""For commands that inspect or manage a server, and therefore read its environment and settings file."""


def load_command(name: str) -> ModuleType:
    return importlib.import_module(f"gpuscope.cli.{name}")


def command_parser(name: str) -> CommandParser:
    command = load_command(name)
    parser = CommandParser(
        prog=f"gpuscope {name}",
        usage=getattr(command, "USAGE", f"gpuscope {name} [options]"),
        description=command.__doc__,
        epilog=getattr(command, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    # A command that accepts every setting shows only the common ones.
    common = getattr(command, "COMMON", ())
    shown = common if command.SETTINGS is EVERY_SETTING else command.SETTINGS
    add_settings(parser, (*shown, "log_level"), common)
    parser.add_argument(
        "--settings", metavar="FILE", type=Path, help="TOML file with settings [GPUSCOPE_SETTINGS]"
    )
    return parser


def read_settings(name: str, args: argparse.Namespace) -> Settings:
    """Reads flags, environment and file; a setting that this command does not have is an error."""
    known = set(EVERY_SETTING)
    flags = {key: value for key, value in vars(args).items() if key in known}
    command = load_command(name)
    accepted = (*command.SETTINGS, *getattr(command, "SETTINGS_OF_OWN_FLAGS", ()), "log_level")
    return load_settings(flags, os.environ, args.settings, command=name, accepted=accepted)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] in COMMANDS:
            with explained_imports(argv[0]):
                return _run(argv[0], argv[1:])
        return _run_without_command(argv)
    except GpuscopeError as error:
        print("gpuscope:", escape_controls(str(error), keep="\n"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # for example `gpuscope fields | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@contextmanager
def explained_imports(command: str) -> Iterator[None]:
    """Turns an ImportError for a missing system library into one sentence that says what to install."""
    try:
        yield
    except ImportError as error:
        missing = _MISSING_LIBRARY.search(f"{error}\n{error.__cause__}")
        if missing is None:
            raise
        package = _LIBRARY_PACKAGES.get(missing[1], "the package that contains it")
        raise LibraryMissing(
            f"gpuscope {command} needs {missing[1]}, which is not installed; install {package}"
        ) from None


_MISSING_LIBRARY = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")
_LIBRARY_PACKAGES = {
    "libstdc++.so.6": "libstdc++6 (Debian, Ubuntu) or libstdc++ (Fedora, RHEL); "
    "`gpuscope agent` runs without it"
}


def _run(name: str, argv: Sequence[str]) -> int:
    command = load_command(name)
    parser = command_parser(name)
    args: argparse.Namespace = (
        command.parse(parser, argv) if hasattr(command, "parse") else parser.parse_args(argv)
    )
    settings = read_settings(name, args)
    # Commands that print findings themselves log less, so that nothing appears twice.
    level = settings.log_level if settings.log_level != "info" else getattr(command, "LOG_LEVEL", "info")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("gpuscope: %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    result: int = command.run(args, settings)
    return result


def _run_without_command(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-"):
        near = difflib.get_close_matches(argv[0], COMMANDS, 1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"unknown command {argv[0]!r}{guess}; run `gpuscope` to list the commands")
    parser = _top_parser()
    parser.parse_args(argv)
    parser.print_help()
    return 0


def _top_parser() -> CommandParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = CommandParser(
        prog="gpuscope",
        usage="gpuscope COMMAND [options]",
        description="GPU monitoring in one process: exporters, history, PromQL, alerts, reports, a web page.",
        epilog=f"commands:\n{listing}\n\n`gpuscope COMMAND --help` explains a command; `gpuscope up --demo` "
        f"needs no GPU.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuscope {__version__}")
    return parser
