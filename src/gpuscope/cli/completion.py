"""Print a completion script for your shell.

eval "$(gpuscope completion bash)"       in ~/.bashrc
gpuscope completion zsh > ~/.zfunc/_gpuscope
gpuscope completion tcsh
"""

from __future__ import annotations

import argparse

import shtab

from gpuscope.settings import Settings

SETTINGS = ()
USAGE = "gpuscope completion bash|zsh|tcsh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.cli import COMMANDS, command_parser

    parser = argparse.ArgumentParser(prog="gpuscope", description="GPU monitoring in one process.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, summary in COMMANDS.items():
        parent = command_parser(name)
        parent.add_help = False
        commands.add_parser(name, help=summary, parents=[parent], add_help=False, conflict_handler="resolve")
    print(shtab.complete(parser, args.shell))
    return 0
