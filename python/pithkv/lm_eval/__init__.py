"""lm-eval's model class. lm_eval looks for models only within itself, so this is its command with
Pith among them:

    python -m pithkv.lm_eval --model pith --model_args path=model.gguf,keep=kvzap:budget=25% --tasks ...

In Python: lm_eval.simple_evaluate(model=pithkv.lm_eval.PithLM("model.gguf"), tasks=[...]).
A context is read once. Its continuations are read side by side on forks, which share its pages, so
four choices cost one reading of their context, under any policy.
"""
from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM  # type: ignore[import-not-found,import-untyped,unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-not-found,import-untyped,unused-ignore]
from lm_eval.utils import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    get_rolling_token_windows, make_disjoint_window)
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from ..engine import Engine
from ..model import Model
from ..sequence import Sequence
from .._pith import ffi, lib


@register_model("pith")  # type: ignore[untyped-decorator,unused-ignore]
class PithLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    """path: the GGUF file. max_length: tokens of a text with its answer, at most; None: the model's
    trained context, at most 4096. max_gen_toks: of an answer whose task does not say. thinking:
    False tells a model that thinks to answer at once. template: the name of a chat template that
    comes with Pith. pith_device: "cpu" or a GPU; None: the best. (lm-eval's own device is "cuda:0"
    wherever it runs, and says nothing.) Further arguments are Engine's: keep, read, recall, share,
    type_k, type_v, kv, chunk, ...

    lm-eval splits arguments at commas; a policy with several options goes into its JSON form:
    --model_args '{"path": "model.gguf", "keep": "kvzap:budget=25%,slack=32"}'."""

    def __init__(self, path: str, max_length: int | None = None, max_gen_toks: int = 256,
                 n_thread: int = 0, thinking: bool = True, template: str | None = None,
                 pith_device: str | None = None, batch_size: Any = None, max_batch_size: Any = None,
                 device: Any = None, **options: Any) -> None:
        super().__init__()
        self.model = Model(path)
        self.max_length = int(max_length or min(self.model.info["n_ctx_train"], 4096))
        self.max_gen_toks = int(max_gen_toks)
        self._thinking, self._template = thinking, template
        self._about = {"path": path, **{name: str(value) for name, value in options.items()}}
        # A fork may take policies' pages anew, so a context and its longest answers count twice.
        if "kv" in options:
            options["n_ctx"] = self.max_length
        elif not options.keys() & {"kv_bytes", "kv_tokens", "memory_bytes"}:
            options["kv_tokens"] = 2 * self.max_length + 1024
        self.engine = Engine(self.model, n_thread=int(n_thread), device=pith_device, **options)
        self._plain = not options.keys() & {"keep", "read", "recall", "share", "kv"}
        self._base: Sequence | None = None

    # ---- tokens ----

    @property
    def eot_token_id(self) -> int:
        return self.model.eos

    @property
    def prefix_token_id(self) -> int:
        return self.model.bos if self.model.bos >= 0 else self.model.eos

    @property
    def tokenizer_name(self) -> str:
        return self.model.path.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        return {f"pith_{name}": value for name, value in self._about.items()}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        bos = add_special_tokens is not False
        if bos and self.model.bos >= 0:
            ids = self.model.tokenize(string, bos=False)
            bos = not (len(ids) > 0 and ids[0] == self.model.bos)  # a chat template writes its own
        return [int(t) for t in self.model.tokenize(string, bos=bos)]

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self._template or "the model's own"

    def apply_chat_template(self, chat_history: list[dict[str, str]],
                            add_generation_prompt: bool = True) -> str:
        """The text of a conversation; with add_generation_prompt=False its last message is the
        beginning of the answer."""
        history, opening = list(chat_history), None
        if not add_generation_prompt and history and history[-1]["role"] == "assistant":
            opening = history.pop()["content"]
        return self.model.chat_text(history, self._template, self._thinking, opening)

    # ---- likelihoods ----

    def _read(self, context: list[int]) -> Sequence:
        """A sequence of the context, with the row of logits behind it. What it has in common with
        the one before, such as examples, is read once where forgetting is exact."""
        common = 0
        if self._base is not None and self._plain:
            had = self._base.tokens
            n = min(len(had), len(context) - 1)
            differs = np.flatnonzero(had[:n] != np.asarray(context[:n]))
            common = int(differs[0]) if len(differs) else n
        if self._base is None or common == 0:
            self._base = self.engine.sequence()
        else:
            self._base.truncate(common)
        self._base.eval(context[common:])
        return self._base

    def _scores(self, context: list[int], ends: list[list[int]]) -> list[tuple[float, bool]]:
        """Of each end, log p behind the context, and whether each of its tokens is the
        likeliest."""
        base = self._read(context)
        row, best, out = base.logits, ffi.new("bool *"), []
        assert row is not None
        for end in ends:
            logprob = lib.pith_logits_logprob(ffi.from_buffer("float[]", row), len(row), end[0], best)
            out.append((logprob, bool(best[0])))
        with contextlib.ExitStack() as forks:
            found = iter(self.engine.eval([(forks.enter_context(base.fork()), end[:-1], end[1:])
                                           for end in ends if len(end) > 1]))
        for i, end in enumerate(ends):
            if len(end) > 1:
                logprob, likeliest = next(found)
                out[i] = out[i][0] + float(logprob.sum()), out[i][1] and bool(likeliest.all())
        return out

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False,
                              **kwargs: Any) -> list[tuple[float, bool]]:
        out: list[tuple[float, bool]] = []
        wanted = [(list(context), list(ids)) for _, context, ids in requests]
        with tqdm(total=len(wanted), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            for context, group in itertools.groupby(wanted, lambda pair: pair[0]):
                ends = [ids for _, ids in group]
                room = self.max_length - max(map(len, ends))
                out += self._scores((context or [self.prefix_token_id])[-max(1, room):], ends)
                bar.update(len(ends))
        self._base = None
        return out

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows of max_length whose tokens count once."""
        out = []
        for request in tqdm(requests, disable=disable_tqdm, desc="Running loglikelihood_rolling requests"):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1)
            out.append(sum(self._scores(context, [ids])[0][0]
                           for context, ids in map(make_disjoint_window, windows)))
        self._base = None
        return out

    # ---- answers ----

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        out = []
        for request in tqdm(requests, disable=disable_tqdm, desc="Running generate_until requests"):
            context, options = request.args
            n = int(options.get("max_gen_toks", options.get("max_new_tokens", self.max_gen_toks)))
            until = options.get("until") or []
            sampling = {"temperature": 0.0}
            if options.get("do_sample", False) or float(options.get("temperature", 0.0)) > 0.0:
                sampling = {name: type(default)(options[name]) for name, default in
                            (("temperature", 0.0), ("top_p", 0.0), ("top_k", 0), ("min_p", 0.0))
                            if name in options}
            ids = self.tok_encode(context)[-max(1, self.max_length - n):]
            with self.engine.sequence() as seq:
                out.append(seq.generate(ids, n, stop=until, **sampling).text())
        return out
