"""The folder list is the data path, and what each folder may do: import, start threads, touch the outside.

The rules are functions in `architecture_rules.py`; here are the tables they are applied with. Every exception
has its reason, and an exception that is no longer one fails too, so that the lists only shrink.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope
from tests import architecture_rules as rules

ROOT = Path(gpuscope.__file__).parent
# Each imports only itself and what stands before it.
ORDER = (
    "base", "model/readings", "model", "agent", "agent/sources", "agent/owners", "agent/collect",
    "agent/families", "vendors", "history", "history/store", "history/scrape", "history/remote_write",
    "history/promql", "history/engines", "judge", "judge/checks", "judge/rules", "judge/notify",
    "judge/reports", "serve/render", "serve", "serve/doctor", "demo", "cli/wiring", "cli/terminal", "cli",
)  # fmt: skip
# These import nothing of ours: everything else rests on them.
GROUND = ("model/readings", "base/errors.py")
PURE_FOLDERS = (
    "model/readings", "agent/families", "history/promql", "judge/checks", "judge/rules/templates"
)  # fmt: skip

THREADS_ELSEWHERE = {
    "history/engines/embedded_engine.py": "a query is computed in the caller's executor, not in the event loop",
    "history/scrape/loop.py": "parsing a large scrape holds up the other targets",
    "history/scrape/providers/http_provider.py": "decoding a large answer holds up scrapes",
    "history/scrape/providers/kubernetes_client.py": "decoding a page of pods holds up scrapes",
    "history/scrape/scraper.py": "discovery reads files and a store may be slow: the wiring's workers do both",
    "serve/api/alertmanager.py": "silences are files, and a filter looks at every alert",
    "serve/api/notification_routes.py": "a test message waits for a channel, and the notifier has a lock",
    "serve/api/query_threads.py": "the query threads themselves: their number is a limit of the API",
    "serve/api/rule_routes.py": "a list of many alerts, and a thousand regular expressions of a request",
    "serve/api/write_route.py": "decoding and appending a remote write would hold up other clients",
    "serve/live/event_stream.py": "comparing and encoding pictures must not stop the event loop",
    "serve/live/gone_nodes.py": "reads the fleet's samples: a pass over every series",
    "serve/live/live_fleet.py": "judging the fleet and encoding its picture must not stop the event loop",
    "serve/login/access.py": "the audit log may lie on a slow disk",
    "serve/login/password_checks.py": "bcrypt is slow by design; its threads are few and bounded",
    "serve/login/routes.py": "users are files on a disk that may hang, and hashing a password is slow",
    "serve/page_routes.py": "the page's files are read from disk",
    "serve/reports/findings_over_time.py": "spans of a thousand GPUs are computed and encoded",
    "serve/reports/report_routes.py": "a report adds up millions of samples for seconds",
    "serve/api/status.py": "reading the size of the data folder touches the disk",
    "agent/sources/host/mounts.py": "a dead NFS server blocks statvfs for ever: a thread per mount",
    "agent/sources/kernel_log/log_readers.py": "a timer kills a command that does not end",
    "vendors/nvidia/nccl_ras/ras_protocol.py": "only a new thread may enter a container's network namespace",
    "agent/job_runner.py": "a driver call may never return: a thread per GPU",
    "history/store/background.py": "the store seals, merges and forgets in the background",
    "history/store/writer.py": "the store's single writer",
}

TOUCHES_OUTSIDE = (
    "agent/sources", "agent/owners", "vendors/nvidia/nvml", "vendors/nvidia/nvidia_smi", "vendors/nvidia/dcgm",
    "vendors/nvidia/nccl_ras", "vendors/nvidia/load", "vendors/amd/amdgpu", "vendors/intel/intel_gpu",
    "vendors/drm", "history/scrape", "history/remote_write", "history/engines", "judge/notify", "serve",
)  # fmt: skip
FOLDERS_WITH_A_REASON = {
    "history/store": "keeps its files: the SQLite database, its lock and its folder",
    "cli/wiring": "starts everything: signals, listeners, the state folder",
    "cli": "reads arguments and the terminal, prints",
    "serve/render": "writes the files it renders, and installs units",
    "serve/doctor": "looks at devices, files and ports to say why a number is missing",
}
OUTSIDE_ELSEWHERE = {
    "base/files.py": "the one way to read, replace or append to a file",
    "base/blocking_http.py": "the HTTP client of everything that runs in an agent",
    "base/command_runner.py": "runs a command of the system: nvidia-smi, Slurm's",
    "base/http_config.py": "certificates and keys of an HTTP client",
    "base/settings.py": "reads the environment and the settings file",
    "base/plugins.py": "lists the folders of sources and families",
    "vendors/nvidia/doctor.py": "looks at the driver's module, library and device files to say what is missing",
    "agent/collect/collector.py": "the agent's own CPU time and memory, from /proc/self",
    "agent/collect/expected.py": "counts the GPUs that the PCI bus shows, from sysfs",
    "agent/collect/source_worker.py": "`spec.open` opens a source; no file",
    "agent/collect/error_ledger.py": "the boot id: errors of an earlier boot are not counted again",
    "agent/collect/error_state.py": "the file with the errors counted so far",
    "model/exposition/text.py": "the textfile itself",
    "vendors/nvidia/families/dcgm/counters_csv.py": "reads the counters file again when it changes",
    "judge/rules/rule_io.py": "an event loop of its own for an engine behind HTTP",
    "judge/rules/rule_file.py": "finds rule files by their patterns",
    "judge/rules/saved_alerts.py": "the file that keeps alerts over a restart",
    "judge/rules/unit_test_file.py": "finds the rule files of a unit test",
}
# What a pure folder may load although it touches the outside.
IMPURE_ALLOWED = {
    "base/settings.py": "families read the settings' values; only the command line reads the file",
    "base/files.py": "the settings file and the counters file",
    "base/plugins.py": "sources and families are found by their folders, once",
    "vendors/nvidia/families/dcgm/counters_csv.py": OUTSIDE_ELSEWHERE[
        "vendors/nvidia/families/dcgm/counters_csv.py"
    ],
}

# Names that a folder layout repeats on purpose: each family has its builder and table, each source its plan,
# each vendor its parts.
REPEATED_BY_LAYOUT = ("__init__", "builder", "table", "plan", "vendor", "advice", "doctor")

OTHER_HTTP_CLIENTS = ("http.client", "urllib.request", "urllib3", "requests", "aiohttp", "httpx")

Package = dict[str, rules.Module]


@pytest.fixture(scope="module")
def package() -> Package:
    return rules.read_package(ROOT)


@pytest.fixture
def written(tmp_path: Path) -> Package:
    """A small package that keeps every rule; a test adds its violation with `add`."""
    made: Package = {}
    add(made, "model/readings/__init__.py", "")
    add(made, "base/errors.py", "class GpuscopeError(Exception): ...")
    add(made, "judge/checks/__init__.py", "")
    add(
        made,
        "model/exposition/sample.py",
        "from gpuscope.model.readings import x\nimport os.path\nJOINED = os.path.join('a', 'b')",
    )
    add(made, "serve/__init__.py", "")
    add(made, "serve/exporter.py", "import socket\nfrom gpuscope.judge.checks.sample import JOINED")
    return made


def add(package: Package, file: str, text: str) -> None:
    package[file] = rules.parse_module(file, text)


def wrong_io(package: Package, exceptions: dict[str, str]) -> list[str]:
    return rules.outside_elsewhere(package, (*TOUCHES_OUTSIDE, *FOLDERS_WITH_A_REASON), exceptions)


def test_a_folder_imports_only_what_stands_above_it(package: Package) -> None:
    assert rules.wrong_imports(package, ORDER) == []


def test_readings_and_errors_import_nothing_else_of_ours(package: Package) -> None:
    assert rules.foreign_imports(package, GROUND) == []


def test_threads_start_only_in_the_wiring(package: Package) -> None:
    assert rules.threads_elsewhere(package, ("cli/wiring",), THREADS_ELSEWHERE) == []


def test_only_the_listed_folders_touch_the_outside(package: Package) -> None:
    assert wrong_io(package, OUTSIDE_ELSEWHERE) == []


def test_pure_folders_load_nothing_that_does_input_or_output(package: Package) -> None:
    assert rules.impure_paths(package, PURE_FOLDERS, IMPURE_ALLOWED) == []


def test_there_are_two_http_clients(package: Package) -> None:
    """`httpx2` in `history/`, `blocking_http` elsewhere: docs/decisions/0014-http-clients.md."""
    for file, module in package.items():
        others = [name for name in module.imports if rules.is_below(name, OTHER_HTTP_CLIENTS)]
        assert others == [], file
        is_async = rules.is_in(file, ("history/scrape", "history/engines"))
        assert not rules.any_below(module.imports, "httpx2") or is_async, file
        assert not rules.any_below(module.imports, "h11") or file == "base/blocking_http.py", file


VENDOR_WORDS = (
    "nvidia-smi", "nvidia_smi", "10de", "nvidia_visible", "cuda_visible", "gpuscope.vendors.nvidia",
    "gpuscope.vendors.amd", "gpuscope.vendors.intel",
)  # fmt: skip
NAMES_A_VENDOR = {
    "agent/families/native/table.py": "the HELP text of a metric, which is a contract",
    "model/vendor.py": "examples of what a vendor tells",
    "judge/checks/checks.py": "the metric that shows that nvidia_gpu_exporter is scraped",
    "judge/checks/finding_texts.py": "the variable that users set: advice for their programs",
    "serve/doctor/server_alerts.py": "the metric that shows that nvidia_gpu_exporter is scraped",
    "serve/render/exporter_files.py": "writes the counters file of dcgm-exporter",
    "cli/free.py": "`--env` prints the variable, which is a contract",
    "cli/load.py": "the load is CUDA's: other vendors have none",
    "cli/wiring/run_load.py": "the load is CUDA's: other vendors have none",
}


def test_only_a_vendor_s_folder_names_what_is_the_vendor_s(package: Package) -> None:
    """A further vendor is one folder: what its GPUs need is not told to the others. The list only shrinks."""
    named = {
        file
        for file in package
        if not rules.is_in(file, ("vendors",))
        and any(word in (ROOT / file).read_text("utf-8").lower() for word in VENDOR_WORDS)
    }
    assert named == NAMES_A_VENDOR.keys()


def test_no_two_modules_share_a_name(package: Package) -> None:
    assert rules.repeated_modules(package, REPEATED_BY_LAYOUT) == {}


def test_no_two_public_classes_share_a_name(package: Package) -> None:
    assert rules.repeated_classes(package) == {}


def test_only_top_imports_textual(package: Package) -> None:
    """It takes 0.2 s and 20 MiB; agent, server and snapshot must not pay for it."""
    drawing = {f"cli/terminal/{name}.py" for name in ("top_app", "top_dialogs")}
    for file, module in package.items():
        found = [name for name in module.imports if rules.is_below(name, ("textual", "rich"))]
        assert not found or file in drawing, file
        assert not rules.any_below(module.imports, "gpuscope.cli.terminal.top_app") or file == "cli/top.py", (
            file
        )


def test_a_package_that_keeps_the_rules_passes_them(written: Package) -> None:
    assert rules.wrong_imports(written, ORDER) == []
    assert rules.foreign_imports(written, GROUND) == []
    assert rules.threads_elsewhere(written, ("cli/wiring",), {}) == []
    assert wrong_io(written, {}) == []
    assert rules.impure_paths(written, PURE_FOLDERS, {}) == []
    assert rules.repeated_modules(written, REPEATED_BY_LAYOUT) == {}
    assert rules.repeated_classes(written) == {}


def test_a_package_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "history" / "store").mkdir(parents=True)
    (tmp_path / "history" / "store" / "index.py").write_text("import sqlite3\n")
    found = rules.read_package(tmp_path)
    assert [(one.file, one.name, one.io) for one in found.values()] == [
        ("history/store/index.py", "gpuscope.history.store.index", ["sqlite3"])
    ]


@pytest.mark.parametrize(
    ("file", "text", "offence"),
    [
        ("judge/checks/bad.py", "from gpuscope.serve.exporter import x", "gpuscope.serve.exporter"),
        ("judge/checks/bad.py", "import gpuscope.serve", "gpuscope.serve"),
        ("judge/checks/bad.py", "from gpuscope import serve", "gpuscope.serve"),
        ("judge/checks/bad.py", "def f():\n    from gpuscope.cli import up", "gpuscope.cli"),
        ("base/errors.py", "from gpuscope.judge.checks import sample", "gpuscope.judge.checks"),
        ("helpers/bad.py", "", "no place in the order"),
        ("helper.py", "", "no place in the order"),
    ],
)
def test_the_order_rule_catches(written: Package, file: str, text: str, offence: str) -> None:
    add(written, file, text)
    wrong = rules.wrong_imports(written, ORDER)
    assert wrong
    assert all(line.startswith(file) for line in wrong)
    assert any(offence in line for line in wrong)


def test_the_ground_rule_catches_an_import_of_ours(written: Package) -> None:
    add(written, "model/readings/bad.py", "from gpuscope.base.settings import Settings")
    add(written, "model/readings/good.py", "from gpuscope.model.readings.bad import x")
    assert rules.foreign_imports(written, GROUND) == [
        "model/readings/bad.py imports gpuscope.base.settings",
        "model/readings/bad.py imports gpuscope.base.settings.Settings",
    ]


@pytest.mark.parametrize(
    ("text", "offence"),
    [
        ("import threading\nthreading.Thread(target=f).start()", "threading.Thread"),
        ("import threading as t\nt.Timer(1, f).start()", "threading.Timer"),
        ("from threading import Thread as T\nT(target=f)", "threading.Thread"),
        ("from threading import Thread\nclass Own(Thread): ...", "threading.Thread"),
        ("from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(2)", "ThreadPoolExecutor"),
        ("import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()", "ProcessPoolExecutor"),
        ("import asyncio\nasync def f(): await asyncio.to_thread(g)", "asyncio.to_thread"),
        ("from asyncio import to_thread\nasync def f(): await to_thread(g)", "asyncio.to_thread"),
        ("async def f(loop): await loop.run_in_executor(None, g)", "run_in_executor"),
        ("import multiprocessing", "multiprocessing"),
        ("from multiprocessing.pool import ThreadPool", "multiprocessing.pool"),
        ("import _thread", "_thread"),
    ],
)
def test_the_thread_rule_catches(written: Package, text: str, offence: str) -> None:
    add(written, "serve/bad.py", text)
    (line,) = rules.threads_elsewhere(written, ("cli/wiring",), {})
    assert line.startswith("serve/bad.py uses")
    assert offence in line
    assert rules.threads_elsewhere(written, ("cli/wiring",), {"serve/bad.py": "why"}) == []


def test_the_thread_rule_lets_an_annotation_pass_and_asks_for_exceptions_to_go(written: Package) -> None:
    add(
        written,
        "serve/good.py",
        "import threading\ndef f(one: threading.Thread) -> threading.Thread: return one",
    )
    assert rules.threads_elsewhere(written, ("cli/wiring",), {"serve/good.py": "why"}) == [
        "serve/good.py is listed but has none"
    ]


@pytest.mark.parametrize(
    ("text", "offence"),
    [
        ("def f(): return open('x')", "open"),
        ("from pathlib import Path\ndef f(): return Path('x').read_text()", "read_text"),
        ("def f(path): path.write_bytes(b'')", "write_bytes"),
        ("def f(path): return list(path.iterdir())", "iterdir"),
        ("import os\ndef f(): return os.listdir('.')", "os.listdir"),
        ("from os import environ\ndef f(): return environ['x']", "os.environ"),
        ("import os.path\ndef f(): return os.path.getsize('x')", "os.path.getsize"),
        ("from os.path import exists\ndef f(): return exists('x')", "os.path.exists"),
        ("import socket", "socket"),
        ("from http import client", "http"),
        ("from urllib.request import urlopen", "urllib.request"),
        ("import subprocess as s", "subprocess"),
        ("def f():\n    import sqlite3", "sqlite3"),
        ("import time\ndef f(): time.sleep(1)", "time.sleep"),
        ("from time import sleep\ndef f(): sleep(1)", "time.sleep"),
    ],
)
def test_the_outside_rule_catches(written: Package, text: str, offence: str) -> None:
    add(written, "judge/checks/bad.py", text)
    (line,) = wrong_io(written, {})
    assert line.startswith("judge/checks/bad.py uses")
    assert offence in line
    (line,) = rules.impure_paths(written, PURE_FOLDERS, {})
    assert line.startswith("gpuscope.judge.checks.bad uses")
    assert offence in line
    assert wrong_io(written, {"judge/checks/bad.py": "why"}) == []


def test_the_pure_rule_sees_input_and_output_behind_imports(written: Package) -> None:
    add(written, "base/files.py", "import os\ndef sync(): os.fsync(0)")
    add(written, "model/series.py", "from gpuscope.base import files")
    add(written, "judge/checks/bad.py", "from gpuscope.model.series import x")
    assert rules.impure_paths(written, PURE_FOLDERS, {}) == [
        "gpuscope.judge.checks.bad → gpuscope.model.series → gpuscope.base.files uses os.fsync"
    ]
    assert rules.impure_paths(written, PURE_FOLDERS, {"base/files.py": "why"}) == []


def test_the_pure_rule_does_not_follow_an_import_for_types(written: Package) -> None:
    add(written, "judge/checks/good.py", "if TYPE_CHECKING:\n    from gpuscope.serve.exporter import x")
    assert rules.impure_paths(written, PURE_FOLDERS, {}) == []


def test_the_name_rules_catch_a_second_module_and_class(written: Package) -> None:
    add(written, "serve/sample.py", "class Row: ...\nclass _Row: ...")
    add(written, "judge/checks/table.py", "class Row: ...\nclass _Row: ...")
    add(written, "serve/table.py", "")
    add(written, "cli/exporter.py", "")
    assert rules.repeated_modules(written, REPEATED_BY_LAYOUT) == {
        "sample": ["model/exposition/sample.py", "serve/sample.py"]
    }
    assert rules.repeated_classes(written) == {"Row": ["serve/sample.py", "judge/checks/table.py"]}
