"""A model hub for tests: the list of a repository's files, and files behind a redirect to another
port, as the public one has them. It can be wrong in the ways that `wrong` names.

hub = Hub({"USER/REPO": {"FILE": bytes}}); hub.url; hub.log; hub.wrong["cut"] = 2; hub.close()
"""
import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "Bearer hf_test"


class Hub:
    """wrong: entry (so each entry of the list is changed), list (a status and a body instead of it),
    next (the address of a list's next page), store (the status of every file), cut (so many answers break off in the middle), sum (the list names a wrong one), busy
    (so many answers are 503), whole (ranges are not known), auth (a token is wanted), many (a page
    of the list has so many files), long (a byte too many comes), stall (files come slowly)."""

    def __init__(self, repos):
        self.repos = repos
        self.wrong = {}
        self.log = []  # (where, path, headers)
        self.lock = threading.Lock()
        self.store = self.start("store")
        self.front = self.start("front")
        self.url = f"http://127.0.0.1:{self.front.server_address[1]}"

    def start(self, where):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                with hub.lock:
                    hub.log.append((where, self.path, dict(self.headers)))
                getattr(hub, where + "_get")(self)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *args: None  # whoever asked went away
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        for server in (self.front, self.store):
            server.shutdown()
            server.server_close()

    def counts_down(self, what):
        with self.lock:
            n = self.wrong.get(what, 0)
            self.wrong[what] = max(0, n - 1)
            return n > 0

    @staticmethod
    def answer(h, status, body=b"", **headers):
        h.send_response(status)
        for name, text in headers.items():
            h.send_header(name.replace("_", "-"), text)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def front_get(self, h):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path).strip("/").split("/")
        query = urllib.parse.parse_qs(url.query)
        if self.wrong.get("auth") and h.headers.get("Authorization") != TOKEN:
            return self.answer(h, 401, b"{}")
        if self.counts_down("busy"):
            return self.answer(h, 503, b"<html>busy</html>")
        if path[:2] == ["api", "models"] and path[4:] == ["tree", "main"]:
            return self.list(h, "/".join(path[2:4]), int(query.get("at", ["0"])[0]))
        repo = "/".join(path[:2])
        if path[2:4] == ["resolve", "main"] and "/".join(path[4:]) in self.repos.get(repo, {}):
            port = self.store.server_address[1]
            there = urllib.parse.quote(f"/{repo}/{'/'.join(path[4:])}") + "?signed=1"
            return self.answer(h, 302, Location=f"http://127.0.0.1:{port}{there}")
        return self.answer(h, 404, b"{}")

    def list(self, h, repo, at):
        if repo not in self.repos:
            return self.answer(h, 404, b"{}")
        if "list" in self.wrong:
            return self.answer(h, *self.wrong["list"])
        entries = [{"type": "directory", "path": "folder", "oid": "0"}]
        for path, data in self.repos[repo].items():
            entry = {"type": "file", "path": path, "size": len(data), "oid": "1"}
            if path.endswith(".gguf"):
                oid = hashlib.sha256(data + b"?" * bool(self.wrong.get("sum"))).hexdigest()
                entry["size"] = 134
                entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 134}
            entry.update(self.wrong.get("entry", {}))
            entries.append(entry)
        step = self.wrong.get("many") or len(entries)
        more = {}
        if at + step < len(entries):
            more["Link"] = f'<{self.url}/api/models/{repo}/tree/main?at={at + step}>; rel="next"'
        if "next" in self.wrong:
            more["Link"] = f'<{self.wrong["next"]}>; rel="next"'
        self.answer(h, 200, json.dumps(entries[at:at + step]).encode(), **more)

    def store_get(self, h):
        path = urllib.parse.unquote(urllib.parse.urlsplit(h.path).path).strip("/").split("/")
        data = self.repos["/".join(path[:2])]["/".join(path[2:])]
        data += b"!" * bool(self.wrong.get("long"))
        if "store" in self.wrong:
            return self.answer(h, self.wrong["store"])
        asked, begin = h.headers.get("Range"), 0
        if asked and not self.wrong.get("whole"):
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            if begin >= len(data):
                return self.answer(h, 416)
            h.send_response(206)
            h.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        else:
            h.send_response(200)
        rest = data[begin:]
        h.send_header("Content-Length", str(len(rest)))
        h.send_header("ETag", '"store"')
        h.end_headers()
        if self.wrong.get("stall"):
            self.stall(h, rest)
        elif self.counts_down("cut"):
            h.wfile.write(rest[:max(1, len(rest) // 2)])
            h.close_connection = True
            h.connection.shutdown(2)
        else:
            h.wfile.write(rest)

    def stall(self, h, rest):
        try:
            for at in range(0, len(rest), max(1, len(rest) // 100)):
                h.wfile.write(rest[at:at + max(1, len(rest) // 100)])
                threading.Event().wait(0.05)
        except OSError:  # whoever asked went away
            h.close_connection = True
