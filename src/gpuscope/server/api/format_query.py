"""`format_query`: a query as promtool would lay it out; a wrong one is an error that says where."""

from __future__ import annotations

import promql_parser

from gpuscope.promql import parse


def format_query(text: str) -> str:
    parse(text)  # refuses what the evaluator would not run, and guards against hostile nesting
    pretty: str = promql_parser.parse(text).prettify()
    return pretty
