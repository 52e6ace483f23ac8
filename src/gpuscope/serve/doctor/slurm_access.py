"""Whether Slurm can be read here: its clients, slurmrestd, the controller, each query. No result if Slurm is
not read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gpuscope.agent.owners.node_jobs import CONFIGURATIONS
from gpuscope.agent.sources.slurm.backends import choose_mode
from gpuscope.agent.sources.slurm.plan import AUTO, COMMANDS, METRICS, OFF, RESTD, SlurmSettings
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import SlurmFailure, SlurmQuery, SlurmState

MUNGE_SOCKET = "/run/munge/munge.socket.2"
_LIBRARY = re.compile(r"(\S+\.so[.\d]*): cannot")
_C_LIBRARY = re.compile(r"version `(GLIBC_[\d.]+)' not found")
_DEBIAN_FOLDER = "/usr/lib/x86_64-linux-gnu"
_DEBIAN_PATHS = {
    "libslurmfull.so": f"{_DEBIAN_FOLDER}/slurm-wlm",
    "libmunge.so.2": f"{_DEBIAN_FOLDER}/libmunge.so.2",
}
_CLIENTS = ("scontrol", "squeue", "sinfo", "sdiag", "sshare")


def slurm_access(context: DoctorContext) -> Iterator[CheckResult]:
    if not reads_slurm(context):
        return
    own = context.settings.view(SlurmSettings)
    mode = choose_mode(own)
    if mode == COMMANDS:
        yield from _clients(context, own)
    elif mode == RESTD:
        yield from _rest(context, own)


def reads_slurm(context: DoctorContext) -> bool:
    """Whether the settings ask for Slurm: usually on the cluster's controller, which has no GPUs."""
    own = context.settings.view(SlurmSettings)
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
    yield from _configuration(context)


def _configuration(context: DoctorContext) -> Iterator[CheckResult]:
    """slurm.conf and munge's socket, which a container must have from its host."""
    conf = context.environment.get("SLURM_CONF", "")
    if conf and not Path(conf).exists():
        yield CheckResult(Verdict.BAD, f"SLURM_CONF is {conf}, which does not exist", f"mount or create {conf}")
        return
    found = next((path for path in (conf, *CONFIGURATIONS) if path and _under(context, path).exists()), "")
    if not found:
        fix = "mount /etc/slurm of the host, or set SLURM_CONF; a configless site has /run/slurm/conf"
        yield CheckResult(Verdict.NOTE, "slurm.conf is not here: the clients look for it over DNS", fix)
        return
    socket = _munge_socket(_under(context, found))
    if socket and not _under(context, socket).exists():
        fix = f"mount {Path(socket).parent} of the host into the container, or start munge"
        yield CheckResult(Verdict.BAD, f"munge's socket {socket} is not there", fix)


def _munge_socket(conf: Path) -> str:
    """Empty if Slurm does not use munge here, or if its configuration cannot be read."""
    try:
        text = conf.read_text("utf-8", "replace")
    except OSError:
        return ""
    kind = re.search(r"^\s*AuthType\s*=\s*(\S+)", text, re.M | re.I)
    if kind is not None and kind[1].lower() != "auth/munge":
        return ""
    named = re.search(r"^\s*AuthInfo\s*=.*?socket=([^,\s]+)", text, re.M | re.I)
    return MUNGE_SOCKET if named is None else named[1]


def _under(context: DoctorContext, path: str) -> Path:
    return context.root / path.lstrip("/")


def _path(own: SlurmSettings, name: str) -> str:
    return str(Path(own.slurm_bin_dir) / name) if own.slurm_bin_dir else name


def _rest(context: DoctorContext, own: SlurmSettings) -> Iterator[CheckResult]:
    address = own.slurm_rest.removeprefix("unix:")
    if not address.startswith("/"):
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


def slurm_controller(context: DoctorContext) -> Iterator[CheckResult]:
    state = context.snapshot.slurm
    if state is ABSENT:
        return
    if not state.up:
        yield CheckResult(Verdict.BAD, f"Slurm does not answer: {state.why}", _fix_of_controller(state))
        return
    version = "" if state.version is ABSENT else f" {state.version}"
    yield CheckResult(Verdict.GOOD, f"Slurm{version} answers ({state.mode})")
    for query in state.queries:
        if not query.success:
            yield CheckResult(Verdict.BAD, f"Slurm: {query.name}: {query.why}", _fix(query, state.mode))
    yield from _missing_data(state)


def _fix_of_controller(state: SlurmState) -> str:
    """What the loader and Slurm's clients say is text of theirs: it can only be searched."""
    library, c_library = _LIBRARY.search(state.why), _C_LIBRARY.search(state.why)
    if library is not None:
        path = _DEBIAN_PATHS.get(library[1])
        return f"mount {path} (its path on Debian) of the host" if path else f"mount {library[1]} of the host"
    if c_library is not None:
        return f"the mounted clients need {c_library[1]}: use an image of a newer system, or --slurm restd"
    if "Munge encode failed" in state.why:
        return "start munge; in a container mount the folder of its socket from the host"
    if state.failure is SlurmFailure.TOKEN_REFUSED:
        return (
            "scontrol token username=USER lifespan=SECONDS > FILE, the file of --slurm-rest-token-file; "
            "--slurm-rest-user names its user if slurmrestd requires that"
        )
    if state.failure is SlurmFailure.DOWN_OR_TOKEN_REFUSED:
        return (
            "there: systemctl status slurmctld; if it is up, a new JWT: scontrol token username=USER "
            "lifespan=SECONDS > FILE, the file of --slurm-rest-token-file"
        )
    return "there: systemctl status slurmctld; here: scontrol ping, the munge key, and the clock"


def _fix(query: SlurmQuery, mode: str) -> str:
    if query.failure is SlurmFailure.TIMEOUT:
        return "a busy controller: raise --slurm-timeout, or --slurm-interval to ask less often"
    if (
        query.failure is SlurmFailure.HIDDEN or "rivilege" in query.why or "denied" in query.why
    ):  # Slurm's words
        return (
            "make this user a Slurm operator (sacctmgr modify user NAME set adminlevel=operator; sacctmgr must "
            "be installed here), or remove the item from PrivateData in slurm.conf"
        )
    if mode == RESTD:
        return "see the log of slurmrestd; --slurm-rest must be its own address, not a proxy"
    if mode == METRICS:
        return "--slurm-metrics must be the address of slurmctld, whose MetricsType in slurm.conf is set"
    if query.failure is SlurmFailure.UNUSABLE_ANSWER:
        return f"run it by hand: {query.name}; a wrapper or an alias in front of it must go"
    return f"run it by hand as this user: {query.name}"


def _missing_data(state: SlurmState) -> Iterator[CheckResult]:
    if state.shares == ():
        what = "Slurm has no fair shares here: slurmdbd is not used"
        yield CheckResult(Verdict.NOTE, what, "only needed for fair share: AccountingStorageType in slurm.conf")
    nodes = () if state.nodes is ABSENT else state.nodes
    jobs = () if state.jobs is ABSENT else state.jobs
    if any(node.gres_used for node in nodes) and jobs and not any(job.gres for job in jobs):
        fix = "AccountingStorageTRES=gres/gpu in slurm.conf (needs slurmdbd)"
        what = "Slurm's jobs name no GPUs in their TRES: what pending jobs ask for is not known"
        yield CheckResult(Verdict.NOTE, what, fix)


CHECKS = (slurm_access, slurm_controller)
