#!/usr/bin/env python3
"""Makes tests/golden/replay.safetensors, small random tensors in the layout of docs/record.md, and
tests/golden/replay.json, what attention loses on them when `--keep streaming` evicts, computed with
numpy in float64. tests/engine/test_replay.c compares `pith eval replay` with it.

    scripts/golden/replay.py
"""
import json
import os
import struct

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests", "golden")
N_TOKEN, N_LAYER, N_HEAD, N_HEAD_KV, DIM_K, DIM_V = 60, 2, 4, 2, 8, 6
SCALE = 0.375
N_QUERY, N_MISSING = 7, 5
CASES = [  # budget, slack, sinks, window, stops
    {"budget": 16, "slack": 4, "sinks": 2, "window": 0, "at": [10, 20, 53]},
    {"budget": 8, "slack": 1, "sinks": 4, "window": 4, "at": [40]},
    {"budget": 5, "slack": 30, "sinks": 0, "window": 0, "at": [34, 35, 59]},
]


def tensors():
    """float32 arrays whose values are exact in the 16-bit types that the file has."""
    rng = np.random.default_rng(20240607)
    out = {}
    for layer in range(N_LAYER):
        q = rng.normal(0, 2, (N_TOKEN, N_HEAD, DIM_K))
        k = rng.normal(0, 1, (N_TOKEN, N_HEAD_KV, DIM_K)) + 0.5 * rng.normal(0, 1, (1, N_HEAD_KV, DIM_K))
        v = rng.normal(0, 1, (N_TOKEN, N_HEAD_KV, DIM_V))
        out[f"layers.{layer}.q"] = ("F16", q.astype(np.float16).astype(np.float32))
        out[f"layers.{layer}.k"] = ("F32", k.astype(np.float32))
        bits = v.astype(np.float32).view(np.uint32) & 0xffff0000  # bfloat16 by truncation
        out[f"layers.{layer}.v"] = ("BF16", bits.view(np.float32))
    return out


def encode(dtype, array):
    if dtype == "F16":
        return array.astype("<f2").tobytes()
    if dtype == "BF16":
        return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "I64": "<i8", "U8": "u1"}[dtype]).tobytes()


def write_safetensors(path, arrays, meta):
    header, data = {"__metadata__": meta}, b""
    for name, (dtype, array) in arrays.items():
        raw = encode(dtype, array)
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()  # unpadded: readers must not rely on alignment
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def stream(n, budget, slack, sinks):
    """The positions that are left after n tokens: a round runs whenever budget + slack are held."""
    live = []
    for pos in range(n):
        live.append(pos)
        if len(live) == budget + slack:
            live = live[:sinks] + live[len(live) - (budget - sinks):]
    return live


def softmax(logits):
    e = np.exp(logits - logits.max())
    return e / e.sum()


def lane(arrays, layer, head, at, live):
    q, k, v = (arrays[f"layers.{layer}.{name}"][1].astype(np.float64) for name in "qkv")
    group = N_HEAD // N_HEAD_KV
    kept = np.zeros(N_TOKEN, bool)
    kept[live] = True
    kept[at:] = True
    mass, error, mean = [], [], np.zeros(at)
    for t in range(at, min(at + N_QUERY, N_TOKEN)):
        for h in range(head * group, (head + 1) * group):
            logits = SCALE * k[:t + 1, head] @ q[t, h]
            w = softmax(logits)
            there = kept[:t + 1]
            full = w @ v[:t + 1, head]
            left = softmax(logits[there]) @ v[:t + 1, head][there]
            mass.append(w[~there].sum())
            error.append(np.linalg.norm(left - full) / np.linalg.norm(full))
            mean += w[:at]
    mean /= len(mass)
    gone = [p for p in range(at) if not kept[p]]
    gone.sort(key=lambda p: (-mean[p], p))
    return {"tokens": at, "queries": min(N_QUERY, N_TOKEN - at), "layer": layer, "head": head,
            "entries": len(live), "positions": live, "lost_mass": np.mean(mass),
            "lost_mass_max": np.max(mass), "lost_mass_best": np.sort(mean)[:at - len(live)].sum(),
            "output_error": np.mean(error), "output_error_max": np.max(error),
            "missing": [{"position": p, "mass": mean[p]} for p in gone[:N_MISSING]]}


def main():
    arrays = tensors()
    file = {"odd": ("U8", np.arange(3)), "positions": ("I64", np.arange(N_TOKEN)),
            "tokens": ("I64", np.arange(N_TOKEN) * 7 % 50), **arrays}
    meta = {"format": "pith.record", "version": "1", "model": "random", "n_layer": str(N_LAYER),
            "n_head": str(N_HEAD), "n_head_kv": str(N_HEAD_KV), "head_dim_k": str(DIM_K),
            "head_dim_v": str(DIM_V), "attn_scale": str(SCALE)}
    write_safetensors(os.path.join(GOLDEN, "replay.safetensors"), file, meta)
    cases = []
    for case in CASES:
        rules = [case[key] for key in ("budget", "slack", "sinks")]
        rows = [lane(arrays, layer, head, at, stream(at, *rules))
                for at in case["at"] for layer in range(N_LAYER) for head in range(N_HEAD_KV)]
        keep = "streaming:" + ",".join(f"{key}={case[key]}"
                                       for key in ("budget", "slack", "sinks", "window"))
        cases.append({"keep": keep, "at": case["at"], "rows": rows})
    with open(os.path.join(GOLDEN, "replay.json"), "w") as out:
        json.dump({"made_by": "scripts/golden/replay.py; do not edit", "queries": N_QUERY,
                   "missing": N_MISSING, "cases": cases}, out, indent=None, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
