"""What policies learn of a model before they run: statistics of queries (triattention), the
importance of entries (kvzap), and the bases of keys (loki)."""
from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from .engine import Engine
from .model import Model
from .native import (Callbacks, PithInvalid, c_bytes, check, new_error, pointer_to, read_only,
                     token_ids)
from ._pith import ffi, lib

Progress = Callable[[float], Any]


class Stats:
    """Statistics of a model, which calibrate makes and Stats.load reads. A policy reads their file:
    Keep("kvzap", stats="model.stats", budget=0.25).

    info: a dict of the model's name, what was read, n_layer, n_head, n_pair, n_centre and so on."""

    def __init__(self, pointer: Any) -> None:
        self._c = ffi.gc(pointer, lib.pith_stats_free)
        info = ffi.new("pith_stats_info *")
        lib.pith_stats_get_info(self._c, info)
        self._info = info
        texts = {name: ffi.string(getattr(info, name)).decode(errors="replace")
                 for name in ("format", "model", "text")}
        numbers = {name: getattr(info, name)
                   for name in ("fingerprint", "n_token", "n_layer", "n_head", "n_head_kv", "n_pair",
                                "n_centre", "has_keys")}
        self.info: dict[str, Any] = {**texts, **numbers}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Stats":
        """PithIO, PithFormat, PithUnsupported."""
        out, err = ffi.new("pith_stats **"), new_error()
        check(lib.pith_stats_load(c_bytes("path", path), out, err), err)
        return cls(out[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears whole or not at all. PithIO."""
        err = new_error()
        check(lib.pith_stats_save(self._c, c_bytes("path", path), err), err)

    def check(self, model: Model) -> None:
        """Raises PithInvalid with the difference where they cannot be of this model."""
        err = new_error()
        check(lib.pith_stats_check(self._c, model._c, err), err)

    def head(self, layer: int, head: int) -> dict[str, NDArray[np.float32]]:
        """The queries of a query head before rotation, by rotated pair: re, im [n_pair], the mean
        as a complex number, and abs [n_pair], the mean modulus. key_abs [n_pair]: of its keys, if
        known."""
        out, n = ffi.new("pith_stats_head *"), self.info["n_pair"]
        check(lib.pith_stats_get_head(self._c, layer, head, out))
        arrays = {name: getattr(out, name) for name in ("re", "im", "abs", "key_abs")}
        return {name: read_only(at, (n,), np.float32).copy() for name, at in arrays.items()
                if at != ffi.NULL}

    @property
    def importance(self) -> dict[str, NDArray[np.float32]] | None:
        """What was learnt of entries, by lane, [n_layer][n_head_kv]: mean and deviation of the
        logarithm of importance, key_r2 and hidden_r2, how well it is predicted on held-out texts.
        None where nothing was."""
        out = ffi.new("pith_importance_info *")
        if lib.pith_stats_get_importance(self._c, out) != 0:
            return None
        shape = (out.n_layer, out.n_head_kv)
        arrays = {name: getattr(out, name) for name in ("mean", "deviation", "key_r2", "hidden_r2")}
        return {name: read_only(at, shape, np.float32).copy() for name, at in arrays.items()
                if at != ffi.NULL}

    def shares(self, retention: float) -> NDArray[np.float64]:
        """The part of its entries that each lane keeps where that part of all, the most important
        ones, is kept, [n_lane]. PithNotFound without importance."""
        info = ffi.new("pith_importance_info *")
        check(lib.pith_stats_get_importance(self._c, info))
        out = np.empty(info.n_lane, np.float64)
        check(lib.pith_stats_get_shares(self._c, retention, pointer_to(out, "double[]")))
        return out


class Projection:
    """The bases of keys that the read policy loki scores in: Read("loki",
    projection="model.loki")."""

    def __init__(self, pointer: Any) -> None:
        self._c = ffi.gc(pointer, lib.pith_projection_free)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Projection":
        """PithIO, PithFormat, PithUnsupported."""
        out, err = ffi.new("pith_projection **"), new_error()
        check(lib.pith_projection_load(c_bytes("path", path), out, err), err)
        return cls(out[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears whole or not at all. PithIO."""
        err = new_error()
        check(lib.pith_projection_save(self._c, c_bytes("path", path), err), err)

    def rank(self, share: float, layer: int = -1, head: int = -1) -> int:
        """The fewest dimensions in which keys of a layer and KV head have this share of their
        variance; -1: the most of any."""
        return int(lib.pith_projection_rank(self._c, layer, head, share))


def _ids(model: Model, text: Any) -> NDArray[np.int32]:
    return model.tokenize(text) if isinstance(text, (str, bytes)) else token_ids(text)


def calibrate(model: Model, text: Any, *, n_ctx: int = 0, select: str | Seq[tuple[int, int]] = "all",
              n_generate: int = 512, centres: int = 1, samples: int = 8192, seed: int = 0,
              temperature: float = 0.8, name: str = "", progress: Progress | None = None,
              **engine: Any) -> Stats:
    """Statistics of a model's queries, for triattention.

    text: a text, or ids. n_ctx: tokens of a piece, each from position 0; 0: the model's context, or
    the text if it is shorter. select: whose queries count: "all", "generated" (n_generate tokens
    that the model writes behind each piece, at this temperature), or ranges of tokens [(begin,
    end)]. centres of each head, found from samples of its queries. name: what the text is.
    progress: called with a fraction; False ends it with PithCancelled. engine: options of Engine
    (n_thread, chunk, device). The same text and options give the same bits. PithInvalid,
    PithFormat, PithNoMemory."""
    ids, err, out = _ids(model, text), new_error(), ffi.new("pith_stats **")
    params = ffi.new("pith_calibrate_params *")
    lib.pith_calibrate_params_default(params)
    n_ctx = min(n_ctx or int(model.info["n_ctx_train"]), len(ids))
    ranges = ffi.NULL
    if isinstance(select, str):
        kinds = {"all": lib.PITH_SELECT_ALL, "generated": lib.PITH_SELECT_GENERATED}
        if select not in kinds:
            raise PithInvalid(f'select: {select!r}: "all", "generated" or ranges')
        params.select = kinds[select]
    else:
        ranges = ffi.new("pith_range[]", [(begin, end) for begin, end in select])
        params.select, params.ranges, params.n_range = lib.PITH_SELECT_RANGES, ranges, len(ranges)
    params.n_ctx, params.n_centre, params.n_sample = n_ctx, centres, samples
    params.n_generate, params.seed, params.sample.seed = n_generate, seed, seed
    params.sample.temperature = temperature
    label, calls = ffi.new("char[]", c_bytes("name", name)), Callbacks(progress=progress or _go_on)
    params.text, params.progress, params.progress_user = label, lib.on_progress, calls.handle
    own = Engine(model, kv_tokens=n_ctx + (n_generate if select == "generated" else 0) + 1, **engine)
    with own._lock:
        status = lib.pith_calibrate(own._c, pointer_to(ids), len(ids), params, out, err)
        own._finish(status, err, calls)
    return Stats(out[0])


def calibrate_importance(model: Model, texts: Iterable[Any], *, hidden: bool = False,
                         keep: Iterable[str] = (), path: str | os.PathLike[str] | None = None,
                         resume: str | os.PathLike[str] | None = None, name: str = "",
                         progress: Progress | None = None, **engine: Any) -> Stats:
    """What entries are worth, learnt from texts that the model repeats, for kvzap; statistics of
    their queries, too.

    texts: several texts or lists of ids, of about a thousand tokens; every fifth is held out.
    hidden: weights of the layers' inputs, too. keep: policies whose scores are mapped to
    importance, which needs path, a file where statistics are saved before. resume: a file to go on
    from; remove it at the end. name, progress and engine as calibrate. PithInvalid, PithFormat,
    PithNoMemory."""
    given = [model.tokenize(text, bos=False) if isinstance(text, (str, bytes)) else token_ids(text)
             for text in texts]
    if not given:
        raise PithInvalid("texts: there is none")
    err, out = new_error(), ffi.new("pith_stats **")
    params = ffi.new("pith_importance_params *")
    lib.pith_importance_params_default(params)
    c = ffi.new("pith_importance_text[]", len(given))
    for item, ids in zip(c, given):
        item.tokens, item.n_token = pointer_to(ids), len(ids)
    names = [ffi.new("char[]", c_bytes("keep", policy)) for policy in keep]
    policies = ffi.new("const char *[]", names)
    params.texts, params.n_text, params.hidden = c, len(given), hidden
    params.keep, params.n_keep = policies, len(names)
    paths = {key: ffi.new("char[]", c_bytes("path", at)) for key, at in (("path", path), ("resume", resume))
             if at is not None}
    for key, at in paths.items():
        setattr(params, key, at)
    label, calls = ffi.new("char[]", c_bytes("name", name)), Callbacks(progress=progress or _go_on)
    params.text, params.progress, params.progress_user = label, lib.on_progress, calls.handle
    own = Engine(model, kv_tokens=2 * max(map(len, given)) + 512, **engine)
    with own._lock:
        own._finish(lib.pith_calibrate_importance(own._c, params, out, err), err, calls)
    return Stats(out[0])


def calibrate_projection(model: Model, text: Any, *, n_ctx: int = 0, keys: str = "rotated",
                         name: str = "", progress: Progress | None = None,
                         **engine: Any) -> Projection:
    """The bases of a text's keys, for the read policy loki. keys: "rotated", as they are stored, or
    "plain", as they were before. The rest as calibrate."""
    kinds = {"rotated": lib.PITH_KEYS_ROTATED, "plain": lib.PITH_KEYS_PLAIN}
    if keys not in kinds:
        raise PithInvalid(f'keys: {keys!r}: "rotated" or "plain"')
    ids, err, out = _ids(model, text), new_error(), ffi.new("pith_projection **")
    params = ffi.new("pith_projection_params *")
    lib.pith_projection_params_default(params)
    n_ctx = min(n_ctx or int(model.info["n_ctx_train"]), len(ids))
    label, calls = ffi.new("char[]", c_bytes("name", name)), Callbacks(progress=progress or _go_on)
    params.keys, params.n_ctx, params.text = kinds[keys], n_ctx, label
    params.progress, params.progress_user = lib.on_progress, calls.handle
    own = Engine(model, kv_tokens=n_ctx + 1, **engine)
    with own._lock:
        status = lib.pith_projection_fit(own._c, pointer_to(ids), len(ids), params, out, err)
        own._finish(status, err, calls)
    return Projection(out[0])


def _go_on(fraction: float) -> bool:
    return True
