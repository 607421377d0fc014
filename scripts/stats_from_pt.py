#!/usr/bin/env python3
"""Makes Pith's statistics (docs/stats.md) of those that the authors of TriAttention publish.

    scripts/stats_from_pt.py qwen3_8b.pt qwen3_8b.stats

Their file is a PyTorch archive: a ZIP with a pickle, which says what lies where, and one entry of
floats per tensor.

    {"metadata": {"rope_style": "half", "head_dim": 128, "model_name": "...", ...},
     "stats": {"layer00_head00": {"q_mean_real", "q_mean_imag", "q_abs_mean": [n_pair]}, ...}}

Nothing in it is executed: the unpickler knows by name the two calls that PyTorch writes for a
tensor and refuses every other class and call. zipfile compares each entry with its CRC. Needs no
PyTorch.
"""

import argparse
import collections
import io
import math
import os
import pickle
import re
import struct
import sys
import zipfile

PARTS = ("q_mean_real", "q_mean_imag", "q_abs_mean")
PAIRINGS = {None: 0, "half": 1, "interleaved": 2}
HEADER_SIZE, SUM_SIZE, MAX_NAME = 88, 8, 4096
MAX_SHAPE = 4096  # layers, heads and bands, as the format allows them
MAX_PICKLE = 16 << 20  # bytes; that of 1,152 heads has 370,555


class Refused(Exception):
    """What is wrong with a file, in a sentence."""


# ---- reading ----

class FloatStorage:
    """Stands for torch.FloatStorage, the type of the authors' tensors."""


class Tensor:
    """Floats [n] at offset, counted in floats, of an entry of the archive."""

    def __init__(self, storage, offset, size, stride, *_):
        if not (isinstance(size, tuple) and len(size) == 1 and stride == (1,)):
            raise Refused(f"a tensor of shape {size} and stride {stride} is no row of floats")
        if not all(isinstance(n, int) and n >= 0 for n in (offset, *size)):
            raise Refused(f"a tensor of shape {size} at {offset} is none")
        self.key, self.offset, self.n = storage, offset, size[0]

    def __setstate__(self, state):
        raise Refused("a tensor has a state beside its floats")


class Unpickler(pickle.Unpickler):
    KNOWN = {
        ("torch._utils", "_rebuild_tensor_v2"): Tensor,
        ("torch", "FloatStorage"): FloatStorage,
        ("collections", "OrderedDict"): collections.OrderedDict,
    }

    def find_class(self, module, name):
        if (module, name) not in self.KNOWN:
            raise Refused(f"the pickle wants {module}.{name}, which statistics have no use for")
        return self.KNOWN[module, name]

    def persistent_load(self, pid):
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[:2] != ("storage", FloatStorage):
            raise Refused("a tensor's storage is not of 32-bit floats")
        return str(pid[2])


def read_entry(archive, name):
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise Refused(f"{name} is compressed; PyTorch stores entries as they are")
    return archive.read(info)


def read_pickle(archive):
    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1:
        raise Refused("the archive has no data.pkl: it is no PyTorch file")
    if archive.getinfo(names[0]).file_size > MAX_PICKLE:
        raise Refused(f"data.pkl is longer than {MAX_PICKLE} bytes")
    data = read_entry(archive, names[0])
    try:
        content = Unpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, TypeError, ValueError, IndexError, KeyError,
            AttributeError, OverflowError, MemoryError) as error:
        raise Refused(f"data.pkl: {error or type(error).__name__}") from error
    if not isinstance(content, dict) or not isinstance(content.get("stats"), dict):
        raise Refused('the file has no "stats": it holds something else')
    return names[0][:-len("data.pkl")], content


def read_row(archive, folder, tensor, where, n_pair):
    if not isinstance(tensor, Tensor):
        raise Refused(f"{where} is absent or no tensor")
    if tensor.n != n_pair:
        raise Refused(f"{where}: {tensor.n} bands are not {n_pair}, as others have")
    try:
        data = read_entry(archive, f"{folder}data/{tensor.key}")
    except KeyError as error:
        raise Refused(f"{where}: the archive has no data/{tensor.key}") from error
    row = data[4 * tensor.offset:4 * (tensor.offset + n_pair)]
    if len(row) != 4 * n_pair:
        raise Refused(f"{where}: data/{tensor.key} is shorter than its tensor")
    if not all(map(math.isfinite, struct.unpack(f"<{n_pair}f", row))):
        raise Refused(f"{where}: a value is no finite number")
    return row


