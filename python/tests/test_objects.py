"""Models, engines, sequences, generations: results, lifetimes, errors."""
import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import pithkv


def test_tokens_come_back(model):
    text = "A small dog, and a river."
    ids = model.tokenize(text, bos=False)
    assert ids.dtype == np.int32 and model.detokenize(ids).strip() == text
    assert model.detokenize(list(map(int, ids))) == model.detokenize(ids)
    with pytest.raises(pithkv.PithInvalid):
        model.detokenize([0.5])
    assert model.info["architecture"] and model.info["tokenizer"] and "template" in model.info


def test_the_modes_of_eval_agree(engine, ids):
    whole, parts, chances = engine.sequence(), engine.sequence(), engine.sequence()
    rows = whole.eval(ids, logits="all")
    assert rows.shape == (len(ids), engine.model.info["n_vocab"])
    seen = {}
    parts.eval(ids[:50])
    parts.eval(ids[50:], logits=lambda pos, row: seen.__setitem__(pos, row.copy()))
    assert all(np.array_equal(seen[pos], rows[pos]) for pos in range(50, len(ids)))
    targets = np.append(ids[1:], -1)
    logprob, best = chances.eval(ids, targets=targets)
    assert np.isnan(logprob[-1]) and not best[-1]
    exact = rows[:-1].astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(logprob[:-1], exact[np.arange(len(ids) - 1), ids[1:]], atol=1e-9)
    assert np.array_equal(best[:-1], rows[:-1].argmax(axis=1) == ids[1:])


def test_a_batch_is_each_alone(engine, ids):
    alone, a, b = engine.sequence(), engine.sequence(), engine.sequence()
    alone.eval(ids[:30])
    engine.eval([(a, ids[:30]), (b, ids[5:60])])
    assert np.array_equal(alone.logits, a.logits) and len(b) == 55
    forks = [alone.fork() for _ in range(3)]
    nothing, short, long = engine.eval([(forks[0], ids[30:35]), (forks[1], ids[30:40], ids[31:41]),
                                        (forks[2], ids[30:60], ids[31:61])])
    assert nothing is None and np.array_equal(short[0], long[0][:10])
    assert np.array_equal(long[0], alone.fork().eval(ids[30:60], targets=ids[31:61])[0])
    with pytest.raises(pithkv.PithInvalid, match="targets: 4 for 5 tokens"):
        engine.eval([(forks[0], ids[:5], ids[:4])])


def test_generate_text_tokens_and_leaving(engine, ids):
    seq = engine.sequence()
    tokens = list(seq.generate(ids, 12, seed=3, ignore_end=True).tokens())
    assert len(tokens) == 12 and all(t.logprob <= 0 for t in tokens if t.id >= 0)
    text = engine.sequence().generate(ids, 12, seed=3, ignore_end=True, draft=True).text()
    assert text == "".join(t.text for t in tokens)
    for n in range(1, 5):  # what a sequence holds depends on what was taken, not on time
        other = engine.sequence()
        pulled = other.generate(ids, 12, seed=3, ignore_end=True).tokens()
        for _ in range(n):
            next(pulled)
        assert len(other) == len(ids) + n - 1
    generation = engine.sequence().generate(ids, 3, temperature=0, ignore_end=True)
    generation.text()
    assert generation.result["reason"] == "length" and generation.result["n_generated"] == 3
    with pytest.raises(TypeError):
        seq.generate(ids, warmth=1)


def test_async(engine, ids):
    import asyncio

    async def run():
        return [t.id async for t in engine.sequence().agenerate(ids, 6, seed=3, ignore_end=True)]

    want = [t.id for t in engine.sequence().generate(ids, 6, seed=3, ignore_end=True).tokens()]
    assert asyncio.run(run()) == want


def test_forks_files_and_logits(engine, ids, tmp_path):
    seq = engine.sequence()
    seq.eval(ids)
    fork = seq.fork()
    assert np.array_equal(fork.logits, seq.logits)
    seq.save(tmp_path / "seq.pith")
    loaded = engine.load(tmp_path / "seq.pith")
    assert np.array_equal(loaded.tokens, ids)
    loaded.eval([7])
    seq.eval([7])
    assert np.array_equal(loaded.logits, seq.logits)
    assert not seq.logits.flags.writeable


def test_a_view_outlives_its_sequence(engine, ids):
    seq = engine.sequence()
    seq.eval(ids)
    row, copy = seq.logits, seq.logits.copy()
    del seq
    gc.collect()
    engine.sequence().eval(ids[::-1].copy())
    assert np.array_equal(row, copy)


