"""Attacks on the HTTP server: connections, heads, bodies, answers not read, passwords."""

from __future__ import annotations

from tests.hostile.catalogue import Attack

ATTACKS: tuple[Attack, ...] = ()
