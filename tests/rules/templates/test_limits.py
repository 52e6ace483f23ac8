"""A template, whoever wrote it and whatever is in its data, ends in bounded time and memory."""

from __future__ import annotations

import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.rules.templates import (
    ALERT_PRELUDE,
    TemplateError,
    alert_data,
    alertmanager_functions,
    parse,
    prometheus_functions,
)

DATA = alert_data({"gpu": "0"}, 1.0, {}, "")


def reaches(limit: str, text: str, limits: Limits) -> str:
    """The error of a template that runs into this limit."""
    before = LIMITS_REACHED.counts()[limit]
    with pytest.raises(TemplateError) as caught:
        parse(text, "hostile", prometheus_functions(), limits=limits).expand(DATA)
    assert LIMITS_REACHED.counts()[limit] == before + 1
    return caught.value.message


def test_a_text_that_is_too_long_is_refused_when_it_is_loaded() -> None:
    assert "limit" in reaches("template_max_bytes", "x" * 101, Limits(template_max_bytes=100))


@pytest.mark.parametrize(
    "text",
    [
        "{{ range 1000000000 }}{{ end }}",
        "{{ range 100000 }}{{ range 100000 }}{{ end }}{{ end }}",
    ],
)
def test_a_loop_ends(text: str) -> None:
    reaches("template_max_steps", text, Limits(template_max_steps=1000, template_max_depth=1000))


@pytest.mark.parametrize(
    "text",
    [
        '{{ range 100 }}{{ printf "%999d" 1 }}{{ end }}',
        '{{ $x := "aaaaaaaaaa" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}',
        "{{ range 2000 }}0123456789{{ end }}",
    ],
)
def test_output_is_bounded(text: str) -> None:
    reaches("template_max_output_bytes", text, Limits(template_max_output_bytes=10_000))


@pytest.mark.parametrize(
    "text",
    [
        '{{ printf "' + "%9999d" * 100 + '" 1 }}',
        '{{ reReplaceAll "a" "' + "b" * 900 + '" (printf "%0900d" 0 | reReplaceAll "0" "a") }}',
    ],
)
def test_one_call_cannot_make_a_long_text(text: str) -> None:
    template = parse(
        text, "t", prometheus_functions(max_length=10_000), limits=Limits(template_max_output_bytes=10_000)
    )
    with pytest.raises(TemplateError, match=r"longer than|too long"):
        template.expand(DATA)


@pytest.mark.parametrize(
    "text",
    [
        '{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}',
        "{{ if true }}" * 200 + "{{ end }}" * 200,
        "{{ " + "(" * 200 + "1" + ")" * 200 + " }}",
        "{{ if false }}" + "{{ else if false }}" * 200 + "{{ end }}",
    ],
)
def test_nesting_is_bounded(text: str) -> None:
    reaches("template_max_depth", text, Limits())


def test_the_deepest_template_allowed_does_not_exhaust_the_stack() -> None:
    depth = Limits().template_max_depth - 1
    text = "{{ if true }}" * depth + "x" + "{{ end }}" * depth
    assert parse(text, "deep", {}).expand(None) == "x"
    text = "{{ " + "(print " * depth + "1" + ")" * depth + " }}"
    assert parse(text, "deep", {}).expand(None) == "1"


def test_deep_calls_with_deep_expressions_are_an_error_of_the_template() -> None:
    depth = Limits().template_max_depth - 1
    deep = "{{ " + "(print " * depth + "1" + ")" * depth + " }}"
    text = f'{{{{ define "a" }}}}{deep}{{{{ template "a" }}}}{{{{ end }}}}{{{{ template "a" }}}}'
    with pytest.raises(TemplateError):
        parse(text, "deep", {}).expand(None)


@pytest.mark.parametrize(
    "value", ["<a" * 30_000, "<!--" * 15_000, "a" * 60_000 + " b!" + "c" * 1000, "\\" * 60_000]
)
def test_escaping_takes_linear_time_on_hostile_values(value: str) -> None:
    """An expression that backtracks takes quadratic time on these."""
    text = '<a title="{{ . | safeHtml }}" href="{{ . }}" style="color: {{ . }}"><img srcset="{{ . }}">{{ . }}'
    assert parse(text, "t", alertmanager_functions()).expand_html(value)


def test_a_value_is_never_read_as_a_template() -> None:
    data = alert_data({"gpu": '{{ query "up" }}{{ define "x" }}'}, 1.0, {}, "")
    template = parse(ALERT_PRELUDE + "{{ $labels.gpu }}", "t", prometheus_functions())
    assert template.expand(data) == '{{ query "up" }}{{ define "x" }}'


