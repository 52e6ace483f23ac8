"""Why a request to Slurm failed, as a value: the doctor chooses the fix by it, not by words of a message."""

from __future__ import annotations

from gpuscope.base.errors import SourceError, SourceTimeout, UnusableAnswer
from gpuscope.model.readings.slurm import SlurmFailure


class SlurmError(SourceError):
    def __init__(self, message: str, failure: SlurmFailure, code: int = -1) -> None:
        super().__init__(message, code)
        self.failure = failure


def failure_of(error: SourceError) -> SlurmFailure:
    if isinstance(error, SlurmError):
        return error.failure
    if isinstance(error, SourceTimeout):
        return SlurmFailure.TIMEOUT
    return SlurmFailure.UNUSABLE_ANSWER if isinstance(error, UnusableAnswer) else SlurmFailure.OTHER
