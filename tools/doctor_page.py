"""docs/doctor.md: every sentence of the doctor with its fix, read from the source of its checks.

The sentences stay where the checks are; the page is generated, so both are always the same. Values that a check
fills in are shown as `…`. A fix that is chosen at run time is listed with all its variants.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.model.vendor import vendors

PACKAGE = Path(__file__).parent.parent / "src/gpuscope"
DOCTOR = PACKAGE / "serve/doctor"
GAP = "…"
VERDICTS = {"BAD": "problem", "NOTE": "note"}
INTRODUCTION = """# What the doctor says

Generated from `src/gpuscope/serve/doctor/` and `src/gpuscope/vendors/*/doctor.py` by `make docs`; do not edit.

`gpuscope doctor` checks this machine, `gpuscope doctor --server URL` a server from here. Each line below is a
sentence it prints, with the fix it prints under it; `…` stands for a value. A *problem* gives exit code 1, a
*note* does not. The [troubleshooting guide](guides/troubleshooting.md) goes from a symptom to the command.
"""
TITLES = {
    "__init__": "Every check",
    "alert_files": "Rule files and alerting file",
    "gpus": "GPUs",
    "listener_checks": "Ports",
    "machine": "Sources, kernel log, clock",
    "process_checks": "Owners of processes, Kubernetes",
    "server_alerts": "Alerts of a server, with `--server`",
    "server_reachability": "A server, with `--server`",
    "slurm_access": "Slurm",
    "stored_data": "Data of a server, with `--server`",
    "textfile_folders": "Text files for a node exporter",
}


@dataclass(frozen=True)
class DoctorSentence:
    verdict: str
    what: str
    fix: str


def doctor_page() -> Iterator[str]:
    yield INTRODUCTION
    for title, path in doctor_files().items():
        if sentences := doctor_sentences(path):
            yield f"## {title}\n"
            yield "| | what it says | fix |\n|---|---|---|"
            for sentence in sentences:
                yield f"| {sentence.verdict} | {_cell(sentence.what)} | {_cell(sentence.fix)} |"
            yield ""


def doctor_files() -> dict[str, Path]:
    """The modules with checks, by their titles: vendors first."""
    titles = {name: vendor.title for name, vendor in vendors().items()} | {"drm": "AMD, Intel"}
    of_vendors = {
        f"Driver and GPUs: {titles[path.parent.name]}": path
        for path in sorted(PACKAGE.glob("vendors/*/doctor.py"))
    }
    of_machine = {
        TITLES.get(path.stem, path.stem.replace("_", " ")): path for path in sorted(DOCTOR.glob("*.py"))
    }
    return of_vendors | of_machine


def doctor_sentences(path: Path) -> list[DoctorSentence]:
    """Problems and notes of one module, in the order of the source."""
    module = ast.parse(path.read_text("utf-8"))
    functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    texts = _Texts(module, functions)
    found = [one for function in functions.values() for one in texts.sentences(function)]
    return list(dict.fromkeys(found))


class _Texts:
    """Turns the arguments of `CheckResult(…)` and `Problem(…)` into text."""

    def __init__(self, module: ast.Module, functions: dict[str, ast.FunctionDef]) -> None:
        self._functions = functions
        self._constants = _assignments(module.body)

    def sentences(self, function: ast.FunctionDef) -> Iterator[DoctorSentence]:
        for call in _calls(function):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name == "Problem":
                verdict, (what, *fix) = "problem", call.args
            elif name == "CheckResult" and len(call.args) >= 2:
                verdict = self._verdict(call.args[0])
                what, *fix = call.args[1:]
            else:
                continue
            for text in self._variants(what, function, call.lineno):
                fixes = self._variants(fix[0], function, call.lineno) if fix else [""]
                if verdict and text.strip(GAP + " "):
                    yield DoctorSentence(verdict, text, "; or: ".join(fixes))

    def _verdict(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return VERDICTS.get(node.attr, "")
        return "problem"  # decided at run time: a problem where there are GPUs

    def _variants(self, node: ast.expr, function: ast.FunctionDef, line: int) -> list[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [node.value]
        if isinstance(node, ast.JoinedStr):
            text = "".join(self._part(part) for part in node.values)
            return [re.sub(f"{GAP}+", GAP, text)]
        if isinstance(node, ast.IfExp):
            return self._variants(node.body, function, line) + self._variants(node.orelse, function, line)
        if isinstance(node, ast.BoolOp):
            return [text for value in node.values for text in self._variants(value, function, line)]
        if isinstance(node, ast.Name):
            return self._of_name(node.id, function, line)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._functions:
            return self._returned(self._functions[node.func.id])
        return [GAP]

    def _part(self, node: ast.expr) -> str:
        """Of an f-string: its text, or the value of a constant of the module."""
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
            node = self._constants.get(node.value.id, node)
        return str(node.value) if isinstance(node, ast.Constant) else GAP

    def _of_name(self, name: str, function: ast.FunctionDef, line: int) -> list[str]:
        """The values assigned before this line: the nearest one, or all of an if."""
        before = [(at, value) for at, value in _assigned(function, name) if at <= line]
        if before:
            nearest = before[-1][1]
            siblings = [value for _, value in before] if _is_chosen(function, name) else [nearest]
            return [text for value in siblings for text in self._variants(value, function, line)]
        if name in self._constants:
            return self._variants(self._constants[name], function, line)
        return [GAP]

    def _returned(self, function: ast.FunctionDef) -> list[str]:
        returned = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        texts = [
            text
            for node in sorted(returned, key=lambda one: one.lineno)
            if node.value is not None
            for text in self._variants(node.value, function, node.lineno)
        ]
        return [text for text in texts if text]


def _calls(function: ast.FunctionDef) -> Sequence[ast.Call]:
    found = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _assignments(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def _assigned(function: ast.FunctionDef, name: str) -> list[tuple[int, ast.expr]]:
    found = [
        (node.lineno, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    ]
    return sorted(found, key=lambda pair: pair[0])


def _is_chosen(function: ast.FunctionDef, name: str) -> bool:
    """Whether branches of one `if` all assign the name, and one call uses it after them."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and node.orelse:
            branches = [_assignments(node.body), _assignments(node.orelse)]
            uses = [call for branch in (node.body, node.orelse) for one in branch for call in ast.walk(one)]
            inside = any(
                isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in uses
            )
            if all(name in branch or not branch for branch in branches) and name in branches[0] and not inside:
                return True
    return False


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
