#!/usr/bin/env python3
"""Prints the matrix of docs/families.md: every policy on a small random model of every family.

    scripts/docs/families.py [BUILD]

The models are from tests/model/test_families.c, with 24 layers, heads of 64 and pith-mini's
tokenizer. A cell is the result of `pith run` with 334 tokens of prompt and 24 more under the
policy, with a budget of 96 entries: yes, or the number of the sentence that refuses it. Policies
with the same cells share a row. BUILD is build. Standard library only.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap

TYPES = ["-ctk f32 -ctv f32", "-ctk q8_0 -ctv q8_0", "-ctk q8_0 -ctv turbo3",
         "-ctk turbo3 -ctv turbo3"]
DRAFTS = ["lookup"]
# Heads of sizes that all types divide.
HEADS = {"": "head_dim=64", "phi3": "width=256 heads=4 kv_heads=2 head_dim=64",
         "deepseek2": "head_dim=64 rot=32 rank=64"}


def families(root):
    with open(os.path.join(root, "tests", "model", "test_families.c")) as file:
        table = file.read().split("families[] = {")[1].split("};")[0]
    joined = re.sub(r'"\s*\n\s*"', "", table)
    return re.findall(r'"(arch=[^"]+)"', joined)


def policies(pith):
    """[(verb, name)] of everything that the program lists, storage types and drafts behind."""
    listed = json.loads(subprocess.run([pith, "policies", "--json"], check=True,
                                       stdout=subprocess.PIPE).stdout)
    rows = [(verb, policy["name"]) for verb in ("keep", "read", "recall", "share")
            for policy in listed[verb]]
    return rows + [("store", types) for types in TYPES] + [("draft", name) for name in DRAFTS]


def options(verb, name, folder):
    small = {"lazyeviction": "window=32,slack=32,", "longflow": "prompt-window=16,",
             "kvzip": "window=32,", "kvzap": f"window=32,stats={folder}/stats,",
             "triattention": "warmup=1,pin-prompt=off,", "raas": "pin-prompt=off,"}.get(name, "")
    keep = f"{name}:{small}budget=96"
    bases = f",projection={folder}/bases" if name == "loki" else ""
    return {"keep": ["--keep", keep],
            "read": ["--read", f"{name}:phase=both,dense-layers=0,budget=96{bases}"],
            "recall": ["--keep", "streaming:budget=96", "--recall", name],
            "share": ["--share", name], "store": name.split(), "draft": ["--draft", name]}[verb]


def sentence(pith, folder, verb, name):
    """What refuses the policy on the folder's model; None: nothing does."""
    done = subprocess.run([pith, "run", "-m", f"{folder}/model.gguf", "-f", f"{folder}/text", "-n",
                           "24", "-c", "4096", "--temp", "0", "-t", "1",
                           *options(verb, name, folder)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        sys.exit(f"{verb} {name}: {folder}: killed by signal {-done.returncode}")
    said = done.stderr.decode().strip().splitlines()[-1].replace(folder + "/", "")
    return re.sub(r"^pith run: ", "", said)


def measure(root, build, words, rows):
    with tempfile.TemporaryDirectory() as folder:
        pith, model = os.path.join(build, "cli", "pith"), f"{folder}/model.gguf"
        subprocess.run([os.path.join(build, "tests", "make_model"), model, *words.split(),
                        f"vocab_file={root}/models/pith-mini.gguf", "ctx=4096"], check=True)
        with open(os.path.join(root, "models", "demo", "prompt-2k.txt")) as file:
            text = file.read(1500)
        with open(f"{folder}/text", "w") as file:
            file.write(text)
        for learn in (["loki", "-f", f"{folder}/text", "-o", f"{folder}/bases"],
                      ["importance", "-f", f"{folder}/text", "--pieces", "1", "-c", "200", "-o",
                       f"{folder}/stats"]):
            subprocess.run([pith, "calibrate", *learn, "-m", model, "-t", "1"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [sentence(pith, folder, *row) for row in rows]


def print_matrix(rows, cells):
    """Rows with the same cells are printed as one."""
    known, merged = [], {}
    for i, (verb, name) in enumerate(rows):
        said = [column[i] for column in cells.values()]
        known += [x for x in dict.fromkeys(said) if x is not None and x not in known]
        merged.setdefault((verb, tuple(said)), []).append(name)
    print("| | " + " | ".join(cells) + " |\n" + "|---" * (len(cells) + 1) + "|")
    for (verb, said), names in merged.items():
        texts = ["yes" if x is None else f"no {known.index(x) + 1}" for x in said]
        print(f"| {verb}: {', '.join(names)} | " + " | ".join(texts) + " |")
    print()
    for i, said in enumerate(known):
        print(f"{i + 1}. {said}")


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "build"))
    rows = list(policies(os.path.join(build, "cli", "pith")))
    seen = {}
    for words in families(root):
        name = re.match(r"arch=(\S+)", words)[1]
        words = re.sub(r"layers=\d+", "layers=24", words)
        seen.setdefault(name, re.sub(r"head_dim=\d+", "", words) + " " + HEADS.get(name, HEADS[""]))
    cells = {name: measure(root, build, words, rows) for name, words in seen.items()}
    print_matrix(rows, cells)


if __name__ == "__main__":
    main()
