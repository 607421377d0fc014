"""Pith in Python: language models from GGUF files, whose KV cache is a managed memory.

    model = pithkv.Model("model.gguf")
    engine = pithkv.Engine(model, keep=pithkv.Keep("snapkv", budget=0.25))
    seq = engine.sequence()
    for text in seq.generate("Once upon a time", n_predict=50):
        print(text, end="")
"""
from ._pith import ffi as _ffi, lib as _lib
from . import eval
from .calibrate import (Projection, Stats, calibrate, calibrate_importance,
                        calibrate_projection)
from .engine import Engine, TapRows
from .grammar import Grammar
from .model import Model
from .native import (PithBusy, PithCancelled, PithContext, PithError, PithFormat, PithInvalid, PithIO,
                     PithKVFull, PithNoMemory, PithNotFound, PithRange, PithUnsupported)
from .policy import (NEVER, Keep, NewEntries, Policy, Read, ReadChunk, Recall, ScoredLane, Share,
                     policies)
from .press import Press, ask
from .scheduler import Answer, Scheduler
from .sequence import Generation, Lane, RawLane, Sequence, Token

__version__: str = _ffi.string(_lib.pith_version()).decode()
