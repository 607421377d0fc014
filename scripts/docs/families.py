#!/usr/bin/env python3
"""Prints the matrix of docs/families.md: every policy on a small random model of every family.

    scripts/docs/families.py [BUILD]

The models are those of tests/test_families.c with 24 layers. A cell is what `pith logits` says of 300
tokens under the policy, with a budget of 96 entries: yes, or the number of the sentence that refuses
it. What needs words is left out, as these models have none: kvzap, kvzip, recall of text and
sharing. BUILD is build. Standard library only.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

VOCAB = 101


def families(root):
    with open(os.path.join(root, "tests", "test_families.c")) as file:
        table = file.read().split("families[] = {")[1].split("};")[0]
    joined = re.sub(r'"\s*\n\s*"', "", table)
    return re.findall(r'"(arch=[^"]+)"', joined)


def policies(pith):
    """[(verb, name)] of all that need no words."""
    listed = json.loads(subprocess.run([pith, "policies", "--json"], check=True,
                                       stdout=subprocess.PIPE).stdout)
    for verb in ("keep", "read", "recall"):
        for policy in listed[verb]:
            if policy["name"] not in ("kvzap", "kvzip", "text"):
                yield verb, policy["name"]


def options(verb, name, folder):
    small = {"lazyeviction": "window=32,slack=32,", "longflow": "prompt-window=16,",
             "triattention": "warmup=1,"}.get(name, "")
    keep = f"{name}:{small}budget=96"
    bases = f",projection={folder}/bases" if name == "loki" else ""
    return {"keep": ["--keep", keep],
            "read": ["--read", f"{name}:phase=both,dense-layers=0,budget=96{bases}"],
            "recall": ["--keep", "streaming:budget=96", "--recall", name]}[verb]


def sentence(pith, folder, verb, name):
    """What refuses the policy on the folder's model; None: nothing does."""
    ids = ",".join(str((7 * i * i + 3 * i) % VOCAB) for i in range(300))
    done = subprocess.run([pith, "logits", "-m", f"{folder}/model.gguf", "--ids", ids, "-t", "1",
                           *options(verb, name, folder)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        sys.exit(f"{verb} {name}: {folder}: killed by signal {-done.returncode}")
    return re.sub(r"^pith logits: ", "", done.stderr.strip().splitlines()[-1])


def measure(build, words, rows):
    with tempfile.TemporaryDirectory() as folder:
        pith = os.path.join(build, "cli", "pith")
        subprocess.run([os.path.join(build, "tests", "make_model"), f"{folder}/model.gguf",
                        *words.split(), f"vocab={VOCAB}", "ctx=512"], check=True)
        with open(f"{folder}/tokens", "w") as file:
            file.write(" ".join(str(i * i % VOCAB) for i in range(300)))
        subprocess.run([pith, "calibrate", "-m", f"{folder}/model.gguf", "--tokens",
                        f"{folder}/tokens", "--loki", f"{folder}/bases", "-t", "1"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [sentence(pith, folder, *row) for row in rows]


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "build"))
    rows = list(policies(os.path.join(build, "cli", "pith")))
    seen = {}
    for words in families(root):
        words = re.sub(r"layers=\d+", "layers=24", words)
        seen.setdefault(re.match(r"arch=(\S+)", words)[1], words)
    cells = {name: measure(build, words, rows) for name, words in seen.items()}
    known = []
    print("| policy | " + " | ".join(cells) + " |\n" + "|---" * (len(cells) + 1) + "|")
    for i, (verb, name) in enumerate(rows):
        texts = []
        for column in cells.values():
            said = column[i]
            if said is not None and said not in known:
                known.append(said)
            texts.append("yes" if said is None else f"no {known.index(said) + 1}")
        print(f"| {verb} {name} | " + " | ".join(texts) + " |")
    print()
    for i, said in enumerate(known):
        print(f"{i + 1}. {said}")


if __name__ == "__main__":
    main()
