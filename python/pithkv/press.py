"""kvpress's way: read a context under the full cache, cut it once, and ask several questions."""
from __future__ import annotations

from typing import Any, Callable

from .engine import Engine
from .model import Model
from .policy import NEVER, Keep, ScoredLane

POLICIES = {"KnormPress": "knorm", "SnapKVPress": "snapkv", "StreamingLLMPress": "streaming",
            "TOVAPress": "tova", "KeyDiffPress": "keydiff", "ExpectedAttentionPress": "expected",
            "RandomPress": "random", "PyramidKVPress": "pyramidkv", "AdaKVPress": "adakv"}


def Press(policy: str | Callable[[ScoredLane], Any], compression_ratio: float, **options: Any) -> Keep:
    """A keep policy that acts once. policy: a name of Pith's or of kvpress's ("SnapKVPress"), or a
    function of a ScoredLane. compression_ratio: the part that goes. granularity is kvpress's,
    "layer-head", if you do not say; "global" loses less."""
    if not 0.0 <= compression_ratio < 1.0:
        raise ValueError(f"compression_ratio: {compression_ratio} is not in [0, 1)")
    options = {"budget": f"{(1.0 - compression_ratio) * 100:.10g}%", "slack": NEVER,
               "granularity": "layer-head", **options}
    if callable(policy):
        return Keep(score=policy, **options)
    return Keep(POLICIES.get(policy, policy), **options)


def ask(model: Model, context: str, questions: str | list[str], press: Keep | None = None,
        n_predict: int = 50, **engine: Any) -> list[str]:
    """The answers to questions about a context that was read once and cut once. Texts stand as they
    are, without a chat template. engine: options of Engine."""
    asked = [questions] if isinstance(questions, str) else questions
    ids = model.tokenize(context)
    ends = [model.tokenize(question, bos=False) for question in asked]
    engine.setdefault("kv_tokens", (len(ids) + max(map(len, ends), default=0) + n_predict) * 2 + 256)
    seq = Engine(model, keep=press, **engine).sequence()
    seq.eval(ids)
    if press is not None:
        seq.keep_round()
    answers = []
    for end in ends:
        with seq.fork() as fork:
            answers.append(fork.generate([*ids, *end], n_predict, temperature=0.0).text())
    return answers
