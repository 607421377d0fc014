"""Grammars that answers follow."""
from __future__ import annotations

from typing import Any

from .model import Model
from .native import check, new_error
from ._pith import ffi, lib


class Grammar:
    """A grammar in GBNF, or Grammar.schema(...) of a JSON schema. Raises PithInvalid with the line.
    It keeps its model."""

    def __init__(self, model: Model, text: str) -> None:
        self._make(model, text, lib.pith_grammar_create_gbnf)

    @classmethod
    def schema(cls, model: Model, schema: Any) -> "Grammar":
        """schema: a dict, or JSON's text."""
        import json  # here, as imports take processor time
        out = cls.__new__(cls)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        out._make(model, text, lib.pith_grammar_create_json_schema)
        return out

    def _make(self, model: Model, text: str, function: Any) -> None:
        out, err, data = ffi.new("pith_grammar **"), new_error(), text.encode()
        check(function(model._c, data, len(data), ffi.NULL, out, err), err)
        self.model = model
        self._c = ffi.gc(out[0], lambda grammar, model=model: lib.pith_grammar_free(grammar))
