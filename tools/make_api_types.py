"""Makes `web/src/api-types.ts` and the tables of `docs/api.md` from the TypedDicts in `serve/api_types/`.

Input: the modules' source, read by `ast` for the sentence below each key, and their types. Called by
`tools.make_docs`; tests/test_docs.py checks that the results are up to date.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NotRequired, Required

from gpuscope.judge.checks.finding_texts import FINDING_TEXTS, STEP_TEXTS
from gpuscope.judge.checks.states import WORST_FIRST
from gpuscope.judge.reports.report_sentence import texts_without_formats
from gpuscope.serve.api_types import (
    findings_json,
    live_json,
    live_stream_json,
    notifications_json,
    report_json,
    session_json,
)

MODULES: tuple[ModuleType, ...] = (
    findings_json,
    live_json,
    live_stream_json,
    notifications_json,
    report_json,
    session_json,
)
PRIMITIVES = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
PRETTIER_WIDTH = 120
"""Of web/.prettierrc.json: a longer entry is broken after its key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    name: str
    type: Any
    is_required: bool
    help: str


@dataclass(frozen=True, slots=True)
class ApiObject:
    name: str
    base: str
    """The object whose keys it has too; mostly empty."""
    help: str
    keys: tuple[ApiKey, ...]
    """Without those of the base."""


def api_objects() -> list[ApiObject]:
    return [one for module in MODULES for one in _objects_of(module)]


def _objects_of(module: ModuleType) -> Iterator[ApiObject]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            described = getattr(module, node.name)
            hints = typing.get_type_hints(described, include_extras=True)
            helps = dict(_sentences(node))
            base = _base(node)
            inherited = getattr(module, base).__annotations__ if base else {}
            keys = [
                _key(name, hint, helps.get(name, "")) for name, hint in hints.items() if name not in inherited
            ]
            yield ApiObject(node.name, base, ast.get_docstring(node) or "", tuple(keys))


def _base(node: ast.ClassDef) -> str:
    """Empty for a direct TypedDict: the class itself does not know its bases before Python 3.12."""
    return next((base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "TypedDict"), "")


def _sentences(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The string below an annotation."""
    for above, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
            value = below.value if isinstance(below, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield above.target.id, " ".join(value.value.split())


def _key(name: str, hint: Any, help_text: str) -> ApiKey:
    origin = typing.get_origin(hint)
    if origin in (NotRequired, Required):
        return ApiKey(name, typing.get_args(hint)[0], origin is Required, help_text)
    return ApiKey(name, hint, True, help_text)


def to_typescript(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in PRIMITIVES:
        return PRIMITIVES[hint]
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(to_typescript, arguments)))
    if origin is list:
        inner = to_typescript(arguments[0])
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if origin is dict:
        return f"Record<string, {to_typescript(arguments[1])}>"
    if typing.is_typeddict(hint):
        return str(hint.__name__)
    raise TypeError(f"{hint!r}: no TypeScript type is known for it; add it to tools/make_api_types.py")


def text_table(name: str, texts: Mapping[str, str]) -> Iterator[str]:
    yield f"export const {name} = {{"
    for key, text in sorted(texts.items()):
        name, value = key if key.isidentifier() else json.dumps(key), json.dumps(text, ensure_ascii=False)
        line = f"  {name}: {value},"
        yield line if len(line) <= PRETTIER_WIDTH else f"  {name}:\n    {value},"
    yield "} as const;"


def typescript_file() -> Iterator[str]:
    yield "// Made by `make docs` from src/gpuscope/serve/api_types/ and health/; do not edit it by hand."
    yield "// A key with `?` is left out where its value is not known."
    yield ""
    yield "/** Worst first. */"
    yield f"export const GPU_STATES = [{', '.join(json.dumps(str(state)) for state in WORST_FIRST)}] as const;"
    yield "export type GpuState = (typeof GPU_STATES)[number];"
    yield "\n/** What is wrong, in English, by `why_key`. Only tests read it: the server sends the sentence. */"
    yield from text_table("FINDING_TEXTS", FINDING_TEXTS)
    yield "export type FindingTextKey = keyof typeof FINDING_TEXTS;"
    yield "\n/** What to do next, in English, by `next_key`; read as above. */"
    yield from text_table("STEP_TEXTS", STEP_TEXTS)
    yield "export type StepTextKey = keyof typeof STEP_TEXTS;"
    yield "\n/** Sentences of reports and receipts, in English, by `key`; read as above. */"
    yield from text_table("REPORT_TEXTS", texts_without_formats())
    yield "export type ReportTextKey = keyof typeof REPORT_TEXTS;"
    for one in api_objects():
        yield f"\n/** {one.help} */"
        yield f"export interface {one.name}{f' extends {one.base}' if one.base else ''} {{"
        for key in one.keys:
            if key.help:
                yield f"  /** {key.help} */"
            yield f"  {key.name}{'' if key.is_required else '?'}: {to_typescript(key.type)};"
        yield "}"


def api_tables() -> Iterator[str]:
    """One table for each object, for docs/api.md."""
    for one in api_objects():
        yield f"\n### {one.name}\n"
        yield f"{one.help}\n"
        if one.base:
            yield f"All keys of `{one.base}`, and:\n"
        yield "| key | type | what |\n|---|---|---|"
        for key in one.keys:
            kind = to_typescript(key.type).replace("|", "\\|")
            optional = "" if key.is_required else " (may be absent)"
            yield f"| `{key.name}` | `{kind}`{optional} | {key.help} |"
