"""A stand-in for `pith serve` that plays a recording of view_record to the live page, so that the
page can be tested without a model in reach of HTTP.

A recording has lines {"view": document} and {"say": text}. The first document, a snapshot, greets
each watcher. POST /v1/chat/completions plays what follows: documents to those who watch, text to
the one who asked.
"""
import json
import os
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Player:
    def __init__(self, lines, folder, key=None, pause=0.2, as_recorded=False):
        self.lines = [json.loads(line) for line in lines]
        self.folder = folder        # of the page's files
        self.key = key
        self.pause = pause          # seconds between documents
        self.as_recorded = as_recorded  # or as long as it took
        self.lock = threading.Condition()
        self.sent = [json.dumps(self.first())]  # documents so far; a watcher begins with all
        self.may_round = threading.Event()  # until it is set, documents with a round wait
        self.may_round.set()
        self.cancelled = []
        self.followed = []
        self.asked = []
        self.sessions = []          # the names that requests came with
        self.replies = []           # lists of texts and events, in place of the recording
        self.may_reply = threading.Event()
        self.may_reply.set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def first(self):
        return next(line["view"] for line in self.lines if "view" in line)

    def put(self, document):
        """Sends a document to all who watch, without those requests that were cancelled."""
        document = dict(document)
        document["requests"] = [r for r in document["requests"] if r["id"] not in self.cancelled]
        document["totals"] = dict(document["totals"], cancelled=len(self.cancelled),
                                  waiting=sum(r["state"] == "waiting" for r in document["requests"]))
        with self.lock:
            self.sent.append(json.dumps(document))
            self.lock.notify_all()

    def again(self):
        """The state as it is, once more."""
        last = json.loads(self.sent[-1])
        last.update(type="delta", events=[], frames=[])
        if last["followed"] is not None:
            last["followed"] = dict(last["followed"], gone={}, whole={}, text=[], text_from=0)
            last["followed"].pop("lanes", None)
        self.put(last)

    def play(self, say):
        begin, first = time.monotonic(), self.first()["time"]
        for line in self.lines[1:]:
            if "say" in line:
                say(line["say"])
                continue
            document = line["view"]
            wait = document["time"] - first - (time.monotonic() - begin) if self.as_recorded else self.pause
            time.sleep(max(0, wait))
            if any(e["kind"] == "round" for e in document["events"]):
                self.may_round.wait(120)
            if document["type"] == "delta":
                self.put(document)

    def handler(player):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, data, kind="application/json", status=200):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def file(self, name):
                kind = {"html": "html", "css": "css", "js": "javascript"}[name.split(".")[-1]]
                with open(os.path.join(player.folder, name), "rb") as f:
                    self.answer(f.read(), f"text/{kind}; charset=utf-8")

            def refuse(self, status, message):
                self.answer(json.dumps({"error": {"message": message}}).encode(), status=status)

            def stream(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True

            def event(self, text):
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()

            def locked(self):
                if player.key is None or self.headers.get("Authorization") == "Bearer " + player.key:
                    return False
                self.refuse(401, "an API key is needed")
                return True

            def do_GET(self):
                path = self.path.split("?")[0]
                if path == "/" or path.startswith("/page/"):
                    self.file("index.html" if path == "/" else os.path.basename(path))
                elif self.locked():
                    pass
                elif path == "/kv/events":
                    player.sessions.append(self.headers.get("X-Session-ID"))
                    self.stream()
                    self.watch()
                elif path == "/props":
                    self.answer(b"{}")
                else:
                    self.refuse(404, "no such page")

            def watch(self):
                n = 0
                try:
                    while True:
                        with player.lock:
                            if n == len(player.sent):
                                player.lock.wait(0.2)
                            new = player.sent[n:]
                        for text in new:
                            self.event(text)
                        n += len(new)
                except OSError:
                    pass

            def do_POST(self):
                url = urllib.parse.urlparse(self.path)
                query = urllib.parse.parse_qs(url.query)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.locked():
                    return
                if url.path == "/kv/cancel":
                    player.cancelled.append(int(query["id"][0]))
                    self.answer(b"{}")
                    player.again()
                elif url.path == "/kv/follow":
                    player.followed.append(int(query["id"][0]))
                    self.answer(b"{}")
                elif url.path == "/v1/chat/completions":
                    player.asked.append(json.loads(body))
                    player.sessions.append(self.headers.get("X-Session-ID"))
                    self.stream()
                    try:
                        self.reply()
                        self.event(json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
                        self.event("[DONE]")
                    except OSError:
                        pass
                else:
                    self.refuse(404, "no such page")

            def reply(self):
                if not player.replies:
                    player.play(self.say)
                    return
                reply = player.replies.pop(0)
                for event in reply:
                    player.may_reply.wait(120)
                    if isinstance(event, str):
                        self.say(event)
                    else:
                        self.event(json.dumps({"choices": [], **event}))
                    time.sleep(0.02)

            def say(self, text):
                self.event(json.dumps({"choices": [{"delta": {"content": text}}]}))

        return Handler

    def close(self):
        self.server.shutdown()
        self.server.server_close()
