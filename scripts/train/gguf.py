"""Writes GGUF version 3: a header, metadata, tensor descriptions, and aligned tensor data."""
import struct

import numpy as np

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TENSOR_TYPE = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}


def _string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _scalar(kind, value):
    if kind == STRING:
        return _string(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


class Writer:
    def __init__(self):
        self.metadata, self.tensors = [], []

    def add(self, key, kind, value):
        self.metadata.append(_string(key) + struct.pack("<I", kind) + _scalar(kind, value))

    def add_array(self, key, kind, values):
        head = _string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
        self.metadata.append(head + b"".join(_scalar(kind, v) for v in values))

    def add_tensor(self, name, array):
        """array: C order, slowest dimension first; GGUF names the fastest first."""
        self.tensors.append((name, np.ascontiguousarray(array)))

    def write(self, path):
        description, data = b"", b""
        for name, array in self.tensors:
            description += _string(name) + struct.pack("<I", array.ndim)
            description += struct.pack(f"<{array.ndim}Q", *array.shape[::-1])
            description += struct.pack("<IQ", TENSOR_TYPE[array.dtype], len(data))
            data += array.tobytes()
            data += b"\0" * (-len(data) % ALIGNMENT)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))
        head += b"".join(self.metadata) + description
        head += b"\0" * (-len(head) % ALIGNMENT)
        with open(path, "wb") as f:
            f.write(head + data)
        return len(head) + len(data)
