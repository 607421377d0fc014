"""lm-eval's class, where lm-eval is installed: likelihoods are those of rows of logits, tasks
run."""
import json
import os
import subprocess
import types

import numpy as np
import pytest

import pithkv

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
COMMAND = os.environ.get("PITH_TEST_COMMAND", "")
CONTEXT, ENDS = "The dog went to the", [" river", " house and slept", " moon"]


def requests(*arguments):
    return [types.SimpleNamespace(args=a) for a in arguments]


def logs(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def log_probabilities(model, ids):
    """log p of each token behind those before it, from rows of logits."""
    rows = logs(pithkv.Engine(model, kv_tokens=4096).sequence().eval(ids, logits="all"))
    return np.array([rows[i - 1, ids[i]] for i in range(1, len(ids))])


@pytest.mark.parametrize("options", [{}, {"keep": "snapkv:budget=16,slack=8,sinks=1,window=4"}])
def test_likelihoods(model, options):
    from pithkv.lm_eval import PithLM
    lm = PithLM(model.path, max_length=256, **options)
    texts = [CONTEXT, CONTEXT + " river. " + CONTEXT, "The cat. " * 20]
    got = lm.loglikelihood(requests(*((text, end) for text in texts for end in ENDS)), disable_tqdm=True)
    assert len(got) == 9
    for i, (logprob, best) in enumerate(got):
        n = len(lm.tok_encode(texts[i // 3].rstrip()))
        ids = lm.tok_encode(texts[i // 3] + ENDS[i % 3])
        seq = pithkv.Engine(model, kv_tokens=4096, **options).sequence()
        seq.eval(ids[:n])
        rows = logs(np.vstack([seq.logits.copy(), seq.eval(ids[n:], logits="all")])[:-1])
        assert logprob == pytest.approx(rows[np.arange(len(ids) - n), ids[n:]].sum(), abs=1e-9)
        assert best == (rows.argmax(axis=1) == ids[n:]).all()


@pytest.mark.skipif(not os.access(COMMAND, os.X_OK), reason="PITH_TEST_COMMAND names no command")
def test_likelihoods_are_the_commands_bit_for_bit(model, tmp_path):
    """Rows of `pith logits`, and the same sum of their log probabilities."""
    from pithkv.lm_eval import PithLM
    from pithkv.native import ffi, lib
    lm = PithLM(model.path, max_length=256)
    got = lm.loglikelihood(requests(*((CONTEXT, end) for end in ENDS)), disable_tqdm=True)
    for end, (logprob, _) in zip(ENDS, got):
        n, ids = len(lm.tok_encode(CONTEXT)), lm.tok_encode(CONTEXT + end)
        subprocess.run([COMMAND, "logits", "-m", model.path, "--ids", ",".join(map(str, ids)), "--json",
                        "-o", tmp_path / "rows"], check=True, capture_output=True)
        rows = np.fromfile(tmp_path / "rows", "<f4").reshape(len(ids), -1)
        first, *rest = [lib.pith_logits_logprob(ffi.from_buffer("float[]", rows[i - 1]), rows.shape[1], ids[i],
                                                ffi.NULL) for i in range(n, len(ids))]
        assert logprob == first + float(np.sum(rest)) and logprob < 0


def test_whole_texts_in_windows(model):
    from pithkv.lm_eval import PithLM
    text = "The dog went to the river, and the cat slept in the house. " * 6
    lm = PithLM(model.path, max_length=48)
    ids = lm.tok_encode(text, add_special_tokens=False)
    assert len(ids) > 60
    got = lm.loglikelihood_rolling(requests((text,)), disable_tqdm=True)[0]
    first = log_probabilities(model, [lm.prefix_token_id, *ids[:48]]).sum()
    rest, want = ids[48:], first
    while rest:  # a window is full: of the last one the beginning does not count
        part = rest[:48]
        at = len(ids) - len(rest) + len(part)
        window = ids[max(0, at - 49):at]
        want += log_probabilities(model, window)[-len(part):].sum()
        rest = rest[48:]
    assert got == pytest.approx(want, abs=1e-9)


def test_answers(model):
    from pithkv.lm_eval import PithLM
    lm = PithLM(model.path, max_length=256, max_gen_toks=8, template="chatml")
    text = lm.generate_until(requests((CONTEXT, {"until": ["."]}), (CONTEXT, {"max_gen_toks": 2})),
                             disable_tqdm=True)
    want = lm.engine.sequence().generate(CONTEXT, 8, stop=["."], temperature=0.0).text()
    assert text[0] == want and "." not in text[0] and want.startswith(text[1])
    history = [{"role": "user", "content": "Who?"}]
    chat = lm.apply_chat_template(history)
    opened = lm.apply_chat_template([*history, {"role": "assistant", "content": "It is"}], False)
    assert "Who?" in chat and opened == chat + "It is"


def test_a_task_of_local_files(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import pithkv.lm_eval.__main__  # noqa: F401  (it makes "pith" known)
    rows = [{"context": CONTEXT, "choices": ENDS, "answer": i % 3} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"task": "ends", "output_type": "multiple_choice", "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}}, "test_split": "test",
            "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
            "target_delimiter": ""}
    keep = "snapkv:budget=64,slack=16"
    result = simple_evaluate(model="pith", model_args={"path": model.path, "keep": keep, "max_length": 256},
                             tasks=[task], task_manager=TaskManager(include_defaults=False))
    assert result["results"]["ends"]["acc,none"] == pytest.approx(1 / 3)
    assert result["config"]["pith_keep"] == keep
