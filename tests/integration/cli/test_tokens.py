"""The command `token`: the token is printed once, and the file contains its hash with rights, filters and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import run

pytest.importorskip("starlette", reason="needs the extra ui")
from llama_index_contextual.ui.users import TokensFile


def test_a_token_is_printed_once_and_gives_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    options = ["--right", "search", "--right", "add", "--only", "group=hr", "--only", "year=2024"]
    result = run("token", "ada", "--file", file, *options, "--dollars-per-hour", "2", "--requests-per-minute", "10")
    token = result.out.strip()
    assert result.code == 0
    assert token not in result.err
    user = TokensFile(file).user_of(token)
    assert user is not None
    assert (set(user.rights), user.filters) == ({"search", "add"}, {"group": "hr", "year": 2024})
    assert (user.dollars_per_hour, user.requests_per_minute) == (2.0, 10)
    as_json = run("token", "eve", "--file", file, "--json").json
    assert TokensFile(file).user_of(as_json["token"]) is not None
    assert token not in file.read_text()


def test_values_of_one_field_are_alternatives(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = run("token", "ada", "--file", file, "--only", "group=hr", "--only", "group=it").out.strip()
    user = TokensFile(file).user_of(token)
    assert user is not None
    assert user.filters == {"group": ["hr", "it"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ada", "--right", "delete"], "rights"),
        (["../ada"], "not a valid project name"),
        ([""], "needs a name"),
        (["ada", "--right", "add", "--only", "group=hr", "--only", "group=it"], "each filter is one value"),
        (["ada", "--only", "group"], "is not FIELD=VALUE"),
    ],
)
def test_what_is_wrong_is_said_and_no_file_is_written(tmp_path: Path, arguments: list[str], message: str) -> None:
    file = tmp_path / "tokens.json"
    result = run("token", *arguments, "--file", file)
    assert result.code in (1, 2)
    assert message in result.err
    assert not file.exists()


def test_a_file_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"notes": 1}))
    file.chmod(0o600)
    assert "not a valid tokens file" in run("token", "ada", "--file", file).err
    assert json.loads(file.read_text()) == {"notes": 1}
