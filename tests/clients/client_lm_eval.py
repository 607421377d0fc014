"""lm-eval over local-completions: a task of local files, whose log likelihoods must be those that
`pith logits` has for the same tokens; rolling likelihoods; and answers up to a stop string."""

import array
import json
import math
import os
import subprocess
import tempfile

import gguf_tokenizer
from rig import MINI, equal, main, mini, server_rig, true

NEAR = 1e-4  # of a sum over a text
DOCS = [{"q": "The friend of Robert is", "a": [" Martin", " a wooden window", " plain book"]},
        {"q": "He gave a wooden window to", "a": [" Martin.", " the password", " 17 cats"]},
        {"q": "Question: What is the password of Walter?\nAnswer:", "a": [" plain", " The", " é"]}]
YAML = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{text}"
{more}
"""
KINDS = {
    "multiple_choice": 'doc_to_target: 0\ndoc_to_choice: "{{a}}"\ntarget_delimiter: ""\n'
                       'metric_list: [{metric: acc}]',
    "loglikelihood_rolling": 'doc_to_target: "{{q}}{{a[0]}}"\n'
                             'metric_list: [{metric: word_perplexity}]',
    "generate_until": 'doc_to_target: "{{a[0]}}"\nmetric_list: [{metric: exact_match}]\n'
                      'generation_kwargs: {until: ["e"], max_gen_toks: 8, temperature: 0}',
}


class Checks:
    def __init__(self):
        import lm_eval
        from lm_eval.tasks import TaskManager
        from transformers import AutoTokenizer
        self.lm_eval, self.manager = lm_eval, TaskManager
        self.folder = tempfile.TemporaryDirectory()
        tokenizer = os.path.join(self.folder.name, "tokenizer")
        gguf_tokenizer.save(MINI, tokenizer)
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self.args = {"model": "mini", "base_url": mini.v1 + "/completions", "tokenizer": tokenizer,
                     "tokenizer_backend": "huggingface", "num_concurrent": 1, "max_retries": 1,
                     "max_length": 2048}

    def run(self, kind, **more):
        name = "pith_" + kind
        data = os.path.join(self.folder.name, "data.jsonl")
        with open(data, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(d) + "\n" for d in DOCS)
        text = "" if kind == "loglikelihood_rolling" else "{{q}}"
        with open(os.path.join(self.folder.name, name + ".yaml"), "w", encoding="utf-8") as f:
            f.write(YAML.format(name=name, file=data, kind=kind, text=text, more=KINDS[kind]))
        done = self.lm_eval.simple_evaluate(
            model="local-completions", model_args={**self.args, **more}, tasks=[name],
            task_manager=self.manager(include_path=self.folder.name, include_defaults=False),
            batch_size=2, log_samples=True, bootstrap_iters=0)
        return sorted(done["samples"][name], key=lambda s: s["doc_id"])

    def likelihood(self, before, ids):
        """Of ids behind those before, by `pith logits`."""
        out = os.path.join(self.folder.name, "logits")
        subprocess.run([server_rig.PITH, "logits", "-m", MINI, "-t", "1", "-o", out, "--ids",
                        ",".join(map(str, before + ids))], check=True, stdout=subprocess.DEVNULL)
        logits = array.array("f")
        with open(out, "rb") as f:
            logits.frombytes(f.read())
        n, total = len(logits) // len(before + ids), 0.0
        for i, token in enumerate(ids, len(before) - 1):
            row = logits[i * n:(i + 1) * n]
            top = max(row)
            total += row[token] - top - math.log(math.fsum(math.exp(x - top) for x in row))
        return total

    def near(self, got, want):
        true(abs(got - want) <= NEAR, f"{got} is not {want}")

    def check_tokens_are_those_of_Pith(self):
        for doc in DOCS:
            for text in [doc["q"]] + doc["a"]:
                own = subprocess.run([server_rig.PITH, "tokenize", "-m", MINI, "-p", text,
                                      "--json"], check=True, stdout=subprocess.PIPE, text=True)
                ids = json.loads(own.stdout)
                equal(self.tokenizer.encode(text, add_special_tokens=False), ids[1:], text)

    def check_loglikelihoods_equal_those_of_pith_logits(self):
        n = 0
        for more in ({}, {"num_concurrent": 3}):
            for sample in self.run("multiple_choice", **more):
                doc = sample["doc"]
                for answer, response in zip(doc["a"], sample["filtered_resps"]):
                    q = self.tokenizer.encode(doc["q"], add_special_tokens=False)
                    whole = self.tokenizer.encode(doc["q"] + answer, add_special_tokens=False)
                    self.near(float(response[0]), self.likelihood(q, whole[len(q):]))
                    n += 1
        equal(n, 18, "likelihoods compared:")

    def check_rolling_likelihoods_equal_those_of_pith_logits(self):
        for sample in self.run("loglikelihood_rolling"):
            text = sample["doc"]["q"] + sample["doc"]["a"][0]
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            got = sample["filtered_resps"][0]
            got = got[0] if isinstance(got, (list, tuple)) else got
            self.near(float(got), self.likelihood([self.tokenizer.eos_token_id], ids))

    def check_answers_up_to_a_stop_string(self):
        for sample in self.run("generate_until"):
            true("e" not in sample["filtered_resps"][0], sample["filtered_resps"])


main("lm-eval", Checks)
