#!/usr/bin/env python3
"""Makes tests/golden/story.txt: what llama.cpp tells, greedily, from stories260K, which
tests/eval/test_stories.c compares with Pith's story.

    scripts/golden/story.py LLAMA_CPP_DIR [--label TEXT] [--data build-data]
"""
import argparse
import os
import subprocess
import sys
import tempfile

from peer import Peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMPT = "Lucy was sad because"  # no choice of this story is closer than 0.02 logits
N_TOKEN = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("--label", default="unknown version", help="which llama.cpp it is")
    parser.add_argument("--data", default=os.path.join(ROOT, "build-data"))
    args = parser.parse_args()
    weights = os.path.join(args.data, "weights")
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "stories.gguf")
        subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "convert_llama2c.py"),
                        os.path.join(weights, "stories260K.bin"),
                        os.path.join(weights, "tok512.bin"), model], check=True)
        story = Peer(args.llama_cpp, folder).story(model, PROMPT, N_TOKEN)
    with open(os.path.join(ROOT, "tests", "golden", "story.txt"), "w") as file:
        file.write(f"# Made by scripts/golden/story.py; do not edit.\n# llama.cpp: {args.label}\n"
                   f"opening {PROMPT}\n{story}")


if __name__ == "__main__":
    main()
