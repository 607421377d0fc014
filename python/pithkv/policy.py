"""Policies of the KV cache, as objects of a name and keywords, and policies written in Python."""
from __future__ import annotations

import os
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from .model import Model
from .native import (Callbacks, PithError, PithInvalid, array, c_bytes, check, fields, new_error,
                     read_only)
from ._pith import ffi, lib

NEVER = 1 << 28
"""A slack that no text reaches: rounds come where `Sequence.keep_round` asks for them."""


def _text(value: Any) -> str:
    """An option's value as Pith reads it: True is "on", a share of 0.25 is "25%"."""
    if isinstance(value, (bool, np.bool_)):
        return "on" if value else "off"
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    return str(value)


def _options(options: dict[str, Any]) -> str:
    parts = []
    for key, value in options.items():
        if key == "budget" and isinstance(value, (float, np.floating)) and 0.0 < value <= 1.0:
            value = f"{value * 100:.10g}%"
        parts.append(f"{key.replace('_', '-')}={_text(value)}")
    return ",".join(parts)


class Policy:
    """A policy: Keep("kvzap", budget=0.25, pin_prompt=True) is `kvzap:budget=25%,pin-prompt=on`.

    An unknown name or option, or a value out of range, raises PithInvalid here. Option names have _
    where Pith's have -. docs/policies.md, read.md, recall.md and share.md describe the options."""

    verb = -1

    def __init__(self, name: str, /, **options: Any) -> None:
        text = _options(options)
        self.text = f"{name}{':' if ':' not in name else ','}{text}" if text else name
        err = new_error()
        check(lib.pith_policy_check(self.verb, c_bytes("policy", self.text), err), err)

    def text_for(self, model: Model) -> str:
        """The options as an engine over a model reads them."""
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __str__(self) -> str:
        return self.text


class Recall(Policy):
    """How evicted entries come back: "kv" or "text"."""

    verb = lib.PITH_RECALL


class Share(Policy):
    """Which pages stand for others."""

    verb = lib.PITH_SHARE


class ScoredLane:
    """What a keep policy in Python sees of one layer and KV head at a round. Arrays are read-only
    views, valid during the call; n is the number of entries.

    layer, head: numbers. n_prompt: positions marked as the prompt. positions [n], evictable [n]:
    what is not evictable stays whatever it scores. tokens [n_token]: of the sequence. keys
    [n][dim_k] as attention sees them, values [n][dim_v].

    None unless the policy asks: attention [n], queries=N: the mean weight of each entry over the
    last N queries. queries [N][n_group][dim_k], likewise: these queries after rotation, the last
    token's last; a logit is attn_scale * q . k. There are fewer at the beginning of a text. sums
    [n], sums=True: the attention that each entry got in all, the mean of the query heads. marks
    [n][marks]: what the function mark gave. hidden [n][n_embd], hidden=True: the layer's input,
    after its norm, at the entry's token."""

    def __init__(self, lane: Any, n_hidden: int = 0) -> None:
        n = lane.n
        self.layer: int = lane.layer
        self.head: int = lane.head
        self.n_prompt: int = lane.n_prompt
        self.n_group: int = lane.n_group
        self.attn_scale: float = lane.attn_scale
        self.positions: NDArray[np.int32] = read_only(lane.pos, (n,), np.int32)
        self.evictable: NDArray[np.bool_] = read_only(lane.evictable, (n,), np.bool_)
        self.tokens: NDArray[np.int32] = read_only(lane.tokens, (lane.n_token,), np.int32)
        self.keys: NDArray[np.float32] = read_only(lane.k, (n, lane.dim_k), np.float32)
        self.values: NDArray[np.float32] = read_only(lane.v, (n, lane.dim_v), np.float32)
        self.attention: NDArray[np.float32] | None = _view(lane.attention, (n,))
        self.queries: NDArray[np.float32] | None = _view(
            lane.q, (lane.n_query, lane.n_group, lane.dim_k))
        self.sums: NDArray[np.float32] | None = _view(lane.sum, (n,))
        marks = _view(lane.mark, (n, lane.n_mark))
        self.hidden: NDArray[np.float32] | None = None
        if marks is not None and n_hidden > 0:
            marks, self.hidden = marks[:, n_hidden:], marks[:, :n_hidden]
            marks = marks if marks.shape[1] > 0 else None
        self.marks: NDArray[np.float32] | None = marks

    def __len__(self) -> int:
        return len(self.positions)


