"""What python.py and llama_cpp_python.py share: questions of a text, and their endings on forks."""
import contextlib
import time

import pithkv


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def read_ids(path: str, model: pithkv.Model):
    with open(path, encoding="utf-8", errors="replace") as file:
        return model.tokenize(file.read(200000))


def questions_of(ids, n: int):
    """[n] of a context of 200 tokens and 4 endings of 30."""
    return [(ids[i * 400:i * 400 + 200], [ids[i * 400 + 200 + 30 * k:i * 400 + 230 + 30 * k] for k in range(4)])
            for i in range(n)]


def choices_on_forks(engine: pithkv.Engine, questions) -> None:
    """A context is read once, and its endings side by side."""
    for context, ends in questions:
        with contextlib.ExitStack() as held:
            base = held.enter_context(engine.sequence())
            base.eval(context)
            engine.eval([(held.enter_context(base.fork()), end[:-1], end[1:]) for end in ends])
