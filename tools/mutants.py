"""Mutation testing of the pure core: `make mutants`. Does some test fail after each small change of the code?

tests/mutants.toml names the modules, the tests of each, and the changes that no test can notice, with reasons.
A mutant is one change: `<` becomes `<=`, `and` becomes `or`, 1 becomes 2, a statement or a keyword argument is
removed. Up to `--max` of a module are tried, the same ones in each run. Each runs in a forked process that
imports the changed module from memory: no file is written. A mutant that passes all tests survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "tests" / "mutants.toml"
MAX_MUTANTS: Final = 60
MAX_CHILD_BYTES: Final = 4 << 30
"""A mutant may loop for ever and remember each turn."""
MAX_WALL_PER_CPU_SECOND: Final = 10
"""The limit is CPU time, which does not depend on how busy the machine is; this is for mutants that wait."""
POLL_SECONDS: Final = 0.01

COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
REMOVED: Final = "(removed)"
REMOVABLE: Final = frozenset({(ast.Call, "keywords"), (ast.comprehension, "ifs")})
"""Nodes without which the code still compiles, by parent and attribute."""
UNTESTED_KEYWORDS: Final = frozenset({"strict"})
"""`zip(…, strict=True)` says what is so anyway."""
UNTESTED_CALLS: Final = frozenset({"log", "LOG", "logging"})
"""What a log line says is tested where it matters; that each line exists is not."""


@dataclass(frozen=True)
class Mutant:
    """`path` leads from the module's tree to the changed node: attribute names and list positions."""

    line: int
    function: str
    change: str
    path: tuple[str | int, ...]
    node: ast.AST | None
    """None removes the node at `path` from its list."""
    rank: str
    """Orders the mutants of a module by chance, but alike in each run, whatever changes above them."""


@dataclass(frozen=True)
class Target:
    """A module under test, or some of its classes and functions (`parts`). `explained` has the reasons of
    survivors, by function and change."""

    module: str
    tests: tuple[str, ...]
    explained: Mapping[tuple[str, str], str]
    parts: tuple[str, ...] = ()

    def mutants(self, tree: ast.Module) -> list[Mutant]:
        """In the order in which they are tried."""
        every = sorted(find_mutants(tree), key=lambda mutant: mutant.rank)
        return [one for one in every if not self.parts or one.function.partition(".")[0] in self.parts]


@dataclass
class Outcome:
    killed: int = 0
    survivors: list[Mutant] = field(default_factory=list)


def read_targets(path: Path = DATA) -> list[Target]:
    document = tomllib.loads(path.read_text())
    return [
        Target(
            row["name"],
            tuple(row["tests"]),
            {(one["function"], one["change"]): one["why"] for one in row.get("equivalent", ())},
            tuple(row.get("parts", ())),
        )
        for row in document["module"]
    ]


def source_of(module: str) -> Path:
    path = ROOT / "src" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# Mutants


def find_mutants(tree: ast.Module) -> Iterator[Mutant]:
    yield from _in_node(tree, tree, (), "module")


def _in_node(node: ast.AST, parent: ast.AST, path: tuple[str | int, ...], function: str) -> Iterator[Mutant]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = node.name if function == "module" else f"{function}.{node.name}"
    for new in _changes(node):
        change = plain = f"{_text(node)} -> {_text(new)}"
        if _is_number(node):  # `1 -> 2` says nothing without what is around it
            change = f"{_text(parent)} -> {_text(_with_child(parent, node, new))}"
        yield Mutant(_line(node, parent), function, change, path, new, _rank(function, plain))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or _is_number(node):
            continue
        if isinstance(value, ast.AST):
            yield from _in_node(value, node, (*path, name), function)
        elif isinstance(value, list):
            yield from _in_list(node, name, value, (*path, name), function)


