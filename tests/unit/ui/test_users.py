"""Users and their tokens: the file, its permissions and changes, and limits over time."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra ui")
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.ui.users import TokensFile, Window, add_token, new_user

POSIX = pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    path.chmod(0o600)
    return path


def entry(token: str, **values: Any) -> dict[str, Any]:
    return {"name": "ada", "sha256": hashlib.sha256(token.encode()).hexdigest(), **values}


def test_the_file_contains_a_hash_and_never_the_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    token = add_token(path, new_user("ada", rights=["search"], filters={"group": "hr"}))
    assert len(token) >= 40
    assert token not in path.read_text()
    user = TokensFile(path).user_of(token)
    assert user is not None
    assert (user.name, set(user.rights), user.filters) == ("ada", {"search"}, {"group": "hr"})
    assert user.sha256 not in repr(user)
    for wrong in (token[:-1], token.upper(), "", user.sha256):
        assert TokensFile(path).user_of(wrong) is None


@POSIX
def test_the_file_is_created_for_its_owner_only_and_refused_if_others_can_use_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    add_token(path, new_user("ada"))
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o644, 0o602, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            TokensFile(path)
    path.chmod(0o640)  # a group that may read, such as that of a secret in a container
    TokensFile(path)


def test_a_second_token_of_a_user_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    first, other, second = (add_token(path, new_user(name)) for name in ("ada", "eve", "Ada"))
    users = TokensFile(path)
    assert [user.name for user in users.users] == ["eve", "Ada"]
    assert (users.user_of(first), users.user_of(other) is None, users.user_of(second) is None) == (None, False, False)


def test_a_removed_user_is_refused_at_once_and_a_broken_file_refuses_everybody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.json"
    ada, eve = add_token(path, new_user("ada")), add_token(path, new_user("eve"))
    users = TokensFile(path)
    assert users.user_of(ada) is not None
    content = json.loads(path.read_text())
    write(path, {"tokens": content["tokens"][1:]})
    assert users.user_of(ada) is None
    assert users.user_of(eve) is not None
    write(path, "{")
    assert users.user_of(eve) is None
    assert "All tokens are refused until the tokens file is corrected" in caplog.text
    path.unlink()
    assert users.user_of(eve) is None
    write(path, content)
    assert users.user_of(ada) is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a tokens file"),
        ([], "not a valid tokens file"),
        ({"tokens": [{"name": "ada", "sha256": "short"}]}, "sha256"),
        ({"tokens": [entry("t", rights=["delete"])]}, "rights"),
        ({"tokens": [entry("t", admin=True)]}, "admin"),
        ({"tokens": [entry("t"), entry("u", name="ADA")]}, "needs a name of its own"),
        ({"tokens": [entry("t", name="")]}, "needs a name of its own"),
        ({"tokens": [entry("t", name="../x")]}, "not a valid project name"),
        ({"tokens": [entry("t", rights=["add"], filters={"group": ["hr", "it"]})]}, "each filter is one value"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TokensFile(write(tmp_path / "tokens.json", content))


def test_a_window_forgets_what_is_older_and_says_when_there_is_room() -> None:
    now = [0.0]
    window = Window(60, clock=lambda: now[0])
    for _ in range(3):
        window.add("ada")
        now[0] += 10
    assert window.wait("ada", 1, limit=3) == 30.0
    assert window.wait("eve", 1, limit=3) == 0.0
    now[0] = 60.0
    assert window.wait("ada", 1, limit=3) == 0.0
    assert window.wait("ada", 2, limit=3) == 10.0
    assert window.wait("ada", 9, limit=3) == 60.0, "more than ever fits"
