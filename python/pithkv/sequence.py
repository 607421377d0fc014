"""Sequences: a timeline of tokens, what the cache holds of it, and generation."""
from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .grammar import Grammar
from .native import (Callbacks, PithInvalid, array, c_bytes, check, fields, new_error, pointer_to,
                     read_only, token_ids)
from ._pith import ffi, lib

if TYPE_CHECKING:
    from .engine import Engine


class Token(NamedTuple):
    """A generated token: its id, the text that is certain with it, and log p at temperature 1."""

    id: int
    text: str
    logprob: float


class Lane(NamedTuple):
    """What one layer and KV head holds. Positions [n]; keys [n][dim_k] after rotation and values
    [n][dim_v] decoded to f32 from their storage type; bytes of its pages."""

    positions: NDArray[np.int32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    bytes: int


class RawLane(NamedTuple):
    """The same as it is stored. positions [n]; keys [n][bytes] and values [n][bytes] of uint8:
    codes, for turbo3 then the third bits of codes, then scales in f16 (docs/snapshot.md). Values of
    latent attention have no bytes of their own. type_k, type_v: storage types; group_k, group_v:
    dimensions that share a scale, 1 without scales; rotated_k, rotated_v: codes are of rotated
    groups."""

    positions: NDArray[np.int32]
    keys: NDArray[np.uint8]
    values: NDArray[np.uint8]
    type_k: str
    type_v: str
    group_k: int
    group_v: int
    rotated_k: bool
    rotated_v: bool


class Sequence:
    """A timeline of tokens on its engine's memory: Engine.sequence() makes one. len() is its number
    of tokens. Its pages come back when it is collected or closed; objects end in any order."""

    def __init__(self, engine: "Engine", pointer: Any) -> None:
        self.engine = engine
        self._c = ffi.gc(pointer, lib.pith_seq_free)
        self._closed = False
        self._row: Any = lambda: None  # what views of the logits hold, as long as there is one

    def _pointer(self) -> Any:
        if self._closed:
            raise PithInvalid("the sequence is closed")
        return self._c

    def close(self) -> None:
        """Gives the pages back now. A view of the logits stays, with its numbers."""
        with contextlib.ExitStack() as stack:
            if not self.engine._lock.mine():  # a callback may close, and C waits for the call's end
                stack.enter_context(self.engine._lock)
            if self._closed:
                return
            self._closed = True
            if self._row() is None:
                ffi.release(self._c)
            else:  # the row is the sequence's memory, which goes with the last view
                lib.pith_seq_truncate(self._c, 0, ffi.NULL)
                self._c = None

    def __reduce__(self) -> Any:
        raise TypeError("a Sequence is memory of its engine: fork() copies it, and save() writes it")

    def __enter__(self) -> "Sequence":
        return self

    def __exit__(self, *what: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(lib.pith_seq_length(self._pointer()))

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The ids so far, [n], a copy."""
        with self.engine._lock:
            pointer = self._pointer()
            return array(lib.pith_seq_tokens(pointer), (lib.pith_seq_length(pointer),), np.int32).copy()

    def _call(self, function: Any, *arguments: Any) -> None:
        err = new_error()
        with self.engine._lock:
            self.engine._finish(function(self._pointer(), *arguments, err), err)

    def fork(self) -> "Sequence":
        """A copy that shares every page, with the row of logits."""
        out = ffi.new("pith_seq **")
        self._call(lib.pith_seq_fork, out)
        return Sequence(self.engine, out[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the sequence to a file, for Engine.load and `pith`."""
        self._call(lib.pith_seq_save, c_bytes("path", path))

    def truncate(self, n: int) -> None:
        """Forgets all tokens at positions >= n."""
        self._call(lib.pith_seq_truncate, n)

    def mark_prompt(self, n: int) -> None:
        """The first n positions are the prompt, which policies with pin_prompt never evict."""
        self._call(lib.pith_seq_mark_prompt, n)

    def set_budget(self, budget: str | None) -> None:
        """A budget of an empty sequence's own: "256", "25%", "none"; None is the engine's."""
        text = ffi.new("char[]", c_bytes("budget", budget)) if budget is not None else ffi.NULL
        self._call(lib.pith_seq_set_budget, text)

    def keep_round(self) -> None:
        """Runs a round of the keep policy now, whatever the slack."""
        self._call(lib.pith_seq_keep_round)

    @property
    def keep_stats(self) -> dict[str, Any]:
        """Rounds, evicted and live entries, seconds of rounds (pith_keep_stats)."""
        return self._stats("pith_keep_stats *", lib.pith_seq_keep_stats)

    @property
    def read_stats(self) -> dict[str, Any]:
        """Chunks, and entries that they held and read (pith_read_stats)."""
        return self._stats("pith_read_stats *", lib.pith_seq_read_stats)

    @property
    def recall_stats(self) -> dict[str, Any]:
        """Entries in the tier and those that are back, seconds, doubt (pith_recall_stats)."""
        return self._stats("pith_recall_stats *", lib.pith_seq_recall_stats)

    @property
    def share_stats(self) -> dict[str, Any]:
        """Steps and pages that were compared and shared (pith_share_stats)."""
        return self._stats("pith_share_stats *", lib.pith_seq_share_stats)

    def _stats(self, ctype: str, function: Any) -> dict[str, Any]:
        out = ffi.new(ctype)
        with self.engine._lock:
            function(self._pointer(), out)
        return fields(out)

    # ---- evaluation ----

    def eval(self, ids: Any, logits: str | Callable[[int, NDArray[np.float32]], Any] = "last",
             targets: Any = None, progress: Callable[[float], Any] | None = None) -> Any:
        """Appends ids.

        logits="last": the last token's row is self.logits. "all": returns rows [n][n_vocab]. A
        function gets (position, row) for each token, and False ends the evaluation with
        PithCancelled. targets [n]: returns (logprob [n], best [n]) of the token
        that is to follow each one, at -1 of none (NaN, False), without any row of logits: much
        faster. progress: called with a fraction once a pass. After a failure the sequence is as
        before."""
        given = token_ids(ids)
        n_vocab = self.engine.model.info["n_vocab"]
        if targets is not None:
            return self.engine.eval([(self, given, targets)], progress)[0]
        if callable(logits):
            each = logits
            self.engine._batch([(self, given, lambda pos, row: each(pos, row.copy()), None)], progress)
            return None
        if logits == "last":
            self.engine._batch([(self, given, None, None)], progress)
            return None
        if logits != "all":
            raise PithInvalid(f'logits: {logits!r}: "last", "all" or a function')
        rows, start = np.empty((len(given), n_vocab), np.float32), len(self)

        def take(pos: int, row: NDArray[np.float32]) -> None:
            rows[pos - start] = row

        self.engine._batch([(self, given, take, None)], progress)
        return rows

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """The row behind the last token, [n_vocab], read-only and without a copy: the next
        evaluation overwrites it, so .copy() what you keep. None where there is none."""
        with self.engine._lock:
            row, held = lib.pith_seq_logits(self._pointer()), self._row()
            if row == ffi.NULL:
                return None
            if held is None:  # the views' base keeps the sequence, whose memory it is
                held = ffi.gc(row, lambda _, seq=self._c: None)
                self._row = weakref.ref(held)
        return read_only(held, (self.engine.model.info["n_vocab"],), np.float32)

    # ---- the cache ----

    def lane(self, layer: int, head: int) -> Lane:
        """The entries of a layer (among the n_layer_kv with a cache) and KV head."""
        info, m = ffi.new("pith_lane_info *"), self.engine.model.info
        with self.engine._lock:
            seq = self._pointer()
            if lib.pith_seq_lane(seq, layer, head, info, ffi.NULL, 0) != 0:
                raise PithInvalid(f"lane: there is no layer {layer} with a KV head {head}")
            n = info.n_entry
            positions = np.empty(n, np.int32)
            keys = np.empty((n, m["head_dim_k"]), np.float32)
            values = np.empty((n, m["head_dim_v"]), np.float32)
            check(lib.pith_seq_lane(seq, layer, head, info, pointer_to(positions), n))
            check(lib.pith_seq_lane_entries(seq, layer, head, 0, n, pointer_to(keys, "float[]"),
                                            pointer_to(values, "float[]")))
        return Lane(positions, keys, values, info.bytes)

    def raw(self, layer: int, head: int) -> RawLane:
        """The same entries as their bytes lie in the store."""
        info, form, null = ffi.new("pith_lane_info *"), ffi.new("pith_lane_form *"), ffi.NULL
        with self.engine._lock:
            seq = self._pointer()
            if lib.pith_seq_lane_raw(seq, layer, head, 0, 0, form, null, null) != 0:
                raise PithInvalid(f"raw: there is no layer {layer} with a KV head {head}")
            check(lib.pith_seq_lane(seq, layer, head, info, null, 0))
            n, f = info.n_entry, fields(form)
            positions = np.empty(n, np.int32)
            keys = np.empty((n, f.pop("k_bytes")), np.uint8)
            values = np.empty((n, f.pop("v_bytes")), np.uint8)
            check(lib.pith_seq_lane(seq, layer, head, info, pointer_to(positions), n))
            check(lib.pith_seq_lane_raw(seq, layer, head, 0, n, null, pointer_to(keys, "uint8_t[]"),
                                        pointer_to(values, "uint8_t[]")))
        return RawLane(positions, keys, values, **f)

    def kept(self) -> NDArray[np.bool_]:
        """Which positions each lane holds, [n_layer_kv][n_head_kv][length]."""
        m, info = self.engine.model.info, ffi.new("pith_lane_info *")
        with self.engine._lock:
            seq, n = self._pointer(), len(self)
            out = np.zeros((m["n_layer_kv"], m["n_head_kv"], n), np.bool_)
            positions = np.empty(max(1, n), np.int32)
            for layer in range(out.shape[0]):
                for head in range(out.shape[1]):
                    check(lib.pith_seq_lane(seq, layer, head, info, pointer_to(positions), n))
                    out[layer, head, positions[:info.n_entry]] = True
        return out

    def map(self) -> "Map":
        """A picture of `kept` that a notebook draws: a row for each layer and KV head."""
        return Map(self.kept())

    # ---- generation ----

    def generate(self, prompt: Any, n_predict: int = -1, **options: Any) -> "Generation":
        """Reads the prompt (a text, or ids) and generates: iterating gives text, .tokens() gives
        Token. The sequence holds the prompt and what was handed out but the last token, whenever
        you leave. It reads only what the sequence does not hold already.

        n_predict: most tokens, -1 until the model ends. temperature (0 is greedy), top_k, top_p,
        min_p, repeat_penalty, presence_penalty, frequency_penalty, penalty_last_n, seed: of
        sampling. bias: {token: number}. stop: strings. ignore_end: go on past end tokens. special:
        print control tokens. draft: True drafts tokens ahead, which changes nothing but the time.
        grammar: a Grammar. message: with recall of text, the user's message in the prompt.
        progress: of the prompt, a fraction."""
        return Generation(self, prompt, n_predict, **options)

    async def agenerate(self, prompt: Any, n_predict: int = -1, **options: Any) -> AsyncIterator[Token]:
        """The same for asyncio: `async for token in ...`. Calls run in the engine's own thread.
        Cancelling ends the reading of the prompt after the pass that runs; the sequence is then as
        before."""
        import asyncio  # here, as it takes longer to import than the package
        loop, worker = asyncio.get_running_loop(), self.engine._executor()
        generation, left, progress = None, False, options.pop("progress", None)

        def go_on(fraction: float) -> Any:
            return not left and (progress is None or progress(fraction))

        try:
            generation = await loop.run_in_executor(
                worker, lambda: Generation(self, prompt, n_predict, progress=go_on, **options))
            while (token := await loop.run_in_executor(worker, generation.next_token)) is not None:
                yield token
        finally:
            left = True  # which ends the reading of the prompt
            if generation is not None:
                generation.close()


SAMPLING = {"temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty",
            "frequency_penalty", "penalty_last_n", "seed"}


REASONS = {lib.PITH_STOP_END: "end", lib.PITH_STOP_LENGTH: "length", lib.PITH_STOP_STRING: "string",
           lib.PITH_STOP_CALLER: "caller", lib.PITH_STOP_FULL: "full"}


class GenerateParams:
    """The options of a generation as C's struct, `c`, and what lives as long as that is used."""

    def __init__(self, n_predict: int = -1, *, stop: Any = (), bias: dict[int, float] | None = None,
                 ignore_end: bool = False, special: bool = False, draft: bool = False,
                 grammar: Grammar | None = None, message: str | None = None, **sampling: Any) -> None:
        unknown = set(sampling) - SAMPLING
        if unknown:
            raise TypeError(f"generate: there is no option {', '.join(sorted(unknown))}")
        params = ffi.new("pith_generate_params *")
        lib.pith_generate_params_default(params)
        params.n_predict, params.ignore_end, params.special = n_predict, ignore_end, special
        for name, value in sampling.items():
            setattr(params.sample, name, value)
        strings = [stop] if isinstance(stop, str) else list(stop)
        texts = [ffi.new("char[]", c_bytes("stop", s)) for s in strings]
        stops = ffi.new("const char *[]", texts)
        params.stop, params.n_stop = stops, len(texts)
        pairs = ffi.new("pith_logit_bias[]", [{"token": t, "bias": b} for t, b in (bias or {}).items()])
        params.sample.bias, params.sample.n_bias = pairs, len(bias or {})
        drafts = ffi.new("pith_draft_params *")
        lib.pith_draft_params_default(drafts)
        if draft:
            params.draft = drafts
        if grammar is not None:
            if not isinstance(grammar, Grammar):
                raise TypeError(f"grammar: {grammar!r} is no Grammar")
            params.sample.grammar = grammar._c
        said = ffi.new("char[]", (message or "").encode())
        if message is not None:
            params.message, params.message_len = said, len(message.encode())
        self.c = params
        self._held = (texts, stops, pairs, drafts, grammar, said)


class Generation:
    """A generation that is pulled: Sequence.generate makes it. result is a dict (reason, n_prompt,
    n_cached, n_generated, prompt_s, generate_s, ...) of what there is so far."""

    def __init__(self, seq: Sequence, prompt: Any, n_predict: int = -1, *,
                 progress: Callable[[float], Any] | None = None, **options: Any) -> None:
        self.sequence, self._ended, self._c = seq, False, None
        model = seq.engine.model
        ids = model.tokenize(prompt) if isinstance(prompt, str) else token_ids(prompt)
        own, out, err = GenerateParams(n_predict, **options), ffi.new("pith_generation **"), new_error()
        params, calls = own.c, Callbacks(progress=progress or (lambda fraction: True))
        if progress is not None:
            params.progress, params.progress_user = lib.on_progress, calls.handle
        self._held = (own, calls)
        engine = seq.engine
        with engine._lock:
            status = lib.pith_generation_create(seq._pointer(), pointer_to(ids), len(ids), params, out, err)
            engine._finish(status, err, calls)
        self._c = ffi.gc(out[0], lib.pith_generation_free)

    def next_token(self, logprob: bool = True) -> Token | None:
        """The next token; None at the end. The last one may be of id -1: text that was held back.
        Without logprob it has NaN there, and a large vocabulary's row is not summed."""
        if self._ended:
            return None
        token, err, engine = ffi.new("pith_token *"), new_error(), self.sequence.engine
        with engine._lock:
            engine._finish(lib.pith_generation_next(self._c, token, err), err)
            text = bytes(ffi.buffer(token.text, token.len)).decode() if token.len > 0 else ""
            found = float("nan")
            if logprob and token.id >= 0:
                found = lib.pith_logits_logprob(lib.pith_seq_logits(self.sequence._pointer()),
                                                engine.model.info["n_vocab"], token.id, ffi.NULL)
        self._ended = token.ended
        return Token(token.id, text, found) if token.id >= 0 or text else None

    def tokens(self) -> Iterator[Token]:
        """The tokens, one after the other."""
        while (token := self.next_token()) is not None:
            yield token

    def __iter__(self) -> Iterator[str]:
        while (token := self.next_token(logprob=False)) is not None:
            if token.text:
                yield token.text

    def text(self) -> str:
        """All that is left, as one text."""
        return "".join(self)

    @property
    def result(self) -> dict[str, Any]:
        out = ffi.new("pith_generate_result *")
        lib.pith_generation_result(self._c, out)
        result = fields(out)
        result["reason"] = REASONS[result["reason"]] if self._ended else None
        return result

    def close(self) -> None:
        """Ends it now. The sequence stays as it is."""
        self._ended = True


class Map:
    """Which positions lanes hold, as a picture: dark where an entry is, a row for each KV head of
    each layer, the first one on top. `kept` is the array."""

    def __init__(self, kept: NDArray[np.bool_]) -> None:
        self.kept = kept

    def _repr_html_(self) -> str:
        layers, heads, n = self.kept.shape
        return (f"<figure>{self._repr_svg_()}<figcaption>{layers} layers of {heads} KV heads over {n} "
                f"positions: {self.kept.mean() if n else 0:.1%} of the entries are held</figcaption></figure>")

    def _repr_svg_(self) -> str:
        rows = self.kept.reshape(-1, self.kept.shape[-1])
        n = max(1, rows.shape[1])
        scale, height = 800.0 / n, 4
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height * len(rows)}">',
               '<rect width="100%" height="100%" fill="#eee"/>']
        for y, row in enumerate(rows):
            edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
            for begin, end in edges.reshape(-1, 2):
                out.append(f'<rect x="{begin * scale:.2f}" y="{y * height}" width="{(end - begin) * scale:.2f}"'
                           f' height="{height - 1}" fill="#246"/>')
        return "".join([*out, "</svg>"])
