#!/usr/bin/env python3
"""Puts the weights of one of NVIDIA's KVzap models into Pith's statistics (docs/stats.md).

    pith calibrate queries -m model.gguf -f text.txt -o in.stats
    scripts/kvzap_from_hf.py KVzap-mlp-Qwen3-8B in.stats qwen3-8b.stats
    pith run -m model.gguf --keep kvzap:features=network,stats=qwen3-8b.stats,budget=25% -f long.txt

The folder is a published repository: config.json and model.safetensors. A linear model (tensors
layers.N.weight and .bias) serves features=hidden. One with a layer of neurons (layers.N.0 and .2)
serves features=network. in.stats has the model's shape and fingerprint. Statistics of `pith
calibrate MODEL` will do, too, and keep what else they have. Standard library only.
"""
import argparse
import json
import os
import struct
import sys

from stats_from_pt import HEADER_SIZE, SUM_SIZE, Refused, write_whole, xxh64

SECTION = struct.Struct("<6I")  # n_lane, n_embd, n_feature, n_quantile, n_map, n_hidden
MOST = struct.pack("<f", 3.4028234663852886e38)
LEAST = struct.pack("<f", -3.4028234663852886e38)
MAX_EMBD, MAX_HIDDEN = 1 << 17, 16384


# ---- the published model ----

def floats_of(dtype, data, name):
    """The bytes of 32-bit floats."""
    if dtype == "F32":
        return bytes(data)
    if dtype == "BF16":
        out = bytearray(2 * len(data))
        out[2::4], out[3::4] = data[0::2], data[1::2]
        return bytes(out)
    if dtype == "F16":
        n = len(data) // 2
        return struct.pack(f"<{n}f", *struct.unpack(f"<{n}e", data))
    raise Refused(f"{name}: type {dtype} is none of F32, BF16, F16")


class Tensors:
    """A safetensors file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if len(self.data) < 8:
            raise Refused("the safetensors file is shorter than its header")
        size = struct.unpack_from("<Q", self.data)[0]
        if size > len(self.data) - 8:
            raise Refused("the safetensors file is shorter than its header")
        try:
            self.head = json.loads(self.data[8:8 + size])
        except ValueError as error:
            raise Refused(f"the header of the safetensors file: {error}") from error
        self.begin = 8 + size

    def get(self, name, shape):
        info = self.head.get(name) if isinstance(self.head, dict) else None
        if not isinstance(info, dict):
            raise Refused(f"there is no tensor {name}")
        if info.get("shape") != list(shape):
            raise Refused(f"{name}: its shape is {info.get('shape')}, not {list(shape)}")
        begin, end = info.get("data_offsets", (0, 0))
        out = floats_of(info.get("dtype"), self.data[self.begin + begin:self.begin + end], name)
        n = 4
        for count in shape:
            n *= count
        if len(out) != n:
            raise Refused(f"{name}: {end - begin} bytes do not make its shape")
        return out


def rows(weight, bias, n_row, n):
    """Each row of a matrix with its bias behind it."""
    return b"".join(weight[4 * n * i:4 * n * (i + 1)] + bias[4 * i:4 * (i + 1)]
                    for i in range(n_row))


def read_model(folder):
    """(layers, KV heads, inputs, neurons), the weights of features=hidden, those into and out of
    the network; b"" where there are none."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    counts = [config.get(key) for key in ("n_modules", "output_dim", "input_dim")]
    n_hidden = config.get("hidden_dim") or 0
    for value, most in zip((*counts, n_hidden + 1), (4096, 4096, MAX_EMBD, MAX_HIDDEN + 1)):
        if not isinstance(value, int) or not 1 <= value <= most:
            raise Refused(f"config.json: {value!r} is not within 1..{most}")
    n_layer, n_out, n_in = counts
    tensors = Tensors(os.path.join(folder, "model.safetensors"))
    hidden, net_in, net_out = [], [], []
    for i in range(n_layer):
        at = f"layers.{i}"
        if n_hidden == 0:
            hidden.append(rows(tensors.get(f"{at}.weight", (n_out, n_in)),
                               tensors.get(f"{at}.bias", (n_out,)), n_out, n_in))
            continue
        net_in.append(rows(tensors.get(f"{at}.0.weight", (n_hidden, n_in)),
                           tensors.get(f"{at}.0.bias", (n_hidden,)), n_hidden, n_in))
        net_out.append(rows(tensors.get(f"{at}.2.weight", (n_out, n_hidden)),
                            tensors.get(f"{at}.2.bias", (n_out,)), n_out, n_hidden))
    return (n_layer, n_out, n_in, n_hidden), b"".join(hidden), b"".join(net_in), b"".join(net_out)


