"""The endpoints of an outside store of recall, as longctx-svc has them, for tests: keeps what is
written, finds every span that shares a word with the query, and appends each request to a log.

usage: recall_server.py LOG [MODE]

Prints its port and serves until it is killed. MODE is one way to be wrong: fail (status 500), hang,
garbage (no JSON), empty (no bytes), list (another JSON), odd (chunks with fields that are missing),
redirect (to another place on the same port, where nobody may come), few (accepts all but one), big
(an answer that never ends).
"""
import json
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOG = sys.argv[1]
MODE = sys.argv[2] if len(sys.argv) > 2 else ""
sessions = {}
lock = threading.Lock()


def words(text):
    return set(re.findall("[a-z0-9]+", text.lower()))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, value, status=200, headers=()):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def wrong(self):
        """Answers wrongly where the mode asks for it."""
        if MODE == "fail":
            self.answer({"detail": "no"}, 500)
        elif MODE == "hang":
            threading.Event().wait(20)
        elif MODE == "garbage":
            self.answer(b"<html>\xff{")
        elif MODE == "empty":
            self.answer(b"")
        elif MODE == "list":
            self.answer([1, 2])
        elif MODE == "odd":
            self.answer({"accepted": "1", "chunks": [{"text": "x", "token_range": [1]}],
                         "token_ranges": [[1, 2]], "layers": [], "scores": []})
        elif MODE == "redirect" and not self.path.startswith("/elsewhere"):
            self.answer(b"", 307, [("Location", "/elsewhere" + self.path)])
        elif MODE == "big":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * 65536)
            except OSError:
                pass
            self.close_connection = True
        else:
            return False
        return True

    def note(self, body):
        with lock, open(LOG, "a", encoding="utf-8") as log:
            kind = self.headers.get("Content-Type", "-")
            log.write(f"{self.command} {self.path} {kind} {body}\n")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.note(body)
        if self.wrong():
            return
        request = json.loads(body)
        chunks = sessions.setdefault(request["session_id"], [])
        if self.path == "/evict/write":
            chunks += request["chunks"]
            n = len(request["chunks"]) - (MODE == "few")
            self.answer({"accepted": n, "session_total": len(chunks)})
        elif self.path == "/evict/retrieve":
            wanted = words(request["query"])
            found = [c for c in chunks if words(c["text"]) & wanted]
            self.answer({"chunks": found[:request["top_k"]], "session_total": len(chunks)})
        else:
            self.answer({"detail": "Not Found"}, 404)

    def do_GET(self):
        self.note("")
        if self.wrong():
            return
        url = urllib.parse.urlsplit(self.path)
        name = urllib.parse.parse_qs(url.query).get("session_id", [""])[0]
        chunks = sessions.get(name, [])
        if url.path != "/evict/dump":
            self.answer({"detail": "Not Found"}, 404)
            return
        self.answer({"session_id": name, "session_total": len(chunks),
                     "token_ranges": [c["token_range"] for c in chunks],
                     "layers": [c["layer"] for c in chunks],
                     "scores": [c["score"] for c in chunks]})


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
