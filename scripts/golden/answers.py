#!/usr/bin/env python3
"""Makes tests/golden/answers-{nano,mini}.jsonl: what llama.cpp answers, greedily and with F32
weights, to 50 prompts for each of the models that ship; tests/eval/test_answers.c asks Pith the
same.

    scripts/golden/answers.py LLAMA_CPP_DIR [--pith build/cli/pith] [--text FILE] [--label TEXT]

nano is asked models/demo/needles.jsonl (named by line, not repeated) and shorter questions of
`pith eval needle`, mini the tasks of `pith eval` over the prose of FILE. Each line holds the
prompt, the ids up to the end token, and by how much the closest choice was ahead. A prompt whose
closest choice is nearer than MIN_GAP logits is left out, since there rounding may decide. Standard
library.
"""
import argparse
import json
import os
import subprocess
import tempfile

from peer import Peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
N_PROMPT = 50
N_TOKEN = 40
MIN_GAP = 1e-3
# Tasks of mini: the words of the command line, the most prompts taken of each.
MINI_TASKS = (
    ("ruler --task niah_single_1 --task niah_single_2 --task niah_multikey_1 --task niah_multivalue"
     " --task niah_multiquery -n 500 --samples 5", 25),
    ("ruler --task vt --task cwe --no-example -n 640 --samples 3", 6),
    ("needle -n 400 -d 0,50,100", 3),
    ("recursion --trace --min-steps 6 --max-steps 8 --samples 5", 10),
    ("derivation -n 4,8 --samples 5", 10),
)


def asked(pith, model, words, text):
    """The prompts, opening of the answer included, of one task."""
    command = [pith, "eval", *words.split(), "-m", model, "--text", "--json", "-"]
    if text and words.startswith(("ruler", "needle")):
        command += ["-f", text]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    texts = [t for row in result["rows"] for t in row.get("texts", [row])]
    return [t["prompt"] + (t.get("prefix") or "") for t in texts]


def told(peer, model, prompt, end):
    """(ids up to the end token, gap)"""
    lines = peer.story(model, prompt, N_TOKEN).split("\n")
    ids = [int(word) for word in lines[1].split()[1:]]
    gap = float(lines[2].split()[1])
    return ids[: ids.index(end) + 1] if end in ids else ids, gap


def end_token(pith, model):
    said = subprocess.run([pith, "tokenize", "-m", model, "-p", "<|end_of_text|>",
                           "--parse-special", "--no-bos", "--json"],
                          check=True, stdout=subprocess.PIPE)
    return json.loads(said.stdout)[0]


def nano_prompts(pith, model):
    with open(os.path.join(ROOT, "models", "demo", "needles.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    prompts = [({"needle": i}, line["prompt"]) for i, line in enumerate(lines)]
    short = asked(pith, model, "needle --style pith -n 160,240,320 -d 0,25,50,75,100", "")
    return prompts + [({"prompt": p}, p) for p in short]


def mini_prompts(pith, model, text):
    return [({"prompt": p}, p) for words, most in MINI_TASKS
            for p in asked(pith, model, words, text)[:most]]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("--pith", default=os.path.join(ROOT, "build", "cli", "pith"))
    parser.add_argument("--text", help="prose for mini's haystacks")
    parser.add_argument("--label", default="unknown version", help="which llama.cpp it is")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(args.llama_cpp, folder)
        for name in ("nano", "mini"):
            model = os.path.join(ROOT, "models", f"pith-{name}.gguf")
            if not os.path.exists(model) or (name == "mini" and not args.text):
                continue
            exact = os.path.join(folder, f"{name}.gguf")
            subprocess.run([args.pith, "quantize", model, exact, "F32"], check=True)
            prompts = (nano_prompts(args.pith, model) if name == "nano"
                       else mini_prompts(args.pith, model, args.text))
            end, kept = end_token(args.pith, model), []
            for line, prompt in prompts:
                ids, gap = told(peer, exact, prompt, end)
                if gap >= MIN_GAP and len(kept) < N_PROMPT:
                    kept.append({**line, "ids": ids, "gap": gap})
            print(f"{name}: {len(kept)} of {len(prompts)} prompts")
            path = os.path.join(ROOT, "tests", "golden", f"answers-{name}.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                head = {"made by": "scripts/golden/answers.py", "llama.cpp": args.label}
                for line in [head, *kept]:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
