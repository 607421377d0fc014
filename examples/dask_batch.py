"""dask_batch.py MODEL REQUESTS.jsonl OUT.jsonl [WORKERS] - many prompts offline, with Dask.

A line of REQUESTS is {"id": ..., "prompt": ...}; OUT gets the lines with their answers. Each worker
is a process with one engine, which it makes at its first batch. Answers depend neither on the
worker nor on the company: a batch that Dask computes again is the same.
"""
import functools
import json
import sys
import zlib

from distributed import Client, LocalCluster

import pithkv

CPUS = 1  # of a worker: an engine must be told, else each takes them all
BATCH, N_PREDICT = 32, 48


@functools.lru_cache(maxsize=1)
def engine_of(path):
    model = pithkv.Model(path, n_thread=CPUS, cache_weights="")
    return pithkv.Engine(model, n_thread=CPUS, kv_tokens=16384)


def answer(path, rows):
    # A seed comes from the row's id, not from its place. The scheduler runs the batch at once.
    seeds = [zlib.crc32(str(row["id"]).encode()) for row in rows]
    answers = pithkv.Scheduler(engine_of(path)).generate([row["prompt"] for row in rows], N_PREDICT, seeds)
    return [{**row, "answer": a.text, "error": str(a.error or "")} for row, a in zip(rows, answers)]


def main(model, requests, out, workers="2"):
    with open(requests) as file:
        rows = [json.loads(line) for line in file]
    batches = [rows[i:i + BATCH] for i in range(0, len(rows), BATCH)]
    # One thread a worker: an engine belongs to one thread at a time. Workers are spawned, not
    # forked.
    cluster = LocalCluster(n_workers=int(workers), threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client, open(out, "w") as file:
        for future in client.map(functools.partial(answer, model), batches, pure=False):
            file.writelines(json.dumps(row) + "\n" for row in future.result())


if __name__ == "__main__":
    main(*sys.argv[1:])
