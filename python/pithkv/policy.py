"""Policies of the KV cache, as objects of a name and keywords, and keep policies written in Python."""
from __future__ import annotations

import os
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from .native import Callbacks, PithError, PithInvalid, array, check, fields, new_error, read_only
from ._pith import ffi, lib

NEVER = 1 << 28
"""A slack that no text reaches: rounds come where `Sequence.keep_round` asks for them."""


def _text(value: Any) -> str:
    """An option's value as Pith reads it: True is "on", a share of 0.25 is "25%"."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    return str(value)


def _options(options: dict[str, Any]) -> str:
    parts = []
    for key, value in options.items():
        if key == "budget" and isinstance(value, float) and 0.0 < value <= 1.0:
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
        check(lib.pith_policy_check(self.verb, self.text.encode(), err), err)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __str__(self) -> str:
        return self.text


class Read(Policy):
    """Which stored entries attention looks at."""

    verb = lib.PITH_READ


class Recall(Policy):
    """How evicted entries come back: "kv" or "text"."""

    verb = lib.PITH_RECALL


class Share(Policy):
    """Which pages stand for others."""

    verb = lib.PITH_SHARE


class ScoredLane:
    """What a policy in Python sees of one layer and KV head at a round. Arrays are read-only views,
    valid during the call.

    layer, head: numbers. n_prompt: positions marked as the prompt. positions [n], evictable [n]: what
    is not evictable stays whatever it scores. tokens [n_token]: of the sequence. keys [n][dim_k] as
    attention sees them, values [n][dim_v]. attention [n]: with queries=N the mean weight of each
    entry over the last N queries; else None."""

    def __init__(self, lane: Any) -> None:
        n = lane.n
        self.layer: int = lane.layer
        self.head: int = lane.head
        self.n_prompt: int = lane.n_prompt
        self.positions: NDArray[np.int32] = read_only(lane.pos, (n,), np.int32)
        self.evictable: NDArray[np.bool_] = read_only(lane.evictable, (n,), np.bool_)
        self.tokens: NDArray[np.int32] = read_only(lane.tokens, (lane.n_token,), np.int32)
        self.keys: NDArray[np.float32] = read_only(lane.k, (n, lane.dim_k), np.float32)
        self.values: NDArray[np.float32] = read_only(lane.v, (n, lane.dim_v), np.float32)
        self.attention: NDArray[np.float32] | None = None
        if lane.attention != ffi.NULL:
            self.attention = read_only(lane.attention, (n,), np.float32)

    def __len__(self) -> int:
        return len(self.positions)


ScoreFunction = Callable[[ScoredLane], Any]


class Keep(Policy):
    """Which entries stay. Keep("kvzap", budget=0.25), or Keep(score=function, budget=0.25): a policy
    in Python.

    function(lane) gets a ScoredLane and returns n numbers; higher stays. Budget, sinks, window,
    granularity and slack are Pith's, as for every policy. queries=N asks for lane.attention. What the
    function raises ends the evaluation and comes out of it."""

    verb = lib.PITH_KEEP

    def __init__(self, name: str | ScoreFunction | None = None, /, **options: Any) -> None:
        score: ScoreFunction | None = None
        if callable(name):
            name, score = None, name
        elif callable(options.get("score")):  # else it is an option, which some policies have
            score = options.pop("score")
        self.score = score
        if score is None:
            if name is None:
                raise PithInvalid("Keep: give the name of a policy, or score=function")
            super().__init__(name, **options)
            return
        if name not in (None, "custom"):
            raise PithInvalid(f"Keep: {name}: a policy has a name or a function, not both")
        text = _options(options)
        self.text = f"custom:{text}" if text else "custom"

    def callbacks(self) -> Callbacks | None:
        """For an engine: what C calls. The engine keeps it alive."""
        if self.score is None:
            return None
        function = self.score

        def call(lane: Any, out: Any) -> None:
            scores = np.asarray(function(ScoredLane(lane)), dtype=np.float32)
            if scores.shape != (lane.n,):
                raise PithInvalid(f"score: {lane.n} numbers are wanted, and {scores.shape} came")
            if np.isnan(scores).any():
                raise PithInvalid("score: a score is NaN")
            array(out, (lane.n,), np.float32)[:] = scores

        return Callbacks(score=call)


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


__all__ = ["Keep", "NEVER", "Policy", "PithError", "Read", "Recall", "ScoredLane", "Share", "policies"]
