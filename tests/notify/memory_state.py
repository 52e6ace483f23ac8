"""A state of the notifier that is not kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuscope.judge.notify.notification_log import LogEntry, LogKey, NotificationRecord
from gpuscope.judge.notify.silences import Silence


class MemoryState:
    def save_silence(self, silence: Silence) -> None:
        pass

    def forget_silences(self, ids: Iterable[str]) -> None:
        pass

    def save_entry(self, key: LogKey, entry: LogEntry) -> None:
        pass

    def forget_entries(self, keys: Iterable[LogKey]) -> None:
        pass

    def save_records(self, changed: Sequence[NotificationRecord], forgotten: Sequence[int]) -> None:
        pass
