"""`gpuscope user`: output, errors, and files."""

from __future__ import annotations

import getpass
import io
import json
from pathlib import Path

import pytest

from gpuscope.cli import main
from gpuscope.serve.login import user_file as users_module
from gpuscope.serve.login.user_file import UserFile

PASSWORD = "correct horse battery"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *others = UserFile.__init__.__defaults__ or ()
    monkeypatch.setattr(users_module.UserFile.__init__, "__defaults__", (4, *others))


class User:
    """Runs the command on one data folder with text on standard input."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._capsys = folder, patch, capsys

    def __call__(self, *argv: str, typed: str = f"{PASSWORD}\n") -> tuple[int, str, str]:
        self._patch.setattr("sys.stdin", io.StringIO(typed))
        code = main(["user", *argv, "--data", str(self.folder)])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> User:
    return User(tmp_path / "data", monkeypatch, capsys)


def test_add_passwd_and_remove(user: User) -> None:
    assert user("add", "ann")[:2] == (0, "user ann added, with the role admin\n")
    assert UserFile(user.folder).check("ann", PASSWORD)
    assert user("passwd", "ann", typed="another, longer one\r\n")[0] == 0
    assert UserFile(user.folder).check("ann", "another, longer one")
    assert user("remove", "ann")[0] == 0
    code, out, err = user("list")
    assert (code, out) == (0, "")
    assert "no users yet" in err


def test_a_token_is_shown_once_and_can_be_piped(user: User) -> None:
    code, token, note = user("token", "grafana")
    assert code == 0
    assert "shown only once" in note
    assert UserFile(user.folder).token(token.strip())
    assert user("token", "node7", "--write")[0] == 0
    code, listing, _ = user("list", "--json")
    rows = json.loads(listing)
    assert [(row["kind"], row["name"]) for row in rows] == [("token", "grafana"), ("write token", "node7")]
    assert token.strip() not in listing
    _, bound, _ = user("token", "node8", "--node", "node8")
    kept = UserFile(user.folder).token(bound.strip())
    assert kept is not None
    assert (kept.writes, kept.node) == (True, "node8")
    assert user("list")[1].splitlines()[-1].endswith("  node node8")
    assert user("revoke", "grafana")[0] == 0
    assert UserFile(user.folder).token(token.strip()) is None


@pytest.mark.parametrize(
    ("argv", "typed", "complaint"),
    [
        (["add"], "", "a name is required"),
        (["add", "ann"], f"{PASSWORD}\n", "user 'ann' exists; `gpuscope user passwd ann`"),
        (["add", "bob"], "short\n", "shorter than 10 characters"),
        (["add", "bob"], "", "shorter than 10 characters"),
        (["add", "a b"], f"{PASSWORD}\n", "'a b' is not a valid name"),
        (["passwd", "bob"], f"{PASSWORD}\n", "there is no user 'bob'"),
        (["remove", "bob"], "", "there is no user 'bob'"),
        (["revoke", "bob"], "", "there is no token 'bob'"),
        (["add", "bob", "--write"], f"{PASSWORD}\n", "--write"),
        (["add", "bob", "--node", "n1"], f"{PASSWORD}\n", "--node"),
        (["token", "n1", "--node", "n1:9400"], "", "'n1:9400' is not a node name"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(user: User, argv: list[str], typed: str, complaint: str) -> None:
    user("add", "ann")
    code, out, err = user(*argv, typed=typed)
    assert code == 2
    assert out == ""
    assert complaint in err
    assert err.count("\n") == 1
    assert set(UserFile(user.folder).names()) == {"ann"}


def test_a_terminal_prompts_for_the_password_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    answers = iter([PASSWORD, "something else", PASSWORD, PASSWORD])
    monkeypatch.setattr(getpass, "getpass", lambda prompt: next(answers))
    assert main(["user", "add", "ann", "--data", str(tmp_path)]) == 2
    assert "the two passwords differ" in capsys.readouterr().err
    assert main(["user", "add", "ann", "--data", str(tmp_path)]) == 0


def test_a_damaged_file_is_reported_and_unchanged(user: User) -> None:
    user("add", "ann")
    (user.folder / "users.json").write_text("{]")
    code, _, err = user("add", "bob")
    assert code == 2
    assert "users.json: invalid content" in err
    assert (user.folder / "users.json").read_text() == "{]"


def test_an_impossible_folder_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    assert main(["user", "add", "ann", "--data", "/dev/null/nowhere"]) == 2
    assert "Traceback" not in capsys.readouterr().err
