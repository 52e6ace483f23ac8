"""The commands as a user runs them: real processes, real sockets, simulated GPUs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.cli import COMMANDS, EVERY_SETTING, command_parser, load_command, main
from tests.cli.test_server import eventually

GPUSCOPE = [sys.executable, "-m", "gpuscope"]
QUIET = {**os.environ, "NO_COLOR": "1", "GPUSCOPE_LOG_LEVEL": "info"}


def run(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GPUSCOPE, *argv], capture_output=True, text=True, env=QUIET, check=False, **options)  # type: ignore[call-overload, no-any-return]


@contextmanager
def running(*argv: str, until: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Starts a command, waits for a matching log line, and always stops it."""
    process = subprocess.Popen([*GPUSCOPE, *argv], stderr=subprocess.PIPE, text=True, env=QUIET)
    assert process.stderr is not None
    seen = []
    try:
        for line in process.stderr:
            seen.append(line)
            if match := re.search(until, line):
                yield process, match
                return
        pytest.fail("it ended: " + "".join(seen))
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def test_help_of_every_command() -> None:
    listing = run("--help").stdout
    for name in COMMANDS:
        assert name in listing
        parser = command_parser(name)
        assert parser.description
        assert "--settings" in parser.format_help()
    assert run("--version").stdout.startswith("gpuscope ")


def test_an_option_with_the_name_of_a_setting_is_that_setting() -> None:
    """Else the command would refuse it as a setting that it does not have, also where it is not given."""
    for name in COMMANDS:
        command = load_command(name)
        flags = re.findall(r"^  --([a-z0-9-]+)", command_parser(name).format_help(), re.MULTILINE)
        accepted = {*command.SETTINGS, *getattr(command, "SETTINGS_OF_OWN_FLAGS", ()), "log_level"}
        assert {flag.replace("-", "_") for flag in flags} & set(EVERY_SETTING) <= accepted, name


def test_agent_once_prints_an_exposition_of_eight_simulated_gpus() -> None:
    done = run("agent", "--source", "demo", "--once")
    assert done.returncode == 0
    assert done.stdout.count("\ngpuscope_gpu_utilization_ratio{") == 8
    assert 'simulated="true"' in done.stdout
    assert "simulated" in done.stderr


def test_agent_serves_until_sigterm() -> None:
    with running(
        "agent", "--source", "demo", "--listen", "127.0.0.1:0", until=r"http://127.0.0.1:(\d+)/metrics"
    ) as (
        process,
        match,
    ):
        base = f"http://127.0.0.1:{match[1]}"
        assert eventually(lambda: get(f"{base}/-/ready")) == "ready\n"
        assert "gpuscope_gpu_info{" in get(f"{base}/metrics")
        assert get(f"{base}/-/healthy") == "healthy\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("command", ["agent --source demo", "server --data {folder}"])