# ---- Pith's statistics ----

class Stats:
    """A file of statistics, cut where its section of importance begins and ends."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        if data[:8] != b"PITHSTAT" or len(data) < HEADER_SIZE + SUM_SIZE:
            raise Refused(f"{path} is no file of Pith's statistics")
        if xxh64(data[:-SUM_SIZE]) != struct.unpack("<Q", data[-SUM_SIZE:])[0]:
            raise Refused(f"{path} is damaged")
        (self.n_layer, n_head, self.n_head_kv, n_pair, n_flat, n_centre, n_range) = \
            struct.unpack_from("<7I", data, 40)
        flags, = struct.unpack_from("<I", data, 72)
        names = sum(struct.unpack_from("<2I", data, 80))
        row = 4 * (3 * n_pair + n_flat)
        at = HEADER_SIZE + names + 8 * n_range + 8 * self.n_layer
        at += 8 * n_pair if flags & 1 else 0
        at += self.n_layer * n_head * row + (self.n_layer * self.n_head_kv * row if flags & 2 else 0)
        if n_centre > 1:
            at += self.n_layer * n_head * n_centre * (4 + row)
        size, = struct.unpack_from("<Q", data, at)
        if at + 8 + size + SUM_SIZE != len(data):
            raise Refused(f"{path}: its counts do not make a file of {len(data)} bytes")
        self.before, self.section = data[:at], data[at + 8:at + 8 + size]
        self.dim = 2 * n_pair + n_flat


def section_of(stats, shape, hidden, net_in, net_out):
    """The section of importance with the weights. Parts that the statistics had stay."""
    n_layer, n_head, n_embd, n_hidden = shape
    n_lane = n_layer * n_head
    if stats.section:
        lanes, old_embd, n_feature, n_quantile, n_map, old_hidden = SECTION.unpack_from(stats.section)
        at = SECTION.size + 4 * n_lane * (3 + n_quantile + 3 * n_feature + 1)
        keys = stats.section[SECTION.size:at]
        if old_embd not in (0, n_embd) or lanes != n_lane:
            raise Refused(f"the statistics are of {lanes} lanes and {old_embd} inputs")
        linear = 4 * (n_lane * (n_embd + 2) + 2 * n_layer * n_embd) if old_embd else 0
        network = 4 * (n_layer * old_hidden * (n_embd + 1) + n_lane * (old_hidden + 1)) \
            if old_hidden else 0
        old = stats.section[at:at + linear], stats.section[at + linear:at + linear + network]
        maps = stats.section[at + linear + network:]
    else:
        n_feature, n_quantile, n_map, old_hidden, maps, old = stats.dim + 2, 1, 0, 0, b"", (b"", b"")
        keys = bytes(4 * n_lane * (2 + n_quantile + 3 * n_feature + 2))
    if hidden or not old[0]:
        old = ((hidden or bytes(4 * n_lane * (n_embd + 1))) + LEAST * (n_layer * n_embd)
               + MOST * (n_layer * n_embd) + bytes(4 * n_lane), old[1])
    if net_in:
        old, old_hidden = (old[0], net_in + net_out), n_hidden
    return SECTION.pack(n_lane, n_embd, n_feature, n_quantile, n_map, old_hidden) + keys + \
        old[0] + old[1] + maps


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="config.json and model.safetensors of a KVzap model")
    parser.add_argument("stats", help="statistics of the model that it belongs to")
    parser.add_argument("out", help="the file to write")
    args = parser.parse_args()
    try:
        shape, hidden, net_in, net_out = read_model(args.folder)
        stats = Stats(args.stats)
        if shape[:2] != (stats.n_layer, stats.n_head_kv):
            raise Refused(f"KVzap is of {shape[0]} layers with {shape[1]} KV heads, the statistics of "
                          f"{stats.n_layer} with {stats.n_head_kv}")
        section = section_of(stats, shape, hidden, net_in, net_out)
        body = stats.before + struct.pack("<Q", len(section)) + section
        body = body[:16] + struct.pack("<Q", len(body) + SUM_SIZE) + body[24:]
        write_whole(args.out, body + struct.pack("<Q", xxh64(body)))
    except (Refused, ValueError, struct.error) as error:
        sys.exit(f"kvzap_from_hf.py: {args.folder}: {error}")
    except OSError as error:
        sys.exit(f"kvzap_from_hf.py: {error}")
    form = f"a network of {shape[3]} neurons" if shape[3] else "linear"
    print(f"{args.out}: {shape[0]} layers, {shape[1]} KV heads, {shape[2]} inputs, {form}")


if __name__ == "__main__":
    main()
