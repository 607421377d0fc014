"""Recall of text in `pith serve`: what a conversation lost is found again, in streams, beside
others and behind a cancelled request."""

import json
import os
import time
import unittest

import server_rig as rig

STORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/demo/prompt-2k.txt")
KEEP = ("--keep", "streaming:budget=256", "--recall", "text")


def story():
    with open(STORY, encoding="utf-8") as file:
        return file.read().rsplit("Question:", 1)[0]


def question(name):
    return f"Question: What is the password of {name}?\nAnswer: The password of {name} is"


def body(text, name, **more):
    return dict({"prompt": text + question(name), "n_predict": 6, "temperature": 0}, **more)


class Recall(unittest.TestCase):
    def test_finds_an_evicted_fact(self):
        text = story()
        with rig.Server("--keep", "streaming:budget=256", "--recall", "none") as s:
            a = s.post("/completion", body(text, "Walter")).json()
            self.assertNotIn("plain book", a["content"])
        with rig.Server(*KEEP) as s:
            a = s.post("/completion", body(text, "Walter")).json()
            self.assertIn("plain book", a["content"])
            self.assertGreater(a["pith"]["recalled_tokens"], 10)
            self.assertNotIn("recalled_entries", a["pith"])
            kv = s.get("/kv").json()
            self.assertEqual(kv["policies"]["recall"], "text")
            self.assertGreater(kv["memory"]["parts"]["text"], 0)
            self.assertGreater(s.metric("pith_memory_text_bytes"), 0)
            # The next turn goes on from it, with what was found, though the client has not seen it.
            turn = text + question("Walter") + a["content"] + "\n" + question("Walter")
            b = s.post("/completion", dict(body("", "Walter"), prompt=turn)).json()
            self.assertIn("plain book", b["content"])
            self.assertEqual(b["pith"]["cache_from"], "conversation")
            self.assertLess(b["pith"]["read_tokens"], 60)
            # Chats ask by the last message of the user's, in every form that it has.
            for content in (text + question("Walter"),
                            [{"type": "text", "text": text},
                             {"type": "text", "text": question("Walter")}]):
                c = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}],
                                                    "max_tokens": 1}).json()
                self.assertGreater(c["usage"]["pith"]["recalled_tokens"], 10)

    def test_two_clients_and_a_stream_at_once(self):
        text = story()
        facts = [body(text, "Walter"), body(text, "Walter", stream=True), body(text, "Nora")]
        with rig.Server(*KEEP, "--no-prefix") as s:
            alone = [s.post("/completion", dict(b, stream=False)).json()["content"] for b in facts]

        def ask(b):
            if not b.get("stream"):
                return s.post("/completion", b).json()["content"]
            return "".join(d["content"] for d in s.stream("/completion", b).documents())

        with rig.Server(*KEEP) as s:
            for _ in range(2):  # then behind a common prefix
                self.assertEqual(rig.together([lambda b=b: ask(b) for b in facts]), alone)
            self.assertGreater(s.metric("pith_cached_tokens_total"), 0)

    def test_a_cancelled_request_leaves_nothing(self):
        text = story()
        with rig.Server(*KEEP) as s:
            want = s.post("/completion", body(text, "Walter", cache_prompt=False)).json()["content"]
            for wait in (0.05, 0.3, 0.6):
                stream = s.stream("/completion", body(text, "Walter", stream=True, n_predict=400,
                                                      ignore_eos=True, id_slot=3))
                time.sleep(wait)
                stream.close()
                got = s.post("/completion", body(text, "Walter", id_slot=3)).json()
                self.assertEqual(got["content"], want)
            s.until("pith_answers_running", 0)

    def test_a_session_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "session=work"):
            rig.Server("--keep", "streaming:budget=256", "--recall", "text:session=work")


if __name__ == "__main__":
    rig.main()