def _in_list(
    parent: ast.AST, name: str, rows: list[Any], path: tuple[str | int, ...], function: str
) -> Iterator[Mutant]:
    for place, row in enumerate(rows):
        if not isinstance(row, ast.AST) or _is_untested(row):
            continue
        if isinstance(row, ast.Expr) and isinstance(row.value, ast.Constant):
            continue  # a docstring
        if (type(parent), name) in REMOVABLE:
            change = f"{_text(row)} -> {REMOVED}"
            yield Mutant(_line(row, parent), function, change, (*path, place), None, _rank(function, change))
        yield from _in_node(row, parent, (*path, place), function)


def _is_number(node: ast.AST) -> bool:
    """Or -1, which is no constant to the parser."""
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    )


def _rank(function: str, change: str) -> str:
    return hashlib.sha256(f"{function}|{change}".encode()).hexdigest()


def _line(node: ast.AST, parent: ast.AST) -> int:
    return int(getattr(node, "lineno", getattr(parent, "lineno", 0)))


def _with_child(parent: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    changed = copy.copy(parent)
    for name, value in ast.iter_fields(parent):
        if value is old:
            setattr(changed, name, new)
        elif isinstance(value, list):
            setattr(changed, name, [new if child is old else child for child in value])
    return changed


def _is_untested(node: ast.AST) -> bool:
    """A log line, an import, a definition of types only."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in UNTESTED_KEYWORDS
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    return isinstance(called, ast.Attribute) and ast.unparse(called.value) in UNTESTED_CALLS


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Pass):
        return REMOVED
    text = ast.unparse(node)
    first, rest, _ = text.partition("\n")
    return f"{first} …" if rest else first


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand for the node."""
    match node:
        case ast.Compare():
            yield from _changed_comparisons(node)
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node):
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        case ast.AugAssign() if type(node.op) in OPERATORS:
            yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.Constant() | ast.UnaryOp():
            yield from _changed_values(node)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Break() | ast.Continue() | ast.Expr(value=ast.Call() | ast.Yield()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()


def _changed_values(node: ast.Constant | ast.UnaryOp) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool(truth)):
            yield ast.Constant(not truth)
        case ast.Constant(value=int(number) | float(number)):
            yield ast.Constant(number + 1)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number) | float(number))):
            yield ast.Constant(number)
            yield ast.Constant(-number - 1)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand


def _changed_comparisons(node: ast.Compare) -> Iterator[ast.AST]:
    for place, operator in enumerate(node.ops):
        if type(operator) in COMPARISONS:
            operators = list(node.ops)
            operators[place] = COMPARISONS[type(operator)]()
            yield ast.Compare(node.left, operators, node.comparators)


def _is_text(node: ast.BinOp) -> bool:
    """Adding texts, or `%` on one."""
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in (node.left, node.right)
    )


def compile_mutant(tree: ast.Module, mutant: Mutant, file: Path) -> CodeType:
    changed = copy.deepcopy(tree)
    *way, last = mutant.path
    holder: Any = changed
    for step in way:
        holder = holder[step] if isinstance(step, int) else getattr(holder, step)
    if mutant.node is None:
        del holder[last]
    elif isinstance(last, int):
        holder[last] = ast.copy_location(copy.deepcopy(mutant.node), holder[last])
    else:
        setattr(holder, last, ast.copy_location(copy.deepcopy(mutant.node), getattr(holder, last)))
    return compile(ast.fix_missing_locations(changed), str(file), "exec")


# Runs


class _Loader(importlib.machinery.SourceFileLoader):
    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class _Finder:
    """Finds the changed module, and no other."""

    def __init__(self, module: str, file: Path, code: CodeType) -> None:
        self._module, self._file, self._code = module, file, code

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        loader = _Loader(name, str(self._file))
        loader.code = self._code
        return importlib.util.spec_from_file_location(name, self._file, loader=loader)


