#!/usr/bin/env python3
"""Makes tests/golden/real.txt: what llama.cpp writes, greedily, with SmolLM2-135M-Instruct, which
tests/engine/test_real.c compares with Pith's text.

    scripts/golden/real.py LLAMA_CPP_DIR MODELS_DIR [--pith build/cli/pith] [--label TEXT]

MODELS_DIR is a folder of scripts/models.sh. llama.cpp reads the same weights decoded to F32 by
`pith quantize`, so that its rounding of activations is no part of the comparison. Texts in which
some choice is closer than GAP logits are left out: there rounding decides, and nothing is wrong.
"""
import argparse
import os
import subprocess
import tempfile

from peer import Peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = "smollm2-135m-instruct-q4_1.gguf"
GAP = 0.1
N_TOKEN = 24
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a king who",
    "def factorial(n):",
    "Water boils at a temperature of",
    "The three primary colours are",
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "To make a cup of tea, first",
    "The planets of the solar system are",
    "Dear Sir or Madam, I am writing to",
    "In the year 1969 the first man",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("models")
    parser.add_argument("--pith", default=os.path.join(ROOT, "build", "cli", "pith"))
    parser.add_argument("--label", default="unknown version", help="which llama.cpp it is")
    args = parser.parse_args()
    lines = ["# Made by scripts/golden/real.py; do not edit.", f"# llama.cpp: {args.label}"]
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "f32.gguf")
        subprocess.run([args.pith, "quantize", os.path.join(args.models, MODEL), model, "F32"],
                       check=True, stdout=subprocess.DEVNULL)
        peer = Peer(args.llama_cpp, folder)
        for prompt in PROMPTS:
            told = dict(line.split(" ", 1) for line in
                        peer.story(model, prompt, N_TOKEN).splitlines()
                        if line.split(" ", 1)[0] in ("prompt", "ids", "gap"))
            print(f"gap {told['gap']}: {prompt}", flush=True)
            if float(told["gap"]) >= GAP:
                lines += [f"opening {prompt}", f"prompt {told['prompt']}", f"ids {told['ids']}"]
    with open(os.path.join(ROOT, "tests", "golden", "real.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
