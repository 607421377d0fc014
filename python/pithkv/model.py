"""Models: a GGUF file's weights and tokenizer."""
from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Sequence as Seq, Union

import numpy as np
from numpy.typing import NDArray

from .native import Callbacks, c_bytes, check, fields, new_error, pointer_to, token_ids
from ._pith import ffi, lib

NOT_FOUND = lib.PITH_NOT_FOUND

Messages = Union[str, Seq[Mapping[str, Any]]]


class Model:
    """The weights and the tokenizer of a GGUF file. Immutable: threads and engines may share one.

    path: the file. n_thread: threads that prepare weights, 0 for all processors. vocab_only: the
    tokenizer alone, no engine. cache_weights: a folder for packed weights, "" for the model's own.
    progress: called with a fraction of 0 to 1 while it loads; False ends it with PithCancelled.
    Raises PithIO, PithFormat, PithUnsupported or PithNoMemory.

    info is a dict of pith_model_info: n_layer, n_layer_kv, n_head, n_head_kv, head_dim_k,
    n_vocab... and of texts: name, architecture, file_type, tokenizer, template (the chat's, in
    Jinja). bos and eos are ids, -1 where there are none. A model pickles as its path and arguments.
    """

    def __init__(self, path: str | os.PathLike[str], n_thread: int = 0, vocab_only: bool = False,
                 cache_weights: str | None = None,
                 progress: Callable[[float], Any] | None = None) -> None:
        params, out, err = ffi.new("pith_model_params *"), ffi.new("pith_model **"), new_error()
        lib.pith_model_params_default(params)
        params.n_thread, params.vocab_only = n_thread, vocab_only
        folder = None if cache_weights is None else ffi.new("char[]", c_bytes("path", cache_weights))
        if folder is not None:
            params.cache_weights = folder
        calls = Callbacks(progress=progress or (lambda fraction: True))
        params.progress, params.progress_user = lib.on_progress, calls.handle
        calls.finish(lib.pith_model_load(c_bytes("path", path), params, out, err), err)
        self._c = ffi.gc(out[0], lib.pith_model_free)
        self.path = os.fspath(path)
        self._arguments = (n_thread, vocab_only, cache_weights)
        info = ffi.new("pith_model_info *")
        lib.pith_model_get_info(self._c, info)
        self.info: dict[str, Any] = {**fields(info), **self._texts()}
        self.bos: int = lib.pith_token_bos(self._c)
        self.eos: int = lib.pith_token_eos(self._c)

    def _texts(self) -> dict[str, str]:
        """The model's strings, each copied."""
        out: dict[str, str] = {}
        key, size = ffi.new("const char **"), ffi.new("size_t *")
        while lib.pith_model_text(self._c, len(out), key, ffi.NULL, 0, size) != NOT_FOUND:
            text = ffi.new("char[]", size[0] + 1)
            check(lib.pith_model_text(self._c, len(out), key, text, size[0] + 1, size))
            out[ffi.string(key[0]).decode()] = ffi.string(text).decode(errors="replace")
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.path, *self._arguments)

    def __repr__(self) -> str:
        return f"Model({self.path!r})"

    def tokenize(self, text: str | bytes, bos: bool = True, special: bool = True) -> NDArray[np.int32]:
        """The ids of a text, [n]. bos: with BOS where the model wants one. special: the names of
        special tokens are read as those tokens."""
        data = text.encode() if isinstance(text, str) else text
        flags = (lib.PITH_TOKENIZE_BOS if bos else 0) | (lib.PITH_TOKENIZE_SPECIAL if special else 0)
        out, n, err = np.empty(len(data) + 8, np.int32), ffi.new("int32_t *"), new_error()
        check(lib.pith_tokenize(self._c, data, len(data), flags, pointer_to(out), len(out), n, err), err)
        return out[:n[0]].copy()

    def detokenize(self, ids: Any, special: bool = False) -> str:
        """The text of ids; special: control tokens by their names, too."""
        given, size, err = token_ids(ids), ffi.new("size_t *"), new_error()
        lib.pith_detokenize(self._c, pointer_to(given), len(given), special, ffi.NULL, 0, size, err)
        out = ffi.new("char[]", size[0] + 1)
        check(lib.pith_detokenize(self._c, pointer_to(given), len(given), special, out, size[0] + 1,
                                  size, err), err)
        return bytes(ffi.buffer(out, size[0])).decode(errors="replace")

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return bool(lib.pith_token_is_end(self._c, token))

    def chat(self, messages: Messages, template: str | None = None, thinking: bool = True,
             **variables: Any) -> NDArray[np.int32]:
        """The ids of a conversation with the opening of the assistant's answer, [n].

        messages: a user's text, or [{"role": ..., "content": ...}]. template: the name of one that
        comes along; None: the model's own. thinking=False: the model is told to answer at once.
        variables: what else the template knows, such as tools."""
        prompt, size = self._prompt(messages, template, thinking, None, variables)
        ids, n, err = np.empty(size + 8, np.int32), ffi.new("int32_t *"), new_error()
        flags = lib.PITH_TOKENIZE_BOS | lib.PITH_TOKENIZE_SPECIAL
        check(lib.pith_prompt_tokenize(self._c, prompt, flags, pointer_to(ids), len(ids), n, err), err)
        return ids[:n[0]].copy()

    def chat_text(self, messages: Messages, template: str | None = None, thinking: bool = True,
                  opening: str | None = None, **variables: Any) -> str:
        """The same as a text, for programs that tokenize themselves. In it a user's text may become
        special tokens, which `chat` prevents. opening: what the answer begins with."""
        prompt, size = self._prompt(messages, template, thinking, opening, variables)
        return bytes(ffi.buffer(lib.pith_prompt_text(prompt, ffi.NULL), size)).decode()

    def _prompt(self, messages: Messages, template: str | None, thinking: bool, opening: str | None,
                variables: dict[str, Any]) -> tuple[Any, int]:
        """A rendered conversation, and the bytes of its text."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        import json  # here, as imports take processor time
        body = json.dumps({**variables, "messages": list(messages)}).encode()
        params, out, err = ffi.new("pith_chat_params *"), ffi.new("pith_prompt **"), new_error()
        lib.pith_chat_params_default(params)
        texts = [ffi.new("char[]", text) for text in (body, c_bytes("template", template or ""),
                                                      (opening or "").encode())]
        params.json, params.json_len = texts[0], len(body)
        if template is not None:
            params.template_name = texts[1]
        if opening:
            params.opening, params.opening_len = texts[2], len(opening.encode())
        params.flags = lib.PITH_CHAT_GENERATE | (0 if thinking else lib.PITH_CHAT_NO_THINKING)
        check(lib.pith_prompt_create(self._c, params, out, err), err)
        prompt, size = ffi.gc(out[0], lib.pith_prompt_free), ffi.new("size_t *")
        lib.pith_prompt_text(prompt, size)
        return prompt, size[0]
