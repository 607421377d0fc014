"""Policies by keywords, in Python, kvpress's shape, budgets in one word."""
import numpy as np
import pytest

import pithkv

RULES = dict(budget=48, slack=16, sinks=2, window=8)


def test_every_policy_by_keywords(model):
    for verb, kind in (("keep", pithkv.Keep), ("read", pithkv.Read), ("recall", pithkv.Recall),
                       ("share", pithkv.Share)):
        listed = pithkv.policies(verb)
        assert listed
        for policy in listed:
            assert kind(policy["name"]).text == policy["name"]
            for param in policy["params"]:
                if param["fallback"]:
                    kind(policy["name"], **{param["key"].replace("-", "_"): param["fallback"]})
    assert pithkv.Keep("triattention", budget=0.25, pin_prompt=True).text == \
        "triattention:budget=25%,pin-prompt=on"


def test_a_policy_in_python_keeps_what_the_same_one_keeps(model, ids):
    def knorm(lane):
        return -np.sqrt((lane.keys * lane.keys).sum(axis=1))

    kept = []
    for keep in (pithkv.Keep("knorm", **RULES), pithkv.Keep(score=knorm, **RULES)):
        seq = pithkv.Engine(model, kv_tokens=1024, keep=keep, n_thread=2, device="cpu").sequence()
        seq.eval(ids)
        assert seq.keep_stats["rounds"] > 0
        kept.append(seq.kept())
        assert "<rect" in seq.map()._repr_svg_()
    assert np.array_equal(*kept) and not kept[0].all()


def test_a_policy_sees_attention(model, ids):
    seen = []

    def score(lane):
        assert lane.values.shape[0] == len(lane) and lane.tokens[0] == ids[0]
        assert not lane.evictable[0]
        seen.append(float(lane.attention.sum()))
        return lane.attention

    seq = pithkv.Engine(model, kv_tokens=1024, keep=pithkv.Keep(score, queries=8, **RULES)).sequence()
    seq.eval(ids)
    assert seen and all(abs(x - 1.0) < 1e-2 for x in seen)  # the mean of softmax rows


def test_what_a_policy_raises_comes_out(model, ids):
    def fail(lane):
        raise ZeroDivisionError("mine")

    seq = pithkv.Engine(model, kv_tokens=1024, keep=pithkv.Keep(fail, **RULES)).sequence()
    with pytest.raises(ZeroDivisionError, match="mine"):
        seq.eval(ids)
    for wrong in (lambda lane: [1.0], lambda lane: np.full(len(lane), np.nan)):
        seq = pithkv.Engine(model, kv_tokens=1024, keep=pithkv.Keep(wrong, **RULES)).sequence()
        with pytest.raises(pithkv.PithInvalid, match="score"):
            seq.eval(ids)
    with pytest.raises(pithkv.PithInvalid):
        pithkv.Engine(model, keep=pithkv.Keep(lambda lane: lane.positions, budgett=3))


def test_a_policy_may_not_call_its_engine(model, ids):
    def score(lane):
        seq.fork()

    seq = pithkv.Engine(model, kv_tokens=1024, keep=pithkv.Keep(score, **RULES)).sequence()
    with pytest.raises(pithkv.PithBusy):
        seq.eval(ids)


def test_a_context_is_cut_once_and_asked_twice(model):
    context = "The dog is called Rex. The cat is called Tom. " * 6
    press = pithkv.Press("KnormPress", compression_ratio=0.5)
    answers = pithkv.ask(model, context, ["Who is Rex?", "Who is Tom?"], press, n_predict=4)
    assert len(answers) == 2
    full = pithkv.ask(model, context, "Who is Rex?", n_predict=4)
    nothing = pithkv.ask(model, context, "Who is Rex?", pithkv.Press("knorm", 0.0), n_predict=4)
    assert full == nothing
    with pytest.raises(ValueError):
        pithkv.Press("knorm", 1.0)


def test_a_budget_in_one_word(model, ids):
    engine = pithkv.Engine(model, kv="50%", n_ctx=512, device="cpu")
    assert 0 < engine.plan["bytes"] <= engine.plan["full_bytes"] and engine.plan["line"]
    # Types that nobody named are the plan's: all entries stay in fewer bits.
    assert engine.plan["type_k"] == "q8_0" and engine.plan["keep"] == ""
    named = pithkv.Engine(model, kv="50%", n_ctx=512, type_k="f16", type_v="f16", device="cpu")
    assert named.plan["type_k"] == "" and named.plan["n_entry"] < 512
    seq = engine.sequence()
    seq.eval(ids)
    assert engine.memory_parts["total_bytes"] <= engine.plan["bytes"]


def test_a_grammar(model):
    grammar = pithkv.Grammar(model, 'root ::= "yes" | "no"')
    engine = pithkv.Engine(model, kv_tokens=256)
    assert engine.sequence().generate("Is it? ", 8, grammar=grammar).text() in ("yes", "no")
    with pytest.raises(pithkv.PithInvalid):
        pithkv.Grammar(model, "root ::= (")