class NewEntries:
    """New entries of one layer and KV head, for a function that marks them. Arrays are read-only
    views, valid during the call. positions [n], tokens [n]. hidden [n][n_embd]: the layer's input
    after its norm. keys [n][dim_k] before rotation, values [n][dim_v]."""

    def __init__(self, new: Any) -> None:
        n = new.n
        self.layer: int = new.layer
        self.head: int = new.head
        self.positions: NDArray[np.int32] = np.arange(new.pos0, new.pos0 + n, dtype=np.int32)
        self.tokens: NDArray[np.int32] = read_only(new.tokens, (n,), np.int32)
        self.hidden: NDArray[np.float32] = read_only(new.h, (n, new.n_embd), np.float32)
        self.keys: NDArray[np.float32] = _strided(new.k, n, new.dim_k, new.k_stride)
        self.values: NDArray[np.float32] = _strided(new.v, n, new.dim_v, new.v_stride)

    def __len__(self) -> int:
        return len(self.positions)


class ReadChunk:
    """What a read policy in Python sees of one layer and KV head, for a chunk of a prompt or for
    one token. Arrays are read-only views, valid during the call; n is the number of stored entries
    of earlier tokens.

    layer, head: numbers. pos0: position of the chunk's first token. n_choose: entries that are
    chosen by score, beside those that are always read. positions [n]. queries
    [n_token][n_group][dim_k] after rotation; a logit is attn_scale * q . k. keys [n][dim_k] as
    attention sees them. values [n][dim_v] with values=True, else None."""

    def __init__(self, chunk: Any) -> None:
        n = chunk.n
        self.layer: int = chunk.layer
        self.head: int = chunk.head
        self.pos0: int = chunk.pos0
        self.n_choose: int = chunk.n_choose
        self.attn_scale: float = chunk.attn_scale
        self.positions: NDArray[np.int32] = read_only(chunk.pos, (n,), np.int32)
        self.queries: NDArray[np.float32] = read_only(
            chunk.q, (chunk.n_token, chunk.n_group, chunk.dim_k), np.float32)
        self.keys: NDArray[np.float32] = read_only(chunk.k, (n, chunk.dim_k), np.float32)
        self.values: NDArray[np.float32] | None = _view(chunk.v, (n, chunk.dim_v))

    def __len__(self) -> int:
        return len(self.positions)


