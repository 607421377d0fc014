"""guidellm: a short benchmark over streams of chats and of texts, in which nothing may fail."""

import json
import os
import subprocess
import sys
import tempfile

import gguf_tokenizer
from rig import KEY, MINI, equal, main, mini, true

N, OUTPUT = 6, 8


class Checks:
    def __init__(self):
        import guidellm  # noqa: F401 - whether it is there
        self.folder = tempfile.TemporaryDirectory()
        gguf_tokenizer.save(MINI, os.path.join(self.folder.name, "tokenizer"))

    def bench(self, route, profile):
        out = os.path.join(self.folder.name, "report.json")
        done = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run",
             "--backend", f"kind=openai_http,target={mini.url},model=mini,api_key={KEY},"
             f"request_format={route}",
             "--profile", profile, "--constraint", f"kind=max_requests,count={N}",
             "--tokenizer", "kind=huggingface_auto,model=" +
             os.path.join(self.folder.name, "tokenizer"),
             "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT}",
             "--output", f"kind=json,path={out}", "--disable-console-interactive"],
            cwd=self.folder.name, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        equal(done.returncode, 0, done.stdout[-3000:])
        with open(out, encoding="utf-8") as f:
            requests = json.load(f)["benchmarks"][0]["requests"]
        equal((len(requests["errored"]), len(requests["successful"])), (0, N))
        for r in requests["successful"]:
            true(0 < r["output_tokens"] <= OUTPUT, r)
            true(r["time_to_first_token_ms"] > 0, r)

    def check_chats_two_at_a_time(self):
        self.bench("/v1/chat/completions", "kind=concurrent,streams=2")

    def check_texts_one_at_a_time(self):
        self.bench("/v1/completions", "kind=synchronous")


main("guidellm", Checks)
