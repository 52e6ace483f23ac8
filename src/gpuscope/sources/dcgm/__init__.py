"""GPUs as DCGM sees them: one long-lived `dcgmi dmon` stream, DCGM 1.x to 4.6.

Gives devices, MIG instances and profiling before Hopper; no processes. The stream's fields are watched by the
host engine at the agent's interval. On a machine with MIG a second stream reads the instances, because DCGM 3
drops every GPU without MIG from a stream that has any instance in it.
"""

from __future__ import annotations

import logging
import time

from gpuscope.errors import SourceError
from gpuscope.readings import Reading
from gpuscope.readings.dcgm_fields import PROFILING_IDS
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier
from gpuscope.sources.dcgm.dcgmi import dcgmi_command, run
from gpuscope.sources.dcgm.devices import DeviceMaker, Values, to_driver
from gpuscope.sources.dcgm.dmon_table import Entity
from gpuscope.sources.dcgm.field_ids import id_lists, parse_field_list, profiling_steps, usable_ids, wanted_ids
from gpuscope.sources.dcgm.hierarchy import MigSlot, parse_hierarchy
from gpuscope.sources.dcgm.plan import DcgmSettings
from gpuscope.sources.dcgm.stream import DmonStream

log = logging.getLogger("gpuscope.source")

ANSWER_SECONDS = 10.0  # for a command that runs once, and for a stream's first rows
ALL_INSTANCES = ("-i", "*/*")

# 256 minus: not supported, module not loaded, in use, profiling not supported / library error / multi-pass.
_REFUSALS = frozenset({250, 223, 222, 220, 219, 218})


class DcgmSource:
    def __init__(self, settings: Settings) -> None:
        self._command = dcgmi_command(settings)
        host = settings.view(DcgmSettings).dcgm_host
        self._host = ["--host", host] if host else []
        self._interval = settings.interval
        self._silence = max(5.0, 5 * settings.interval)
        self._makes = DeviceMaker()
        self._streams: list[DmonStream] = []
        self._rejected = 0
        self._settings = settings
        self._known = parse_field_list(self._run("dmon", "-l"))
        self._ids = usable_ids(wanted_ids(settings), self._known)
        self._slots = self._read_slots() or ()
        self._just_opened = True
        self._start_streams()
        self._read_at = time.monotonic()

    def read(self, due: frozenset[Tier]) -> Reading:
        self._skip_what_is_old()
        if Tier.SLOW in due and not self._just_opened:
            self._follow_changes()
        self._just_opened = False
        rows: dict[Entity, Values] = {}
        for stream in self._streams:
            for row in stream.rows():
                rows[row.entity] = {**rows.get(row.entity, {}), **row.values}
        devices = self._makes.to_devices(rows, self._slots)
        return Reading(driver=to_driver(rows.values()), devices=devices, failures=self._count_failures())

    def close(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def _count_failures(self) -> dict[str, int]:
        rejected = sum(stream.rejected for stream in self._streams)
        failures = {"row": rejected - self._rejected, "uuid": self._makes.nameless}
        self._rejected = rejected
        return {call: count for call, count in failures.items() if count}

    def _run(self, *arguments: str) -> str:
        subcommand, *options = arguments
        return run([*self._command, subcommand, *self._host, *options], ANSWER_SECONDS)

    def _read_slots(self) -> tuple[MigSlot, ...] | None:
        try:
            return parse_hierarchy(self._run("discovery", "-c"))
        except SourceError as error:  # DCGM before 2.0 has no such option, and no MIG either
            log.debug("source dcgm: no MIG hierarchy: %s", error)
            return None

    def _skip_what_is_old(self) -> None:
        """Nobody read for a while: the pipes are full of old rows, and dmon waits to write another old one."""
        now = time.monotonic()
        if now - self._read_at > self._silence:
            self._start_streams()
        self._read_at = now

    def _follow_changes(self) -> None:
        """A running stream sees neither a new MIG instance nor a new field; it has to be started again."""
        slots = self._read_slots()
        ids = usable_ids(wanted_ids(self._settings), self._known)
        if slots is None:
            slots = self._slots
        if slots != self._slots or ids != self._ids:
            log.info("source dcgm: MIG instances or wanted fields changed; the stream is started again")
            self._slots, self._ids = slots, ids
            self._start_streams()

    def _start_streams(self) -> None:
        """Starts what is needed and waits for the first rows, with as much profiling as is allowed."""
        steps = profiling_steps(self._ids)
        for step, ids in enumerate(steps):
            try:
                self._open_streams(ids)
                return
            except SourceError as error:
                self.close()
                if step + 1 == len(steps) or not _is_refusal(error):
                    raise
                _say_what_is_left(steps[step + 1], error)
            except BaseException:
                self.close()
                raise

    def _open_streams(self, ids: tuple[int, ...]) -> None:
        self.close()
        self._rejected = 0
        self._streams += [self._open_stream((), chunk) for chunk in id_lists(ids)]
        of_instances = [self._open_stream(ALL_INSTANCES, chunk) for chunk in id_lists(ids) if self._slots]
        self._streams += of_instances
        for stream in list(self._streams):
            try:
                stream.wait_for_rows(ANSWER_SECONDS + self._interval)
            except SourceError as error:
                if stream not in of_instances or _is_refusal(error):
                    raise
                log.warning("source dcgm: MIG instances cannot be read, whole GPUs can: %s", error)
                self._streams.remove(stream)
                stream.close()

    def _open_stream(self, entities: tuple[str, ...], ids: tuple[int, ...]) -> DmonStream:
        milliseconds = max(1, round(self._interval * 1000))
        options = ["-d", str(milliseconds), "-e", ",".join(map(str, ids)), *entities]
        return DmonStream([*self._command, "dmon", *self._host, *options], ids, self._silence)


def _is_refusal(error: SourceError) -> bool:
    return error.code in _REFUSALS or "setting watches" in str(error)


def _say_what_is_left(ids: tuple[int, ...], error: SourceError) -> None:
    left = [field_id for field_id in ids if field_id in PROFILING_IDS]
    log.warning(
        "source dcgm: profiling refused (%s); going on %s",
        error,
        f"with {left}" if left else "without profiling",
    )


SOURCE = SourceSpec(
    name="dcgm",
    summary="dcgmi dmon: devices, MIG instances and profiling through the DCGM host engine",
    open=DcgmSource,
    deadline_seconds=lambda settings: max(10.0, 6 * settings.interval),
)