def _pytest_arguments(tests: Sequence[str], folder: str) -> list[str]:
    quiet = ["-x", "-q", "--no-header", "--no-summary", "--tb=no"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=fast"]
    return [*quiet, *plugins, f"--basetemp={folder}/tests", *tests]


def start(target: Target, file: Path, code: CodeType | None, folder: str, limit: float = 3600.0) -> int:
    """The process id of a run of the tests with this code of the module; it ends with pytest's exit code."""
    process = os.fork()
    if process:
        return process
    status = 3
    try:
        os.setpgid(0, 0)  # what the tests start ends with them
        with Path(folder, "output").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_CHILD_BYTES, MAX_CHILD_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (round(limit), round(limit) + 1))
        if code is not None:
            sys.meta_path.insert(0, _Finder(target.module, file, code))
        status = int(pytest.main(_pytest_arguments(target.tests, folder)))
    finally:
        os._exit(status)


def forget_own_modules() -> None:
    """What tests import from elsewhere stays loaded: importing it again would take most of a run."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("gpuscope", "tests"):
            del sys.modules[name]


def baseline_seconds(target: Target, file: Path) -> float:
    """The CPU time of the tests with unchanged code, which they must pass."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        _, status, used = os.wait4(start(target, file, None, folder), 0)
        if status:
            sys.exit(f"{target.module}: its tests fail without a change\n{Path(folder, 'output').read_text()}")
        return used.ru_utime + used.ru_stime


def try_mutants(target: Target, mutants: Sequence[Mutant], tree: ast.Module, file: Path, jobs: int) -> Outcome:
    outcome, limit = Outcome(), 10 + 5 * baseline_seconds(target, file)
    patience = MAX_WALL_PER_CPU_SECOND * limit
    todo = list(reversed(mutants))
    running: dict[int, tuple[Mutant, float, tempfile.TemporaryDirectory[str]]] = {}
    while todo or running:
        while todo and len(running) < jobs:
            mutant = todo.pop()
            folder = tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True)
            process = start(target, file, compile_mutant(tree, mutant, file), folder.name, limit)
            running[process] = mutant, time.monotonic() + patience, folder
        for process, (mutant, ends_at, folder) in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and time.monotonic() < ends_at:
                continue
            if not ended:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                status = 1
            del running[process]
            folder.cleanup()
            if status:
                outcome.killed += 1
            else:
                outcome.survivors.append(mutant)
        time.sleep(POLL_SECONDS)
    baseline_seconds(target, file)  # if files have changed meanwhile, every mutant may have failed for that
    return outcome


def run_module(target: Target, count: int, jobs: int) -> tuple[int, int]:
    """Prints survivors without an explanation and explanations without a survivor; returns how many of each."""
    file = source_of(target.module)
    tree = ast.parse(file.read_text())
    every = target.mutants(tree)
    began = time.monotonic()
    outcome = try_mutants(target, every[:count], tree, file, jobs)
    keys = {(mutant.function, mutant.change) for mutant in outcome.survivors}
    unexplained = [one for one in outcome.survivors if (one.function, one.change) not in target.explained]
    tried = {(mutant.function, mutant.change) for mutant in every[:count]}
    wrong = [key for key in target.explained if key not in keys and (key in tried or count >= len(every))]
    print(
        f"{target.module}: {min(count, len(every))} of {len(every)} mutants, {outcome.killed} killed, "
        f"{len(outcome.survivors)} survived, {len(keys & target.explained.keys())} of them explained "
        f"({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    for mutant in sorted(unexplained, key=lambda one: one.line):
        print(f"  {file.relative_to(ROOT)}:{mutant.line} in {mutant.function}: {mutant.change}")
    for function, change in wrong:
        print(f"  {DATA.relative_to(ROOT)} explains a change that does not survive: {function}: {change}")
    return len(unexplained), len(wrong)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="modules of tests/mutants.toml; all without a name")
    parser.add_argument("--max", type=int, default=MAX_MUTANTS, help="mutants per module (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default %(default)s)")
    chosen = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT)]
    targets = [one for one in read_targets() if not chosen.modules or one.module in chosen.modules]
    tests = sorted({test for target in targets for test in target.tests})
    if pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]):
        return 2
    forget_own_modules()
    counts = [run_module(target, chosen.max, chosen.jobs) for target in targets]
    return int(any(sum(pair) for pair in counts))


if __name__ == "__main__":
    sys.exit(main())
