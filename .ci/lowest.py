"""Print constraints that hold every dependency of the project, extras included, at the lowest version it allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
requirements = [
    *project["dependencies"],
    *(line for extra in project["optional-dependencies"].values() for line in extra),
]
for requirement in map(Requirement, requirements):
    lowest = [bound.version for bound in requirement.specifier if bound.operator == ">="]
    if requirement.name != project["name"]:
        print(f"{requirement.name}=={lowest[0]}")
