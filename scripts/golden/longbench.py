#!/usr/bin/env python3
"""Makes tests/golden/longbench.jsonl: what LongBench's own metrics give for pairs of texts.

    scripts/golden/longbench.py METRICS_PY >tests/golden/longbench.jsonl

METRICS_PY is LongBench/metrics.py of the authors' repository. It needs the packages that its
requirements name, "rouge" 1.0.1 and "fuzzywuzzy" 0.18 without python-Levenshtein; jieba, which only
sets of Chinese words ask for, may be absent. Each line has the metric's name, an answer, a truth,
the classes and the score.
"""
import importlib.util
import json
import random
import sys
import types
import warnings

WORDS = ("the a an of river gold house blue runs over night Paris 1984 king's market. law, new York-based "
         "three (3) rain; cold. Sea The An \u201cquoted\u201d \u00c9lan na\u00efve \u041c\u043e\u0441\u043a\u0432\u0430 "
         "\u6c34 U.S. e.g. end.").split(" ")
CODE = ("    return self.value + offset", "if (a[i] == b[j]) {", "for (int i = 0; i < n; i++)",
        "        x = np.zeros((3, 4), dtype=np.float32)", "import os, sys", "}", "",
        "def very_long_name(first_argument, second_argument=None, third_argument=0): return first_argument"
        " or second_argument or third_argument or very_long_name(first_argument, second_argument) + 12345"
        " + first_argument * second_argument - third_argument")


def load(path):
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("jieba") is None:
        sys.modules["jieba"] = types.ModuleType("jieba")
    spec = importlib.util.spec_from_file_location("metrics", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def changed(rng, line):
    out = list(line)
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(out) + 1)
        if rng.random() < 0.5 and at < len(out):
            del out[at]
        else:
            out.insert(at, rng.choice("abxy_ (0+"))
    return "".join(out)


def cases(rng):
    for _ in range(60):
        truth = text(rng, rng.randrange(1, 12))
        answer = changed(rng, truth) if rng.random() < 0.4 else text(rng, rng.randrange(14))
        yield "qa_f1", answer, truth, None
    for answer, truth in (("", "x"), ("...", "x."), (" . ", "a. b"), ("a. b.", ""), ("A b\nc", "a b c")):
        yield "qa_f1", answer, truth, None
        yield "rouge", answer, truth, None
    for _ in range(60):
        yield "rouge", text(rng, rng.randrange(1, 60)), text(rng, rng.randrange(1, 60)), None
    for i in range(60):
        truth = rng.choice(CODE)
        answer = changed(rng, rng.choice((truth, rng.choice(CODE))))
        before = rng.choice(("", "\n\n", "```python\n", "# comment\n// more\n", "`"))
        yield "code", before + answer + rng.choice(("", "\nnext", "\n```")), truth, None
    kinds = ["Food", "Foods", "Date", "Dat", "City", "Other location", "location", "Number of something"]
    for _ in range(40):
        rng.shuffle(kinds)
        named = rng.sample(kinds, rng.randrange(3))
        yield "classification", "It is " + " or ".join(named), rng.choice(kinds), list(kinds)
    for _ in range(20):
        n = rng.randrange(1, 30)
        answer = rng.choice((f"Paragraph {n}", f"{n}", f"Paragraph {n} or {rng.randrange(30)}", "none",
                             f"0{n}", f"Paragraph {n}."))
        yield "retrieval", answer, f"Paragraph {rng.choice((n, n + 1))}", None
        yield "retrieval_zh", answer, f"\u6bb5\u843d{rng.choice((n, n + 1))}", None
        yield "count", answer, str(rng.choice((n, n + 1))), None


def main():
    metrics = load(sys.argv[1])
    functions = {"qa_f1": metrics.qa_f1_score, "rouge": metrics.rouge_score,
                 "code": metrics.code_sim_score, "classification": metrics.classification_score,
                 "retrieval": metrics.retrieval_score, "retrieval_zh": metrics.retrieval_zh_score,
                 "count": metrics.count_score}
    for name, answer, truth, classes in cases(random.Random(45)):
        score = functions[name](answer, truth, all_classes=classes)
        print(json.dumps({"metric": name, "answer": answer, "truth": truth, "classes": classes,
                          "score": score}, ensure_ascii=False))


if __name__ == "__main__":
    main()
