"""Print a completion script for your shell.

bash        eval "$(gpuscope completion bash)"   in ~/.bashrc
zsh         gpuscope completion zsh > ~/.zfunc/_gpuscope, with ~/.zfunc in $fpath
fish        gpuscope completion fish > ~/.config/fish/completions/gpuscope.fish
tcsh        gpuscope completion tcsh > ~/.gpuscope.tcsh, and `source ~/.gpuscope.tcsh` in ~/.tcshrc
powershell  gpuscope completion powershell | Out-String | Invoke-Expression   in $PROFILE
"""

from __future__ import annotations

import argparse

import shtab

from gpuscope.base.settings import Settings

SETTINGS = ()
SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
USAGE = f"gpuscope completion {'|'.join(SHELLS)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


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
