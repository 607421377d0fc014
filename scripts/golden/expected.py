#!/usr/bin/env python3
"""Makes tests/golden/expected.txt: queries before rotation, keys after it and values of random lanes,
and the scores that Expected Attention (arXiv 2510.00636) gives the entries, by the formulas of
ExpectedAttentionPress in NVIDIA's kvpress, in double precision and with whole matrices: every
rotation to the next positions is a matrix, their mean is applied to the mean and the covariance of
the queries. tests/test_keep_expected.c compares.

    scripts/golden/expected.py

Needs numpy. A case is a line "case NAME n_token n_head n_group dim n_pair adjacent future skip base",
then the queries [n_token][n_head * n_group][dim], the keys and the values [n_head][n_token][dim],
one row a line, and [n_head] rows of n_token - 4 scores, share and logit: of all but the 4 sinks.
"""
import os

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "tests", "golden", "expected.txt")
SINKS = 4
CASES = [("halves", 40, 2, 2, 8, 4, 0, 512, 4, 10000.0),
         ("adjacent", 24, 1, 3, 8, 4, 1, 64, 4, 100.0),
         ("partly", 30, 2, 1, 8, 3, 0, 16, 7, 500.0)]


def rotation(pos, dim, n_pair, adjacent, base):
    r = np.eye(dim)
    for f in range(n_pair):
        a, b = (2 * f, 2 * f + 1) if adjacent else (f, n_pair + f)
        angle = pos * base ** (-2.0 * f / (2 * n_pair))
        r[a, a], r[a, b], r[b, a], r[b, b] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    return r


def make(case, rng):
    name, n, n_head, n_group, dim, n_pair, adjacent, future, skip, base = case
    bias = rng.normal(size=(n_head * n_group, dim)) * 2
    q = (rng.normal(size=(n, n_head * n_group, dim)) + bias).astype(np.float32)
    raw = rng.normal(size=(n_head, n, dim)) * 1.5
    turn = [rotation(p, dim, n_pair, adjacent, base) for p in range(n)]
    k = np.stack([[turn[i] @ raw[h, i] for i in range(n)] for h in range(n_head)]).astype(np.float32)
    v = rng.normal(size=(n_head, n, dim)).astype(np.float32)
    mean = np.mean([rotation(p, dim, n_pair, adjacent, base) for p in range(n, n + future)], axis=0)
    share, logit = [], []
    for h in range(n_head):
        key, value = k[h, SINKS:].astype(float), v[h, SINKS:].astype(float)
        norm = np.linalg.norm(value, axis=1)
        rows = []
        for g in range(n_group):
            x = q[skip:, h * n_group + g].astype(float)
            mu = mean @ x.mean(axis=0)
            cov = mean @ np.cov(x.T, bias=True) @ mean.T
            rows.append(key @ mu / np.sqrt(dim) + np.einsum("ni,ij,nj->n", key, cov, key) / dim / 2)
        rows = np.array(rows)
        soft = np.exp(rows - rows.max(axis=1, keepdims=True))
        soft /= soft.sum(axis=1, keepdims=True)
        share.append(soft.mean(axis=0) * norm)
        logit.append(np.log(np.exp(rows).mean(axis=0)) + np.log(norm))
    return q.reshape(-1, dim), k.reshape(-1, dim), v.reshape(-1, dim), np.array(share), np.array(logit)


def main():
    rng = np.random.default_rng(7)
    with open(OUT, "w") as out:
        out.write("# Made by scripts/golden/expected.py; do not edit.\n")
        for case in CASES:
            out.write("case " + " ".join(str(x) for x in case) + "\n")
            for part in make(case, rng):
                for row in part:
                    out.write(" ".join(f"{x:.9g}" for x in row) + "\n")


if __name__ == "__main__":
    main()
