"""Policies in Python, keep and read, what they see, and what engines show of passes and pages."""
import numpy as np
import pytest

import pithkv

RULES = dict(budget=48, slack=16, sinks=2, window=8)
READS = dict(budget=64, chunk=32, gate=1, tail=0, dense_layers=0, phase="both")


def kept_by(model, ids, keep):
    seq = pithkv.Engine(model, kv_tokens=1024, keep=keep, n_thread=2, device="cpu").sequence()
    seq.eval(ids)
    assert seq.keep_stats["rounds"] > 0
    return seq.kept()


def test_sums_are_those_of_h2o(model, ids):
    own = pithkv.Keep(lambda lane: lane.sums, sums=True, **RULES)
    theirs = pithkv.Keep("h2o", overwrite=False, recent=0, **RULES)
    assert np.array_equal(kept_by(model, ids, own), kept_by(model, ids, theirs))


def test_queries_give_the_attention(model, ids):
    def score(lane):
        logits = lane.attn_scale * np.einsum("qgd,nd->qgn", lane.queries, lane.keys)
        first = len(lane.tokens) - len(lane.queries)
        seen = lane.positions[None, :] <= first + np.arange(len(lane.queries))[:, None]
        weights = np.where(seen[:, None], np.exp(logits), 0)
        weights /= weights.sum(axis=2, keepdims=True)
        np.testing.assert_allclose(weights.mean(axis=(0, 1)), lane.attention, atol=1e-4)
        return lane.attention

    assert not kept_by(model, ids, pithkv.Keep(score, queries=8, **RULES)).all()


def test_marks_are_numbers_of_the_layers_input(model, ids):
    """What mark wrote is beside its entry at every round, and hidden is what the tap saw."""
    inputs = {}

    def mark(new):
        assert new.keys.shape == (len(new), model.info["head_dim_k"])
        return np.stack([new.positions, new.hidden.sum(axis=1)], axis=1)

    def score(lane):
        assert np.array_equal(lane.marks[:, 0], lane.positions)
        seen = np.array([inputs[lane.layer][p] for p in lane.positions])
        assert np.array_equal(lane.hidden, seen)
        np.testing.assert_allclose(lane.marks[:, 1], lane.hidden.sum(axis=1), atol=1e-3)
        return lane.marks[:, 1]

    def tap(rows):
        for i, row in enumerate(rows.h):
            inputs.setdefault(rows.layer, {})[rows.pos0 + i] = row.copy()

    keep = pithkv.Keep(score, mark=mark, marks=2, hidden=True, **RULES)
    engine = pithkv.Engine(model, kv_tokens=1024, keep=keep, chunk=64, device="cpu")
    engine.tap(tap)
    seq = engine.sequence()
    seq.eval(ids)
    assert seq.keep_stats["rounds"] > 0 and engine.memory_parts["mark_bytes"] > 0


def test_a_mark_alone_is_the_score(model, ids):
    norm = pithkv.Keep(mark=lambda new: -np.sqrt((new.keys * new.keys).sum(axis=1)), **RULES)
    assert not kept_by(model, ids, norm).all()


def test_a_read_policy_goes_by_the_rules(model, ids):
    rows = []
    for read in (pithkv.Read(lambda chunk: chunk.positions, **READS, sinks=4, recent=0),
                 pithkv.Read(lambda chunk: np.zeros(len(chunk)), **READS, sinks=4, recent=60)):
        seq = pithkv.Engine(model, kv_tokens=1024, read=read, n_thread=2, device="cpu").sequence()
        seq.eval(ids)
        seq.eval([5])
        assert seq.read_stats["sparse"] > 0
        rows.append(seq.logits.copy())
    full = pithkv.Engine(model, kv_tokens=1024, n_thread=2, device="cpu").sequence()
    full.eval(ids)
    full.eval([5])
    assert np.array_equal(*rows) and not np.array_equal(rows[0], full.logits)


def test_a_read_policy_sees_queries_keys_and_values(model, ids):
    taps = {}

    def score(chunk):
        assert chunk.values.shape == (len(chunk), model.info["head_dim_v"])
        assert chunk.positions[-1] == chunk.pos0 - 1 and chunk.n_choose > 0
        logits = np.einsum("tgd,nd->n", chunk.queries, chunk.keys)
        taps[chunk.layer, chunk.head, chunk.pos0] = chunk.queries.copy()
        return logits

    read = pithkv.Read(score, values=True, **READS)
    engine = pithkv.Engine(model, kv_tokens=1024, read=read, chunk=32, device="cpu")
    seq = engine.sequence()
    with engine.taps("q", layers=[1]) as rows:
        seq.eval(ids[:160])
    group = model.info["n_head"] // model.info["n_head_kv"]
    assert rows[1]["q"].shape[0] == 160 and list(rows) == [1]
    assert np.array_equal(taps[1, 0, 128], rows[1]["q"][128:160, :group])


