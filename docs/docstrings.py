"""Extension of griffe, which mkdocstrings reads the package with: examples as code, and descriptions of fields."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Let docstrings appear on the site as their authors meant them.

    griffe renders the section "Examples" as code and takes "Example" for plain text, so the heading is changed. The
    description of a pydantic field becomes the docstring of the attribute. A method that is made of another one, such
    as `ingest = twin(aingest)`, is shown with the signature of both.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the heading of examples, and refer from `**options` to the table of options."""
        if obj.docstring:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(
                r"^( *\*\*options)$", r"\1: See [Options](../options.md).", text, flags=re.MULTILINE
            )

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take over the description of a field."""
        if attr.docstring or not isinstance(attr.value, griffe.ExprCall) or str(attr.value.function) != "Field":
            return
        for argument in attr.value.arguments:
            if isinstance(argument, griffe.ExprKeyword) and argument.name == "description":
                text = ast.parse(str(argument.value), mode="eval").body
                if isinstance(text, ast.Constant):  # an f-string is known only when the package runs
                    attr.docstring = griffe.Docstring(str(text.value), parent=attr)
        attr.value = None  # the call of `Field` is no value that a reader could use

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Turn attributes that are made of methods into methods."""
        for name, member in list(cls.members.items()):
            if not isinstance(member, griffe.Attribute) or not isinstance(member.value, griffe.ExprCall):
                continue
            if str(member.value.function) != "twin":
                continue
            original = cls.members[str(member.value.arguments[0])]
            if not isinstance(original, griffe.Function):
                continue
            twin = griffe.Function(
                name, parameters=original.parameters, returns=original.returns, lineno=member.lineno, parent=cls
            )
            coroutine, plain = (original, twin) if "async" in original.labels else (twin, original)
            coroutine.labels.add("async")
            plain.docstring = original.docstring
            coroutine.docstring = griffe.Docstring(f"The same as `{plain.name}`, to be awaited.", parent=coroutine)
            cls.set_member(name, twin)
