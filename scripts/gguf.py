"""Writes GGUF version 3 files, little-endian: a header, metadata, tensor heads and aligned tensor
data. Standard library only."""
import struct

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING = 4, 5, 6, 7, 8
ARRAY = 9
SCALAR = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
TENSOR_F32, TENSOR_F16 = 0, 1
TENSOR_BYTES = {TENSOR_F32: 4, TENSOR_F16: 2}


def _string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    return _string(value) if kind == STRING else struct.pack(SCALAR[kind], value)


class Writer:
    def __init__(self):
        self.metadata, self.tensors = [], []

    def add(self, key, kind, value):
        self.metadata.append(_string(key) + struct.pack("<I", kind) + _value(kind, value))

    def add_array(self, key, kind, values):
        head = _string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
        self.metadata.append(head + b"".join(_value(kind, v) for v in values))

    def add_tensor(self, name, kind, shape, data):
        """shape: slowest dimension first (GGUF names the fastest first). data: bytes, C order."""
        n = TENSOR_BYTES[kind]
        for dim in shape:
            n *= dim
        if len(data) != n:
            raise ValueError(f"{name}: {len(data)} bytes where the shape {shape} needs {n}")
        self.tensors.append((name, kind, tuple(shape), data))

    def write(self, path):
        """Returns the file's size in bytes."""
        heads, offset = b"", 0
        for name, kind, shape, data in self.tensors:
            heads += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
            heads += struct.pack("<IQ", kind, offset)
            offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))
        head += b"".join(self.metadata) + heads
        head += bytes(-len(head) % ALIGNMENT)
        with open(path, "wb") as file:
            file.write(head)
            for _, _, _, data in self.tensors:
                file.write(data + bytes(-len(data) % ALIGNMENT))
        return len(head) + offset
        return len(head) + offset
