#!/usr/bin/env python3
"""`pith serve` with conversations whose clients name no slot, and streams that never fall
silent."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import server_rig as rig

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
TEXT = os.path.join(ROOT, "models", "demo", "prompt-2k.txt")
NAMES = ["Otto", "Maria", "Walter", "Victor", "Martin", "Anna", "Peter", "Laura"]
LONG = {"prompt": "The friend of Otto is", "n_predict": 7500, "ignore_eos": True, "stream": True}
PROMPT = "The friend of Otto is Maria. " * 900  # some 7000 tokens


SOON_S = 20  # a second, beside other work; what is waited for ends with the test only


class Talk:
    """A conversation: each turn sends all that was said, as clients do."""

    def __init__(self, server, name, path="/v1/chat/completions", headers=None, **more):
        self.s, self.name, self.path, self.headers = server, name, path, headers
        self.more = dict({"temperature": 0, "max_tokens": 12}, **more)
        self.messages, self.n_prompt, self.n_earlier, self.answers = [], 0, 0, []
        self.cached, self.earlier = 0, 0  # of turns behind the first
        self.pith = {}

    def body(self, text):
        self.messages.append({"role": "user", "content": text})
        return dict(self.more, messages=self.messages)

    def text(self, turn):
        return (f"{self.name} says that the friend of {self.name} is {NAMES[turn % 8]}. "
                f"Then {self.name} went to the blue castle. " * 2 + "Who is it?")

    def turn(self, text=None):
        a = self.s.post(self.path, self.body(text or self.text(len(self.answers))),
                        headers=self.headers)
        assert a.code == 200, a.body
        a = a.json()
        usage = a["usage"]
        n_prompt = usage.get("prompt_tokens") or usage["input_tokens"] + \
            usage.get("cache_read_input_tokens", 0)
        n_answer = usage.get("completion_tokens", usage.get("output_tokens"))
        if "choices" in a:
            answer = a["choices"][0]["message"]["content"]
        elif "output" in a:
            answer = a["output"][0]["content"][0]["text"]
        else:
            answer = a["content"][0]["text"]
        self.pith = usage["pith"]
        self.cached += self.pith["cached_tokens"] if self.answers else 0
        self.earlier += self.n_earlier
        self.n_earlier = n_prompt + n_answer
        self.n_prompt = n_prompt
        self.answers.append(answer)
        self.messages.append({"role": "assistant", "content": answer})
        return self.pith


class Found(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.stats = os.path.join(cls.folder.name, "mini.stats")
        subprocess.run([rig.PITH, "calibrate", "importance", "-m", rig.MODEL, "-f", TEXT, "-o", cls.stats,
                        "--pieces", "4", "-c", "400", "-t", "1", "-q"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def keeps(self):
        return ((f"kvzap:stats={self.stats},budget=25%,window=16,slack=16", "none"),
                (f"triattention:v3,stats={self.stats},budget=25%,window=16,slack=16", "none"),
                ("streaming:budget=25%,slack=16", "kv:take=25%,last=8,ram=64MiB"))

    def test_each_turn_is_read_once(self):
        """The case of an OpenAI client under --keep: what a turn reads are its new tokens."""
        keeps = [k + ([],) for k in self.keeps()] + [
            ("h2o:budget=64,slack=16", "none", []), ("none", "none", []),
            ("longflow:budget=64,slack=16", "none", []), ("none", "none", ["--read", "quoka:budget=64,chunk=16,gate=1"])]
        for keep, recall, more in keeps:
            with rig.Server("--page", "16", "--keep", keep, "--recall", recall, *more) as s:
                paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
                for i, path in enumerate(paths if keep == keeps[0][0] else paths[:1]):
                    talk = Talk(s, ("Otto", "Victor", "Peter")[i], path)
                    if path == "/v1/responses":
                        talk.body = lambda text, t=talk: dict(
                            temperature=0, max_output_tokens=12,
                            input=t.messages.append({"role": "user", "content": text})
                            or t.messages)
                    for turn in range(4):
                        before = talk.n_prompt
                        pith = talk.turn()
                        if turn > 0:
                            self.assertGreaterEqual(pith["cached_tokens"], before,
                                                    (keep, path, turn, pith))
                            self.assertEqual(pith["cache_from"], "conversation")
                        self.assertEqual(pith["cached_tokens"] + pith["read_tokens"],
                                         talk.n_prompt)
                    # A control token in an answer is not in its text: that answer is read again.
                    self.assertGreaterEqual(talk.cached / talk.earlier, 0.85, (keep, path))
                    if keep != "none" and path == "/v1/chat/completions":
                        self.assertGreater(s.metric("pith_kv_evicted_entries_total"), 0, keep)
                self.assertGreaterEqual(s.metric("pith_conversations_found_total"), 3)
                self.assertGreater(s.metric("pith_conversation_tokens_total"), 0)

    def test_eight_clients_of_five_turns(self):
        """Unknown clients at the same time: nearly all of earlier turns is found, and the answers
        are those of a slot for each."""
        for keep, recall in self.keeps()[2 * rig.is_sanitized():]:
            options = ("--page", "16", "-np", "4", "--keep", keep, "--recall", recall)
            with rig.Server(*options) as s:
                slots = [Talk(s, n, id_slot=i) for i, n in enumerate(NAMES)]
                rig.together([lambda t=t: [t.turn() for _ in range(5)] for t in slots])
            with rig.Server(*options) as s:
                talks = [Talk(s, n) for n in NAMES]
                rig.together([lambda t=t: [t.turn() for _ in range(5)] for t in talks])
                self.assertEqual(s.metric("pith_parked_dropped_total"), 0)
            cached, earlier = sum(t.cached for t in talks), sum(t.earlier for t in talks)
            self.assertGreater(earlier, 2500)
            self.assertGreaterEqual(cached / earlier, 0.95, (keep, cached, earlier))
            for a, b in zip(slots, talks):
                self.assertEqual(a.answers, b.answers, keep)

    def test_two_tabs_in_one_slot(self):
        """Both name slot 0, as two tabs of a page do: neither loses its conversation."""
        for keep, _ in self.keeps()[:1]:
            with rig.Server("--page", "16", "--keep", keep, "--recall", "none") as s:
                tabs = [Talk(s, "Otto", id_slot=0, session_id="a"),
                        Talk(s, "Walter", id_slot=0, session_id="b")]
                for turn in range(4):
                    for t in tabs:
                        before = t.n_earlier
                        pith = t.turn()
                        if turn > 0:
                            self.assertGreaterEqual(pith["cached_tokens"], before - 2, pith)

    def test_another_answer_and_edits(self):
        """Asking again goes on from before the answer, though a policy has evicted since; a
        history without what was thought or that was edited does, too."""
        for keep, recall in self.keeps():
            with rig.Server("--page", "16", "--keep", keep, "--recall", recall) as s:
                talk = Talk(s, "Otto")
                for _ in range(3):
                    talk.turn()
                n = talk.n_prompt
                again = dict(talk.more, messages=talk.messages[:-1])
                a = s.post("/v1/chat/completions", again).json()
                self.assertEqual(a["usage"]["pith"]["cached_tokens"], n, keep)
                self.assertEqual(a["choices"][0]["message"]["content"], talk.answers[-1], keep)
                edited = talk.messages[:-1] + [{"role": "assistant", "content": "It is Maria."},
                                               {"role": "user", "content": "And now?"}]
                pith = s.post("/v1/chat/completions",
                              dict(talk.more, messages=edited)).json()["usage"]["pith"]
                self.assertGreaterEqual(pith["cached_tokens"], n, keep)
                first = [{"role": "user", "content": talk.messages[0]["content"][:200]}]
                pith = s.post("/v1/chat/completions",
                              dict(talk.more, messages=first)).json()["usage"]["pith"]
                self.assertLess(pith["cached_tokens"], 200)

    def test_names_of_conversations(self):
        """Of two that begin alike and have as much of the prompt the named one goes on."""
        forms = ({"session_id": "NAME"}, {"prompt_cache_key": "NAME"}, {"user": "NAME"},
                 {"metadata": {"session_id": "NAME"}}, {"metadata": {"user_id": "NAME"}}, None)
        with rig.Server("--page", "16", "--no-prefix") as s:  # which finds nothing by tokens
            talk = Talk(s, "Otto")
            talk.turn()
            self.assertEqual(talk.turn()["cache_why"], "off")
            self.assertEqual(talk.pith["cached_tokens"], 0)
        with rig.Server("--page", "16") as s:
            for form in forms:
                def named(name):
                    more = json.loads(json.dumps(form or {}).replace("NAME", name))
                    headers = {"X-Session-ID": name} if form is None else None
                    return more, headers
                opening = [{"role": "user", "content": f"{form} " * 20}]

                def ask(name, text, n):
                    more, headers = named(name)
                    body = dict(more, messages=opening + [{"role": "user", "content": text}],
                                max_tokens=n, temperature=0, ignore_eos=True)
                    return s.post("/v1/chat/completions", body, headers=headers).json()["usage"]

                ask("a", "one and two and three", 4)
                ask("b", "four and five and six", 4)
                # it says something else now: which of the two is it told that it differs from?
                said = ask("a", "one and two and nine", 1)["pith"]
                self.assertEqual(said["cache_why"], "differs", form)
                self.assertGreater(said["cached_tokens"], 20)
            self.assertEqual(s.post("/v1/chat/completions", {
                "messages": opening, "max_tokens": 1, "user": 7, "metadata": "x",
                "session_id": None}).code, 200)

    def test_salts_keep_users_apart(self):
        """A conversation of another salt is not found, by tokens nor by name, and nothing says that
        it is there."""
        keep = self.keeps()[0][0]
        with rig.Server("--page", "16", "--keep", keep, "--recall", "none") as s:
            mine = Talk(s, "Otto", cache_salt="a", session_id="x")
            mine.turn(), mine.turn()
            other = Talk(s, "Otto", cache_salt="b", session_id="x")
            other.messages = list(mine.messages[:2])
            pith = other.turn()
            self.assertEqual((pith["cached_tokens"], pith["cache_why"]), (0, "new"))
            self.assertGreater(mine.turn()["cached_tokens"], 100)
            off = Talk(s, "Otto", cache_prompt=False)
            off.turn()
            self.assertEqual(off.turn()["cache_why"], "off")
            self.assertEqual(off.pith["cached_tokens"], 0)

    def test_a_slot_keeps_what_it_holds_beside_cache_prompt_false(self):
        with rig.Server("--page", "16") as s:
            mine = Talk(s, "Otto", id_slot=1)
            mine.turn()
            before = s.get("/slots").json()[1]
            off = Talk(s, "Maria", id_slot=1, cache_prompt=False)
            off.turn()
            self.assertEqual(s.get("/slots").json()[1], before)
            self.assertGreater(mine.turn()["cached_tokens"], 16)

    def test_memory_drops_what_was_used_longest_ago(self):
        keep = "streaming:budget=64,slack=16"
        with rig.Server("--page", "16", "--keep", keep, "--recall", "none", "--kv-memory", "400KiB",
                        "--swap", "0", "-np", "1") as s:
            talks = [Talk(s, n) for n in NAMES]
            for t in talks:
                t.turn()
            self.assertGreater(s.metric("pith_parked_dropped_total"), 0)
            self.assertEqual(talks[-1].turn()["cache_from"], "conversation")
            before = s.metric("pith_reuse_dropped_total")
            pith = talks[0].turn()
            self.assertEqual((pith["cached_tokens"], pith["cache_why"]), (0, "dropped"))
            self.assertEqual(s.metric("pith_reuse_dropped_total"), before + 1)

    def test_memory_swaps_what_was_used_longest_ago(self):
        keep = "streaming:budget=64,slack=16"
        with rig.Server("--page", "16", "--keep", keep, "--recall", "none", "--kv-memory", "400KiB",
                        "-np", "1") as s:
            talks = [Talk(s, n) for n in NAMES]
            for t in talks:
                t.turn()
            self.assertGreater(s.metric("pith_parked_swapped"), 0)
            self.assertGreater(s.metric("pith_swapped_bytes"), 0)
            self.assertEqual(s.metric("pith_parked_dropped_total"), 0)
            for t in talks:
                self.assertEqual(t.turn()["cache_from"], "conversation")
            self.assertEqual(s.metric("pith_reuse_dropped_total"), 0)

    def test_many_more_than_slots(self):
        """Conversations that name no slot are as many as there is memory for."""
        with rig.Server("--page", "16", "--slot-count", "2") as s:
            talks = [Talk(s, f"Number {i}", max_tokens=2) for i in range(20)]
            for t in talks:
                t.turn()
            s.until("pith_parked_slots", 20)
            for t in talks:
                before = t.n_earlier
                self.assertGreaterEqual(t.turn()["cached_tokens"], before - 2)
            listed = s.get("/slots").json()
            self.assertEqual([i["state"] for i in listed[:2]], ["empty", "empty"])
            self.assertEqual(sum(i["state"] == "parked" for i in listed), 20)

    def test_several_answers_go_on_from_one(self):
        for keep, recall in self.keeps():
            with rig.Server("--page", "16", "--keep", keep, "--recall", recall) as s:
                talk = Talk(s, "Otto")
                talk.turn(), talk.turn()
                n = talk.n_earlier
                body = dict(talk.body("And now?"), n=2)
                a = s.post("/v1/chat/completions", body).json()
                self.assertGreaterEqual(a["usage"]["pith"]["cached_tokens"], n - 2)
                said = [c["message"]["content"] for c in a["choices"]]
                talk.messages.pop()
                self.assertGreaterEqual(talk.turn("And now?")["cached_tokens"], n - 2)
                self.assertEqual(said, 2 * talk.answers[-1:], keep)  # copies are exact


class Stream:
    """The lines of a stream with the time at which each came."""

    def __init__(self, server, path, body):
        self.start = time.monotonic()
        self.connection = server.connect()
        self.connection.request("POST", path, body=json.dumps(body))
        self.response = self.connection.getresponse()
        self.code = self.response.status
        self.headers_s = time.monotonic() - self.start

    def line(self):
        """(seconds, line) of the next line that says something; None: the end."""
        while True:
            line = self.response.readline()
            if not line:
                return None
            if line.strip():
                return time.monotonic() - self.start, line.decode().rstrip("\n")

    def close(self):
        self.response.close()
        self.connection.close()


MESSAGES = [{"role": "user", "content": "Who is the friend of Otto?"}]
FORMS = (
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4}, '"role":"assistant"', ": "),
    ("/v1/completions", {"prompt": "The friend", "max_tokens": 4}, None, ": "),
    ("/completion", {"prompt": "The friend", "n_predict": 4}, None, ": "),
    ("/v1/responses", {"input": "Who is it?", "max_output_tokens": 4}, "response.created", ": "),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4, "model": "x"}, "message_start",
     "event: ping"),
)


class Silence(unittest.TestCase):
    def test_head_and_beats_while_it_waits(self):
        """The head and the role come at once, then a sign of life each second, then the answer."""
        with rig.Server("-np", "1") as s:
            busy = s.stream("/completion", LONG)
            next(busy.events())
            streams = [Stream(s, path, dict(body, stream=True)) for path, body, _, _ in FORMS]
            for stream, (path, _, first, beat) in zip(streams, FORMS):
                self.assertEqual(stream.code, 200)
                self.assertLess(stream.headers_s, SOON_S, path)
                if first is not None:
                    at, line = stream.line()
                    while first not in line:
                        at, line = stream.line()
                    self.assertLess(at, SOON_S, path)
                at, line = stream.line()
                while not line.startswith(beat):
                    at, line = stream.line()
                self.assertLess(at, SOON_S, path)
            s.until("pith_requests_waiting", len(FORMS))
            busy.close()
            for stream, (path, _, _, _) in zip(streams, FORMS):
                rest = []
                while (item := stream.line()) is not None:
                    rest.append(item[1])
                stream.close()
                self.assertTrue(any("data: " in r and "ping" not in r for r in rest), path)
                for r in rest:  # whole events, whatever stands between them
                    self.assertTrue(r.startswith(("data: ", "event: ", ": ")), r)

    def test_beats_while_a_prompt_is_read(self):
        """A prompt that must be read whole is one step of the model, and beats come all the
        same."""
        body = dict(LONG, prompt=PROMPT[:len(PROMPT) // 2], n_predict=2)
        with rig.Server("--keep", "snapkv:budget=64,rounds=prompt-end", "--recall", "none",
                        "--chunk", "16") as s:
            stream = Stream(s, "/completion", body)
            self.assertLess(stream.headers_s, SOON_S)
            lines = []
            while (item := stream.line()) is not None:
                lines.append(item)
            stream.close()
            first = next(at for at, line in lines if line.startswith("data: "))
            beats = [at for at, line in lines if line.startswith(": ") and at < first]
            self.assertGreaterEqual(len(beats), int(first / 3) - 1)
            if first > 5:
                self.assertGreater(len(beats), 0)
            self.assertLess(len(beats), first + 2)  # no more than one a second

    def test_hanging_up_while_it_waits(self):
        with rig.Server("-np", "1") as s:
            busy = s.stream("/completion", LONG)
            next(busy.events())
            streams = [Stream(s, path, dict(body, stream=True)) for path, body, _, _ in FORMS]
            s.until("pith_requests_waiting", len(FORMS))
            for n, (stream, (_, _, _, beat)) in enumerate(zip(streams, FORMS), 1):
                while not stream.line()[1].startswith(beat):
                    pass
                stream.close()
                s.until("pith_requests_waiting", len(FORMS) - n)
            busy.close()
            s.until("pith_requests_cancelled_total", 1 + len(FORMS))

    def test_errors_that_are_known_stay_errors(self):
        with rig.Server("-c", "256", "--page", "16", "-np", "1", "--queue", "1") as s:
            long = "The friend of Otto. " * 200
            for body in ({"prompt": long}, {"prompt": 3}, {"prompt": "a", "temperature": -1}):
                self.assertEqual(s.post("/completion", dict(body, stream=True)).code, 400)
        with rig.Server("-np", "1", "--queue", "1") as s:
            busy = s.stream("/completion", LONG)
            next(busy.events())
            second = Stream(s, "/completion", LONG)
            s.until("pith_requests_waiting", 1)
            self.assertEqual(s.post("/completion", LONG).code, 429)
            second.close()
            busy.close()

    def test_echo_comes_with_its_logprobs(self):
        with rig.Server() as s:
            body = {"prompt": "The friend of", "max_tokens": 2, "echo": True, "logprobs": 1,
                    "stream": True}
            docs = s.stream("/v1/completions", body).documents()
            self.assertTrue(docs[0]["choices"][0]["text"].startswith("The friend of"))
            self.assertGreater(len(docs[0]["choices"][0]["logprobs"]["tokens"]), 2)


if __name__ == "__main__":
    rig.main()
