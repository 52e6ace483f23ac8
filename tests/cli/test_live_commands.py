"""`snapshot`, `top`, `free` and `query` on a real server with a simulated fleet, and behind a login."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.cli import COMMANDS, main
from tests.cli.test_commands import running
from tests.cli.test_server import eventually
from tests.waiting import wait_for


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuscope", *words],
        env={**os.environ, "COLUMNS": "120", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and standard output in this process: a question that is repeated starts no Python."""
    capsys.readouterr()
    code = main(list(words))
    return code, capsys.readouterr().out


NO_DATA_SHOWN = {"doctor", "explain", "load", "mcp", "notify", "render", "silence", "user"}
"""Commands that can ask a server and show no numbers of its GPUs."""


def commands_that_show_data(job: str) -> dict[str, list[str]]:
    return {
        "alerts": ["--json"],
        "findings": ["--json"],
        "free": ["--json"],
        "job": [job, "--json"],
        "query": ["gpuscope_gpu_power_watts", "--csv"],
        "report": ["usage", "--by", "user", "--since", "1h", "--csv"],
    }


def test_every_command_that_asks_a_server_is_known() -> None:
    asking = set()
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        getattr(importlib.import_module(f"gpuscope.cli.{name}"), "add_arguments", lambda parser: None)(parser)
        if "--server" in parser.format_help():
            asking.add(name)
    assert asking - NO_DATA_SHOWN == commands_that_show_data("1").keys() | {"snapshot", "top"}


def every_command_says_that_data_is_simulated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error: what a program reads stays as it is."""
    query = "gpuscope_process_memory_bytes{slurm_job!=''}"
    _, answer = run_here(capsys, "query", query, "--server", url, "--json")
    job = json.loads(answer)["data"]["result"][0]["metric"]["slurm_job"]
    for name, words in commands_that_show_data(job).items():
        code = main([name, *words, "--server", url])
        told = capsys.readouterr()
        assert code in (0, 1), told.err
        # 16 GPUs, however many MIG instances they have.
        assert f"gpuscope: 16 GPUs are simulated at {url}, not real\n" in told.err, name
        assert "not real" not in told.out, name


def test_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("up", "--demo", "--demo-nodes", "2", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    with running(*argv, until=r"gpuscope is at (http://\S+)") as (_, found):
        url = found[1]
        snapshot = eventually(lambda: run("snapshot", "--server", url).stdout)
        assert snapshot.startswith("2 nodes  16 GPUs")
        assert "SIMULATED" in snapshot
        assert len(re.findall(r"^\S gpu-a0[12] \d ", snapshot, re.MULTILINE)) == 16
        assert run("top", "--server", url).stdout.startswith("2 nodes  16 GPUs"), "one snapshot in a pipe"
        wait_for(lambda: free_by_command(url, capsys) == idle_by_snapshot(url, capsys), "the same free GPUs")
        watts = eventually(lambda: re.findall(r"gpu-a01/0 .* W$", run_query(url, capsys), re.MULTILINE))
        assert len(watts) == 1
        every_command_says_that_data_is_simulated(url, capsys)


def idle_by_snapshot(url: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """GPUs that are neither busy nor allocated; in a simulated fleet they change between two commands."""
    live = json.loads(run_here(capsys, "snapshot", "--server", url, "--json")[1])
    _, given = run_here(capsys, "query", "gpuscope_allocation_used", "--server", url, "--json")
    allocated = {one["metric"]["uuid"] for one in json.loads(given)["data"]["result"]}
    split = {gpu["parent"] for gpu in live["gpus"] if "parent" in gpu}
    return {
        gpu["uuid"]
        for gpu in live["gpus"]
        if gpu["state"] == "idle" and "parent" not in gpu and gpu["uuid"] not in split | allocated
    }


def free_by_command(url: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    code, answer = run_here(capsys, "free", "--server", url, "--json")
    free = {uuid for one in json.loads(answer)["placements"] for uuid in one["uuids"]}
    assert code == (0 if free else 1)
    return free


def run_query(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    return run_here(capsys, "query", "gpuscope_gpu_power_watts", "--server", url)[1]


@pytest.mark.slow
def test_behind_a_login(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    token = subprocess.run(
        [sys.executable, "-m", "gpuscope", "user", "token", "terminal", *data],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-1]
    argv = ("up", "--demo", "--demo-nodes", "1", *data, "--listen", "127.0.0.1:0", "--login", "always")
    with running(*argv, until=r"gpuscope is at (http://\S+)") as (_, found):
        for command in ("snapshot", "top", "free"):
            refused = run(command, "--server", found[1])
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "needs a login: give an API token in GPUSCOPE_TOKEN" in refused.stderr
        shown = eventually(lambda: run("snapshot", "--server", found[1], GPUSCOPE_TOKEN=token).stdout)
        assert "8 GPUs" in shown
        assert "8 GPUs" in run("top", "--server", found[1], "--token", token).stdout
