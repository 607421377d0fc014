"""Makes a checkpoint of an exported model, from which train.py goes on with fresh optimizers:
python3 import_gguf.py FILE DIR --preset mini --step 5180.  Needs the package gguf."""

import argparse
import os

import gguf
import torch

from model import ARCH, Config
from presets import PRESETS
from tokenizer import Tokenizer, byte_alphabet

N_CONTROL = 2  # begin and end of a text, after all other tokens


def tokenizer_of(reader):
    """What Tokenizer.gguf_lists spelled."""

    def texts(key):
        field = reader.fields[key]
        return [bytes(field.parts[i]).decode() for i in field.data]

    byte_of = {c: b for b, c in byte_alphabet().items()}

    def bytes_of(spelled):
        return bytes(byte_of[c] for c in spelled)

    merges = [
        tuple(bytes_of(half) for half in line.split(" "))
        for line in texts("tokenizer.ggml.merges")
    ]
    tokens = texts("tokenizer.ggml.tokens")
    pieces = [bytes_of(t) for t in tokens[256 + len(merges) : -N_CONTROL]]
    return Tokenizer(merges, pieces, texts("tokenizer.ggml.pre")[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("folder")
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step", type=int, required=True, help="steps that the file was trained")
    parser.add_argument("--tokens", type=int, default=0, help="tokens that it was trained on")
    parser.add_argument("--seconds", type=float, default=0.0, help="for the log")
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.file)
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    if arch != ARCH:
        parser.error(f"{args.file}: architecture {arch} is not {ARCH}")
    tok = tokenizer_of(reader)
    os.makedirs(args.folder, exist_ok=True)
    tok.save(os.path.join(args.folder, "tokenizer.json"))
    model = {
        t.name: torch.from_numpy(t.data.astype("float32").copy()) for t in reader.tensors
    }
    state = {
        "model": model,
        "optimizers": None,
        "step": args.step,
        "seconds": args.seconds,
        "tokens": args.tokens,
        "preset": args.preset,
        "seed": args.seed,
        "config": vars(Config.of(PRESETS[args.preset], tok.size)),
    }
    torch.save(state, os.path.join(args.folder, "checkpoint.pt"))


if __name__ == "__main__":
    main()
