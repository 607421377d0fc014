"""Reads KV events as a router does, and knows from them which server has which beginning of a text.
libzmq by ctypes and msgpack by hand, so that no package is needed.

What it keeps is a table of pages for each topic: a page's tokens under the hash of the page before
it. So it finds a prompt's beginning by tokens, whatever hashes the server uses."""

import ctypes
import ctypes.util
import struct

SUB, DEALER, SUBSCRIBE, LAST_ENDPOINT, LINGER, RCVMORE, RCVTIMEO = 2, 5, 6, 32, 17, 13, 27


def library():
    """libzmq; None: it is not there."""
    for name in (ctypes.util.find_library("zmq"), "libzmq.so.5"):
        try:
            z = ctypes.CDLL(name) if name else None
        except OSError:
            z = None
        if z is not None:
            z.zmq_ctx_new.restype = z.zmq_socket.restype = ctypes.c_void_p
            return z
    return None


class Socket:
    def __init__(self, z, kind):
        self.z = z
        self.context = ctypes.c_void_p(z.zmq_ctx_new())
        self.socket = ctypes.c_void_p(z.zmq_socket(self.context, kind))
        self.set(LINGER, 0)

    def set(self, option, value):
        if isinstance(value, bytes):
            self.z.zmq_setsockopt(self.socket, option, value, len(value))
        else:
            n = ctypes.c_int(value)
            self.z.zmq_setsockopt(self.socket, option, ctypes.byref(n), 4)

    def bind(self):
        """On any port; the endpoint."""
        self.z.zmq_bind(self.socket, b"tcp://127.0.0.1:*")
        text, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
        self.z.zmq_getsockopt(self.socket, LAST_ENDPOINT, text, ctypes.byref(size))
        return text.value.decode()

    def connect(self, endpoint):
        self.z.zmq_connect(self.socket, endpoint.encode())

    def send(self, *frames):
        for i, frame in enumerate(frames):
            self.z.zmq_send(self.socket, frame, len(frame), 2 if i + 1 < len(frames) else 0)

    def receive(self, wait_ms):
        """Frames of a message; None: there is none."""
        frames = []
        self.set(RCVTIMEO, wait_ms)
        while True:
            buf = ctypes.create_string_buffer(1 << 20)
            n = self.z.zmq_recv(self.socket, buf, len(buf), 0)
            if n < 0:
                return None
            frames.append(buf.raw[:n])
            more, size = ctypes.c_int(), ctypes.c_size_t(4)
            self.z.zmq_getsockopt(self.socket, RCVMORE, ctypes.byref(more), ctypes.byref(size))
            if not more.value:
                return frames

    def close(self):
        self.z.zmq_close(self.socket)
        self.z.zmq_ctx_term(self.context)


def unpack(data, at=0):
    """A value of msgpack, of the types that events have, and where the next one begins."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind == 0xc0:
        return None, at
    if kind == 0xcb:
        return struct.unpack_from(">d", data, at)[0], at + 8
    if 0xcc <= kind <= 0xcf:
        size = 1 << (kind - 0xcc)
        return int.from_bytes(data[at:at + size], "big"), at + size
    if 0xa0 <= kind < 0xc0:
        return data[at:at + kind - 0xa0].decode(), at + kind - 0xa0
    if 0x90 <= kind < 0xa0:
        n = kind - 0x90
    elif kind in (0xdc, 0xdd):
        size = 2 if kind == 0xdc else 4
        n, at = int.from_bytes(data[at:at + size], "big"), at + size
    else:
        raise ValueError(f"type {kind:#x}")
    values = []
    for _ in range(n):
        value, at = unpack(data, at)
        values.append(value)
    return values, at


class Reader:
    """A router's knowledge of servers, by their topics."""

    def __init__(self, z):
        self.socket = Socket(z, SUB)
        self.socket.set(SUBSCRIBE, b"kv@")
        self.endpoint = self.socket.bind()
        self.pages = {}   # of a topic: (parent, tokens) to hash
        self.next = {}    # of a topic: the counter that comes next
        self.missed = 0
        self.n_batch = 0

    def close(self):
        self.socket.close()

    def take(self, topic, counter, payload):
        self.missed += counter - self.next.get(topic, counter)
        self.next[topic] = counter + 1
        self.n_batch += 1
        pages = self.pages.setdefault(topic, {})
        (_, events, _), end = unpack(payload)
        assert end == len(payload)
        for event in events:
            if event[0] == "BlockStored":
                _, hashes, parent, tokens, size, _, _ = event
                for i, name in enumerate(hashes):
                    pages[parent, tuple(tokens[i * size:(i + 1) * size])] = name
                    parent = name
            elif event[0] == "BlockRemoved":
                gone = set(event[1])
                for page in [p for p, name in pages.items() if name in gone]:
                    del pages[page]
            else:
                pages.clear()

    def read(self, wait_ms=0):
        """Takes what has come; whether there was anything."""
        any_came = False
        while True:
            frames = self.socket.receive(0 if any_came else wait_ms)
            if frames is None:
                return any_came
            any_came = True
            topic, counter, payload = frames
            self.take(topic.decode(), int.from_bytes(counter, "big"), payload)

    def known(self, topic, tokens):
        """How many of the first tokens a server has, of which the last is always read again."""
        pages = self.pages.get(topic, {})
        size = len(next(iter(pages))[1]) if pages else 1
        at, parent = 0, None
        while at + size < len(tokens):
            parent = pages.get((parent, tuple(tokens[at:at + size])))
            if parent is None:
                break
            at += size
        return at
