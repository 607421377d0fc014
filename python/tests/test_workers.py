"""The examples with two workers, where Ray and Dask are installed: answers are those of one
engine."""
import json
import pathlib
import pickle
import subprocess
import sys
import zlib

import pytest

import pithkv

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("module, example", [("ray.data", "ray_batch.py"), ("distributed", "dask_batch.py")])
def test_two_workers_are_one_engine(model, tmp_path, module, example):
    pytest.importorskip(module, reason=f"{module} is not installed")
    rows = [{"id": f"row {i}", "prompt": f"Once upon a time there were {i} dogs"} for i in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "model.gguf").symlink_to(model.path)
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, EXAMPLES / example, tmp_path / "model.gguf", tmp_path / "in.jsonl", out],
                          capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = "".join(f.read_text() for f in sorted(out.iterdir())) if out.is_dir() else out.read_text()
    got = {row["id"]: row for row in map(json.loads, lines.splitlines())}
    engine = pithkv.Engine(model, kv_tokens=16384)
    seeds = [zlib.crc32(row["id"].encode()) for row in rows]
    want = pithkv.Scheduler(engine).generate([row["prompt"] for row in rows], 48, seeds)
    assert len(got) == 40
    for row, answer in zip(rows, want):
        assert got[row["id"]]["answer"] == answer.text and not got[row["id"]]["error"]


def test_a_model_pickles_into_another_process(model):
    code = ("import pickle, sys; m = pickle.load(sys.stdin.buffer); import pithkv; "
            "print(pithkv.Engine(m, kv_tokens=256, n_thread=1).sequence().generate('The dog', 4, "
            "temperature=0.0).text(), end='')")
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(model), capture_output=True, check=True)
    want = pithkv.Engine(model, kv_tokens=256).sequence().generate("The dog", 4, temperature=0.0).text()
    assert out.stdout.decode() == want
