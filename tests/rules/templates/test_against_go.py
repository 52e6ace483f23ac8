"""Templates give what Prometheus' and Alertmanager's own code gives: text for text, error for error.

The goldens are the Go program's results; `GOLDEN_UPDATE=1 pytest tests/rules/templates` writes them anew
where Go is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.goldens import GOLDEN, check_golden
from tests.rules.templates.corpus_cases import DATA, corpus
from tests.rules.templates.expansion import Result, default_templates, expand, expand_with_go

GOLDEN_FILE = Path("rules/templates.json")
PREFIXES = ("error parsing template __alert_Test: ", "error executing template __alert_Test: ")
WORDS_DIFFER = (
    "html/template",  # the place is found while the template runs, so the message names the node
    "non-function",
    "parsing time",
    "in type interface {}",
)
"""Errors whose text differs from Go's, by a part of Go's text; that there is one is compared all the same."""


def go_error(result: Result) -> str:
    text = result["error"]
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    return text


def check_case(case: Mapping[str, Any], wanted: Result) -> None:
    ours = expand(case)
    place = f"{case['engine']}: {case['template']!r} with {case.get('value')}"
    assert ours["output"] == wanted["output"], place
    error = go_error(wanted)
    if any(part in error for part in WORDS_DIFFER):
        assert ours["error"], place
    else:
        assert ours["error"] == error, place


def needs_default_templates(case: Mapping[str, Any]) -> bool:
    return case["engine"] != "prometheus" and bool(re.search(r'template "(__|\w+\.default)', case["template"]))


def results_as_text(cases: list[dict[str, Any]], results: list[Result]) -> bytes:
    rows = [
        {"engine": case["engine"], "template": case["template"], "value": case.get("value", ""), **result}
        for case, result in zip(cases, results, strict=True)
    ]
    return (json.dumps(rows, indent=0, ensure_ascii=False) + "\n").encode()


def test_go_gives_the_goldens() -> None:
    cases = corpus()
    check_golden(GOLDEN_FILE, results_as_text(cases, expand_with_go(cases)))


def test_every_case_of_the_corpus_expands_as_in_go() -> None:
    goldens = json.loads((GOLDEN / GOLDEN_FILE).read_text())
    cases = corpus()
    assert [case["template"] for case in cases] == [row["template"] for row in goldens]
    skipped = 0
    for case, row in zip(cases, goldens, strict=True):
        if default_templates() is None and needs_default_templates(case):
            skipped += 1
            continue
        check_case(case, {"output": row["output"], "error": row["error"]})
    assert skipped < 40


LITERALS = (
    "1",
    "0",
    "-3",
    "2.5",
    "1e3",
    '"a b"',
    '"<x>"',
    "`r`",
    "true",
    "false",
    "nil",
    "'c'",
    "0x1f",
    '"12.5"',
)
OPERANDS = (
    *LITERALS,
    ".",
    "$",
    "$labels",
    "$labels.gpu",
    "$value",
    ".Labels.instance",
    ".Nope",
    "$x",
    "$labels.no",
)
FUNCTIONS = (
    "print", "printf \"%v|%d\"", "printf \"%5.2f\"", "len", "humanize", "humanizeDuration", "not", "eq 1",
    "eq \"a\"",
    "lt 2", "ge 2.5", "toUpper", "title", "index $labels", "query", "first", "value", "html", "urlquery", "js",
    "args 1", "and 1", "or 0", "toTime", "toDuration", "parseDuration", "match \"a\"", "stripPort", "println",
    "slice \"abcdef\"", "sortByLabel \"job\"", "safeHtml", "printf", "label \"job\"", "printf \"%q %x\" 1.5",
)  # fmt: skip


def pipelines() -> st.SearchStrategy[str]:
    operand = st.sampled_from(OPERANDS)
    call = st.builds(lambda name, value: f"{name} {value}", st.sampled_from(FUNCTIONS), operand)
    stage = st.one_of(operand, call, st.sampled_from(FUNCTIONS))
    flat = st.lists(stage, min_size=1, max_size=4).map(" | ".join)
    nested = st.builds(lambda name, inner: f"{name} ({inner})", st.sampled_from(FUNCTIONS), flat)
    return st.one_of(flat, nested, flat.map(lambda inner: f"({inner}).Labels"))


def templates() -> st.SearchStrategy[str]:
    action = pipelines().map(lambda pipe: f"{{{{ {pipe} }}}}")
    text = st.sampled_from(
        ("x", " ", "\n", "ü", " - ", "{", "}}", "{{/* c */}}", "{{- 1 -}}", '{{ $x := "v" }}')
    )

    def blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("{{{{ if {} }}}}{}{{{{ else }}}}{}{{{{ end }}}}".format, pipelines(), inner, inner),
            st.builds("{{{{ range $i, $e := {} }}}}{}{{{{ $i }}}}{{{{ end }}}}".format, pipelines(), inner),
            st.builds("{{{{ range {} }}}}{}{{{{ break }}}}{{{{ end }}}}".format, pipelines(), inner),
            st.builds("{{{{ with $x := {} }}}}{}{{{{- end }}}}".format, pipelines(), inner),
            st.builds('{{{{ define "t" }}}}{}{{{{ end }}}}{{{{ template "t" . }}}}'.format, inner),
            st.lists(inner, max_size=3).map("".join),
        )

    return st.recursive(st.one_of(action, text), blocks, max_leaves=6).map(
        lambda body: '{{ $x := "v" }}' + body
    )


@pytest.mark.slow
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(st.lists(templates(), min_size=100, max_size=200))
def test_random_templates_expand_as_in_go(texts: list[str]) -> None:
    base = next(case for case in corpus() if case["engine"] == "prometheus")
    cases = [{**base, "template": text} for text in texts]
    for case, wanted in zip(cases, expand_with_go(cases), strict=True):
        if "0xc0" not in wanted["output"]:  # an address: a pointer was printed
            ours = expand(case)
            assert ours["output"] == wanted["output"], case["template"]
            assert bool(ours["error"]) == bool(wanted["error"]), (case["template"], ours, wanted)


HTML_VALUES = (
    ".CommonLabels.html", ".CommonLabels.url", ".CommonLabels.js", ".Status", "len .Alerts", ".CommonLabels",
    ".CommonLabels.html | safeHtml", ".CommonLabels.url | safeUrl", "1.5", ".CommonLabels.js | urlquery",
    ".CommonLabels.html | html", ".CommonLabels.empty", "(index .Alerts 0).StartsAt", "true", 'list 1 "<a>"',
)  # fmt: skip
HTML_FRAMES = (
    '<a href="@">x</a>',
    '<a href="/p/@?q=@#@">x</a>',
    "<b>@</b>@",
    "<p title=\"@\" class='@'>@</p>",
    "<p id=@>x</p>",
    "<script>var a = @, b = \"@\", c = '@';</script>",
    '<style>p { color: @; background: url("@") }</style>',
    '<p style="color: @; background: url(@)">',
    "<p onclick=\"f(@, '@')\">x</p>",
    "<title>@</title>",
    "<textarea>@</textarea>",
    "<!-- @ -->@",
    '<img src=@ alt="@">',
    "<p style='font-family: \"@\"'>",
    "<script>/* @ */ x = /@/; // c\n y = @</script>",
    '<img srcset="@, @ 2x">',
    '<meta content="@">',
    "<@>",
    "</@>",
    '<svg xlink:href="@"/>',
    '<form action="@"><input value="@" name=@></form>',
    "<script>x = `@`</script>",
    '{{ if true }}<a href="@">{{ else }}<a href="x">{{ end }}y</a>',
    "{{ range .Alerts }}<i>@</i>{{ end }}",
    "<a @>x</a>",
    '<script type="text/template">@</script>',
    '<a on@="x">y</a>',
    '<p style="@: red">',
    '<a href="javascript:@">x</a>',
    '<iframe srcdoc="@"></iframe>',
    '<script>if (a > @) { b = [@, "@"] }</script>',
    "<script>x = a / @; y = @ / 2</script>",
)


def html_templates() -> st.SearchStrategy[str]:
    frames = st.lists(st.sampled_from(HTML_FRAMES), min_size=1, max_size=3).map("".join)

    def fill(frame: str, values: list[str]) -> str:
        for value in values:
            frame = frame.replace("@", f"{{{{ {value} }}}}", 1)
        return frame

    return frames.flatmap(
        lambda frame: st.lists(
            st.sampled_from(HTML_VALUES), min_size=frame.count("@"), max_size=frame.count("@")
        ).map(lambda values: fill(frame, values))
    )


@pytest.mark.slow
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(st.lists(html_templates(), min_size=100, max_size=200))
def test_random_html_is_escaped_as_in_go(texts: list[str]) -> None:
    cases: list[dict[str, Any]] = [{"engine": "html", "template": text, "data": DATA} for text in texts]
    for case, wanted in zip(cases, expand_with_go(cases), strict=True):
        ours = expand(case)
        assert ours["output"] == wanted["output"], case["template"]
        assert bool(ours["error"]) == bool(wanted["error"]), (case["template"], ours, wanted)
