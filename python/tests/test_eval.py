"""Tasks of `pith eval` in this process give the command's figures."""
import json
import os
import subprocess

import numpy as np
import pytest

import pithkv

COMMAND = os.environ.get("PITH_TEST_COMMAND", "")
STORY = "The dog went to the river. It was cold, and the cat slept in the house. " * 40
KEEP = "snapkv:budget=25%"


def figures(data):
    """All but times."""
    if isinstance(data, dict):
        return {k: figures(v) for k, v in data.items() if "seconds" not in k and "_per_s" not in k}
    return [figures(v) for v in data] if isinstance(data, list) else data


@pytest.mark.skipif(not os.access(COMMAND, os.X_OK), reason="PITH_TEST_COMMAND names no command")
@pytest.mark.parametrize("task, options, words", [
    ("facts", dict(lengths=256, texts=2, style="pith"), "-n 256 --texts 2 --style pith"),
    ("needle", dict(lengths=[256], depths=(0, 50), style="pith", needles=2),
     "-n 256 -d 0,50 --style pith --needles 2"),
    ("ruler", dict(tasks=["niah_single_1", "niah_multikey_1"], lengths=512, samples=1),
     "--task niah_single_1 --task niah_multikey_1 -n 512 --samples 1"),
    ("questions", dict(file="q.jsonl", draws=2, predict=12), "-f q.jsonl --draws 2 --predict 12"),
    ("perplexity", dict(file="t.txt", ctx_size=256, chunks=1), "-f t.txt -c 256 --chunks 1"),
])
def test_figures_are_those_of_the_command(model, tmp_path, monkeypatch, task, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(STORY)
    (tmp_path / "q.jsonl").write_text('{"problem": "1 + 2 =", "answer": "3"}\n')
    told = subprocess.run([COMMAND, "eval", task, "-m", model.path, *words.split(), "--keep", KEEP,
                           "-t", "2", "-s", "5", "--json", "-"], check=True, capture_output=True).stdout
    result = getattr(pithkv.eval, task)(model, keep=KEEP, seed=5, n_thread=2, **options)
    want = json.loads(told)
    assert figures(result.json) == figures(want)
    assert len(result.rows) == len(want["rows"]) > 0
    for name in want["rows"][0]:
        assert list(result.rows[name]) == [row[name] for row in want["rows"]]


def test_a_policy_in_python_is_measured(model):
    rules = dict(budget="25%", slack=16)
    asked = dict(lengths=256, texts=2, style="pith")
    own = pithkv.Keep(lambda lane: -np.sqrt((lane.keys * lane.keys).sum(axis=1)), **rules)
    a = pithkv.eval.facts(model, keep=own, **asked)
    b = pithkv.eval.facts(model, keep=pithkv.Keep("knorm", **rules), **asked)
    assert a.summary["evicted"] > 0 and a.json["policy"].startswith("custom")
    assert pithkv.eval.difference(a, b, "answer_logprob") == (0.0, 0.0, 2)
    assert a.summary["full_score"] == b.summary["full_score"] > 0


def test_a_difference_counts_texts():
    def result(found):
        rows = [{"length": 9, "text": i // 2, "found": f} for i, f in enumerate(found)]
        return pithkv.eval.Result({"task": "facts", "policy": "p", "summary": {}, "rows": rows})

    got = pithkv.eval.difference(result([1, 1, 1, 0, 0, 0]), result([0, 0, 1, 0, 1, 0]))
    # means of texts are 1, 0 and -0.5; their standard error is sqrt(7/12 / 3)
    assert got.n == 3 and got.mean == pytest.approx(1 / 6) and got.se == pytest.approx((7 / 36) ** 0.5)
    with pytest.raises(pithkv.PithInvalid):
        pithkv.eval.difference(result([1]), result([1, 0]))


def test_what_is_wrong_is_said(model):
    with pytest.raises(pithkv.PithInvalid, match="lenghts"):
        pithkv.eval.run("facts", model, lenghts=3)
    with pytest.raises(pithkv.PithNotFound, match="needle"):
        pithkv.eval.run("noodle", model)
    with pytest.raises(OSError):
        pithkv.eval.perplexity(model, "/no/such/file")
    with pytest.raises(pithkv.PithCancelled):
        pithkv.eval.facts(model, lengths=256, style="pith", progress=lambda fraction, what: False)

    def fail(lane):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pithkv.eval.facts(model, lengths=256, style="pith", keep=pithkv.Keep(fail, budget="25%", slack=16))