def test_an_address_in_use_is_exit_2_and_one_sentence(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run(*command.format(folder=tmp_path).split(), "--listen", address)
    assert done.returncode == 2
    assert f"cannot listen on {address}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


NO_GPU = ("--source", "nvidia-smi", "--nvidia-smi-command", "/nonexistent/nvidia-smi")


def test_no_gpu_is_exit_3_and_says_why() -> None:
    done = run("agent", *NO_GPU, "--once")
    assert done.returncode == 3
    assert "no GPU readable" in done.stderr
    assert "Traceback" not in done.stderr
    assert 'gpuscope_source_up{source="nvidia-smi"} 0' in done.stdout, "the failure is a metric too"


def test_fields_of_no_gpu_are_exit_3() -> None:
    done = run("fields", "--here", *NO_GPU)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no GPU readable" in done.stderr
    assert run("fields", *NO_GPU).returncode == 0, "the list of all fields needs no GPU"


@pytest.mark.parametrize(
    "argv",
    [
        ["agent", "--interval", "soon"],
        ["agent", "--families", "nope", "--once"],
        ["agent", "--source", "demo", "--scenario", "nope", "--once"],
        ["agent", "--as", "nope"],
        ["agent", "--counters", "/nonexistent.csv", "--families", "dcgm", "--once"],
        ["textfile", "--output", "/nonexistent/gpu.prom", "--once", "--source", "demo"],
        ["query", "up", "--step", "5s"],
        ["up", "--demo", "--listen", "0.0.0.0:0", "--data", "/dev/null/nowhere"],
    ],
)
def test_a_wrong_command_line_is_exit_2_and_one_sentence(argv: list[str]) -> None:
    done = run(*argv)
    assert done.returncode == 2
    assert done.stderr.startswith("gpuscope")
    assert "Traceback" not in done.stderr


def test_an_unreachable_server_is_exit_4() -> None:
    done = run("query", "up", "--server", "http://127.0.0.1:1")
    assert done.returncode == 4
    assert "cannot reach http://127.0.0.1:1" in done.stderr


def test_snapshot_as_table_and_json() -> None:
    table = run("snapshot", "--source", "demo").stdout
    assert "SIMULATED" in table
    assert table.count("H100 80GB") == 8
    snapshot = json.loads(run("snapshot", "--source", "demo", "--json").stdout)
    assert len(snapshot["devices"]) == 8
    assert "fan_speed_ratio" not in snapshot["devices"][0], "what is absent is left out"
    assert {"job_id", "user", "state"} <= snapshot["slurm"]["jobs"][0].keys()


def test_textfile_writes_rewrites_and_removes_the_file(tmp_path: Path) -> None:
    target = tmp_path / "gpu.prom"
    assert run("textfile", "--source", "demo", "--output", str(target), "--once").returncode == 0
    assert b"# TYPE" in target.read_bytes()
    target.unlink()
    argv = ("textfile", "--source", "demo", "--output", str(target), "--interval", "100ms")
    with running(*argv, until="simulated") as (process, _):
        while not target.exists():
            assert process.poll() is None
        first = target.stat().st_ino
        while target.stat().st_ino == first:
            assert process.poll() is None
        second = run("textfile", "--source", "demo", "--output", str(target), "--once")
        assert (second.returncode, second.stderr.count("another gpuscope writes this file")) == (2, 1)
        process.terminate()
        process.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_textfile_run_that_is_ended_writes_nothing(tmp_path: Path) -> None:
    """Even as the first process of a container, for which SIGTERM has no default effect."""
    argv = ("textfile", "--source", "demo", "--output", str(tmp_path / "gpu.prom"), "--once")
    with running(*argv, until="simulated") as (process, _):
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh", "powershell"])
def test_completion_scripts_know_every_command_and_the_flags_of_sources(shell: str) -> None:
    script = run("completion", shell).stdout
    assert "nvidia-smi-command" in script or "nvidia_smi_command" in script
    assert all(name in script for name in COMMANDS)


def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").stdout)
    complete = """
        source "$1"
        COMP_WORDS=(gpuscope "${@:2}"); COMP_CWORD=$(($# - 1))
        $(complete -p gpuscope | sed 's/.*-F \\([^ ]*\\).*/\\1/') gpuscope; printf '%s\\n' "${COMPREPLY[@]}"
    """
    for words, expected in ((("sna",), "snapshot"), (("up", "--retention-b"), "--retention-bytes")):
        answer = subprocess.run(
            ["bash", "-c", complete, "bash", script, *words], capture_output=True, text=True
        )
        assert answer.stdout.split() == [expected], answer.stderr


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("report",), "missing: usage|idle; see `gpuscope report --help`"),
        (("user", "ad"), "'ad' is not one of add, passwd, role, remove, list, token, revoke"),
        (("load", "--kind", "x"), "--kind: 'x' is not one of fp16, fp32"),
        (("render", "prometheus"), "missing: --nodes; see `gpuscope render prometheus --help`"),
        (("silence", "add"), "gpuscope: silence add: give at least one matcher"),
    ],
)
def test_a_missing_or_wrong_word_is_one_sentence_with_the_choices(argv: tuple[str, ...], sentence: str) -> None:
    answer = run(*argv)
    assert answer.returncode == 2
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen([*GPUSCOPE, "agent", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_the_agent_imports_only_what_it_uses() -> None:
    script = (
        "import sys; from gpuscope.cli import main; main(['agent', '--source', 'demo', '--once']);"
        "heavy = {'numpy', 'grpc', 'sqlite3', 'yaml', 'bcrypt', 'pynvml', 'psutil'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=QUIET, check=True)
    assert done.stderr.strip().endswith("[]"), done.stderr


def test_without_a_command_all_are_listed() -> None:
    done = run()
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("upp",), "unknown command 'upp' (did you mean up?); run `gpuscope` to list the commands"),
        (("up", "--listn", "1"), "unknown option --listn (did you mean --listen?); see `gpuscope up --help`"),
        (("up", "--port=1"), "unknown option --port=1 (did you mean --listen?); see `gpuscope up --help`"),
        (
            ("up", "--node-name", "a"),
            "unknown option --node-name (did you mean --node?); see `gpuscope up --help`",
        ),
        (
            ("server", "--config.file", "a.yml"),
            "unknown option --config.file (did you mean --config?); see `gpuscope server --help`",
        ),
        (("free", "--port", "1"), "unknown option --port; see `gpuscope free --help`"),
        (("up", "--frob"), "unknown option --frob; see `gpuscope up --help`"),
        (("server", "--retention", "foo"), "--retention: 'foo' is not a duration; for example 30d"),
        (("server", "--retention-bytes", "x"), "--retention-bytes: 'x' is not a size; for example 10GiB"),
        (("agent", "--retention", "3d"), "unknown option --retention; see `gpuscope agent --help`"),
        (("up", "--co2", "x"), "--co2: 'x' is not a number of 0 or more; for example 475"),
        (("up", "--demo", "--demo-nodes", "0"), "--demo-nodes: '0' is not a positive integer"),
        (("up", "--demo", "--source", "nvml"), "--demo and --source nvml: give only one of them"),
        (("server", "--config", "/no/such.yml"), "--config /no/such.yml: there is no such file"),
        (("notify", "test", "ops", "--alerting", "/no.yml"), "--alerting /no.yml: there is no such file"),
        (
            ("render", "firewall", "--settings", "x"),
            "give --settings directly after `gpuscope render`; see `gpuscope render --help`",
        ),
        (("explain", "state", "x"), "'x' is not a state; `gpuscope explain state` lists them"),
    ],
)
def test_a_mistake_is_one_sentence(argv: tuple[str, ...], sentence: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stderr) == (2, f"gpuscope: {sentence}\n")