def test_what_functions_raise_comes_out(model, ids):
    def fail(_):
        raise ZeroDivisionError("mine")

    for options in (dict(read=pithkv.Read(fail, **READS)), dict(keep=pithkv.Keep(mark=fail, **RULES))):
        seq = pithkv.Engine(model, kv_tokens=1024, **options).sequence()
        with pytest.raises(ZeroDivisionError, match="mine"):
            seq.eval(ids)
        assert len(seq) == 0
    for options in (dict(read=pithkv.Read(lambda c: [1.0], **READS)),
                    dict(keep=pithkv.Keep(mark=lambda new: np.zeros((1, 7)), **RULES))):
        with pytest.raises(pithkv.PithInvalid):
            pithkv.Engine(model, kv_tokens=1024, **options).sequence().eval(ids)
    with pytest.raises(pithkv.PithInvalid):
        pithkv.Read("quoka", score=lambda chunk: chunk.positions)
    with pytest.raises(pithkv.PithInvalid):
        pithkv.Keep("knorm", mark=fail)
    with pytest.raises(pithkv.PithInvalid):
        pithkv.Engine(model, read=pithkv.Read(fail, budgett=3))


def test_taps_see_what_attention_gave(model, ids):
    engine = pithkv.Engine(model, kv_tokens=1024, type_k="f32", type_v="f32", device="cpu")
    seq, info = engine.sequence(), model.info
    with engine.taps("q", "out", layers=[2]) as taps:
        seq.eval(ids[:50])
    lane, q = seq.lane(2, 0), taps[2]["q"][-1, 0]
    weights = np.exp(lane.keys @ q / np.sqrt(info["head_dim_k"]))
    np.testing.assert_allclose(taps[2]["out"][-1, 0], weights @ lane.values / weights.sum(), atol=1e-4)
    with pytest.raises(pithkv.PithInvalid, match="q_pre"):
        with engine.taps("x"):
            pass


def test_stored_bytes(model, ids):
    for kind, dtype in (("f32", np.float32), ("f16", np.float16)):
        seq = pithkv.Engine(model, kv_tokens=512, type_k=kind, type_v=kind, device="cpu").sequence()
        seq.eval(ids[:70])
        lane, raw = seq.lane(1, 0), seq.raw(1, 0)
        assert raw.type_k == kind and raw.group_v == 1 and not raw.rotated_k
        assert np.array_equal(raw.keys.view(dtype), lane.keys.astype(dtype))
        assert np.array_equal(raw.values.view(dtype), lane.values.astype(dtype))
    with pytest.raises(pithkv.PithInvalid):
        seq.raw(0, 99)


def test_calibration(model, ids, tmp_path):
    done = []
    stats = pithkv.calibrate(model, ids, name="a dog", n_thread=2, progress=done.append)
    assert done[-1] == 1.0 and stats.info["n_token"] == len(ids) and stats.info["text"] == "a dog"
    head = stats.head(0, 0)
    assert (np.hypot(head["re"], head["im"]) <= head["abs"] * 1.0001).all()
    stats.save(tmp_path / "stats")
    again = pithkv.Stats.load(tmp_path / "stats")
    again.check(model)
    assert np.array_equal(again.head(1, 0)["re"], stats.head(1, 0)["re"])
    kept_by(model, ids, pithkv.Keep("triattention", stats=tmp_path / "stats", **RULES))
    assert stats.importance is None
    with pytest.raises(pithkv.PithCancelled):
        pithkv.calibrate(model, ids, progress=lambda fraction: False)


def test_importance_and_bases(model, ids, tmp_path):
    stats = pithkv.calibrate_importance(model, [ids[i:i + 60] for i in range(0, 100, 10)], hidden=True)
    shape = (model.info["n_layer_kv"], model.info["n_head_kv"])
    assert stats.importance["mean"].shape == shape and "hidden_r2" in stats.importance
    assert np.isclose(stats.shares(0.5).mean(), 0.5, atol=0.05)
    stats.save(tmp_path / "stats")
    kept_by(model, ids, pithkv.Keep("kvzap", stats=tmp_path / "stats", budget=48, slack=16, window=8))
    bases = pithkv.calibrate_projection(model, ids)
    assert 1 <= bases.rank(0.9, 0, 0) <= bases.rank(0.9) <= model.info["head_dim_k"]
    bases.save(tmp_path / "bases")
    read = pithkv.Read("loki", projection=tmp_path / "bases", budget=64)
    pithkv.Engine(model, kv_tokens=512, read=read).sequence().eval(ids)
