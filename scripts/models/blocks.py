"""Random weights of every GGUF type, written as the blocks that the type is stored in.

No quantiser is involved: the quants of a block are random bits, which every reader of the type must
decode alike, and the scales are chosen so that the weights have mean 0 and the wanted standard
deviation. Bytes come from SHAKE-128 (FIPS 202) of a text seed, and scales go through tables
computed with exact or correctly rounded operations, so a file is the same byte for byte on every
machine and every Python. Standard library only; whole tensors are made with byte-string operations
(translate, strided slices), which reach some hundred MB/s.
"""
import hashlib
import math
import struct

from models.gguf import DTYPES, tensor_bytes

CHUNK_BLOCKS = 1 << 16
SCALE_SPREAD = 0.25  # block scales lie within 1 +- this of the tensor's


def random_bytes(seed, n):
    return hashlib.shake_128(seed.encode()).digest(n)


def _f16(value):
    return struct.pack("<e", value)


def _bf16(value):
    return struct.pack("<f", value)[2:]


def _uniform(i):
    """Maps a byte to one of 256 equally spaced values, symmetric about 0, of variance 1 nearly."""
    return (2 * i + 1 - 256) / 256 * math.sqrt(3.0)


def _spread(i):
    """Maps a byte to the factor of a block scale."""
    return 1 + SCALE_SPREAD * (2 * i + 1 - 256) / 256


def _signed_spread(i):
    """The same with either sign, as quantisers of symmetric types write scales."""
    return _spread(2 * (i // 2)) * (1 if i % 2 else -1)


def _put(block, block_bytes, at, choice, values):
    """Writes at offset at of every block the encoding of values[b], b the block's byte of choice."""
    for k in range(len(values[0])):
        block[at + k::block_bytes] = choice.translate(bytes(v[k] for v in values))


def _product_std(scales, quants, centre):
    """Standard deviation of s * q - centre * m for independent uniform s and m out of scales and q
    out of quants: the decoded weights of the super-block types for d = 1."""
    def mean(values):
        return sum(values) / len(values)
    square_s, square_q = mean([s * s for s in scales]), mean([q * q for q in quants])
    mean_s, mean_q = mean(scales), mean(quants)
    variance = square_s * square_q - (mean_s * mean_q) ** 2
    return math.sqrt(variance + centre * centre * (square_s - mean_s * mean_s))


def _plain_block(dtype, seed, n, std):
    if dtype == "F32":
        # The upper half is one of 256 values, the lower half noise below it.
        block = bytearray(random_bytes(seed, 4 * n))
        _put(block, 4, 2, random_bytes(seed + "/high", n),
             [_bf16(_uniform(i) * std) for i in range(256)])
    elif dtype == "F16":
        # Sign, exponent and two bits of the mantissa from the table, eight bits noise.
        block = bytearray(random_bytes(seed, 2 * n))
        _put(block, 2, 1, random_bytes(seed + "/high", n),
             [_f16(_uniform(i) * std)[1:] for i in range(256)])
    else:
        block = bytearray(2 * n)
        _put(block, 2, 0, random_bytes(seed, n), [_bf16(_uniform(i) * std) for i in range(256)])
    return block


# Offset of the f16 scale in a block and the standard deviation of the quants it multiplies, for
# types whose weights are scale * quant with quants about 0.
SYMMETRIC = {
    "Q8_0": (0, math.sqrt((256 ** 2 - 1) / 12 + 0.25)),
    "Q4_0": (0, math.sqrt((16 ** 2 - 1) / 12 + 0.25)),
    "Q5_0": (0, math.sqrt((32 ** 2 - 1) / 12 + 0.25)),
    "Q3_K": (108, _product_std(range(-32, 32), range(-4, 4), 0)),
    "Q6_K": (208, _product_std(range(-128, 128), range(-32, 32), 0)),
}
# Offsets of the f16 scale and of the f16 offset, the factor between them that centres the weights,
# and the standard deviation, for types whose weights are scale * quant + offset.
AFFINE = {
    "Q4_1": (0, 2, -7.5, math.sqrt((16 ** 2 - 1) / 12)),
    "Q5_1": (0, 2, -15.5, math.sqrt((32 ** 2 - 1) / 12)),
    "Q2_K": (80, 82, 1.5, _product_std(range(16), range(4), 1.5)),
    "Q4_K": (0, 2, 7.5, _product_std(range(64), range(16), 7.5)),
    "Q5_K": (0, 2, 15.5, _product_std(range(64), range(32), 15.5)),
}


def _quant_block(dtype, seed, n, std):
    size = DTYPES[dtype][2]
    block = bytearray(random_bytes(seed, size * n))
    choice = random_bytes(seed + "/scale", n)
    if dtype in SYMMETRIC:
        at, unit = SYMMETRIC[dtype]
        _put(block, size, at, choice, [_f16(_signed_spread(i) * std / unit) for i in range(256)])
    else:
        at, at_offset, factor, unit = AFFINE[dtype]
        scales = [_spread(i) * std / unit for i in range(256)]
        _put(block, size, at, choice, [_f16(s) for s in scales])
        _put(block, size, at_offset, choice, [_f16(s * factor) for s in scales])
    return block


def random_tensor(dtype, shape, seed, std):
    """Yields the bytes of a tensor of the given shape in chunks."""
    make = _plain_block if DTYPES[dtype][1] == 1 else _quant_block
    n_block = tensor_bytes(dtype, shape) // DTYPES[dtype][2]
    for begin in range(0, n_block, CHUNK_BLOCKS):
        yield make(dtype, f"{seed}/{begin}", min(CHUNK_BLOCKS, n_block - begin), std)


def random_vector(n, seed, mean, std):
    """n floats as bytes of F32."""
    return struct.pack(f"<{n}f", *(mean + std * _uniform(b) for b in random_bytes(seed, n)))
