"""One budget of bytes for all request bodies in memory, from their first byte to the end of their request.

Half of it for one client address, so that one client cannot keep all others from sending. The first
`FREE_BYTES` of each body are not counted: logins and queries get through while large bodies wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FREE_BYTES = 16 << 10


@dataclass(slots=True)
class BodyBudget:
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

    def give_back(self, address: str, count: int) -> None:
        self.held -= count
        left = self.by_address.get(address, 0) - count
        if left:
            self.by_address[address] = left
        else:
            self.by_address.pop(address, None)
