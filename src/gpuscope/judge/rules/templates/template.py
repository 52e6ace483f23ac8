"""A parsed template, or a set of them that call each other by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.rules.templates.builtin_functions import builtin_functions
from gpuscope.judge.rules.templates.html_output import HtmlOutput
from gpuscope.judge.rules.templates.template_error import TemplateError
from gpuscope.judge.rules.templates.template_execution import Output, PlainOutput, execute
from gpuscope.judge.rules.templates.template_nodes import Tree
from gpuscope.judge.rules.templates.template_parser import is_empty, parse_trees
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoFunction, GoValue

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    functions: Mapping[str, GoFunction]
    trees: Mapping[str, Tree] = field(repr=False)
    """Its own tree, and those it can call."""
    limits: Limits = field(default=DEFAULT_LIMITS, repr=False)

    def expand(self, data: GoValue, functions: Mapping[str, GoFunction] | None = None) -> str:
        """The text for this data. `functions` replace those of the same name, such as `query` and `now`."""
        return self._run(data, functions, PlainOutput())

    def expand_html(self, data: GoValue, functions: Mapping[str, GoFunction] | None = None) -> str:
        """The HTML for this data: each value is escaped for the place where it stands."""
        return self._run(data, functions, HtmlOutput())

    def _run(self, data: GoValue, functions: Mapping[str, GoFunction] | None, output: Output) -> str:
        known = {**self.functions, **(functions or {})}
        try:
            text = execute(self.trees[self.name], data, self.trees, known, self.limits, output)
            output.finish()
        except FunctionFailed as failure:
            raise TemplateError(f"html/template:{self.name}: {failure}") from None
        except RecursionError:
            LIMITS_REACHED.count("template_max_depth")
            raise TemplateError(f"template: {self.name}: nested too deeply") from None
        return text


def parse(
    text: str,
    name: str,
    functions: Mapping[str, GoFunction],
    base: Template | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Template:
    """`base` is a template whose definitions this text may call; a definition of the same name replaces it."""
    size = len(text.encode("utf-8", "replace"))
    if size > limits.template_max_bytes:
        LIMITS_REACHED.count("template_max_bytes")
        message = f"template: {name}: {size} bytes, and {limits.template_max_bytes} is the limit"
        raise TemplateError(message, 1, 1)
    known = {**builtin_functions(limits.template_max_output_bytes), **functions}
    trees = dict(base.trees) if base is not None else {}
    for tree_name, tree in parse_trees(text, name, known, limits.template_max_depth).items():
        if tree_name not in trees or not is_empty(tree.root) or tree_name == name:
            trees[tree_name] = tree
    return Template(name, known, trees, limits)
