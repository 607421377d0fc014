#!/usr/bin/env python3
"""Makes tests/golden/dtype.txt: blocks of every weight type and the floats that llama.cpp's numpy
reference decodes from them, and floats with the bytes that it encodes them to.
tests/file/test_dtype.c asks for the same bits.

    scripts/golden/dtype.py GGUF_PY_DIR

GGUF_PY_DIR is the folder gguf-py of a llama.cpp source tree. Needs numpy.

Each record is three lines: "decode TYPE N" or "encode TYPE N" with N weights, then the input and
the output as hexadecimal digits (floats: their 32 bits as one number).
"""
import argparse
import os
import sys
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "tests", "golden", "dtype.txt")
DECODED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
           "Q6_K"]
ENCODED = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]  # those that gguf-py encodes
READ = ["IQ4_NL", "IQ4_XS", "MXFP4"]  # those that Pith does not encode
N_BLOCK = 2
N_PLAIN = 64  # weights of a record of a plain type or of blocks of 32
SEED = 1


def hex_floats(x):
    return "".join(f"{bits:08x}" for bits in x.view("uint32"))


def decode_record(np, quants, kind, rng):
    """Random bytes whose scales are numbers: every level and every small scale occurs."""
    block_len, block_bytes = quants.GGML_QUANT_SIZES[kind]
    n_block = N_BLOCK if block_len > 32 else N_PLAIN // block_len
    while True:
        data = rng.integers(0, 256, n_block * block_bytes, dtype=np.uint8)
        x = quants.dequantize(data, kind).astype(np.float32)
        if np.isfinite(x).all():
            return f"decode {kind.name} {x.size}\n{data.tobytes().hex()}\n{hex_floats(x)}\n"


def encode_record(np, quants, kind, rng):
    """Blocks of a normal distribution, of one that leans to one side, of zeros, and of few values
    that fall between two levels."""
    x = np.concatenate([rng.standard_normal(32), 3 + rng.standard_normal(32), np.zeros(32),
                        rng.integers(-8, 8, 32) / 2]).astype(np.float32)
    data = quants.quantize(x, kind).view(np.uint8)
    return f"encode {kind.name} {x.size}\n{hex_floats(x)}\n{data.tobytes().hex()}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("gguf_py", metavar="GGUF_PY_DIR")
    args = parser.parse_args()
    sys.path.insert(0, args.gguf_py)
    import numpy as np
    from gguf import GGMLQuantizationType, quants
    warnings.simplefilter("ignore", RuntimeWarning)  # scales that are no numbers are thrown away
    rng = np.random.default_rng(SEED)
    records = [decode_record(np, quants, GGMLQuantizationType[name], rng) for name in DECODED]
    records += [encode_record(np, quants, GGMLQuantizationType[name], rng) for name in ENCODED]
    records += [decode_record(np, quants, GGMLQuantizationType[name], rng) for name in READ]
    with open(OUT, "w", encoding="ascii") as file:
        file.writelines(records)


if __name__ == "__main__":
    main()
