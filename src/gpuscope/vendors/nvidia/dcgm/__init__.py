"""Source `dcgm`: one long-running `dcgmi dmon` stream, for DCGM 1.x to 4.6.

Output: devices, MIG instances and profiling also before Hopper; no processes. The host engine watches the
fields at the agent's interval. On a machine with MIG a second stream reads the instances, because DCGM 3 drops
every GPU without MIG from a stream that contains an instance.
"""

from __future__ import annotations

import logging
import time

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import Reading
from gpuscope.model.source import SourceSpec, Tier
from gpuscope.vendors.nvidia.dcgm.devices import (
    DeviceBuilder,
    MigSlot,
    Values,
    id_lists,
    parse_field_list,
    parse_hierarchy,
    profiling_steps,
    to_drivers,
    usable_ids,
    wanted_ids,
)
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity
from gpuscope.vendors.nvidia.dcgm.plan import DcgmSettings
from gpuscope.vendors.nvidia.dcgm.stream import DmonStream, dcgmi_command, run
from gpuscope.vendors.nvidia.dcgm_fields import PROFILING_IDS

log = logging.getLogger("gpuscope.source")

ANSWER_SECONDS = 10.0  # time limit of a single command and of a stream's first rows
ALL_INSTANCES = ("-i", "*/*")

# DCGM's return codes as exit codes (256 - code): not supported, module not loaded, in use, profiling not
# supported, profiling library error, profiling multi-pass.
_REFUSALS = frozenset({250, 223, 222, 220, 219, 218})


class DcgmSource:
    def __init__(self, settings: Settings) -> None:
        self._command = dcgmi_command(settings)
        host = settings.view(DcgmSettings).dcgm_host
        self._host = ["--host", host] if host else []
        self._interval = settings.interval
        self._silence = max(5.0, 5 * settings.interval)
        self._device_builder = DeviceBuilder()
        self._profiling_log = EpisodeLog(log, "source dcgm", recovered="all profiling fields are read again")
        self._instance_log = EpisodeLog(log, "source dcgm", recovered="MIG instances are read again")
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
        self._drop_old_rows()
        if Tier.SLOW in due and not self._just_opened:
            self._follow_changes()
        self._just_opened = False
        rows: dict[DmonEntity, Values] = {}
        for stream in self._streams:
            for row in stream.rows():
                rows[row.entity] = {**rows.get(row.entity, {}), **row.values}
        devices = self._device_builder.to_devices(rows, self._slots)
        return Reading(drivers=to_drivers(rows.values()), devices=devices, failures=self._count_failures())

    def close(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def _count_failures(self) -> dict[str, int]:
        rejected = sum(stream.rejected for stream in self._streams)
        failures = {"row": rejected - self._rejected, "uuid": self._device_builder.without_uuid}
        self._rejected = rejected
        return {call: count for call, count in failures.items() if count}

    def _run(self, *arguments: str) -> str:
        subcommand, *options = arguments
        return run([*self._command, subcommand, *self._host, *options], ANSWER_SECONDS)

    def _read_slots(self) -> tuple[MigSlot, ...] | None:
        try:
            return parse_hierarchy(self._run("discovery", "-c"))
        except SourceError as error:  # DCGM before 2.0 has neither this option nor MIG
            log.debug("source dcgm: no MIG hierarchy: %s", error)
            return None

    def _drop_old_rows(self) -> None:
        """Restarts the streams after a pause without reads: the pipes are full of old rows."""
        now = time.monotonic()
        if now - self._read_at > self._silence:
            self._start_streams()
        self._read_at = now

    def _follow_changes(self) -> None:
        """Restarts the streams after a change: a running stream gets no new MIG instances or fields."""
        slots = self._read_slots()
        ids = usable_ids(wanted_ids(self._settings), self._known)
        if slots is None:
            slots = self._slots
        if slots != self._slots or ids != self._ids:
            log.info("source dcgm: MIG instances or requested fields changed; restarting the stream")
            self._slots, self._ids = slots, ids
            self._start_streams()

    def _start_streams(self) -> None:
        """Starts the streams and waits for the first rows, with as much profiling as DCGM allows."""
        steps = profiling_steps(self._ids)
        for step, ids in enumerate(steps):
            try:
                self._open_streams(ids)
                if step == 0:
                    self._profiling_log.succeeded()
                return
            except SourceError as error:
                self.close()
                if step + 1 == len(steps) or not _is_refusal(error):
                    raise
                self._profiling_log.failed(_profiling_refused(steps[step + 1], error))
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
                if stream in of_instances:
                    self._instance_log.succeeded()
            except SourceError as error:
                if stream not in of_instances or _is_refusal(error):
                    raise
                self._instance_log.failed(f"MIG instances cannot be read, whole GPUs can: {error}")
                self._streams.remove(stream)
                stream.close()

    def _open_stream(self, entities: tuple[str, ...], ids: tuple[int, ...]) -> DmonStream:
        milliseconds = max(1, round(self._interval * 1000))
        options = ["-d", str(milliseconds), "-e", ",".join(map(str, ids)), *entities]
        return DmonStream([*self._command, "dmon", *self._host, *options], ids, self._silence)


def _is_refusal(error: SourceError) -> bool:
    return error.code in _REFUSALS or "setting watches" in str(error)


def _profiling_refused(ids: tuple[int, ...], error: SourceError) -> str:
    left = [field_id for field_id in ids if field_id in PROFILING_IDS]
    return f"profiling refused ({error}); continuing {f'with fields {left}' if left else 'without profiling'}"


SOURCE = SourceSpec(
    name="dcgm",
    summary="dcgmi dmon: devices, MIG instances and profiling through the DCGM host engine",
    open=DcgmSource,
    deadline_seconds=lambda settings: max(10.0, 6 * settings.interval),
)
