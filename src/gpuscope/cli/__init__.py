"""What is typed: `gpuscope COMMAND …`. Each command is a module of this folder, imported when it is used."""

from __future__ import annotations

import argparse
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
from gpuscope.cli.terminal import LineFormatter, escape_controls
from gpuscope.errors import GpuscopeError, LibraryMissing
from gpuscope.limits import limit_names
from gpuscope.settings import Settings, env_name, load_settings, setting_rows

COMMANDS = {
    "up": "collect, keep and show everything of this machine, in one process",
    "server": "scrape a fleet, keep its history and answer Prometheus' API",
    "agent": "serve this machine's GPU metrics to Prometheus",
    "textfile": "write metrics to a file for node_exporter's textfile collector",
    "snapshot": "show what is on this machine's GPUs now",
    "query": "ask a gpuscope server, or any Prometheus, a PromQL question",
    "store": "look after the history: stat, check, export, backup, delete",
    "fields": "list every field: id, name, unit, families, and whether this machine has it",
    "user": "who may log in to `up` and `server` from outside, and API tokens for programs",
    "doctor": "say what works here, what does not, why, and how to mend it",
    "completion": "print a completion script for your shell",
}

COLLECTING_SETTINGS = (
    "source", "node", "expected_gpus", "full_commands", "state_dir", "nvidia_smi_command",
    "nvidia_smi_interval", "nvidia_smi_timeout", "dcgmi_command", "dcgm_host", "scenario",
    "seed", "demo_gpus", "demo_model", "path_procfs", "path_sysfs", "path_rootfs",
    "idle_after", "kubelet_socket", "pods_socket", "path_pod_logs", "kubelet_url", "kubelet_insecure",
    "kubernetes_api", "kubelet_interval", "pod_labels", "resource_names", "container_sockets", "cri_sockets",
    "job_map_dir",
)  # fmt: skip
"""What every command takes that reads this machine's GPUs."""

HISTORY_SETTINGS = (
    "data", "retention", "retention_bytes", "query_lookback", "admin_api",
    *limit_names("query", "write", "store"),
)  # fmt: skip
"""What the commands take that keep a history and answer queries about it."""

WEB_SETTINGS = (
    "web_config_file", "login", "session_lifetime", "allowed_hosts", "proxy_auth_header", "proxy_auth_from",
    *limit_names("http"),
)  # fmt: skip
"""What the commands take that serve the page."""


def load_command(name: str) -> ModuleType:
    return importlib.import_module(f"gpuscope.cli.{name}")


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds a flag for each of these settings; absent flags stay out of the namespace."""
    rows = {row.name: row for row in setting_rows()}
    for name in names:
        row = rows[name]
        flag = "--" + name.replace("_", "-")
        help_text = f"{row.metadata['help']} [{env_name(row)}]".replace("%", "%%")
        if isinstance(row.default, bool):
            parser.add_argument(
                flag, dest=name, action="store_const", const="true", default=argparse.SUPPRESS, help=help_text
            )
        else:
            parser.add_argument(
                flag,
                dest=name,
                metavar=row.metadata["metavar"],
                default=argparse.SUPPRESS,
                action=_Repeatable if isinstance(row.default, tuple) else "store",
                help=help_text,
            )


class _Repeatable(argparse.Action):
    """A list given in several flags, or with commas in one: every part of it counts."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: object = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, str(values) if before is None else f"{before},{values}")


def command_parser(name: str) -> argparse.ArgumentParser:
    command = load_command(name)
    parser = argparse.ArgumentParser(
        prog=f"gpuscope {name}",
        description=command.__doc__,
        epilog=getattr(command, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    add_settings(parser, command.SETTINGS)
    common = parser.add_argument_group("everywhere")
    common.add_argument(
        "--settings", metavar="FILE", type=Path, help="TOML file with settings [GPUSCOPE_SETTINGS]"
    )
    add_settings(common, ("log_level",))  # type: ignore[arg-type]  # a group takes arguments as a parser does
    return parser


def settings_from(args: argparse.Namespace) -> Settings:
    names = {row.name for row in setting_rows()}
    flags = {name: value for name, value in vars(args).items() if name in names}
    return load_settings(flags, os.environ, args.settings)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] in COMMANDS:
            with explained_imports(argv[0]):
                return _run(argv[0], argv[1:])
        _top_parser().parse_args(argv)
        return 2
    except GpuscopeError as error:
        print("gpuscope:", escape_controls(str(error), keep="\n"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `gpuscope fields | head` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@contextmanager
def explained_imports(command: str) -> Iterator[None]:
    """Turns a package's failure to load a library of the system into one sentence that says what to install."""
    try:
        yield
    except ImportError as error:
        found = _MISSING_LIBRARY.search(f"{error}\n{error.__cause__}")
        if found is None:
            raise
        package = _LIBRARY_PACKAGES.get(found[1], "the package that has it")
        raise LibraryMissing(
            f"gpuscope {command} needs {found[1]}, which is not installed here; install {package}"
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
    settings = settings_from(args)
    # A command that reports by itself would only repeat its findings in the log.
    level = settings.log_level if settings.log_level != "info" else getattr(command, "LOG_LEVEL", "info")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("gpuscope: %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    result: int = command.run(args, settings)
    return result


def _top_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuscope",
        description="GPU monitoring in one process.",
        epilog="`gpuscope COMMAND --help` explains a command. Exit codes: 0 fine, 1 a finding, 2 wrong usage\n"
        "or settings, 3 no GPU readable, 4 server unreachable.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuscope {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    return parser