def read_heads(archive, folder, stats):
    """The shape (layers, heads, bands), and the rows as bytes, [layer][head][part][band] floats."""
    heads = {}
    for key, parts in stats.items():
        match = re.fullmatch(r"layer(\d{1,5})_head(\d{1,5})", key) if isinstance(key, str) else None
        if match is None or not isinstance(parts, dict):
            raise Refused(f'"stats": {key!r} is no head, as layer00_head00 is')
        heads[int(match[1]), int(match[2])] = parts
    n_layer, n_head = (1 + max((at[i] for at in heads), default=-1) for i in (0, 1))
    first = heads.get((0, 0), {}).get(PARTS[0])
    n_pair = first.n if isinstance(first, Tensor) else 0
    for n, what in ((n_layer, "layers"), (n_head, "query heads"), (n_pair, "bands")):
        if not isinstance(n, int) or not 1 <= n <= MAX_SHAPE:
            raise Refused(f"{what}: {n} is not within 1..{MAX_SHAPE}")
    if len(stats) != n_layer * n_head or len(heads) != len(stats):
        raise Refused(f"{len(stats)} heads are not all of {n_layer} layers with {n_head} heads")
    rows = [read_row(archive, folder, heads[layer, head].get(part),
                     f"layer {layer}, head {head}, {part}", n_pair)
            for layer in range(n_layer) for head in range(n_head) for part in PARTS]
    return (n_layer, n_head, n_pair), b"".join(rows)


def read_pt(path):
    """The shape, the rows, the pairing's number in the format, the model's name."""
    with zipfile.ZipFile(path) as archive:
        folder, content = read_pickle(archive)
        metadata = content.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        shape, rows = read_heads(archive, folder, content["stats"])
    style, dim = metadata.get("rope_style"), metadata.get("head_dim", 2 * shape[2])
    if not isinstance(style, (str, type(None))) or style not in PAIRINGS:
        raise Refused(f'rope_style: {style!r} is neither "half" nor "interleaved"')
    if dim != 2 * shape[2]:
        raise Refused(f"head_dim: a head of {dim!r} dimensions does not have {shape[2]} bands")
    name = metadata.get("model_name")
    name = name.encode("utf-8", "replace") if isinstance(name, str) else b""
    return shape, rows, PAIRINGS[style], b"" if b"\0" in name or len(name) > MAX_NAME else name


# ---- writing ----

M64 = (1 << 64) - 1
PRIMES = (0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0x85ebca77c2b2ae63,
          0x27d4eb2f165667c5)


def rotate(x, n):
    return (x << n | x >> (64 - n)) & M64


def mix(lane, word):
    return rotate((lane + word * PRIMES[1]) & M64, 31) * PRIMES[0] & M64


def xxh64(data):
    """XXH64 with seed 0 (src/file/sum.c)."""
    p1, p2, p3, p4, p5 = PRIMES
    at, value = 0, p5
    if len(data) >= 32:
        lanes = [(p1 + p2) & M64, p2, 0, -p1 & M64]
        for words in struct.iter_unpack("<4Q", data[:len(data) // 32 * 32]):
            lanes = [mix(lane, word) for lane, word in zip(lanes, words)]
        value = sum(rotate(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18))) & M64
        for lane in lanes:
            value = ((value ^ mix(0, lane)) * p1 + p4) & M64
        at = len(data) // 32 * 32
    value = (value + len(data)) & M64
    for at in range(at, len(data) - 7, 8):
        value = (rotate(value ^ mix(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & M64
    at = len(data) // 8 * 8
    if len(data) - at >= 4:
        word = struct.unpack_from("<I", data, at)[0]
        value, at = (rotate(value ^ word * p1 & M64, 23) * p2 + p3) & M64, at + 4
    for byte in data[at:]:
        value = rotate(value ^ byte * p5 & M64, 11) * p1 & M64
    value = (value ^ value >> 33) * p2 & M64
    value = (value ^ value >> 29) * p3 & M64
    return value ^ value >> 32


def format_stats(shape, rows, pairing, name):
    """The format of docs/stats.md. Neither the model nor how many tokens it is of is known."""
    n_layer, n_head, n_pair = shape
    body = name + struct.pack("<q", -1) * n_layer + rows + bytes(8)  # no importance
    size = HEADER_SIZE + len(body) + SUM_SIZE
    fingerprint = n_token = n_head_kv = n_flat = n_range = select = flags = 0
    header = b"PITHSTAT" + struct.pack("<2I3Q", 2, HEADER_SIZE, size, fingerprint, n_token)
    header += struct.pack("<7I", n_layer, n_head, n_head_kv, n_pair, n_flat, 1, n_range)
    header += struct.pack("<2HIf2I", pairing, select, flags, 1.0, len(name), 0)
    return header + body + struct.pack("<Q", xxh64(header + body))


def write_whole(path, data):
    """The file appears whole or not at all."""
    part = f"{path}.part-{os.getpid()}"
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pt", help="the authors' file")
    parser.add_argument("stats", help="the file to write")
    args = parser.parse_args()
    try:
        shape, rows, pairing, name = read_pt(args.pt)
        write_whole(args.stats, format_stats(shape, rows, pairing, name))
    except (Refused, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        sys.exit(f"stats_from_pt.py: {args.pt}: {error}")
    except OSError as error:
        sys.exit(f"stats_from_pt.py: {error}")
    print(f"{args.stats}: {shape[0]} layers, {shape[1]} query heads, {shape[2]} bands")


if __name__ == "__main__":
    main()
