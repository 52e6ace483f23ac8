"""The list of `make mutants` names what exists, and the tool makes the changes that it prints."""

from __future__ import annotations

import ast
from pathlib import Path

from tools.mutants import ROOT, Mutant, compile_mutant, find_mutants, read_targets, source_of

SOURCE = """
LIMIT = 10

def above(values, limit=LIMIT):
    '''Those over the limit.'''
    kept = [value for value in values if value > limit]
    kept.sort(reverse=True)
    return kept
"""


def results(mutant: Mutant) -> object:
    names: dict[str, object] = {}
    exec(compile_mutant(ast.parse(SOURCE), mutant, Path("a.py")), names)
    above = names["above"]
    assert callable(above)
    return above([3, 10, 11, 12])


def test_each_change_changes_the_result() -> None:
    mutants = {mutant.change: mutant for mutant in find_mutants(ast.parse(SOURCE))}
    assert {change: results(mutant) for change, mutant in mutants.items()} == {
        "LIMIT = 10 -> LIMIT = 11": [12],
        "value > limit -> value >= limit": [12, 11, 10],
        "value > limit -> (removed)": [12, 11, 10, 3],
        "kept.sort(reverse=True) -> (removed)": [11, 12],
        "reverse=True -> (removed)": [11, 12],
        "reverse=True -> reverse=False": [11, 12],
        "return kept -> return None": None,
    }
    assert {mutant.function for mutant in mutants.values()} == {"module", "above"}


def test_the_list_names_what_exists() -> None:
    for target in read_targets():
        mutants = target.mutants(ast.parse(source_of(target.module).read_text()))
        found = {(one.function, one.change) for one in mutants}
        assert target.explained.keys() <= found, f"{target.module} has changed: explain these changes anew"
        assert set(target.parts) <= {one.function.partition(".")[0] for one in mutants}, target.module
        assert all((ROOT / test).is_file() for test in target.tests), target.module
