#!/usr/bin/env python3
"""lm_eval_table.py MODEL.gguf DATA [--n N] [--stats FILE] - three tasks of local files by lm-eval,
under the full cache and two policies, as the table of docs/python.md.

    endings     which of four paragraphs follows those of an article; accuracy
    texts       whole articles of 1,500 words or fewer; bits per byte
    facts       a chat: a number that stands in an article of that length; exact match

DATA is the folder that scripts/data.sh fills (it has text/wiki.test.raw, or wiki.test.raw itself).
Needs pithkv and lm-eval. Every choice is drawn from seed 1. A policy's cell has in
brackets the mean difference from the full cache and its standard error, item by item.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import statistics
import tempfile
import time

WORDS = 450  # of a context: about 600 tokens


def articles(data: pathlib.Path) -> "list[list[str]]":
    """Paragraphs of each article of WikiText-2's test part, without its marks of tokenization."""
    path = next(p for p in (data / "text" / "wiki.test.raw", data / "wiki.test.raw") if p.exists())
    out: "list[list[str]]" = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        line = re.sub(r" @(.)@ ", r"\1", line.strip())
        line = re.sub(r" ([,.;:)!?'])", r"\1", line).replace("( ", "(")
        if re.fullmatch(r"= [^=].*[^=] =", line):
            out.append([])
        elif out and len(line.split()) > 40:
            out[-1].append(line)
    return [a for a in out if sum(len(p.split()) for p in a) > WORDS + 200]


def cut(paragraphs: "list[str]", words: int) -> "tuple[str, str]":
    """A beginning of some words that ends with a paragraph, and the paragraph behind it."""
    text, n = [], 0
    for i, paragraph in enumerate(paragraphs[:-1]):
        text.append(paragraph)
        n += len(paragraph.split())
        if n >= words:
            return "\n".join(text), paragraphs[i + 1]
    return "\n".join(text), paragraphs[-1]


def write_tasks(data: pathlib.Path, folder: str, n: int) -> "list[dict]":
    draw, all_articles = random.Random(1), articles(data)
    draw.shuffle(all_articles)
    chosen = [all_articles[i % len(all_articles)] for i in range(n)]
    rows: "dict[str, list[dict]]" = {"endings": [], "texts": [], "facts": []}
    names = ["Anna", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo"]
    for i, article in enumerate(chosen):
        article = article[i // len(all_articles):]  # another beginning of the same one
        context, right = cut(article, WORDS)
        others = draw.sample([a for a in all_articles if a is not chosen[i]], 3)
        choices = [" ".join(p.split()[:40]) for p in [right, *(draw.choice(a) for a in others)]]
        order = draw.sample(range(4), 4)
        rows["endings"].append({"context": context, "choices": ["\n" + choices[k] for k in order],
                                "answer": order.index(0)})
        name, number, lines = names[i % 8], draw.randrange(1000, 9999), context.split(". ")
        lines.insert(draw.randrange(1, len(lines)), f"The secret number of {name} is {number}")
        rows["facts"].append({"text": ". ".join(lines), "name": name, "number": str(number)})
        if i < max(2, n // 4):
            rows["texts"].append({"text": "\n".join(article)[:6000]})
    for name, items in rows.items():
        with open(f"{folder}/{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(item) + "\n" for item in items)

    def task(name: str, **more: object) -> dict:
        return {"task": name, "dataset_path": "json", "test_split": "test", **more,
                "dataset_kwargs": {"data_files": {"test": f"{folder}/{name}.jsonl"}}}

    return [
        task("endings", output_type="multiple_choice", doc_to_text="{{context}}", target_delimiter="",
             doc_to_choice="{{choices}}", doc_to_target="answer",
             metric_list=[{"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]),
        task("texts", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
             metric_list=[{"metric": "bits_per_byte", "aggregation": "bits_per_byte",
                           "higher_is_better": False}]),
        task("facts", output_type="generate_until",
             doc_to_text="{{text}}\n\nWhat is the secret number of {{name}}? Answer with the number.",
             doc_to_target="{{number}}", generation_kwargs={"until": ["\n"], "max_gen_toks": 24},
             filter_list=[{"name": "number", "filter": [
                 {"function": "regex", "regex_pattern": r"(\d{4})"}, {"function": "take_first"}]}],
             metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]),
    ]


METRICS = {"endings": "acc_norm", "texts": "bits_per_byte", "facts": "exact_match"}


def figures(task: str, result: dict) -> "list[float]":
    """The metric of each item."""
    samples = sorted(result["samples"][task], key=lambda sample: sample["doc_id"])
    values = [sample[METRICS[task]] for sample in samples]
    if task == "texts":  # log likelihood, bytes
        return [-value[0] / value[1] / math.log(2.0) for value in values]
    return [float(value) for value in values]


def mean_and_error(values: "list[float]") -> str:
    return f"{statistics.fmean(values):.3f} +- {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def cell(values: "list[float]", full: "list[float]") -> str:
    """The mean with its error; of a policy the difference from the full cache, item by item."""
    if values is full:
        return mean_and_error(values)
    return f"{statistics.fmean(values):.3f} ({mean_and_error([v - f for v, f in zip(values, full)])})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--stats", help="what `pith calibrate` wrote for the model, for kvzap")
    o = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from pithkv.lm_eval import PithLM
    stats = f",stats={o.stats}" if o.stats else ""
    rules = f"budget={o.budget},slack=32"
    policies = {"full": None, f"`triattention:v3` {o.budget}": f"triattention:v3,{rules}{stats}",
                f"`kvzap` {o.budget}": f"kvzap:{rules}{stats}"}
    print("| cache | endings: accuracy | texts: bits per byte | facts: share found | seconds |")
    print("|---|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tasks, full = write_tasks(o.data, folder, o.n), {}
        for words, keep in policies.items():
            model, start = PithLM(o.model, max_length=2048, **({"keep": keep} if keep else {})), time.time()
            cells = []
            for task in tasks:
                name = task["task"]
                found = figures(name, simple_evaluate(
                    model=model, tasks=[task], apply_chat_template=name == "facts", bootstrap_iters=0,
                    task_manager=TaskManager(include_defaults=False)))
                cells.append(cell(found, full.setdefault(name, found)))
            print("|", " | ".join([words, *cells, f"{time.time() - start:.0f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
