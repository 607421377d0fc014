"""ray_batch.py MODEL REQUESTS.jsonl FOLDER [WORKERS] - many prompts offline, with Ray Data.

A line of REQUESTS is {"id": ..., "prompt": ...}; FOLDER gets the lines with their answers. Each
worker makes one engine; the model comes by its path, so workers of one machine share its packed
weights. Answers depend neither on the worker nor on the company: a row that comes again is the
same.
"""
import sys
import zlib

import ray

import pithkv

CPUS = 1  # of a worker. Ray does not pin, so an engine must be told, else each takes them all
N_PREDICT = 48


class Answers:
    def __init__(self, path):
        model = pithkv.Model(path, n_thread=CPUS, cache_weights="")
        self.engine = pithkv.Engine(model, n_thread=CPUS, kv_tokens=16384)

    def __call__(self, batch):
        # A seed comes from the row's id, not from its place. The scheduler runs the batch at once.
        seeds = [zlib.crc32(str(name).encode()) for name in batch["id"]]
        answers = pithkv.Scheduler(self.engine).generate(map(str, batch["prompt"]), N_PREDICT, seeds)
        batch["answer"] = [answer.text for answer in answers]
        batch["error"] = [str(answer.error or "") for answer in answers]
        return batch


if __name__ == "__main__":
    model, requests, folder, workers = (sys.argv[1:] + ["2"])[:4]
    # Reading and writing ask for no processor: the workers may take them all, and wait for rows
    # then.
    rows = ray.data.read_json(requests, ray_remote_args={"num_cpus": 0})
    rows = rows.map_batches(Answers, fn_constructor_args=(model,), batch_size=32, num_cpus=CPUS,
                            concurrency=int(workers))
    rows.write_json(folder, ray_remote_args={"num_cpus": 0})
