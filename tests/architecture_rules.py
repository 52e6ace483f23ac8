"""The rules that `test_architecture.py` applies to `src/gpuscope`, as functions of a folder.

Input: the folder of a package. Output: one line per violation, which names the file and the offence. Each rule
reads the syntax tree, so a name counts however it was imported (`from threading import Thread as T`).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "gpuscope"

# Importing one of these modules is already the offence: they serve no other purpose.
THREAD_MODULES = ("multiprocessing", "_thread")
THREAD_NAMES = (
    "threading.Thread", "threading.Timer", "asyncio.to_thread",
    "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.thread.ThreadPoolExecutor", "concurrent.futures.process.ProcessPoolExecutor",
)  # fmt: skip
THREAD_METHODS = ("run_in_executor",)

IO_MODULES = (
    "asyncio", "ctypes", "fcntl", "glob", "grpc", "h11", "http", "httptools", "httpx", "httpx2", "mmap",
    "multiprocessing", "psutil", "pty", "pynvml", "select", "selectors", "shelve", "shutil", "signal",
    "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile", "urllib.request",
)  # fmt: skip
IO_NAMES = ("io.open", "io.FileIO", "time.sleep", "logging.FileHandler")
IO_BUILTINS = ("open", "input", "print")
# Parts of `os` that compute and ask the system nothing.
OS_WITHOUT_IO = ("os.fspath", "os.fsencode", "os.fsdecode", "os.sep", "os.linesep", "os.PathLike", "os.path")
OS_PATH_WITHOUT_IO = ("basename", "commonprefix", "dirname", "isabs", "join", "normpath", "split", "splitext")
# Methods of pathlib.Path; the receiver's type is unknown, so the name decides.
PATH_METHODS = (
    "chmod", "exists", "expanduser", "glob", "hardlink_to", "is_dir", "is_file", "is_socket", "is_symlink",
    "iterdir", "lstat", "mkdir", "open", "read_bytes", "read_text", "readlink", "rglob", "rmdir", "samefile",
    "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
)  # fmt: skip


@dataclass(frozen=True)
class Module:
    """One file of the package; `file` is its path below the package, such as `history/store/index.py`."""

    file: str
    tree: ast.Module

    @property
    def name(self) -> str:
        parts = self.file.removesuffix(".py").split("/")
        return ".".join([PACKAGE, *(part for part in parts if part != "__init__")])

    @cached_property
    def imports(self) -> frozenset[str]:
        """Every module, and every name of a module, that the file imports anywhere."""
        return frozenset(imports(self.tree))

    @cached_property
    def uses(self) -> frozenset[str]:
        """Every dotted name that the code (annotations aside) refers to, resolved through the imports."""
        return frozenset(dotted_names(self.tree))

    @cached_property
    def methods(self) -> frozenset[str]:
        """The names of all attributes that the file calls, or passes on as a function."""
        return frozenset(node.attr for node in runtime_nodes(self.tree) if isinstance(node, ast.Attribute))

    @cached_property
    def io(self) -> list[str]:
        """What the module uses to read or write something outside the process, or to wait."""
        by_import = {name for name in self.imports if is_below(name, IO_MODULES)}
        by_name = {name for name in self.uses if name in (*IO_NAMES, *IO_BUILTINS) or _is_os_io(name)}
        return sorted(by_import | by_name | self.methods & set(PATH_METHODS))

    @cached_property
    def thread_starts(self) -> list[str]:
        """What the module uses to start a thread or a process of its own, or to run a function in one."""
        by_import = {name for name in self.imports if is_below(name, THREAD_MODULES)}
        by_name = {name for name in self.uses if name in THREAD_NAMES}
        return sorted(by_import | by_name | self.methods & set(THREAD_METHODS))

    @cached_property
    def loads(self) -> frozenset[str]:
        """The modules that an import at run time loads: the named ones and the packages above them."""
        found = set()
        for name in imports(self.tree, at_runtime=True):
            parts = name.split(".")
            found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        return frozenset(found)


def read_package(root: Path) -> dict[str, Module]:
    """Every module of the package below `root`, by its file."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        found[file] = parse_module(file, path.read_text("utf-8"))
    return found


def parse_module(file: str, text: str) -> Module:
    return Module(file, ast.parse(text, file))


