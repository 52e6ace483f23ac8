"""Many at once: attempts count from their start, and password checks are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from gpuscope.limits import Limits
from gpuscope.server.login.authenticator import Authenticator
from gpuscope.server.login.client_request import ClientRequest
from gpuscope.server.login.password_checks import CHECKED_AT_ONCE
from tests.server.login.support import ANN, PASSWORD, Site


def keeper_of(site: Site) -> Authenticator:
    return Authenticator(site.users, site.sessions, site.attempts)


def asked_from(address: str) -> ClientRequest:
    return ClientRequest("GET", "/metrics", (), address, address, "gpus.example", False, False)


def statuses(keeper: Authenticator, attempts: list[tuple[str, str, str]]) -> Counter[int]:
    async def all_at_once() -> Counter[int]:
        answers = await asyncio.gather(
            *(keeper.check_password(asked_from(address), user, word) for address, user, word in attempts)
        )
        return Counter(answer.status if answer else 200 for answer in answers)

    return asyncio.run(all_at_once())


def test_a_hundred_guesses_at_the_same_time_are_a_hundred(site: Site) -> None:
    guesses = [("10.0.0.5", f"user{number}", "wrong password") for number in range(100)]
    assert statuses(keeper_of(site), guesses) == {401: 5, 429: 95}
    others = [(f"10.0.{number}.5", ANN, f"wrong password {number}") for number in range(30)]
    assert statuses(keeper_of(site), others) == {401: 10, 429: 20}


def test_password_checks_are_few_at_once_and_few_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def check(user: str, password: str) -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(timeout=10)
        with lock:
            running -= 1
        return False

    both = threading.Barrier(CHECKED_AT_ONCE)
    monkeypatch.setattr(site.users, "check", check)
    keeper, queue = keeper_of(site), Limits().max_password_queue
    crowd = [(f"10.{number}.0.1", f"user{number}", "wrong password") for number in range(100)]
    assert statuses(keeper, crowd) == {401: queue, 503: 100 - queue}
    assert most == CHECKED_AT_ONCE


def test_in_a_crowd_whoever_is_known_is_not_kept_waiting(site: Site) -> None:
    keeper = keeper_of(site)
    assert statuses(keeper, [("10.0.0.5", ANN, PASSWORD)]) == {200: 1}
    crowd = [(f"10.{number}.0.1", f"user{number}", "wrong password") for number in range(100)]
    assert statuses(keeper, [*crowd, ("10.0.0.5", ANN, PASSWORD)])[200] == 1
