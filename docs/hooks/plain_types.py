"""Types as a reader wants them: what `Annotated` adds is for parsers."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, ExprSubscript, ExprTuple, Extension


class PlainTypes(Extension):
    """Takes `Annotated[int, COUNT]` for `int`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        of = attr.annotation
        if isinstance(of, ExprSubscript) and str(of.left) == "Annotated":
            assert isinstance(of.slice, ExprTuple)
            attr.annotation = of.slice.elements[0]