def test_objects_end_in_any_order(model, ids):
    own = pithkv.Model(model.path)
    engine = pithkv.Engine(own, kv_tokens=512)
    seq = engine.sequence()
    generation = seq.generate(ids[:20], 4)
    del own, engine
    gc.collect()
    generation.next_token()
    del seq
    gc.collect()
    generation.next_token()


def test_a_collector_in_another_thread(engine, ids):
    """Sequences are freed while a pass runs; their pages come back."""
    seq, stop, errors = engine.sequence(), threading.Event(), []

    def collect():
        while not stop.is_set():
            try:
                engine.sequence().eval(ids[:8])
            except Exception as error:  # noqa: BLE001
                errors.append(error)

    threads = [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            seq.eval(ids)
    finally:  # a failure must not leave them running
        stop.set()
        for thread in threads:
            thread.join()
    gc.collect()
    seq.eval([1])
    assert not errors and engine.memory["n_seq"] == 1


def test_callbacks_are_told_busy_and_raise(engine, ids):
    seq = engine.sequence()

    def again(pos, row):
        seq.truncate(0)

    with pytest.raises(pithkv.PithBusy):
        seq.eval(ids, logits=again)
    assert len(seq) == 0

    def fail(*_):
        raise KeyError("mine")

    for call in (lambda: seq.eval(ids, logits=fail), lambda: seq.eval(ids, progress=fail),
                 lambda: seq.generate(ids, 4, progress=fail)):
        with pytest.raises(KeyError, match="mine"):
            call()
    engine.tap(fail)
    with pytest.raises(KeyError, match="mine"):
        seq.eval(ids)
    engine.tap(None)
    with pytest.raises(pithkv.PithCancelled):
        seq.eval(ids, progress=lambda fraction: False)
    assert len(seq) == 0
    seq.eval(ids)


def test_taps_see_what_is_stored(model, ids):
    engine = pithkv.Engine(model, kv_tokens=1024, type_k="f32", type_v="f32", device="cpu")
    seen = {}
    engine.tap(lambda rows: seen.__setitem__(rows.layer, (rows.k.copy(), rows.v.copy(), rows.h.shape)))
    seq = engine.sequence()
    seq.eval(ids[:40])
    lane = seq.lane(1, 0)
    assert np.array_equal(lane.positions, np.arange(40)) and lane.bytes > 0
    assert np.array_equal(lane.keys, seen[1][0][:, 0]) and np.array_equal(lane.values, seen[1][1][:, 0])
    assert seen[1][2] == (40, model.info["n_embd"])
    with pytest.raises(pithkv.PithInvalid):
        seq.lane(99, 0)


def test_errors(model, tmp_path):
    with pytest.raises(OSError) as io:
        pithkv.Model(tmp_path / "none.gguf")
    assert isinstance(io.value, pithkv.PithIO) and io.value.status == "IO"
    (tmp_path / "bad.gguf").write_bytes(b"no model" * 9)
    with pytest.raises(ValueError):
        pithkv.Model(tmp_path / "bad.gguf")
    small = pithkv.Engine(model, kv_tokens=64).sequence()
    with pytest.raises(MemoryError) as full:
        small.eval([1] * 200)
    assert full.value.status == "KV_FULL" and len(small) == 0
    with pytest.raises(pithkv.PithInvalid, match="knorn"):
        pithkv.Keep("knorn")
    for verb in (pithkv.Keep, pithkv.Read, pithkv.Recall, pithkv.Share):
        name = pithkv.policies(verb.__name__.lower())[0]["name"]
        with pytest.raises(pithkv.PithInvalid):
            verb(name, no_such_option=1)
    small.close()
    with pytest.raises(pithkv.PithInvalid, match="closed"):
        len(small)


def test_models_pickle_and_engines_say_why_not(model, engine, ids):
    other = pickle.loads(pickle.dumps(pithkv.Model(model.path, n_thread=1)))
    assert other.info == model.info
    with pytest.raises(TypeError, match="in each worker"):
        pickle.dumps(engine)


def test_a_child_of_fork_goes_on(engine, ids):
    seq = engine.sequence()
    seq.eval(ids)
    child = os.fork()
    if child == 0:
        seq.eval([5])
        os._exit(0 if len(seq) == len(ids) + 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_exit_with_everything_alive(model):
    code = ("import pithkv, sys; m = pithkv.Model(sys.argv[1]); e = pithkv.Engine(m, kv_tokens=256);"
            "s = e.sequence(); g = s.generate([1, 2, 3], 9); next(g.tokens()); e.me = e; sys.x = g")
    subprocess.run([sys.executable, "-c", code, model.path], check=True)
