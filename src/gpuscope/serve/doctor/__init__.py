"""Checks of this machine that explain missing numbers, each with the command that fixes the problem.

Every module here, and the `doctor.py` of a vendor, has `CHECKS`, functions that take a `DoctorContext` and
return results. Those that look at the driver, its devices or their processes are also in `REAL_GPU_CHECKS`:
they are skipped for simulated GPUs. A check that raises becomes a result and does not stop the others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from gpuscope.base.plugins import find_plugins
from gpuscope.model.doctor_check import Check, CheckResult, DoctorContext, Verdict


def examine(context: DoctorContext) -> Iterator[CheckResult]:
    if context.is_simulated:
        yield CheckResult(Verdict.NOTE, "the GPUs are simulated: the driver and its devices are not checked")
    of_vendors = [f"{plugin.package}.doctor" for plugin in find_plugins(("vendors/*/doctor.py",)).values()]
    of_machine = sorted(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
    for name in (*of_vendors, *of_machine):
        loaded = importlib.import_module(name)
        checks: tuple[Check, ...] = loaded.CHECKS
        skipped: tuple[Check, ...] = getattr(loaded, "REAL_GPU_CHECKS", ()) if context.is_simulated else ()
        for check in checks:
            if check in skipped:
                continue
            try:
                yield from check(context)
            except Exception as error:
                yield CheckResult(Verdict.NOTE, f"could not check {check.__name__.replace('_', ' ')}: {error}")
