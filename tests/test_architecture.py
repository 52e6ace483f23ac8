"""The folder order follows the data path: a folder imports only folders above it and leaves."""

from __future__ import annotations

import ast
from pathlib import Path

import gpuscope

ROOT = Path(gpuscope.__file__).parent
ORDER = (
    "readings", "sources", "owners", "collect", "metrics", "exposition", "store", "scrape", "remote_write",
    "promql", "engines", "health", "rules", "load", "server", "doctor", "wiring", "cli",
)  # fmt: skip
LEAVES = (
    "blocking_http", "readings", "settings", "setting_values", "limits", "errors", "clock", "rfc3339", "varint",
    "anchored_regex", "atomic_write", "episode_log", "label_columns", "series", "series_columns", "source_plan",
    "worker", "yaml_file", "yaml_mistakes",
)  # fmt: skip
PURE_FOLDERS = ("readings", "metrics", "promql", "rules")
OUTSIDE_MODULES = ("subprocess", "socket", "sqlite3", "pynvml", "psutil", "grpc")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(folder: str, path: Path) -> list[str]:
    allowed = {*LEAVES, folder, *ORDER[: ORDER.index(folder)]}
    wrong = []
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "gpuscope" and len(parts) > 1 and parts[1] not in allowed and parts[1] != "__version__":
            wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    return wrong


def test_a_folder_imports_only_folders_above_it() -> None:
    wrong = [
        line
        for folder in ORDER
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in violations(folder, path)
    ]
    assert wrong == []


def test_every_folder_has_its_place_in_the_order() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(ORDER)


def test_readings_and_the_leaves_import_nothing_else_of_ours() -> None:
    for path in [*(ROOT / "readings").rglob("*.py"), ROOT / "errors.py"]:
        ours = {name for name in imports(path) if name.startswith("gpuscope.")}
        assert {name for name in ours if not name.startswith("gpuscope.readings")} == set(), path


def test_metrics_and_promql_do_no_input_or_output() -> None:
    for folder in PURE_FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert not imports(path) & set(OUTSIDE_MODULES), path


def test_the_rule_catches_a_wrong_import(tmp_path: Path) -> None:
    bad = ROOT / "metrics" / "number_text.py"
    assert violations("metrics", bad) == []
    assert imports(bad)
    as_reading = violations("readings", bad)  # it imports nothing of gpuscope
    assert as_reading == []
    server_file = ROOT / "server" / "exporter.py"
    assert violations("metrics", server_file), "a metrics file that imports the server must be caught"


THREADS_ELSEWHERE = {
    "sources/nvml/job_runner.py": "a driver call may never return; one thread per GPU, replaced when stuck",
    "sources/host/mounts.py": "a dead NFS server blocks statvfs for ever; one thread per mount takes the blow",
    "store/background.py": "the store seals, merges and forgets in the background",
    "store/writer.py": "the store's single writer",
}


def test_threads_start_only_in_the_wiring() -> None:
    for path in ROOT.rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if "threading.Thread(" in path.read_text("utf-8"):
            assert name.startswith("wiring/") or name in THREADS_ELSEWHERE, name


def test_there_are_two_http_clients() -> None:
    """`httpx2` in scrape/ and engines/, `blocking_http` elsewhere: docs/decisions/0014-http-clients.md."""
    for path in ROOT.rglob("*.py"):
        name, found = str(path.relative_to(ROOT)), imports(path)
        assert not found & {"http.client", "urllib.request", "urllib3", "requests", "aiohttp"}, name
        assert "httpx2" not in found or name.startswith(("scrape/", "engines/")), name
        assert "h11" not in found or name == "blocking_http.py", name
