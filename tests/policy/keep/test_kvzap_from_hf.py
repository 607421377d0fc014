#!/usr/bin/env python3
"""scripts/kvzap_from_hf.py on models of the published layout that are made here.

    test_kvzap_from_hf.py PITH SOURCE

What was converted is read by `pith calibrate inspect` and `pith run`. That marks are what such
weights predict is test_keep_written's.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

PITH, SOURCE = sys.argv[1:3]
SCRIPT = os.path.join(SOURCE, "scripts", "kvzap_from_hf.py")
MODEL = os.path.join(SOURCE, "models", "pith-nano.gguf")
TEXT = os.path.join(SOURCE, "models", "demo", "prompt-2k.txt")
N_LAYER, N_HEAD_KV, N_EMBD, N_HIDDEN = 3, 2, 128, 6


def call(*words):
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


def numbers(rng, n):
    """Floats that are the same in 16 bits of either kind."""
    return [rng.randint(-64, 64) / 64 for _ in range(n)]


def packed(dtype, x):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in x)
    return struct.pack(f"<{len(x)}{'f' if dtype == 'F32' else 'e'}", *x)


def write_model(folder, n_hidden, dtype, **change):
    """The tensors as lists, by name."""
    rng, tensors, head, data = random.Random(3), {}, {"__metadata__": {"format": "pt"}}, b""
    os.makedirs(folder, exist_ok=True)
    for i in range(N_LAYER):
        shapes = {"": (N_HEAD_KV, N_EMBD)} if n_hidden is None else \
            {".0": (n_hidden, N_EMBD), ".2": (N_HEAD_KV, n_hidden)}
        for part, (rows, columns) in shapes.items():
            tensors[f"layers.{i}{part}.weight"] = (rows, columns), numbers(rng, rows * columns)
            tensors[f"layers.{i}{part}.bias"] = (rows,), numbers(rng, rows)
    for name, (shape, x) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape),
                      "data_offsets": [len(data), len(data) + len(packed(dtype, x))]}
        data += packed(dtype, x)
    config = {"model_type": "kvzap", "input_dim": N_EMBD, "output_dim": N_HEAD_KV,
              "hidden_dim": n_hidden, "n_modules": N_LAYER} | change
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    text = json.dumps(head).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return {name: x for name, (_, x) in tensors.items()}


def with_bias(weight, bias):
    n = len(weight) // len(bias)
    return [v for i, b in enumerate(bias) for v in weight[i * n:(i + 1) * n] + [b]]


def floats(x):
    return struct.pack(f"<{len(x)}f", *x)


def run(stats, features):
    return call(PITH, "run", "-m", MODEL, "-f", TEXT, "-t", "1", "-n", "1", "--keep",
                f"kvzap:features={features},stats={stats},budget=256")


def check_good(folder, stats):
    out, model = os.path.join(folder, "out.stats"), os.path.join(folder, "kvzap")
    for dtype in ("F32", "BF16", "F16"):
        tensors = write_model(model, None, dtype)
        status, said = call(sys.executable, "-B", SCRIPT, model, stats, out)
        assert status == 0 and "3 layers, 2 KV heads, 128 inputs, linear" in said, said
        with open(out, "rb") as file:
            written = file.read()
        want = [v for i in range(N_LAYER)
                for v in with_bias(tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"])]
        assert floats(want) in written
    status, said = run(out, "hidden")
    assert status == 0 and "evicted" in said, said
    for features, word in (("key", "inputs alone"), ("network", "have none")):
        status, said = run(out, features)
        assert status == 1 and word in said, said
    both = os.path.join(folder, "both.stats")
    tensors = write_model(model, N_HIDDEN, "BF16")
    status, said = call(sys.executable, "-B", SCRIPT, model, out, both)
    assert status == 0 and "a network of 6 neurons" in said, said
    with open(both, "rb") as file:
        written = file.read()
    assert floats(want) in written  # the linear weights stay
    for part in (".0", ".2"):
        x = [v for i in range(N_LAYER) for v in with_bias(tensors[f"layers.{i}{part}.weight"],
                                                          tensors[f"layers.{i}{part}.bias"])]
        assert floats(x) in written
    for features in ("hidden", "network"):
        status, said = run(both, features)
        assert status == 0 and "evicted" in said, said
    status, said = call(PITH, "calibrate", "inspect", both)
    assert status == 0 and "pith 2" in said, said


def check_refused(folder, stats):
    model, out = os.path.join(folder, "bad"), os.path.join(folder, "bad.stats")
    for change, word in (({"n_modules": 4}, "no tensor layers.3"), ({"input_dim": 64}, "shape"),
                         ({"output_dim": 0}, "not within"), ({"n_modules": 2}, "of 2 layers")):
        write_model(model, None, "F32", **change)
        status, said = call(sys.executable, "-B", SCRIPT, model, stats, out)
        assert status == 1 and word in said and not os.path.exists(out), (word, said)
    write_model(model, None, "F32")
    path = os.path.join(model, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    for damaged in (data[:-4], data[:20], b"", b"\xff" * 16):
        with open(path, "wb") as file:
            file.write(damaged)
        status, said = call(sys.executable, "-B", SCRIPT, model, stats, out)
        assert status == 1 and "Traceback" not in said, said
    write_model(model, None, "F32")
    for damaged in (TEXT, model + "/config.json"):
        status, said = call(sys.executable, "-B", SCRIPT, model, damaged, out)
        assert status == 1 and "no file of Pith's statistics" in said, said


def main():
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "in.stats")
        status, said = call(PITH, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-c", "200", "-t",
                            "1", "-o", stats)
        assert status == 0, said
        check_good(folder, stats)
        check_refused(folder, stats)
        full = os.path.join(folder, "full.stats")
        status, said = call(PITH, "calibrate", "importance", "-m", MODEL, "-f", TEXT, "-c", "100",
                            "--hidden", "--keep", "knorm", "-t", "1", "-o", full)
        assert status == 0, said
        model, out = os.path.join(folder, "kvzap"), os.path.join(folder, "last.stats")
        write_model(model, N_HIDDEN, "F16")
        status, said = call(sys.executable, "-B", SCRIPT, model, full, out)
        assert status == 0, said
        for features in ("key", "hidden", "network"):
            status, said = run(out, features)
            assert status == 0 and "evicted" in said, said
        status, said = call(PITH, "calibrate", "inspect", out)
        assert status == 0 and "map of knorm" in said, said


main()