@pytest.mark.parametrize("name", ["__class__", "labels", "go_methods", "FIELDS", "keys", "__init__", "GO_TYPE"])
def test_no_attribute_of_python_is_reachable(name: str) -> None:
    for text in (
        f"{{{{ .{name} }}}}",
        f"{{{{ $.{name} }}}}",
        f"{{{{ (toTime 0).{name} }}}}",
        f'{{{{ "x" | len | print | printf | (print .).{name} }}}}',
    ):
        with pytest.raises(TemplateError):
            parse(text, "t", prometheus_functions()).expand(DATA)
    assert parse(f"{{{{ .Labels.{name} }}}}", "t", {}).expand(DATA) == ""


def test_a_mistake_has_line_and_column() -> None:
    with pytest.raises(TemplateError) as caught:
        parse("first\n  {{ nofunc }}", "t", prometheus_functions())
    assert (caught.value.line, caught.value.column) == (2, 6)
    assert caught.value.message == 'template: t:2: function "nofunc" not defined'
    with pytest.raises(TemplateError) as caught:
        parse("first\n  ü {{ .Nope }}", "t", prometheus_functions()).expand(DATA)
    assert (caught.value.line, caught.value.column) == (2, 8)


def test_a_query_that_fails_in_any_way_is_the_template_s_error() -> None:
    def query(expression: str) -> list[tuple[dict[str, str], float]]:
        raise ValueError(f"no engine for {expression}")

    template = parse('{{ query "up" }}', "t", prometheus_functions())
    with pytest.raises(TemplateError, match="error calling query: no engine for up"):
        template.expand(DATA, prometheus_functions(query))


def test_hostile_labels_stay_text_in_html() -> None:
    hostile = "\"'><script>alert(1)</script>"
    text = '<a href="{{ . }}" title="{{ . }}" style="color: {{ . }}" onclick="f({{ . }})">{{ . }}</a>'
    page = parse(text, "t", alertmanager_functions()).expand_html(hostile)
    assert "<script" not in page
    assert page.count('"') == 8


@pytest.mark.parametrize(
    "text",
    [
        '{{ $x := printf "%9000s" "" }}{{ range 1000 }}{{ $y := toUpper $x }}{{ end }}',
        '{{ $x := printf "%9000s" "" }}{{ range 1000 }}{{ $y := index $x 1 }}{{ end }}',
        '{{ $x := printf "%9000s" "" }}{{ print ' + "$x " * 1000 + "}}",
        "{{ range 10000 }}<!-- " + "x" * 1000 + " -->{{ end }}",
    ],
)
def test_the_text_that_functions_use_is_bounded(text: str) -> None:
    reaches("template_max_text_bytes", text, Limits(template_max_text_bytes=1_000_000))


TENFOLD = "{{ $x = list $x $x $x $x $x $x $x $x $x $x }}"
LISTS = "{{ $x := list `text` }}" + TENFOLD * 12
EMPTY_LISTS = "{{ $x := list }}" + TENFOLD * 12


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{{ $x := printf "%9000s" "" }}{{ join $x (stringSlice ' + "`` " * 5_000 + ")}}", "longer than"),
        (LISTS + "{{ $x }}", "too long"),
        (LISTS + "{{ print $x }}", "too long"),
        (LISTS + "{{ toJson $x }}", "too long"),
        (LISTS + '{{ printf "%v" $x }}', "too long"),
        (LISTS + '{{ printf "" $x }}', "too long"),
        (EMPTY_LISTS + "{{ $x }}", "too long"),
        (EMPTY_LISTS + "{{ toJson $x }}", "too long"),
        ('{{ printf "%900000v" (list ' + "1 " * 1000 + ")}}", "too long"),
    ],
)
def test_texts_that_are_made_of_few_values_are_bounded(text: str, error: str) -> None:
    limits = Limits(template_max_output_bytes=20_000)
    with pytest.raises(TemplateError, match=error):
        parse(text, "hostile", alertmanager_functions(), limits=limits).expand({})


@pytest.mark.parametrize("layout", ["002", "Monday", "__2"])
def test_a_time_layout_takes_linear_time(layout: str) -> None:
    """Python's own engine would need longer than the universe has existed."""
    digits = ("a" if layout == "Monday" else "1") * 3000 + "!"
    text = "{{ toDate `" + layout * 60 + "` `" + digits + "` }}"
    assert parse(text, "hostile", alertmanager_functions()).expand({}).startswith("0001-01-01")
