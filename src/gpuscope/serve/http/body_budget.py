"""A shared budget of bytes for all request bodies in memory, held until the request ends.

One client address gets at most half of it, so that one client cannot block all others. The first `FREE_BYTES`
of each body are not counted: logins and queries succeed while large bodies use up the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FREE_BYTES = 16 << 10


@dataclass(slots=True)
class RequestBodyBudget:
    max_bytes: int
    held: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    def take(self, address: str, count: int) -> bool:
        own = self.by_address.get(address, 0) + count
        if self.held + count > self.max_bytes or (address and own > self.max_bytes // 2):
            return False
        self.held += count
        self.by_address[address] = own
        return True

    def release(self, address: str, count: int) -> None:
        self.held -= count
        left = self.by_address.get(address, 0) - count
        if left:
            self.by_address[address] = left
        else:
            self.by_address.pop(address, None)
