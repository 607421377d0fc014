"""Many prompts at once in one engine and one KV memory: continuous batching."""
from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Callable, Iterable

from .engine import Engine
from .native import (Callbacks, PithBusy, PithError, PithInvalid, check, error_of, fields, new_error,
                     pointer_to, token_ids)
from .sequence import REASONS, GenerateParams
from ._pith import ffi, lib


@dataclasses.dataclass
class Answer:
    """An answer as far as it has come. reason: "end", "length", "string", "full" when it has ended.
    error: why it failed, a PithError; None: it did not. n_cached: tokens of the prompt that were
    there already, of a beginning that prompts have in common."""

    text: str = ""
    tokens: list[int] = dataclasses.field(default_factory=list)
    reason: str | None = None
    error: PithError | None = None
    n_prompt: int = 0
    n_cached: int = 0


class _Job:
    """params: what C borrows until the answer is done, a grammar above all."""

    def __init__(self, answer: Answer, on_token: Callable[[int, str], Any] | None,
                 params: GenerateParams) -> None:
        self.answer, self.on_token, self.params = answer, on_token, params


class Scheduler:
    """Answers many prompts in one engine. Each gets the tokens that it would get alone, whatever
    the company and the order; common beginnings are read once.

        for answer in pithkv.Scheduler(engine).generate(["One", "Two"], 50, seeds=[1, 2]):
            print(answer.text)

    options: n_seq (most answers that run at the same time), n_queue, step_tokens, reserve,
    watermark, no_prefix, swap_bytes, max_preempt (pith_scheduler_params). One thread steps; the
    engine runs nothing else meanwhile."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        params, out, err = ffi.new("pith_scheduler_params *"), ffi.new("pith_scheduler **"), new_error()
        lib.pith_scheduler_params_default(params)
        for name, value in options.items():
            if name not in {field for field, _ in ffi.typeof(params[0]).fields}:
                raise TypeError(f"Scheduler: there is no option {name}")
            setattr(params, name, value)
        with engine._lock:
            check(lib.pith_scheduler_create(engine._c, params, out, err), err)
        jobs: dict[int, _Job] = {}

        def token(t: Any) -> bool:
            job, text = jobs[t.request], bytes(ffi.buffer(t.text, t.len)).decode() if t.len else ""
            job.answer.text += text
            if t.token >= 0:
                job.answer.tokens.append(t.token)
            return job.on_token is None or job.on_token(t.token, text) is not False

        def done(r: Any) -> None:
            answer = jobs.pop(r.request).answer
            answer.n_prompt, answer.n_cached = r.n_prompt, r.n_cached
            if r.status == 0:
                answer.reason = REASONS[r.reason]
            else:
                answer.error = error_of(r.status, ffi.string(r.message).decode(errors="replace"))

        self.engine, self._jobs, self._calls = engine, jobs, Callbacks(token=token, done=done)
        self._c = ffi.gc(out[0], _free_with(self._calls, jobs, engine._c))

    def submit(self, prompt: Any, n_predict: int = -1, *, priority: int = 0, deadline_s: float = 0.0,
               on_token: Callable[[int, str], Any] | None = None, **options: Any) -> Answer:
        """Queues a prompt, a text or ids. The Answer fills as steps run. on_token(id, text) sees
        each token, and False ends the answer. options: those of Sequence.generate. Raises PithBusy
        where the queue is full, PithKVFull and PithContext where the prompt can never fit."""
        model = self.engine.model
        ids = model.tokenize(prompt) if isinstance(prompt, str) else token_ids(prompt)
        own, request, number, err = (GenerateParams(n_predict, **options), ffi.new("pith_request *"),
                                     ffi.new("int64_t *"), new_error())
        lib.pith_request_default(request)
        request.prompt, request.n_prompt, request.params = pointer_to(ids), len(ids), own.c
        request.priority, request.deadline_s = priority, deadline_s
        request.on_token, request.on_done = lib.on_answer_token, lib.on_answer_done
        request.user, request.no_logits = self._calls.handle, True
        job = _Job(Answer(), on_token, own)
        check(lib.pith_scheduler_submit(self._c, request, number, err), err)
        self._jobs[number[0]] = job
        return job.answer

    def step(self) -> bool:
        """A step: a token of each answer that runs, and parts of prompts. False: nothing is
        left."""
        idle, err = ffi.new("bool *"), new_error()
        with self.engine._lock:
            status = lib.pith_scheduler_step(self._c, idle, err)
            self.engine._finish(status, err, self._calls)
        return not idle[0]

    def run(self) -> None:
        """Steps until all are answered."""
        while self.step():
            pass

    def generate(self, prompts: Iterable[Any], n_predict: int = -1, seeds: Iterable[int] | None = None,
                 **options: Any) -> list[Answer]:
        """The answers to prompts, in their order. seeds: one for each, so that an answer does not
        depend on its place; PithInvalid where there are fewer. A prompt that cannot be answered has
        an error, and the others go on."""
        given, answers = list(prompts), []
        for prompt, own in zip(given, _seeds(seeds, len(given))):
            while True:
                try:
                    answers.append(self.submit(prompt, n_predict, **own, **options))
                except PithBusy:
                    self.step()
                    continue
                except PithError as error:
                    answers.append(Answer(error=error))
                break
        self.run()
        return answers

    @property
    def stats(self) -> dict[str, Any]:
        """pith_scheduler_stats: n_step, peak_running, cached_tokens, generated_tokens, ..."""
        out = ffi.new("pith_scheduler_stats *")
        lib.pith_scheduler_get_stats(self._c, out)
        return fields(out)


def _seeds(seeds: Iterable[int] | None, n: int) -> list[dict[str, Any]]:
    """The options of n prompts; seeds may go on behind them."""
    if seeds is None:
        return [{}] * n
    out = [{"seed": seed} for seed in itertools.islice(seeds, n)]
    if len(out) < n:
        raise PithInvalid(f"seeds: {len(out)} for {n} prompts")
    return out


def _free_with(*held: Any) -> Callable[[Any], None]:
    """Frees a scheduler; what it calls back and runs in stays until then."""
    return lambda c, held=held: lib.pith_scheduler_free(c)  # type: ignore[misc]
