"""The joint to C: errors, callbacks, and arrays over C memory. Nothing of it is for users."""
from __future__ import annotations

import _thread
import math
import os
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from ._pith import ffi, lib


# ---- errors ----

class PithError(Exception):
    """What Pith refuses or fails at. `status` is the name in C ("KV_FULL"); the text is Pith's."""

    status = "INTERNAL"


class PithInvalid(PithError, ValueError):
    status = "INVALID"


class PithNoMemory(PithError, MemoryError):
    status = "NOMEM"


class PithIO(PithError, OSError):
    status = "IO"


class PithFormat(PithError, ValueError):
    status = "FORMAT"


class PithUnsupported(PithError, NotImplementedError):
    status = "UNSUPPORTED"


class PithNotFound(PithError, LookupError):
    status = "NOT_FOUND"


class PithKVFull(PithError, MemoryError):
    status = "KV_FULL"


class PithContext(PithError, ValueError):
    status = "CONTEXT"


class PithRange(PithError, IndexError):
    status = "RANGE"


class PithBusy(PithError, RuntimeError):
    status = "BUSY"


class PithCancelled(PithError):
    status = "CANCELLED"


_BY_STATUS = {c.status: c for c in (PithInvalid, PithNoMemory, PithIO, PithFormat, PithUnsupported,
                                    PithNotFound, PithKVFull, PithContext, PithRange, PithBusy,
                                    PithCancelled)}


def check(status: int, err: Any = None) -> None:
    """Raises the exception of a status other than OK."""
    if status == 0:
        return
    text = err.message if err is not None and err.message[0] != b"\0" else lib.pith_status_text(status)
    raise error_of(status, ffi.string(text).decode(errors="replace"))


def error_of(status: int, text: str) -> PithError:
    return _BY_STATUS.get(ffi.string(lib.pith_status_name(status)).decode(), PithError)(text)


def new_error() -> Any:
    return ffi.new("pith_error *")


# ---- callbacks ----

class Callbacks:
    """The user data of C calls: functions of Python, and what one of them raised. That ends the C
    call and is raised where the call was made."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.functions = functions
        self.marks = False  # a keep policy has a function that marks entries
        self.raised: BaseException | None = None
        self.handle = ffi.new_handle(self)

    def finish(self, status: int = 0, err: Any = None) -> None:
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        check(status, err)


def _failed(kind: Any, value: BaseException, traceback: Any) -> None:
    calls = ffi.from_handle(traceback.tb_frame.f_locals["user"])
    calls.raised = calls.raised or value


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_progress(user: Any, fraction: float) -> bool:
    return ffi.from_handle(user).functions["progress"](fraction) is not False


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_advance(user: Any, n_read: int, n_token: int) -> bool:
    # Python looks for signals when it runs: Ctrl-C is raised here.
    calls = ffi.from_handle(user)
    return calls.raised is None


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_logits(user: Any, seq: Any, pos: int, logits: Any) -> bool:
    return ffi.from_handle(user).functions["logits"](pos, logits) is not False


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_tap(user: Any, rows: Any) -> bool:
    return ffi.from_handle(user).functions["tap"](rows) is not False


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_score(user: Any, lane: Any, score: Any) -> bool:
    ffi.from_handle(user).functions["score"](lane, score)
    return True


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_mark(user: Any, new: Any, mark: Any) -> bool:
    ffi.from_handle(user).functions["mark"](new, mark)
    return True


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_read(user: Any, chunk: Any, score: Any) -> bool:
    ffi.from_handle(user).functions["read"](chunk, score)
    return True


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_measure(user: Any, fraction: float, what: Any) -> bool:
    words = ffi.string(what).decode(errors="replace")
    return ffi.from_handle(user).functions["measure"](fraction, words) is not False


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_answer_token(user: Any, token: Any) -> bool:
    return ffi.from_handle(user).functions["token"](token) is not False


@ffi.def_extern(onerror=_failed)  # type: ignore[untyped-decorator,unused-ignore]
def on_answer_done(user: Any, result: Any) -> None:
    ffi.from_handle(user).functions["done"](result)


# ---- memory ----

def array(pointer: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array over C memory, without a copy; it keeps `pointer` alive, not what it points to."""
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(ffi.buffer(pointer, count * np.dtype(dtype).itemsize), dtype).reshape(shape)


def read_only(pointer: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    out = array(pointer, shape, dtype)
    out.flags.writeable = False
    return out


def token_ids(ids: Any) -> NDArray[np.int32]:
    """Ids as C takes them, from any sequence of integers. One that does not fit in 32 bits would
    become another token, and is refused."""
    out = np.ascontiguousarray(ids)
    whole = out.dtype.kind in "iu" or (out.dtype.kind == "O" and all(isinstance(i, int) for i in out.flat))
    if out.ndim != 1 or (out.size > 0 and not whole):
        raise PithInvalid("token ids are a sequence of integers")
    limits = np.iinfo(np.int32)
    for at in np.flatnonzero((out < limits.min) | (out > limits.max))[:1]:
        raise PithInvalid(f"token {at}: id {out[at]} does not fit in 32 bits")
    return out.astype(np.int32, copy=False)


def c_bytes(what: str, value: Any) -> bytes:
    """A text or a path, what names it, as C reads it: to the first zero byte, so it has none."""
    if what == "path":
        data = os.fsencode(value)
    elif isinstance(value, str):
        data = value.encode()
    else:
        raise TypeError(f"{what}: {value!r} is no text")
    if b"\0" in data:
        raise PithInvalid(f"{what}: {value!r} has a zero byte")
    return data


def pointer_to(ids: NDArray[Any], ctype: str = "int32_t[]") -> Any:
    return ffi.from_buffer(ctype, ids) if ids.size > 0 else ffi.NULL


def fields(struct: Any) -> dict[str, Any]:
    """The fields of a C struct: numbers, truths and strings."""
    out: dict[str, Any] = {}
    for name, field in ffi.typeof(struct).item.fields:
        value = getattr(struct, name)
        if name == "reserved":
            continue
        if field.type.kind == "array":
            value = ffi.string(value).decode(errors="replace")
        elif field.type.kind == "pointer":
            value = None if value == ffi.NULL else ffi.string(value).decode(errors="replace")
        out[name] = value
    return out


# ---- one thread at a time ----

class EngineLock(_thread.RLock):  # type: ignore[misc,unused-ignore]
    """An engine's lock. Another thread waits; a callback of a call that runs is told BUSY, where
    waiting would never end. A signal's handler may raise between any two steps of Python. So the
    way out is C's, which is one step, and the way in gives the lock back."""

    def __init__(self) -> None:
        self.lost = False  # to a thread that this process does not have

    def __enter__(self) -> bool:  # type: ignore[override,unused-ignore]
        if self.mine():
            raise PithBusy("the engine is in a call already: its callbacks cannot call it")
        if self.lost:
            raise PithBusy("the process was forked while another thread was in the engine: make an "
                           "engine here, or start processes by spawn")
        try:
            return self.acquire()
        except BaseException:
            if self.mine():
                self.release()
            raise

    def mine(self) -> bool:
        """Whether this thread is in a call of the engine."""
        return self._is_owned()  # type: ignore[attr-defined,no-any-return,unused-ignore]

    def after_fork(self) -> None:
        """In the child, which has the thread that forked alone."""
        if not self.mine():
            self.lost = self.lost or not self.acquire(blocking=False)
            self._at_fork_reinit()  # type: ignore[attr-defined,unused-ignore]
