#!/usr/bin/env python3
"""Makes tests/golden/perplexity.txt: llama-perplexity's final estimates, which
tests/eval/test_eval.c compares with Pith's.

    scripts/golden/perplexity.py LLAMA_CPP_DIR [--label TEXT] [--data build-data]

LLAMA_CPP_DIR holds a build with the targets llama-perplexity and llama-quantize in build/bin. Its
weights are decoded to F32 first and its cache is F32 without flash attention: products of F16
weights and caches round their other side to F16 there, which is no part of the protocol.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# model, text, bytes of the text's beginning (0: all), -c, -b, --chunks
CASES = [
    ("stories260K", "tinyshakespeare.txt", 40000, 512, 512, 12),
    ("stories260K", "tinyshakespeare.txt", 40000, 512, 2048, 10),
    ("stories260K", "tinyshakespeare.txt", 40000, 256, 100, 12),
    ("stories260K", "wiki.test.raw", 60000, 512, 2048, 16),
    ("pith-nano", "prompt-2k.txt", 0, 512, 2048, 3),
    ("pith-nano", "prompt-2k.txt", 0, 128, 48, 13),
    ("pith-nano", "tinyshakespeare.txt", 40000, 512, 2048, 12),
    ("pith-mini", "tinyshakespeare.txt", 40000, 512, 2048, 8),
    ("pith-mini", "wiki.test.raw", 60000, 1024, 512, 4),
]


N_TRY = 50


def text_path(name, data):
    demo = os.path.join(ROOT, "models", "demo", name)
    return demo if os.path.exists(demo) else os.path.join(data, "text", name)


def make_model(name, args, folder):
    """The model with F32 weights, or None where there is none yet."""
    out = os.path.join(folder, name + ".gguf")
    if os.path.exists(out):
        return out
    if name == "stories260K":
        weights = os.path.join(args.data, "weights")
        subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "convert_llama2c.py"),
                        os.path.join(weights, "stories260K.bin"),
                        os.path.join(weights, "tok512.bin"), out], check=True)
        return out
    model = os.path.join(ROOT, "models", name + ".gguf")
    if not os.path.exists(model):
        return None
    subprocess.run([os.path.join(args.llama_cpp, "build/bin/llama-quantize"), "--allow-requantize",
                    model, out, "F32"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return out


def estimate(args, model, text, n_ctx, n_batch, n_chunk):
    """PPL and its error as llama-perplexity prints them."""
    command = [os.path.join(args.llama_cpp, "build/bin/llama-perplexity"), "-m", model,
               "-f", text, "-c", str(n_ctx), "-b", str(n_batch), "--chunks", str(n_chunk),
               "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    # A thread of its own writes the program's log, and on a busy machine the end gets lost at
    # times.
    for _ in range(N_TRY):
        run = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        found = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", run.stdout)
        if found is not None:
            break
    else:
        sys.exit(f"llama-perplexity gave no final estimate:\n{run.stdout}")
    return found.groups()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("--label", default="unknown version", help="which llama.cpp it is")
    parser.add_argument("--data", default=os.path.join(ROOT, "build-data"))
    args = parser.parse_args()
    lines = ["# Made by scripts/golden/perplexity.py; do not edit.", f"# llama.cpp: {args.label}",
             "# model text bytes -c -b chunks PPL error"]
    with tempfile.TemporaryDirectory() as folder:
        for name, text, size, n_ctx, n_batch, n_chunk in CASES:
            model = make_model(name, args, folder)
            if model is None:
                continue
            part = os.path.join(folder, "text")
            with open(text_path(text, args.data), "rb") as source, open(part, "wb") as out:
                out.write(source.read(size if size > 0 else -1))
            ppl, error = estimate(args, model, part, n_ctx, n_batch, n_chunk)
            lines.append(f"{name} {text} {size} {n_ctx} {n_batch} {n_chunk} {ppl} {error}")
    with open(os.path.join(ROOT, "tests", "golden", "perplexity.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
