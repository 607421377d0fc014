"""Engines: a KV memory with a budget, and the passes over it."""
from __future__ import annotations

import contextlib
import math
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from .model import Model
from .native import (Callbacks, EngineLock, PithInvalid, array, c_bytes, check, fields, new_error,
                     pointer_to, read_only, token_ids)
from .policy import Keep, Policy, Read
from ._pith import ffi, lib

if TYPE_CHECKING:
    import concurrent.futures

Option = Union[str, Policy, None]
CHUNK = 512  # tokens of a pass


class TapRows(NamedTuple):
    """What one pass computed in one layer; arrays are valid during the call. Queries, keys and
    values are those of the layer's heads, and out is what attention gave each of them, before gates
    and the output projection. It is None where type_k has a centre."""

    layer: int
    pos0: int  # position of the first token
    tokens: NDArray[np.int32]  # [n]
    h: NDArray[np.float32]  # [n][n_embd] the layer's input after its norm
    q_pre: NDArray[np.float32]  # [n][n_head][head_dim_k] before rotation
    q: NDArray[np.float32]  # [n][n_head][head_dim_k]
    k: NDArray[np.float32]  # [n][n_head_kv][head_dim_k]
    v: NDArray[np.float32]  # [n][n_head_kv][head_dim_v]
    out: NDArray[np.float32] | None  # [n][n_head][head_dim_v]


class EngineParams:
    """Engine's options as C's struct, and what lives as long as that is used. calls: what C
    calls."""

    def __init__(self, model: Model, *, keep: Option = None, read: Option = None,
                 **options: Any) -> None:
        self.c = ffi.new("pith_engine_params *")
        lib.pith_engine_params_default(self.c)
        self._held = []
        for name, value in {**options, "keep": keep, "read": read}.items():
            if value is None:
                continue
            if isinstance(value, Policy):
                value = value.text_for(model)
            if isinstance(value, str):
                value = ffi.new("char[]", c_bytes(name, value))
                self._held.append(value)
            elif callable(value):
                raise TypeError(f"{name}: a function is no option; policies in Python are Keep and Read")
            setattr(self.c, name, value)
        self.calls = [Callbacks()]
        self.c.on_advance, self.c.advance_user = lib.on_advance, self.calls[0].handle
        if isinstance(keep, Keep) and (calls := keep.callbacks(model)) is not None:
            self.calls.append(calls)
            self.c.keep_score, self.c.keep_user = lib.on_score, calls.handle
            self.c.keep_mark = lib.on_mark if calls.marks else ffi.NULL
        if isinstance(read, Read) and (calls := read.callbacks()) is not None:
            self.calls.append(calls)
            self.c.read_score, self.c.read_user = lib.on_read, calls.handle


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


