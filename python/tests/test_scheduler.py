"""Many prompts at once: each answer is the one that its prompt gets alone."""
import gc
import itertools

import numpy as np
import pytest

import pithkv

PROMPTS = [f"Once upon a time there was a {name}" for name in ("dog", "cat", "smith", "king", "bird", "cook")]


def test_answers_are_those_of_one_at_a_time(engine):
    scheduler = pithkv.Scheduler(engine, n_seq=4, n_queue=2)
    answers = scheduler.generate(PROMPTS, 12, seeds=range(6), ignore_end=True)
    for i, (prompt, answer) in enumerate(zip(PROMPTS, answers)):
        tokens = list(engine.sequence().generate(prompt, 12, seed=i, ignore_end=True).tokens())
        assert answer.text == "".join(t.text for t in tokens)
        assert answer.tokens == [t.id for t in tokens if t.id >= 0]
        assert answer.reason == "length" and answer.error is None
    assert scheduler.stats["n_done"] == 6 and scheduler.stats["peak_running"] > 1


def test_prompts_without_a_seed_are_refused_and_not_lost(engine):
    scheduler = pithkv.Scheduler(engine)
    with pytest.raises(pithkv.PithInvalid, match="seeds: 1 for 2 prompts"):
        scheduler.generate(PROMPTS[:2], 3, seeds=[1])
    assert scheduler.stats["n_step"] == 0
    assert len(scheduler.generate(iter(PROMPTS[:2]), 3, seeds=itertools.count())) == 2
    with pytest.raises(pithkv.PithInvalid, match="id 4294967301 "):
        scheduler.submit([1, 2**32 + 5])


def test_one_that_fails_leaves_the_others(model):
    scheduler = pithkv.Scheduler(pithkv.Engine(model, kv_tokens=256, n_thread=1))
    good, long = scheduler.generate(["The dog", np.ones(4000, np.int32)], 4, temperature=0.0)
    assert good.text and good.error is None and not long.text
    assert isinstance(long.error, pithkv.PithKVFull)


def test_a_grammar_lives_as_long_as_its_answer(engine, model):
    scheduler = pithkv.Scheduler(engine)
    answers = [scheduler.submit("The dog", 12, grammar=pithkv.Grammar(model, f'root ::= "{word}"+'))
               for word in ("yes", "no", "maybe")]
    gc.collect()
    others = [pithkv.Grammar(model, 'root ::= "q"+') for _ in range(20)]
    scheduler.run()
    assert len(others) == 20 and all(answer.error is None for answer in answers)
    for answer, word in zip(answers, ("yes", "no", "maybe")):
        assert answer.text.replace(word, "") in [word[:n] for n in range(len(word))]
    scheduler.submit("The dog", 12, grammar=pithkv.Grammar(model, 'root ::= "a"+'))
    del scheduler  # with a grammar in use


def test_callbacks(engine):
    scheduler, seen = pithkv.Scheduler(engine), []
    answer = scheduler.submit("The dog", 9, on_token=lambda token, text: seen.append(text) or len(seen) < 3)
    scheduler.run()
    assert "".join(seen) == answer.text and answer.reason == "caller"

    def fail(token, text):
        raise KeyError("mine")

    scheduler.submit("The dog", 9, on_token=fail)
    with pytest.raises(KeyError, match="mine"):
        scheduler.run()
    scheduler.run()
    with pytest.raises(TypeError, match="n_sequences"):
        pithkv.Scheduler(engine, n_sequences=3)
    scheduler.submit("The dog", 9)
    del scheduler, engine  # with an answer on the way
