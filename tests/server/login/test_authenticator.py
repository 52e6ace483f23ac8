"""Concurrent logins: attempts count from their start, and password checks are limited."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from gpuscope.base.limits import Limits
from gpuscope.serve.login.access_rules import ClientRequest
from gpuscope.serve.login.authenticator import Authenticator
from gpuscope.serve.login.password_checks import CHECK_THREADS
from tests.server.login.support import ANN, PASSWORD, Site


def authenticator_of(site: Site) -> Authenticator:
    return Authenticator(site.users, site.sessions, site.attempts)


def request_from(address: str) -> ClientRequest:
    return ClientRequest("GET", "/metrics", (), address, address, "gpus.example", False, False)


def statuses(
    authenticator: Authenticator,
    attempts: list[tuple[str, str, str]],
    on_all_asked: Callable[[], object] = lambda: None,
) -> Counter[int]:
    async def all_at_once() -> Counter[int]:
        waiting = [
            asyncio.ensure_future(authenticator.check_password(request_from(address), user, word))
            for address, user, word in attempts
        ]
        await asyncio.sleep(0)
        on_all_asked()
        responses = await asyncio.gather(*waiting)
        return Counter(response.status if response else 200 for response in responses)

    return asyncio.run(all_at_once())


def test_concurrent_attempts_all_count(site: Site) -> None:
    guesses = [("10.0.0.5", f"user{number}", "wrong password") for number in range(100)]
    assert statuses(authenticator_of(site), guesses) == {401: 5, 429: 95}
    others = [(f"10.0.{number}.5", ANN, f"wrong password {number}") for number in range(30)]
    assert statuses(authenticator_of(site), others) == {401: 10, 429: 20}


def test_concurrent_and_queued_password_checks_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock, all_asked = 0, 0, threading.Lock(), threading.Event()

    def check(user: str, password: str) -> bool:
        nonlocal running, most
        all_asked.wait()
        with lock:
            running += 1
            most = max(most, running)
        both.wait(timeout=10)
        with lock:
            running -= 1
        return False

    both = threading.Barrier(CHECK_THREADS)
    monkeypatch.setattr(site.users, "check", check)
    authenticator, queue = authenticator_of(site), Limits().max_password_queue
    crowd = [(f"10.{number}.0.1", f"user{number}", "wrong password") for number in range(100)]
    assert statuses(authenticator, crowd, all_asked.set) == {401: queue, 503: 100 - queue}
    assert most == CHECK_THREADS


def test_a_verified_user_does_not_wait_in_the_queue(site: Site) -> None:
    authenticator = authenticator_of(site)
    assert statuses(authenticator, [("10.0.0.5", ANN, PASSWORD)]) == {200: 1}
    crowd = [(f"10.{number}.0.1", f"user{number}", "wrong password") for number in range(100)]
    assert statuses(authenticator, [*crowd, ("10.0.0.5", ANN, PASSWORD)])[200] == 1
