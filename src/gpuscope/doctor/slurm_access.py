"""Can Slurm be read here? Its clients, slurmrestd, the controller, each query; silent if it is off."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gpuscope.doctor import CheckResult, DoctorContext, Verdict
from gpuscope.readings import ABSENT
from gpuscope.readings.slurm import SlurmQuery, SlurmState
from gpuscope.sources.slurm.backends import choose_mode
from gpuscope.sources.slurm.plan import AUTO, COMMANDS, METRICS, OFF, RESTD, SlurmSettings

_CLIENTS = ("scontrol", "squeue", "sinfo", "sdiag", "sshare")


def the_way_to_slurm(context: DoctorContext) -> Iterator[CheckResult]:
    own = context.settings.view(SlurmSettings)
    if not _is_asked_for(own):
        return
    mode = choose_mode(own)
    if mode == COMMANDS:
        yield from _clients(context, own)
    elif mode == RESTD:
        yield from _rest(context, own)
    elif mode == METRICS and not own.slurm_metrics:
        fix = "--slurm-metrics http://CONTROLLER:6817, and MetricsType=metrics/openmetrics in slurm.conf"
        yield CheckResult(Verdict.BAD, "--slurm metrics has no address to read", fix)


def _is_asked_for(own: SlurmSettings) -> bool:
    return own.slurm not in (AUTO, OFF) or bool(own.slurm_rest or own.slurm_metrics or own.slurm_bin_dir)


def _clients(context: DoctorContext, own: SlurmSettings) -> Iterator[CheckResult]:
    missing = [name for name in _CLIENTS if not shutil.which(_path(own, name))]
    if missing:
        fix = (
            "install slurm-client, or give the folder with --slurm-bin-dir; in a container mount the host's "
            "clients, /etc/slurm and /run/munge, or use --slurm restd"
        )
        yield CheckResult(Verdict.BAD, f"Slurm's clients are not here: {', '.join(missing)}", fix)
        return
    yield CheckResult(Verdict.GOOD, "Slurm's clients are installed")
    conf = context.environment.get("SLURM_CONF", "")
    if conf and not Path(conf).exists():
        yield CheckResult(Verdict.BAD, f"SLURM_CONF is {conf}, which does not exist", f"mount or create {conf}")


def _path(own: SlurmSettings, name: str) -> str:
    return str(Path(own.slurm_bin_dir) / name) if own.slurm_bin_dir else name


def _rest(context: DoctorContext, own: SlurmSettings) -> Iterator[CheckResult]:
    address = own.slurm_rest.removeprefix("unix:")
    if not address:
        yield CheckResult(
            Verdict.BAD, "--slurm restd has no address to read", "--slurm-rest http://HOST:6820 or SOCKET"
        )
    elif not address.startswith("/"):
        token = own.slurm_rest_token_file or context.environment.get("SLURM_JWT")
        if not token:
            fix = "scontrol token username=USER lifespan=infinite > FILE, and --slurm-rest-token-file FILE"
            yield CheckResult(Verdict.BAD, f"no JWT for slurmrestd at {address}", fix)
    elif not Path(address).exists():
        fix = f"mount the folder {Path(address).parent} of the host into the container, or start slurmrestd"
        yield CheckResult(Verdict.BAD, f"slurmrestd's socket {address} is not there", fix)
    elif not os.access(address, os.R_OK | os.W_OK):
        yield CheckResult(
            Verdict.BAD, f"no permission to open {address}", "run as slurmrestd's user or its group"
        )


def the_controller(context: DoctorContext) -> Iterator[CheckResult]:
    state = context.snapshot.slurm
    if state is ABSENT:
        return
    if not state.up:
        fix = "there: systemctl status slurmctld; here: scontrol ping, the munge key, and the clock"
        yield CheckResult(Verdict.BAD, f"Slurm does not answer: {state.why}", fix)
        return
    version = "" if state.version is ABSENT else f" {state.version}"
    yield CheckResult(Verdict.GOOD, f"Slurm{version} answers ({state.mode})")
    for query in state.queries:
        if not query.success:
            yield CheckResult(Verdict.BAD, f"Slurm: {query.name}: {query.why}", _fix(query))
    yield from _what_is_missing(state)


def _fix(query: SlurmQuery) -> str:
    if "did not answer within" in query.why:
        return "a busy controller: raise --slurm-timeout, or --slurm-interval to ask less often"
    if "printed" in query.why or "cut off" in query.why:
        return f"run it by hand: {query.name}; a wrapper or an alias in front of it must go"
    if "rivilege" in query.why or "denied" in query.why:
        return "PrivateData in slurm.conf hides this: make this user a Slurm operator, or remove the item"
    return f"run it by hand as this user: {query.name}"


def _what_is_missing(state: SlurmState) -> Iterator[CheckResult]:
    if state.private_data and os.geteuid() != 0:
        fix = "sacctmgr modify user NAME set adminlevel=operator, or remove PrivateData from slurm.conf"
        what = f"PrivateData={state.private_data}: an ordinary user does not see others' {state.private_data}"
        yield CheckResult(Verdict.NOTE, what, fix)
    if state.shares == ():
        what = "Slurm has no fair shares here: slurmdbd is not used"
        yield CheckResult(Verdict.NOTE, what, "only needed for fair share: AccountingStorageType in slurm.conf")
    nodes = () if state.nodes is ABSENT else state.nodes
    jobs = () if state.jobs is ABSENT else state.jobs
    if any(node.gres_used for node in nodes) and jobs and not any(job.gres for job in jobs):
        fix = "AccountingStorageTRES=gres/gpu in slurm.conf (needs slurmdbd)"
        what = "Slurm's jobs name no GPUs in their TRES: what pending jobs ask for is not known"
        yield CheckResult(Verdict.NOTE, what, fix)


CHECKS = (the_way_to_slurm, the_controller)
