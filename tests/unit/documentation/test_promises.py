"""docs/promises.md and docs/security-tests.md: every promise names tests, and every test that they name exists."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.source import ROOT

CITED = re.compile(r"`(tests/[\w/]+(?:\.py)?)((?:::\w+)*)`")

HEAD = re.compile(r"\|( known problem | Promise |[-|]+$)")


@cache
def definitions(file: str) -> list[ast.stmt]:
    """Return the statements of a file of tests."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8")).body


def is_defined(body: list[ast.stmt], names: list[str]) -> bool:
    if not names:
        return True
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and node.name == names[0] and is_defined(node.body, names[1:]) for node in body)


@pytest.mark.parametrize("document", ["docs/security-tests.md", "docs/promises.md"])
def test_every_row_names_tests_and_each_of_them_exists(document: str) -> None:
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and not HEAD.match(line)]
    assert len(rows) > 20
    for row in rows:
        cited = CITED.findall(row)
        assert cited, row
        for file, names in cited:
            if names:
                assert is_defined(definitions(file), names.split("::")[1:]), f"{file}{names}"
            else:
                assert (ROOT / file).exists(), file