def test_a_setting_of_another_command_is_an_error_from_any_origin(tmp_path: Path) -> None:
    command = [*GPUSCOPE, "agent", "--once", "--source", "demo"]
    done = subprocess.run(
        command, env={**QUIET, "GPUSCOPE_RETENTION": "3d"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "gpuscope: GPUSCOPE_RETENTION: `gpuscope agent` does not have this setting; "
        "leave the variable out: `env -u GPUSCOPE_RETENTION gpuscope agent …`\n"
    )
    file = tmp_path / "gpuscope.toml"
    file.write_text('retention = "3d"\n')
    done = run(*command[3:], "--settings", str(file))
    assert done.returncode == 2
    assert "retention: `gpuscope agent` does not have this setting; move it into the table" in done.stderr
    file.write_text('[up]\nretention = "3d"\n[agent]\nnode = "from-the-table"\n')
    done = run(*command[3:], "--settings", str(file))
    assert done.returncode == 0
    assert 'node="from-the-table"' in done.stdout


def test_every_setting_is_in_one_help_group() -> None:
    from gpuscope.base.settings import setting_rows
    from gpuscope.cli.parser import GROUPS

    grouped = [name for _, names in GROUPS for name in names]
    assert sorted(grouped) == sorted(row.name for row in setting_rows())


def test_scenarios_are_listed() -> None:
    assert "xid79" in run("up", "--scenarios").stdout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "libstdc++.so.6: cannot open shared object file: No such file or directory",
            "gpuscope server needs libstdc++.so.6, which is not installed; install libstdc++6 (Debian, "
            "Ubuntu) or libstdc++ (Fedora, RHEL); `gpuscope agent` runs without it",
        ),
        (
            "\n\nIMPORTANT: PLEASE READ\n\nOriginal error was: libz.so.1: cannot open shared object file: x\n",
            "gpuscope server needs libz.so.1, which is not installed; install the package that contains it",
        ),
    ],
)
def test_a_missing_system_library_is_one_sentence(
    text: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object, settings: object) -> int:
        raise ImportError(text)

    monkeypatch.setattr("gpuscope.cli.server.run", run)
    assert main(["server"]) == 1
    assert capsys.readouterr().err == f"gpuscope: {sentence}\n"


def test_other_import_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object, settings: object) -> int:
        raise ImportError("cannot import name 'x' from 'y'")

    monkeypatch.setattr("gpuscope.cli.server.run", run)
    with pytest.raises(ImportError, match="cannot import name"):
        main(["server"])