def imports(tree: ast.AST, *, at_runtime: bool = False) -> Iterator[str]:
    for node in runtime_nodes(tree) if at_runtime else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: without annotations, and without the body of `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            if name == "body" and isinstance(node, ast.If) and _is_type_checking(node.test):
                continue
            waiting += [
                one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)
            ]


def _is_type_checking(test: ast.expr) -> bool:
    return any(getattr(node, "id", getattr(node, "attr", "")) == "TYPE_CHECKING" for node in ast.walk(test))


def dotted_names(tree: ast.AST) -> Iterator[str]:
    origin: dict[str, str | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origin |= {
                alias.asname or alias.name.split(".")[0]: alias.asname and alias.name for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in runtime_nodes(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield ".".join([origin.get(node.id) or node.id, *reversed(parts)])


def is_below(name: str, parents: Sequence[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def any_below(names: Iterable[str], parent: str) -> bool:
    return any(is_below(name, (parent,)) for name in names)


def wrong_imports(package: Mapping[str, Module], order: Sequence[str]) -> list[str]:
    """Imports of a folder that stands below, and files without a place in the order."""
    wrong = []
    for module in package.values():
        own = room(module.file, order)
        if own is None:
            if module.file not in ("__init__.py", "__main__.py"):
                wrong.append(f"{module.file} has no place in the order")
            continue
        allowed = order[: order.index(own) + 1]
        for name in sorted(module.imports):
            other = room(name.removeprefix(f"{PACKAGE}.").replace(".", "/"), order)
            if name.startswith(f"{PACKAGE}.") and other is not None and other not in allowed:
                wrong.append(f"{module.file} imports {name}")
    return wrong


def room(path: str, order: Sequence[str]) -> str | None:
    """The folder of the order in which a file or module is: the innermost one."""
    return max((folder for folder in order if is_in(path, (folder,))), key=len, default=None)


def is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def threads_elsewhere(
    package: Mapping[str, Module], folders: Sequence[str], exceptions: Mapping[str, str]
) -> list[str]:
    """Threads outside `folders`, and exceptions that no longer are one."""
    return _elsewhere({file: one.thread_starts for file, one in package.items()}, folders, exceptions)


def outside_elsewhere(
    package: Mapping[str, Module], folders: Sequence[str], exceptions: Mapping[str, str]
) -> list[str]:
    """Input and output outside `folders`, and exceptions that no longer are one."""
    return _elsewhere({file: one.io for file, one in package.items()}, folders, exceptions)


def foreign_imports(package: Mapping[str, Module], ground: Sequence[str]) -> list[str]:
    """Imports of ours, other than from itself, in a folder or file that everything rests on."""
    return [
        f"{module.file} imports {name}"
        for module in package.values()
        for folder in ground
        if is_in(module.file, (folder,))
        for name in sorted(module.imports)
        if name.startswith(f"{PACKAGE}.")
        and not is_in(name.removeprefix(f"{PACKAGE}.").replace(".", "/"), (folder,))
    ]


def _elsewhere(
    uses: Mapping[str, list[str]], folders: Sequence[str], exceptions: Mapping[str, str]
) -> list[str]:
    elsewhere = {file for file, found in uses.items() if found and not is_in(file, folders)}
    wrong = [f"{file} uses {', '.join(uses[file])}" for file in sorted(elsewhere - exceptions.keys())]
    return wrong + [f"{file} is listed but has none" for file in sorted(exceptions.keys() - elsewhere)]


def _is_os_io(name: str) -> bool:
    if is_below(name, ("os.path",)):
        return name != "os.path" and name.split(".")[2] not in OS_PATH_WITHOUT_IO
    return name.startswith("os.") and not is_below(name, OS_WITHOUT_IO)


def impure_paths(
    package: Mapping[str, Module], pure: Sequence[str], exceptions: Mapping[str, str]
) -> list[str]:
    """For each module of a pure folder: the chain of imports that ends in a module with input or output."""
    by_name = {module.name: module for module in package.values()}
    wrong = []
    for module in package.values():
        if is_in(module.file, pure):
            for chain in chains(module, by_name):
                last = by_name[chain[-1]]
                if last.io and last.file not in exceptions:
                    wrong.append(f"{' → '.join(chain)} uses {', '.join(last.io)}")
    return wrong


def chains(module: Module, by_name: Mapping[str, Module]) -> Iterator[tuple[str, ...]]:
    """The shortest chain of imports from `module` to each module of ours that it loads, itself first."""
    seen = {module.name}
    waiting: list[tuple[str, ...]] = [(module.name,)]
    while waiting:
        chain = waiting.pop(0)
        yield chain
        for name in sorted(by_name[chain[-1]].loads & by_name.keys()):
            if name not in seen:
                seen.add(name)
                waiting.append((*chain, name))


def repeated_modules(package: Mapping[str, Module], exempt: Sequence[str]) -> dict[str, list[str]]:
    """Module names that more than one file has; those in `exempt` and `cli/<command>.py` do not count."""
    files = defaultdict(list)
    for file in package:
        stem = Path(file).stem
        if stem not in exempt and not re.fullmatch(r"cli/\w+\.py", file):
            files[stem].append(file)
    return {stem: found for stem, found in files.items() if len(found) > 1}


def repeated_classes(package: Mapping[str, Module]) -> dict[str, list[str]]:
    """Public class names that the package defines more than once at module level."""
    files = defaultdict(list)
    for file, module in package.items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(file)
    return {name: found for name, found in files.items() if len(found) > 1}
