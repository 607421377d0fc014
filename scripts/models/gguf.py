"""GGUF version 3 files, little-endian: a streaming writer and a reader. Standard library only.

Knows the container and nothing of models. Metadata values are kept encoded, so that entries copied
from another file keep their bytes.
"""
import mmap
import struct

ALIGNMENT = 32
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALAR = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?",
          U64: "<Q", I64: "<q", F64: "<d"}

# Weight types: number in the file, weights of a block, bytes of a block.
DTYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q8_0": (8, 32, 34),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
}
DTYPE_NAMES = {number: name for name, (number, _, _) in DTYPES.items()}


def tensor_bytes(dtype, shape):
    """Bytes of a tensor of that shape, slowest dimension first; rows are whole blocks."""
    _, block_len, block_bytes = DTYPES[dtype]
    if shape[-1] % block_len:
        raise ValueError(f"a row of {shape[-1]} weights is no whole number of {dtype} blocks")
    n = block_bytes * (shape[-1] // block_len)
    for dim in shape[:-1]:
        n *= dim
    return n


def _string(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    return _string(value) if kind == STRING else struct.pack(SCALAR[kind], value)


class Writer:
    """Collects metadata and tensor heads; write() then streams the data of each tensor."""

    def __init__(self):
        self.entries = []  # encoded key-value pairs
        self.tensors = []  # (name, dtype, shape, chunks)

    def add(self, key, kind, value):
        self.entries.append(_string(key) + struct.pack("<I", kind) + _value(kind, value))

    def add_array(self, key, kind, values):
        head = _string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
        self.entries.append(head + b"".join(_value(kind, v) for v in values))

    def add_encoded(self, key, encoded):
        """encoded: type and value as Reader.metadata holds them."""
        self.entries.append(_string(key) + encoded)

    def add_tensor(self, name, dtype, shape, chunks):
        """shape: slowest dimension first. chunks: an iterable of bytes, read by write()."""
        self.tensors.append((name, dtype, shape, chunks))

    def write(self, path):
        heads, offset = b"", 0
        for name, dtype, shape, _ in self.tensors:
            heads += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
            heads += struct.pack("<IQ", DTYPES[dtype][0], offset)
            offset += -(-tensor_bytes(dtype, shape) // ALIGNMENT) * ALIGNMENT
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.entries))
        head += b"".join(self.entries) + heads
        with open(path, "wb") as file:
            file.write(head + bytes(-len(head) % ALIGNMENT))
            for name, dtype, shape, chunks in self.tensors:
                size = 0
                for chunk in chunks:
                    size += file.write(chunk)
                if size != tensor_bytes(dtype, shape):
                    raise ValueError(f"{name}: {size} bytes, {tensor_bytes(dtype, shape)} expected")
                file.write(bytes(-size % ALIGNMENT))


class Reader:
    """A file's metadata (key -> encoded type and value) and tensors (name -> dtype, shape, data)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, version, n_tensor, n_entry = struct.unpack_from("<4sIQQ", self.data, 0)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        self.at, self.metadata, heads = 24, {}, []
        for _ in range(n_entry):
            key, begin = self._take_string().decode(), self.at
            self._skip(self._take("<I"))
            self.metadata[key] = self.data[begin:self.at]
        for _ in range(n_tensor):
            name, n_dim = self._take_string().decode(), self._take("<I")
            shape = [self._take("<Q") for _ in range(n_dim)][::-1]
            heads.append((name, DTYPE_NAMES[self._take("<I")], shape, self._take("<Q")))
        alignment = self.value("general.alignment", ALIGNMENT)
        start = -(-self.at // alignment) * alignment
        self.tensors = {}
        for name, dtype, shape, offset in heads:
            begin = start + offset
            self.tensors[name] = (dtype, shape, self.data[begin:begin + tensor_bytes(dtype, shape)])

    def value(self, key, default=None):
        """A scalar or string; for an array its number of items."""
        encoded = self.metadata.get(key)
        if encoded is None:
            return default
        kind, = struct.unpack_from("<I", encoded)
        if kind == ARRAY:
            return struct.unpack_from("<Q", encoded, 8)[0]
        if kind == STRING:
            return encoded[12:].decode()
        return struct.unpack_from(SCALAR[kind], encoded, 4)[0]

    def _take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _take_string(self):
        size = self._take("<Q")
        self.at += size
        return self.data[self.at - size:self.at]

    def _skip(self, kind):
        if kind == STRING:
            self._take_string()
        elif kind == ARRAY:
            item, count = self._take("<I"), self._take("<Q")
            if item == STRING:
                for _ in range(count):
                    self._take_string()
            else:
                self.at += count * struct.calcsize(SCALAR[item])
        else:
            self.at += struct.calcsize(SCALAR[kind])