class Engine:
    """A KV memory, worker threads and the scratch of a pass, over a model.

    n_thread: 0 for all processors. kv_tokens or kv_bytes: the memory of pages; memory_bytes: of all
    that grows. kv: in their place a budget in one word for a conversation of n_ctx tokens ("25%" of
    the full cache, or bytes); types and policies that are None are then chosen, and a chunk of 512
    may become less; `plan` says which.
    chunk: most tokens of a pass. type_k, type_v: storage types. keep, read, recall, share:
    policies, as objects or text. device: "cpu" or a GPU's name; None: the best.

    One thread at a time is in an engine; others wait. A call from a callback raises PithBusy.
    Raises PithInvalid, PithUnsupported, PithNoMemory.
    """

    def __init__(self, model: Model, *, n_thread: int = 0, kv_bytes: int = 0, kv_tokens: int = 0,
                 memory_bytes: int = 0, kv: float | str | int | None = None, n_ctx: int = 0,
                 stats: str | None = None, chunk: int = CHUNK, page_len: int = 0,
                 type_k: str | None = None, type_v: str | None = None, keep: Option = None,
                 read: Option = None, recall: Option = None, share: Option = None,
                 device: str | None = None, n_gpu_layers: int = 0) -> None:
        out, err = ffi.new("pith_engine **"), new_error()
        own = EngineParams(
            model, n_thread=n_thread, chunk=chunk, page_len=page_len, kv_bytes=kv_bytes,
            kv_tokens=kv_tokens, memory_bytes=memory_bytes, n_gpu_layers=n_gpu_layers, type_k=type_k,
            type_v=type_v, keep=keep, read=read, recall=recall, share=share, device=device)
        params, self._calls = own.c, own.calls
        self.plan: dict[str, Any] | None = None
        if kv is not None:
            if type_k is None:
                params.type_k = ffi.NULL  # the plan decides, as with the chunk
            if type_v is None:
                params.type_v = ffi.NULL
            self._choose(model, params, kv, n_ctx, stats)
        check(lib.pith_engine_create(model._c, params, out, err), err)
        self._c = ffi.gc(out[0], lib.pith_engine_free)
        self.model = model
        self._lock = EngineLock()
        self._tap: Callbacks | None = None
        self._worker: concurrent.futures.ThreadPoolExecutor | None = None
        _engines.add(self)

    def _choose(self, model: Model, params: Any, kv: float | str | int, n_ctx: int,
                stats: str | None) -> None:
        goal, err = ffi.new("pith_plan_goal *"), new_error()
        self._plan = ffi.new("pith_plan *")
        goal.n_token = n_ctx
        if isinstance(kv, str) and kv.endswith("%"):
            goal.share = _number(kv, kv[:-1]) / 100
        elif isinstance(kv, (float, np.floating)):
            goal.share = kv
        else:
            goal.bytes = _bytes(kv)
        path = ffi.new("char[]", c_bytes("path", stats)) if stats is not None else None
        if path is not None:
            goal.stats = path
        if params.chunk == CHUNK:
            params.chunk = 0  # the plan decides
        check(lib.pith_plan_make(model._c, params, goal, self._plan, err), err)
        lib.pith_plan_apply(self._plan, params)
        self.plan = fields(self._plan)
        if params.kv_bytes == 0 and params.kv_tokens == 0 and params.memory_bytes == 0:
            params.memory_bytes = self.plan["bytes"]

    def __reduce__(self) -> Any:
        raise TypeError("an Engine is memory and threads of one process: make one in each worker, "
                        "over the Model, which pickles")

    def sequence(self) -> "Sequence":
        """An empty sequence."""
        from .sequence import Sequence
        out, err = ffi.new("pith_seq **"), new_error()
        with self._lock:
            check(lib.pith_seq_create(self._c, out, err), err)
        return Sequence(self, out[0])

    def load(self, path: str | os.PathLike[str]) -> "Sequence":
        """The sequence of a file that `Sequence.save` wrote. PithFormat, PithInvalid, PithIO."""
        from .sequence import Sequence
        out, err = ffi.new("pith_seq **"), new_error()
        with self._lock:
            check(lib.pith_seq_load(self._c, c_bytes("path", path), out, err), err)
        return Sequence(self, out[0])

    @property
    def memory(self) -> dict[str, Any]:
        """The exact account of pages in bytes: used_bytes, reserved_bytes, live_bytes, ..."""
        return self._stats("pith_kv_stats *", lib.pith_engine_kv_stats)

    @property
    def memory_parts(self) -> dict[str, Any]:
        """All that grows with conversations, in bytes by part, which sum to total_bytes."""
        return self._stats("pith_memory_stats *", lib.pith_engine_memory_stats)

    def _stats(self, ctype: str, function: Any) -> dict[str, Any]:
        out = ffi.new(ctype)
        with self._lock:
            function(self._c, out)
        return fields(out)

    @property
    def device(self) -> str:
        """The name of where it computes, "cpu" or the first GPU's."""
        return str(ffi.string(lib.pith_engine_device(self._c)).decode())

    def eval(self, items: Iterable[tuple[Any, ...]],
             progress: Callable[[float], Any] | None = None) -> list[Any]:
        """Appends tokens to several sequences of this engine, in common passes: [(sequence, ids)]
        or [(sequence, ids, targets)]. The numbers are those of one at a time.

        Returns for each item (logprob, best), as Sequence.eval does for targets, or None without
        targets. Then the sequence has the logits of its last token."""
        batch, out = [], []
        for seq, ids, *targets in items:
            given, found = token_ids(ids), None
            if targets and targets[0] is not None:
                wanted = token_ids(targets[0])
                if wanted.shape != given.shape:
                    raise PithInvalid(f"targets: {len(wanted)} for {len(given)} tokens")
                found = wanted, np.full(len(given), np.nan), np.zeros(len(given), np.bool_)
            batch.append((seq, given, None, found))
            out.append(found and found[1:])
        self._batch(batch, progress)
        return out

    def tap(self, function: Callable[[TapRows], Any] | None) -> None:
        """From now on function(rows) sees each layer of each evaluation; returning False ends that.
        None ends the tap."""
        err = new_error()
        with self._lock:
            if function is None:
                check(lib.pith_engine_set_tap(self._c, ffi.NULL, ffi.NULL, err), err)
                self._tap = None
                return
            tap = Callbacks(tap=lambda rows: function(self._tap_rows(rows)))
            check(lib.pith_engine_set_tap(self._c, lib.on_tap, tap.handle, err), err)
            self._tap = tap

    def _tap_rows(self, r: Any) -> TapRows:
        m, n = self.model.info, r.n_token
        heads, kv_heads = (n, m["n_head"], m["head_dim_k"]), (n, m["n_head_kv"])
        return TapRows(r.layer, r.pos0, read_only(r.tokens, (n,), np.int32),
                       read_only(r.h, (n, m["n_embd"]), np.float32),
                       read_only(r.q_pre, heads, np.float32), read_only(r.q, heads, np.float32),
                       read_only(r.k, (*kv_heads, m["head_dim_k"]), np.float32),
                       read_only(r.v, (*kv_heads, m["head_dim_v"]), np.float32),
                       None if r.out == ffi.NULL else
                       read_only(r.out, (n, m["n_head"], m["head_dim_v"]), np.float32))

    @contextlib.contextmanager
    def taps(self, *names: str, layers: Iterable[int] | None = None) -> Iterator[
            "dict[int, dict[str, NDArray[np.float32]]]"]:
        """Gathers what passes compute, of one sequence, until the block ends:

            with engine.taps("q", "out", layers=[0, 5]) as taps:
                seq.eval(ids)
            taps[5]["q"]  # [len(ids)][n_head][head_dim_k]

        names: fields of TapRows, all if you give none. layers: all if None."""
        wanted = names or ("h", "q_pre", "q", "k", "v", "out")
        chosen = None if layers is None else set(layers)
        parts: dict[int, list[list[NDArray[np.float32]]]] = {}
        out: dict[int, dict[str, NDArray[np.float32]]] = {}
        if set(wanted) - set(TapRows._fields[3:]):
            raise PithInvalid(f"taps: there are {', '.join(TapRows._fields[3:])}")

        def gather(rows: TapRows) -> None:
            if chosen is None or rows.layer in chosen:
                parts.setdefault(rows.layer, []).append([getattr(rows, x).copy() for x in wanted])

        self.tap(gather)
        try:
            yield out
        finally:
            self.tap(None)
        for layer, passes in parts.items():
            out[layer] = {x: np.concatenate([rows[i] for rows in passes])
                          for i, x in enumerate(wanted)}

    def _finish(self, status: int, err: Any, *calls: Callbacks) -> None:
        """What a callback raised, or the status."""
        for call in (*self._calls, self._tap, *calls):
            if call is not None:
                call.finish()
        check(status, err)

    def _batch(self, items: list[tuple["Sequence", Any, Any, Any]], progress: Any) -> None:
        """items: sequence, ids, a function of (position, row) or None, (targets, logprob, best) or
        None."""
        c, err = ffi.new("pith_batch_item[]", max(1, len(items))), new_error()
        held: list[Any] = []
        n_vocab = self.model.info["n_vocab"]
        for item, (_, given, on_row, probabilities) in zip(c, items):
            ids = token_ids(given)
            item.tokens, item.n_token = pointer_to(ids), len(ids)
            held.append(ids)
            if on_row is not None:
                item.logits, item.on_logits = lib.PITH_LOGITS_ALL, lib.on_logits
                held.append(Callbacks(logits=lambda pos, row, f=on_row: f(
                    pos, array(row, (n_vocab,), np.float32))))
                item.user = held[-1].handle
            elif probabilities is not None:
                targets, logprob, best = probabilities
                item.logits, item.targets = lib.PITH_LOGITS_ALL, pointer_to(targets)
                item.logprob, item.best = pointer_to(logprob, "double[]"), pointer_to(best, "bool[]")
        calls = Callbacks(progress=progress or (lambda fraction: True))
        with self._lock:
            for item, (seq, *_) in zip(c, items):
                item.seq = seq._pointer()
            status = lib.pith_batch_eval(self._c, c, len(items),
                                         lib.on_progress if progress is not None else ffi.NULL,
                                         calls.handle, err)
            self._finish(status, err, calls, *(h for h in held if isinstance(h, Callbacks)))

    def _executor(self) -> concurrent.futures.ThreadPoolExecutor:
        """One thread, in which the calls of asynchronous programs run."""
        if self._worker is None:
            import concurrent.futures  # here, as it takes longer to import than the package
            self._worker = concurrent.futures.ThreadPoolExecutor(1, "pithkv")
        return self._worker


def _bytes(text: str | int | float) -> int:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    if isinstance(text, str):
        for unit, size in units.items():
            if text.endswith(unit):
                return int(_number(text, text[:-3]) * size)
        if not text.isdecimal():
            raise _not_kv(text)
    return int(text)


def _number(kv: str, part: str) -> float:
    """The number in a budget's text."""
    try:
        number = float(part)
    except ValueError:
        raise _not_kv(kv) from None
    if not math.isfinite(number):
        raise _not_kv(kv)
    return number


def _not_kv(text: str) -> PithInvalid:
    return PithInvalid(f"kv: {text}: a share such as 25%, or bytes such as 64MiB")


def _after_fork() -> None:
    """A child's engines, in which no thread of the parent is."""
    for engine in list(_engines):
        engine._lock.after_fork()
        engine._worker = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

from .sequence import Sequence  # noqa: E402  (it needs Engine)