def _view(pointer: Any, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    return None if pointer == ffi.NULL else read_only(pointer, shape, np.float32)


def _strided(pointer: Any, n: int, dim: int, stride: int) -> NDArray[np.float32]:
    """Rows of dim floats, each stride floats behind the one before."""
    flat = read_only(pointer, ((n - 1) * stride + dim,), np.float32)
    return np.lib.stride_tricks.as_strided(flat, (n, dim), (4 * stride, 4), writeable=False)


def _fill(out: Any, given: Any, shape: tuple[int, ...], what: str) -> None:
    """The numbers that a function returned, to where C wants them."""
    numbers = np.asarray(given, dtype=np.float32)
    if numbers.shape != shape:
        raise PithInvalid(f"{what}: numbers of shape {shape} are wanted, and {numbers.shape} came")
    if np.isnan(numbers).any():
        raise PithInvalid(f"{what}: a number is NaN")
    array(out, shape, np.float32)[...] = numbers


ScoreFunction = Callable[[ScoredLane], Any]
MarkFunction = Callable[[NewEntries], Any]
ReadFunction = Callable[[ReadChunk], Any]


def _function(verb: str, name: Any, options: dict[str, Any]) -> tuple[Any, str]:
    """A policy's function, or None, and its name."""
    function = None
    if callable(name):
        function, name = name, None
    elif callable(options.get("score")):  # else it is an option, which some policies have
        function = options.pop("score")
    if function is None and name is None:
        raise PithInvalid(f"{verb}: give the name of a policy, or a function")
    if function is not None and name not in (None, "custom"):
        raise PithInvalid(f"{verb}: {name}: a policy has a name or a function, not both")
    return function, name or "custom"


def _custom(options: dict[str, Any]) -> str:
    text = _options(options)
    return f"custom:{text}" if text else "custom"


def _first_mark(lane: ScoredLane) -> Any:
    assert lane.marks is not None
    return lane.marks[:, 0]


class Keep(Policy):
    """Which entries stay. Keep("kvzap", budget=0.25), or Keep(function, budget=0.25): a policy in
    Python.

    function(lane) gets a ScoredLane and returns n numbers; higher stays. Budget, sinks, window,
    granularity and slack are Pith's, as for every policy. queries=N, sums=True and hidden=True ask
    for more of the lane. The last takes n_embd numbers for each entry of each lane.

    mark(new) gets NewEntries when they are computed, and returns marks=M numbers for each: [n] of
    one, [n][M] of several. They stay beside the entries, so that what a score wants of a layer's
    input need not be kept whole. Without a function the first mark is the score.

    What a function raises ends the evaluation and comes out of it."""

    verb = lib.PITH_KEEP

    def __init__(self, name: str | ScoreFunction | None = None, /, *,
                 mark: MarkFunction | None = None, hidden: bool = False, **options: Any) -> None:
        self.score: ScoreFunction | None
        if name is None and mark is not None and "score" not in options:
            name = _first_mark
        self.score, chosen = _function("Keep", name, options)
        self.mark, self.hidden = mark, hidden
        if self.score is not None:
            self.n_mark = int(options.pop("marks", 1)) if mark is not None else 0
            self.text = _custom(options)
            return
        if mark is not None or hidden:
            raise PithInvalid(f"Keep: {chosen}: mark and hidden are for a function's policy")
        super().__init__(chosen, **options)

    def text_for(self, model: Model) -> str:
        n_mark = (self.n_mark + self._n_hidden(model)) if self.score is not None else 0
        if n_mark == 0:
            return self.text
        return f"{self.text}{',' if ':' in self.text else ':'}marks={n_mark}"

    def _n_hidden(self, model: Model) -> int:
        return int(model.info["n_embd"]) if self.hidden else 0

    def callbacks(self, model: Model) -> Callbacks | None:
        """For an engine: what C calls. The engine keeps it alive."""
        if self.score is None:
            return None
        function, mark, n_hidden = self.score, self.mark, self._n_hidden(model)

        def score(lane: Any, out: Any) -> None:
            _fill(out, function(ScoredLane(lane, n_hidden)), (lane.n,), "score")

        def write(new: Any, out: Any) -> None:
            seen = NewEntries(new)
            parts = [seen.hidden] if n_hidden > 0 else []
            if mark is not None:
                given = np.asarray(mark(seen), np.float32)
                parts.append(given.reshape(new.n, 1) if given.shape == (new.n,) else given)
                if parts[-1].ndim != 2 or len(parts[-1]) != new.n:
                    raise PithInvalid(f"mark: {new.n} rows are wanted, and {given.shape} came")
            _fill(out, np.concatenate(parts, axis=1), (new.n, new.n_mark), "mark")

        calls = Callbacks(score=score, mark=write)
        calls.marks = mark is not None or n_hidden > 0
        return calls


class Read(Policy):
    """Which stored entries attention looks at. Read("quoka", budget=1024), or Read(function,
    budget=1024): a policy in Python.

    function(chunk) gets a ReadChunk and returns n numbers; higher is read. Budget, chunk, sinks,
    recent, tail, dense_layers, gate and phase are Pith's, as for every policy. It is not asked
    where these read a lane whole. values=True asks for chunk.values. What it raises ends the
    evaluation, which is taken back, and comes out of it."""

    verb = lib.PITH_READ

    def __init__(self, name: str | ReadFunction | None = None, /, **options: Any) -> None:
        self.score: ReadFunction | None
        self.score, chosen = _function("Read", name, options)
        if self.score is None:
            super().__init__(chosen, **options)
        else:
            self.text = _custom(options)

    def callbacks(self) -> Callbacks | None:
        """For an engine: what C calls. The engine keeps it alive."""
        if self.score is None:
            return None
        function = self.score

        def score(chunk: Any, out: Any) -> None:
            _fill(out, function(ReadChunk(chunk)), (chunk.n,), "score")

        return Callbacks(read=score)


def policies(verb: str = "keep") -> list[dict[str, Any]]:
    """The policies of a verb ("keep", "read", "recall", "share"): name, summary, citation, and
    params, a list of dicts with key, type, help and fallback."""
    verbs = {ffi.string(lib.pith_verb_name(v)).decode(): v for v in range(4)}
    if verb not in verbs:
        raise PithInvalid(f"verb: {verb}: there are {', '.join(verbs)}")
    out: list[dict[str, Any]] = []
    info, param = ffi.new("pith_policy_info *"), ffi.new("pith_param_info *")
    while lib.pith_policy_get(verbs[verb], len(out), info) == 0:
        one = fields(info)
        one["params"] = []
        for j in range(one.pop("n_param")):
            check(lib.pith_policy_get_param(verbs[verb], len(out), j, param))
            one["params"].append(fields(param))
        out.append(one)
    return out


__all__ = ["Keep", "NEVER", "NewEntries", "Policy", "PithError", "Read", "ReadChunk", "Recall",
           "ScoredLane", "Share", "policies"]
