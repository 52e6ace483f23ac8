from __future__ import annotations

import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.serve.login.access_rules import ClientRole
from gpuscope.serve.login.private_file import check_password, digest, hash_password, password_error
from gpuscope.serve.login.user_file import UserError, UserFile, clean_name
from tests.examples import examples
from tests.server.login.support import CHEAP_ROUNDS, PASSWORD


@pytest.fixture
def users(tmp_path: Path) -> UserFile:
    return UserFile(tmp_path, rounds=CHEAP_ROUNDS)


def test_add_check_and_remove_a_user(users: UserFile) -> None:
    users.add("ann", PASSWORD)
    assert users.check("ann", PASSWORD)
    assert not users.check("ann", PASSWORD + "!")
    assert not users.check("bob", PASSWORD)
    users.set_password("ann", "another one, longer")
    assert not users.check("ann", PASSWORD)
    assert users.check("ann", "another one, longer")
    users.remove("ann")
    assert not users.check("ann", "another one, longer")
    assert users.names() == {}


@pytest.mark.parametrize("how", ["role", "remove"])
def test_two_admins_cannot_remove_each_other_at_once(tmp_path: Path, how: str) -> None:
    """Each has its own `UserFile`, as two server processes on one folder."""
    names = ("ann", "bob")
    UserFile(tmp_path, rounds=CHEAP_ROUNDS).add("eve", PASSWORD, role=ClientRole.VIEWER)
    both = threading.Barrier(2)

    def remove(users: UserFile, other: str) -> str:
        both.wait()
        try:
            if how == "role":
                users.set_role(other, ClientRole.VIEWER, keep_admin=True)
            else:
                users.remove(other, keep_admin=True)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            users = UserFile(tmp_path, rounds=CHEAP_ROUNDS)
            for name in set(names) - set(users.names()):
                users.add(name, PASSWORD)
            for name in names:
                users.set_role(name, ClientRole.ADMIN)
            files = [UserFile(tmp_path), UserFile(tmp_path)]
            outcomes = sorted(threads.map(remove, files, names))
            assert outcomes == ["", "this is the last admin; make another user an admin first"]
            admins = [one for one, entry in users.names().items() if entry.role is ClientRole.ADMIN]
            assert len(admins) == 1


def test_the_file_contains_no_usable_credential(users: UserFile) -> None:
    users.add("ann", PASSWORD)
    token = users.add_token("grafana")
    text = users.path.read_text()
    assert PASSWORD not in text
    assert token not in text
    assert digest(token) in text
    assert '"$2b$04$' in text
    assert not users.token(digest(token))


def test_a_token_is_valid_until_it_is_revoked(users: UserFile) -> None:
    reads, writes = users.add_token("grafana"), users.add_token("node7", writes=True)
    assert reads != writes
    assert len(reads) > 50
    for secret, name, may_write in ((reads, "grafana", False), (writes, "node7", True)):
        found = users.token(secret)
        assert found is not None
        assert (found.name, found.writes) == (name, may_write)
    users.revoke_token("grafana")
    assert users.token(reads) is None
    assert users.token(writes) is not None
    assert users.token("") is None


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda users: users.add("ann", "long enough"), "exists"),
        (lambda users: users.add("bob", "short"), "shorter than 10"),
        (lambda users: users.add("bob", "x" * 2000), "longer than"),
        (lambda users: users.add("administrator", "Administrator"), "easy to guess"),
        (lambda users: users.add("bob", "aaaaaaaaaaaa"), "easy to guess"),
        (lambda users: users.add("a:b", "long enough"), "not a valid name"),
        (lambda users: users.add("", "long enough"), "not a valid name"),
        (lambda users: users.add("bob\n", "long enough"), "not a valid name"),
        (lambda users: users.add("bob", "long enough", first=True), "a user exists already"),
        (lambda users: users.set_password("bob", "long enough"), "no user 'bob'"),
        (lambda users: users.remove("bob"), "no user 'bob'"),
        (lambda users: users.revoke_token("bob"), "no token 'bob'"),
        (lambda users: users.add_token("t"), "token 't' exists"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(users: UserFile, act: object, complaint: str) -> None:
    users.add("ann", PASSWORD)
    users.add_token("t")
    before = users.path.read_bytes()
    with pytest.raises(UserError, match=complaint):
        act(users)  # type: ignore[operator]
    assert users.path.read_bytes() == before


def test_passwords_of_any_length_and_composition() -> None:
    korean = "비밀번호는아주길고길어서칠십이바이트를넘는다그래도괜찮다정말로"
    assert len(korean.encode()) > 72
    stored = hash_password(korean, CHEAP_ROUNDS)
    assert check_password(korean, stored)
    assert check_password(unicodedata.normalize("NFD", korean), stored)
    assert not check_password(korean[:-1], stored)
    assert not check_password(korean, "not a hash")


def test_an_unknown_user_takes_as_long_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import bcrypt

    rounds = []
    real = bcrypt.checkpw

    def spy(password: bytes, hashed: bytes) -> bool:
        rounds.append(hashed[:7])
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", spy)
    assert not check_password("wrong", hash_password("right", CHEAP_ROUNDS), CHEAP_ROUNDS)
    assert not check_password("wrong", None, CHEAP_ROUNDS)
    assert rounds == [b"$2b$04$", b"$2b$04$"]


@settings(max_examples=examples(200))
@given(st.text(max_size=80))
def test_accepted_names_are_safe_in_logs_and_headers(name: str) -> None:
    try:
        clean = clean_name(name)
    except UserError:
        return
    assert clean.isprintable()
    assert not set(clean) & set(":/\\ \"'<>;,\u202e")
    assert 1 <= len(clean) <= 64
    assert clean_name(clean) == clean


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_an_accepted_password_verifies_and_another_does_not(password: str, other: str) -> None:
    if password_error("ann", password):
        return
    stored = hash_password(password, CHEAP_ROUNDS)
    assert check_password(password, stored)
    same = unicodedata.normalize("NFC", password) == unicodedata.normalize("NFC", other)
    assert check_password(other, stored) == same
