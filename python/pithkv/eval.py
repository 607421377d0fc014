"""The measuring tasks of `pith eval`: the same code, the same figures, in this process.

    result = pithkv.eval.facts(model, lengths=2048, keep=pithkv.Keep("snapkv", budget=0.25))
    print(result.score, result.summary["recovered"], result.rows["found"].mean())

A sweep is a loop over policies. `difference` compares two results question by question.
"""
from __future__ import annotations

import os
from typing import Any, Callable, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .engine import EngineParams
from .model import Model
from .native import Callbacks, PithInvalid, c_bytes, check, new_error
from ._pith import ffi, lib

ENGINE = ("n_thread", "chunk", "page_len", "kv_bytes", "kv_tokens", "memory_bytes", "type_k", "type_v",
          "keep", "read", "recall", "share", "device", "n_gpu_layers")

Progress = Callable[[float, str], Any]


class Result:
    """What a task measured. json: the dict that `pith eval TASK --json` writes. summary: its
    figures. rows: a structured array, one element for each question or cell, with the columns of
    `--csv`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.json = data
        self.summary: dict[str, Any] = data["summary"]
        self.rows: NDArray[Any] = _table(data["rows"])

    @property
    def score(self) -> float:
        """0 to 1, more is better; NaN of a task without one."""
        return float(self.summary.get("score", np.nan))

    def __repr__(self) -> str:
        return f"Result({self.json['task']!r}, {self.json['policy']!r}, score={self.score:.4g})"


def _column(values: list[Any]) -> NDArray[Any]:
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {int}:
        return np.array(values, np.int64)
    if kinds <= {int, float, type(None)}:
        return np.array([np.nan if v is None else v for v in values], np.float64)
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _table(rows: list[dict[str, Any]]) -> NDArray[Any]:
    """Rows of equal or different keys as one structured array; absent numbers are NaN."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    out = np.empty(len(rows), [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        out[name] = column
    return out


def _plain(value: Any) -> Any:
    """An option as JSON has it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return list(value) if isinstance(value, (tuple, range)) else value


def run(task: str, model: Model, *, seed: int = 1, chat: bool = False, keep_text: bool = False,
        progress: Progress | None = None, **options: Any) -> Result:
    """A task of `pith eval` by its name.

    Options are those of the command, with _ for -, and those of Engine that size and rule the cache
    (keep, read, recall, share, type_k, type_v, kv_bytes, n_thread, chunk, ...). keep may be a
    policy in Python. seed: of all that the task draws. chat: prompts are messages. keep_text: rows
    have prompts and answers. progress: called with a fraction and a text; False ends the task.
    Raises PithInvalid with a sentence on the option, PithNotFound for the task."""
    import json  # here, as imports take processor time
    engine = EngineParams(model, **{name: options.pop(name) for name in ENGINE if name in options})
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    if task == "facts":
        given.setdefault("cut_once", False)  # which a sweep's file takes from what is not there
    texts = [ffi.new("char[]", c_bytes("task", text)) for text in (task, json.dumps(given))]
    calls = Callbacks(measure=progress or (lambda fraction, what: True))
    params, out, err = ffi.new("pith_eval_params *"), ffi.new("char **"), new_error()
    params.model, params.engine = model._c, engine.c
    params.task, params.options = texts
    params.seed, params.chat, params.keep_text = seed, chat, keep_text
    params.progress, params.user = lib.on_measure, calls.handle
    status = lib.pith_eval(params, out, err)
    text = ffi.gc(out[0], lib.pith_eval_free)
    for call in (*engine.calls, calls):
        if call is not None:
            call.finish()
    check(status, err)
    return Result(json.loads(ffi.string(text)))


def perplexity(model: Model, file: str | os.PathLike[str], *, ctx_size: int = 512, chunks: int = -1,
               **options: Any) -> Result:
    """How well the model predicts a text, as llama-perplexity counts; with a policy beside the full
    cache. summary: perplexity, full_perplexity, ratio, ..."""
    return run("perplexity", model, file=file, ctx_size=ctx_size, chunks=chunks, **options)


def needle(model: Model, file: str | os.PathLike[str] | None = None, *, lengths: Any = (1024, 2048, 4096),
           depths: Any = (0, 25, 50, 75, 100), **options: Any) -> Result:
    """A fact at every depth of texts of every length. file: text that hides it; None: noise.
    depths: percent. Further options: style, needles, repeat, predict, needle, question, ..."""
    return run("needle", model, file=file, lengths=lengths, depths=depths, **options)


def facts(model: Model, file: str | os.PathLike[str] | None = None, *, lengths: Any = 2048, texts: int = 4,
          style: str = "pool", **options: Any) -> Result:
    """Ten facts of each text, each asked for on a fork of one reading; with a policy beside the
    full cache. style: "pool", or "pith" for the models that come along. summary: score, recovered,
    ..."""
    return run("facts", model, file=file, lengths=lengths, texts=texts, style=style, **options)


def ruler(model: Model, file: str | os.PathLike[str] | None = None, *, tasks: Any = None,
          lengths: Any = (1024, 2048, 4096), samples: int = 10, **options: Any) -> Result:
    """RULER's tasks: a name, a list, None for all. Further options: haystack, squad, hotpotqa,
    ..."""
    return run("ruler", model, file=file, tasks=tasks, lengths=lengths, samples=samples, **options)


def questions(model: Model, file: str | os.PathLike[str], *, questions: int = 0, draws: int = 1,
              **options: Any) -> Result:
    """Problems with known answers, a JSON object in each line of a file. questions: how many, 0 for
    all. Further options: predict, parallel, temperature, top_p, instruction, ..."""
    return run("questions", model, file=file, questions=questions, draws=draws, **options)


class Difference(NamedTuple):
    """A mean difference of two results, its standard error, and the number of groups behind it."""

    mean: float
    se: float
    n: int


def difference(a: Result, b: Result, column: str = "found", group: tuple[str, ...] = ("length", "text")
               ) -> Difference:
    """Mean of a - b in a column, row by row: both asked the same of the same texts. Rows of one
    text are not independent, so the error is that of the means of texts (the columns of group)."""
    names = tuple(name for name in group if name in (a.rows.dtype.names or ()))
    if len(a.rows) != len(b.rows) or any((a.rows[name] != b.rows[name]).any() for name in names):
        raise PithInvalid("difference: the results are not of the same questions")
    if column not in (a.rows.dtype.names or ()):
        raise PithInvalid(f"difference: rows have no {column}, but {', '.join(a.rows.dtype.names or ())}")
    delta = a.rows[column].astype(np.float64) - b.rows[column].astype(np.float64)
    if not names:
        names, keys = (), np.arange(len(delta))
    else:
        keys = np.unique(a.rows[list(names)], return_inverse=True)[1].reshape(-1)
    n = int(keys.max()) + 1 if len(keys) else 0
    sums, sizes = np.bincount(keys, delta, n), np.bincount(keys, minlength=n)
    mean = float(delta.mean()) if n else float("nan")
    left = sums - mean * sizes
    se = float(np.sqrt(n / (n - 1) * (left @ left)) / len(delta)) if n > 1 else float("nan")
    return Difference(mean, se, n)
