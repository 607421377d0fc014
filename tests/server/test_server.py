#!/usr/bin/env python3
"""`pith serve`: every route, what is refused and how, keys, other origins, limits."""

import json
import os
import re
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import server_rig as rig

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CHAT = {"messages": [{"role": "user", "content": "The friend of"}], "max_tokens": 5}


def routes():
    """(method, path) of the table."""
    with open(os.path.join(ROOT, "server", "routes.c"), encoding="utf-8") as f:
        return re.findall(r'^    \{(GET|POST), "([^"]+)"', f.read(), re.M)


class Routes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.slots = tempfile.TemporaryDirectory()
        cls.s = rig.Server("--slot-save-path", cls.slots.name, "--alias", "mini", "-np", "4",
                           "--keep", "streaming:budget=512").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__()
        cls.slots.cleanup()

    def test_start_says_what_there_is(self):
        self.assertRegex(self.s.said, r"KV memory .*; one request may take \d+ tokens")

    def test_health(self):
        for path in ("/health", "/v1/health"):
            self.assertEqual(self.s.get(path).json(), {"status": "ok"})

    def test_head(self):
        a = self.s.ask("HEAD", "/health")
        self.assertEqual((a.code, a.body), (200, b""))

    def test_models(self):
        for path in ("/v1/models", "/models"):
            data = self.s.get(path).json()["data"]
            self.assertEqual([m["id"] for m in data], ["mini"])
            self.assertEqual(data[0]["meta"]["n_ctx_train"], 8192)
        self.assertEqual(self.s.get("/v1/models/mini").json()["object"], "model")
        self.assertEqual(self.s.get("/v1/models/other").code, 404)

    def test_props(self):
        p = self.s.get("/props").json()
        self.assertEqual(p["model_alias"], "mini")
        self.assertEqual(p["model_path"], rig.MODEL)
        self.assertGreater(p["default_generation_settings"]["n_ctx"], 0)

    def test_page(self):
        a = self.s.get("/")
        self.assertEqual(a.code, 200)
        self.assertTrue(a.headers["content-type"].startswith("text/html"))
        self.assertIn(b"Pith", a.body)

    def test_kv(self):
        self.assertIsInstance(self.s.get("/kv").json(), dict)
        stream = rig.Stream(self.s, "/kv/events", None, method="GET")
        self.assertEqual(stream.type, "text/event-stream")
        _, data = next(stream.events())
        self.assertIsInstance(json.loads(data), dict)
        stream.close()

    def test_metrics(self):
        with rig.Server() as s:  # its own: nobody else's tokens are counted
            s.post("/completion", {"prompt": "The friend of", "n_predict": 3, "ignore_eos": True})
            s.until("pith_generated_tokens_total", 3)  # the step's end
            for name in ("reserved", "used", "peak", "live", "shared"):
                self.assertGreaterEqual(s.metric(f"pith_kv_{name}_bytes"), 0)
            self.assertGreater(s.metric("pith_kv_peak_bytes"), 0)
            used = s.metric('pith_device_used_bytes{device="cpu"}')
            self.assertGreater(used, s.metric("pith_kv_reserved_bytes"))
            self.assertEqual(s.get("/kv").json()["memory"]["devices"], {"cpu": used})
            self.assertLessEqual(s.metric("pith_kv_peak_bytes"),
                                 s.metric("pith_kv_reserved_bytes"))

    def test_memory_of_a_drafting_model(self):
        """What the drafting model remembers is a part of the total, in /kv and /metrics."""
        with rig.Server("--draft", rig.MODEL) as s:
            first = memory = s.get("/kv").json()["memory"]
            for seed in range(50):  # whether it drafts depends on what that gains
                if memory["parts"]["draft_model"] > first["parts"]["draft_model"]:
                    break
                s.post("/completion", {"prompt": "The friend of " * 8, "n_predict": 200,
                                       "ignore_eos": True, "temperature": 2, "seed": seed})
                s.until("pith_requests_done_total", seed + 1)
                memory = s.get("/kv").json()["memory"]
            self.assertEqual(sum(memory["parts"].values()), memory["total"])
            self.assertGreater(memory["parts"]["draft_model"], first["parts"]["draft_model"])
            part = memory["parts"]["draft_model"]
            s.until("pith_memory_draft_model_bytes", part)
            self.assertGreater(s.metric("pith_memory_total_bytes"), part)
        self.assertEqual(self.s.get("/kv").json()["memory"]["parts"]["draft_model"], 0)

    def test_tokens(self):
        ids = self.s.post("/tokenize", {"content": "The friend of"}).json()["tokens"]
        self.assertTrue(ids)
        self.assertEqual(self.s.post("/detokenize", {"tokens": ids}).json()["content"],
                         "The friend of")
        pieces = self.s.post("/tokenize", {"content": "The friend", "with_pieces": True}).json()
        self.assertEqual("".join(t["piece"] for t in pieces["tokens"]), "The friend")
        for text in ("", "M\u00fcller \U0001f98a \"x\"", "ab " * 40000): # the last: many blocks
            ids = self.s.post("/tokenize", {"content": text}).json()["tokens"]
            pieces = self.s.post("/tokenize", {"content": text, "with_pieces": True}).json()
            self.assertEqual([t["id"] for t in pieces["tokens"]], ids)
            self.assertEqual(b"".join(p.encode() if isinstance(p, str) else bytes(p)
                                      for p in (t["piece"] for t in pieces["tokens"])).decode(),
                             text)
        self.assertEqual(self.s.post("/tokenize", {"content": 3}).error()["message"],
                         "content: 3 is not a string")
        for bad, what in ((7, "tokens: 7 is not an array of token ids"),
                          (["a"], 'tokens[0]: "a" is not a token id from 0 to ')):
            self.assertIn(what, self.s.post("/detokenize", {"tokens": bad}).error()["message"])
        for bad in (999999, -1, 1.5, -1.0, 1e300, 2**70):
            a = self.s.post("/detokenize", {"tokens": [1, bad]})
            self.assertEqual(a.code, 400, bad)
            self.assertIn("tokens[1]: ", a.error()["message"])
        self.assertEqual(self.s.post("/detokenize", {"tokens": [float(i) for i in ids]}).body,
                         self.s.post("/detokenize", {"tokens": ids}).body)

    def test_template(self):
        text = self.s.post("/apply-template", CHAT).json()["prompt"]
        self.assertIn("The friend of", text)

    def test_completion(self):
        body = {"prompt": "The friend of", "n_predict": 8, "seed": 3}
        for path in ("/completion", "/completions"):
            a = self.s.post(path, body)
            self.assertEqual(a.code, 200, a.body)
            self.assertTrue(a.headers["content-type"].startswith("application/json"))
        parts = self.s.stream("/completion", dict(body, stream=True))
        self.assertEqual(parts.type, "text/event-stream")
        self.assertEqual("".join(d.get("content", "") for d in parts.documents()),
                         a.json()["content"])

    def test_bias_by_text(self):
        body = {"prompt": "The friend of", "n_predict": 12, "temperature": 0}
        words = [w for w in self.s.post("/completion", body).json()["content"].split() if w]
        ban = {" " + w: False for w in words}
        for bias in (ban, [[text, False] for text in ban]):
            text = self.s.post("/completion", dict(body, logit_bias=bias)).json()["content"]
            self.assertEqual([w for w in ban if w + " " in text + " "], [])

    def test_probabilities_after_sampling(self):
        body = {"prompt": "The friend of", "n_predict": 6, "n_probs": 8, "seed": 2,
                "post_sampling_probs": True, "top_k": 5, "temperature": 1.5}
        whole = self.s.post("/completion", body).json()["completion_probabilities"]
        self.assertEqual(len(whole), 6)
        for token in whole:
            self.assertLessEqual(len(token["top_probs"]), 5)
            self.assertAlmostEqual(sum(t["prob"] for t in token["top_probs"]), 1, places=5)
            self.assertIn(token["prob"], [t["prob"] for t in token["top_probs"]])
        parts = self.s.stream("/completion", dict(body, stream=True)).documents()
        self.assertEqual([t for d in parts for t in d.get("completion_probabilities", [])], whole)

    def test_response_fields(self):
        body = {"prompt": "The friend of", "n_predict": 6, "seed": 2,
                "response_fields": ["content", "timings/prompt_n", "generation_settings/top_k"]}
        a = self.s.post("/completion", body).json()
        self.assertEqual(set(a), set(body["response_fields"]))
        self.assertEqual(a["generation_settings/top_k"], 40)

    def test_time_for_an_answer(self):
        body = {"prompt": "The friend of", "n_predict": 300, "ignore_eos": True, "seed": 2,
                "logit_bias": {"\n": 3}}
        a = self.s.post("/completion", dict(body, t_max_predict_ms=1)).json()
        self.assertLess(a["tokens_predicted"], 300)
        self.assertEqual(a["stop_type"], "limit")

    def test_special_tokens(self):
        name = "<|begin_of_text|>"
        ids = self.s.post("/tokenize", {"content": name}).json()["tokens"]
        self.assertEqual(len(ids), 1)
        # In a prompt the name is the token; in a chat it is what a user wrote.
        n = [self.s.post(path, dict(body, max_tokens=1)).json()["usage"]["prompt_tokens"]
             for path, body in (("/v1/completions", {"prompt": "a" + name}),
                                ("/v1/completions", {"prompt": "a" + name + name}),
                                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                                ("/v1/chat/completions",
                                 {"messages": [{"role": "user", "content": "a" + name}]}))]
        self.assertEqual(n[1] - n[0], 1)
        self.assertGreater(n[3] - n[2], 5)
        # A stop string that is its name ends the text at it.
        body = {"prompt": "The friend of", "n_predict": 5, "temperature": 0, "ignore_eos": True}
        for more in ({"stop": ["x", name], "logit_bias": {str(ids[0]): 1000}},
                     {"stop": name, "logit_bias": {str(ids[0]): 1000}, "stream": True}):
            a = self.s.post("/completion", dict(body, **more)) if "stream" not in more else None
            d = a.json() if a else self.s.stream("/completion", dict(body, **more)).documents()[-1]
            self.assertEqual((d["stop_type"], d["stopping_word"], d["tokens_predicted"]),
                             ("word", name, 1))

    def test_seeds(self):
        body = {"prompt": "The friend of", "n_predict": 12, "temperature": 3, "top_k": 0,
                "top_p": 1, "min_p": 0}
        some = {self.s.post("/completion", dict(body, seed=-1)).json()["content"] for _ in range(3)}
        self.assertGreater(len(some), 1)
        same = {self.s.post("/completion", dict(body, seed=2**64 - 1)).json()["content"]
                for _ in range(2)}
        self.assertEqual(len(same), 1)
        a = self.s.post("/completion", dict(body, seed=2**64))
        self.assertEqual((a.code, a.error()["param"]), (400, "seed"))

    def test_byte_order_mark(self):
        mark = b"\xef\xbb\xbf"
        for path, body in (("/v1/chat/completions", CHAT), ("/tokenize", {"content": "a"}),
                           ("/completion", {"prompt": "a", "n_predict": 1})):
            a = self.s.post(path, mark + json.dumps(body).encode())
            self.assertEqual(a.code, 200, a.body)

    def test_switches_of_tokenize(self):
        for key in ("add_special", "parse_special", "with_pieces"):
            a = self.s.post("/tokenize", {"content": "a", key: 1})
            self.assertEqual(a.code, 400)
            self.assertEqual(a.error()["message"], f"{key}: 1 is not true or false")
            self.assertEqual(self.s.post("/tokenize", {"content": "a", key: None}).code, 200)

    def test_text(self):
        body = {"prompt": "The friend of", "max_tokens": 8, "seed": 3}
        whole = self.s.post("/v1/completions", body).json()
        parts = self.s.stream("/v1/completions", dict(body, stream=True)).documents()
        self.assertEqual("".join(c["text"] for d in parts for c in d["choices"]),
                         whole["choices"][0]["text"])
        two = self.s.post("/v1/completions", dict(body, prompt=["The friend of", "The way"]))
        self.assertEqual([c["index"] for c in two.json()["choices"]], [0, 1])

    def test_chat(self):
        for path in ("/v1/chat/completions", "/chat/completions"):
            a = self.s.post(path, dict(CHAT, seed=1)).json()
            self.assertEqual(a["object"], "chat.completion")
            self.assertEqual(a["model"], "mini")
        stream = self.s.stream("/v1/chat/completions", dict(CHAT, seed=1, stream=True))
        events = [data for _, data in stream.events()]
        self.assertEqual(events[-1], "[DONE]")
        text = "".join(c["delta"].get("content") or "" for e in events[:-1]
                       for c in json.loads(e)["choices"])
        self.assertEqual(text, a["choices"][0]["message"]["content"])

    def test_messages(self):
        a = self.s.post("/v1/messages", dict(CHAT, model="x"))
        self.assertEqual(a.code, 200, a.body)
        self.assertEqual(a.json()["type"], "message")
        names = [n for n, _ in self.s.stream("/v1/messages",
                                             dict(CHAT, model="x", stream=True)).events()]
        self.assertEqual((names[0], names[-1]), ("message_start", "message_stop"))
        n = self.s.post("/v1/messages/count_tokens", {"model": "x", "messages": CHAT["messages"]})
        self.assertGreater(n.json()["input_tokens"], 0)
        m = self.s.post("/v1/chat/completions/input_tokens", {"messages": CHAT["messages"]})
        self.assertEqual(m.json()["input_tokens"], n.json()["input_tokens"])

    def test_routers_get_the_tokens_that_the_model_reads(self):
        chat = {"messages": CHAT["messages"]}
        text = self.s.post("/apply-template", chat).json()["prompt"]
        for path, body, prompt in (("/v1/chat/completions/render", chat, text),
                                   ("/v1/completions/render", {"prompt": "The"}, "The")):
            ids = self.s.post("/tokenize", {"content": prompt, "add_special": True}).json()
            told = self.s.post(path, body).json()
            told = told if "chat" in path else told[0]
            self.assertEqual(told, {"token_ids": ids["tokens"]})

    def test_what_is_too_long_is_counted_and_shown(self):
        body = {"messages": [{"role": "user", "content": "The friend of " * 9000}], "max_tokens": 5}
        refused = self.s.post("/v1/chat/completions", body)
        self.assertEqual(refused.code, 400)
        error = refused.json()["error"]
        n = self.s.post("/v1/messages/count_tokens", body)
        self.assertEqual(n.code, 200, n.body)
        self.assertEqual(n.json()["input_tokens"], error["n_prompt_tokens"])
        self.assertGreater(n.json()["input_tokens"], error["n_ctx"])
        self.assertEqual(self.s.post("/apply-template", body).code, 200)

    def test_responses(self):
        a = self.s.post("/v1/responses", {"model": "x", "input": "The friend of",
                                          "max_output_tokens": 5})
        self.assertEqual(a.code, 200, a.body)
        self.assertEqual(a.json()["object"], "response")
        for path in ("/v1/responses/input_tokens", "/responses/input_tokens"):
            n = self.s.post(path, {"model": "x", "input": "The friend of"})
            self.assertEqual(n.json(), {"object": "response.input_tokens",
                                        "input_tokens": a.json()["usage"]["input_tokens"]})
        self.assertEqual(self.s.post(path, {}).error()["message"], "input: is missing")

    def test_infill(self):
        a = self.s.post("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2})
        self.assertIn(a.code, (200, 400, 501))  # the small model has no tokens for it
        self.assertTrue(a.code == 200 or a.error()["message"])

    def test_slots(self):
        self.assertIsInstance(self.s.get("/slots").json(), list)
        self.assertEqual(self.s.post("/slots/0?action=dance", {}).code, 400)
        bad = self.s.post("/slots/0?action=save", {"filename": "../x"})
        self.assertEqual(bad.code, 400)
        self.assertTrue(bad.error()["message"].startswith("filename: \"../x\" is not a name of "))
        self.assertEqual(self.s.post("/slots/0?action=save", {"filename": "x.bin"}).code, 404)
        for path, said in (("/slots/0", "slot 0: x.bin: "), ("/slots/9999", "slot: 9999 is not ")):
            a = self.s.post(f"{path}?action=restore", {"filename": "x.bin"})
            self.assertTrue(a.error()["message"].startswith(said), a.body)

    def test_slot_saved_and_restored(self):
        body = {"prompt": "The friend of Otto is", "n_predict": 4, "id_slot": 1, "temperature": 0,
                "ignore_eos": True}
        first = self.s.post("/completion", body).json()
        saved = self.s.post("/slots/1?action=save", {"filename": "one.bin"}).json()
        self.assertGreater(saved["n_saved"], 0)
        self.assertEqual(saved["n_written"],
                         os.path.getsize(os.path.join(self.slots.name, "one.bin")))
        self.assertEqual(self.s.post("/slots/1?action=erase", {}).code, 200)
        self.assertEqual(self.s.post("/slots/1?action=save", {"filename": "two.bin"}).code, 404)
        back = self.s.post("/slots/2?action=restore", {"filename": "one.bin"}).json()
        self.assertEqual(back["n_restored"], saved["n_saved"])
        more = dict(body, prompt=body["prompt"] + first["content"], id_slot=2)
        again = self.s.post("/completion", more).json()
        self.assertGreater(again["timings"]["cache_n"], 0)

    def test_the_slot_of_an_answer_can_be_sent_back(self):
        body = {"prompt": "The friend of Anna is " * 20, "n_predict": 4, "temperature": 0,
                "ignore_eos": True}
        first = self.s.post("/completion", body).json()
        place = first["id_slot"]
        self.assertIn(place, [slot["id"] for slot in self.s.get("/slots").json()])
        more = dict(body, prompt=body["prompt"] + first["content"] + " who", id_slot=place)
        again = self.s.post("/completion", more)
        self.assertEqual(again.code, 200)
        self.assertGreater(again.json()["timings"]["cache_n"], 60)
        path, name = f"/slots/{place}?action=", {"filename": "place.bin"}
        saved = self.s.post(path + "save", name).json()
        self.assertEqual(self.s.post(path + "restore", name).json()["n_restored"], saved["n_saved"])

    def test_logit_bias_of_no_token(self):
        error = self.s.post("/completion", {"prompt": "a", "logit_bias": [[99999999, 1]]}).error()
        self.assertEqual((error["message"], error["param"]),
                         ("logit_bias: 99999999 is not a token id", "logit_bias"))

    def test_absent(self):
        for path in ("/v1/embeddings", "/embedding", "/rerank", "/v1/reranking", "/lora-adapters",
                     "/v1/audio/transcriptions"):
            a = self.s.post(path, {})
            self.assertEqual(a.code, 501, path)
            self.assertIn("not offered", a.error()["message"])

    def test_unknown(self):
        self.assertEqual(self.s.get("/nope").code, 404)
        self.assertEqual(self.s.post("/slots/x", {}).code, 404)
        a = self.s.post("/health", {})
        self.assertEqual(a.code, 405)
        self.assertIn("GET", a.headers["allow"])
        a = self.s.get("/v1/chat/completions")
        self.assertEqual((a.code, a.headers["allow"]), (405, "POST, OPTIONS"))

    def test_wrong_bodies(self):
        for body in ("", "{", "[]", "3", '{"prompt": 1.5}', "[" * 100000, "\x00"):
            a = self.s.post("/completion", body)
            self.assertEqual(a.code, 400, body[:20])
            self.assertTrue(a.error()["message"])
        for path in ("/tokenize", "/detokenize", "/apply-template", "/v1/messages"):
            self.assertEqual(self.s.post(path, "{").code, 400, path)

    def test_one_connection_many_requests(self):
        c = self.s.connect()
        for _ in range(3):
            self.assertEqual(self.s.get("/health", connection=c).code, 200)
            self.assertEqual(self.s.post("/tokenize", {"content": "a"}, connection=c).code, 200)
            self.assertEqual(self.s.get("/nope", connection=c).code, 404)
        c.close()

    def test_chunked_body(self):
        text = json.dumps({"content": "The friend of"}).encode()
        a = self.s.post("/tokenize", iter([text[:5], text[5:]]),
                        headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(a.json(), self.s.post("/tokenize", text).json())

    def test_cors(self):
        gone = self.s.metric("pith_http_gone_total")
        a = self.s.ask("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://a.b"})
        self.assertEqual(a.code, 200)
        self.assertEqual(a.headers["access-control-allow-origin"], "http://a.b")
        self.assertEqual(a.headers["access-control-allow-methods"], "GET, POST")
        # "*" is not Authorization to a browser: what it asks for is named.
        self.assertEqual(a.headers["access-control-allow-headers"], "*, Authorization")
        for asked in ("authorization,content-type,x-stainless-lang", "x-api-key"):
            a = self.s.ask("OPTIONS", "/v1/messages",
                           headers={"Origin": "http://a.b", "Access-Control-Request-Headers": asked})
            self.assertEqual(a.headers["access-control-allow-headers"], asked)
        self.assertEqual(self.s.metric("pith_http_gone_total"), gone)
        a = self.s.get("/v1/models", headers={"Origin": "http://a.b"})
        self.assertEqual(a.headers["access-control-allow-origin"], "http://a.b")

    def test_cache_is_for_this_machine(self):
        for path in ("/kv", "/slots"):
            self.assertEqual(self.s.get(path).code, 200)
            a = self.s.get(path, headers={"Origin": "http://a.b"})
            self.assertEqual(a.code, 403)
            self.assertNotIn("access-control-allow-origin", a.headers)
            for host in ("a.b", "127.0.0.1.a.b", "127.0.0.1a", "localhost.a.b", "10.0.0.1", ""):
                self.assertEqual(self.s.get(path, headers={"Host": host}).code, 403, host)
            for host in ("localhost", "127.0.0.2:80", "[::1]:80", "0.0.0.0:80", "[::]:80"):
                self.assertEqual(self.s.get(path, headers={"Host": host}).code, 200, host)
            self.assertEqual(
                self.s.get(path, headers={"Origin": f"http://127.0.0.1:{self.s.port}"}).code, 200)

    def test_faults_have_the_words_of_their_api(self):
        tool = {"type": "function", "name": "f", "parameters": {}}
        too_long = "The friend of Otto is Maria. " * 3000
        for path, body, message, param in (
                ("/v1/responses", {"input": "a", "tools": [tool],
                                   "tool_choice": {"type": "function"}},
                 "tool_choice.name: is missing", "tool_choice"),
                ("/v1/responses", {"input": "a", "tools": [tool],
                                   "tool_choice": {"type": "mcp", "tools": []}},
                 'tool_choice.type: "mcp" is not one of function, allowed_tools and custom',
                 "tool_choice"),
                ("/v1/responses", {"input": "a", "truncation": "some"},
                 'truncation: "some" is not one of auto and disabled', "truncation"),
                ("/v1/responses", {"input": too_long, "truncation": "auto"},
                 "your input resulted in", "input"),
                ("/v1/responses", {"input": [{"type": "custom_tool_call", "call_id": "c",
                                              "name": "f"}]}, "input[0].input: is missing", "input"),
                ("/v1/chat/completions",
                 dict(CHAT, tools=[{"type": "function", "function": {"name": "f",
                                                                    "parameters": 3}}]),
                 "tools[0].function.parameters: 3 is not an object", "tools"),
                ("/v1/chat/completions", dict(CHAT, n=100), "n: 100 is not in 1..", "n")):
            a = self.s.post(path, body)
            self.assertEqual(a.code, 400, a.body)
            self.assertIn(message, a.error()["message"])
            self.assertEqual(a.error()["param"], param)
        a = self.s.post("/v1/responses", {"input": "a", "truncation": "auto",
                                         "max_output_tokens": 2})
        self.assertEqual(a.code, 200)

    def test_offsets_in_texts_with_bytes_that_are_no_character(self):
        body = {"prompt": " M\u00fcller \U0001f98a x", "max_tokens": 60, "temperature": 4,
                "top_p": 1, "min_p": 0, "top_k": 0, "logprobs": 1, "ignore_eos": True}
        n_bad = 0
        for seed in range(20):
            choice = self.s.post("/v1/completions", dict(body, seed=seed)).json()["choices"][0]
            text, probs = choice["text"], choice["logprobs"]
            for i, (token, at) in enumerate(zip(probs["tokens"], probs["text_offset"])):
                if i > 0 and "\ufffd" not in token + probs["tokens"][i - 1]:
                    self.assertEqual(text[at:at + len(token)], token, (seed, i, text))
            n_bad += "\ufffd" in text
        self.assertGreater(n_bad, 0)

    def test_openapi_has_every_route(self):
        with open(os.path.join(ROOT, "docs", "openapi.yaml"), encoding="utf-8") as f:
            text = f.read()
        listed, path = set(), None
        for line in text.splitlines():
            if re.match(r"^  /", line):
                path = line.strip().rstrip(":")
            found = re.match(r"^    (get|post):", line)
            if found:
                listed.add((found.group(1).upper(), path))
        table = {(m, p.replace("*", "{name}")) for m, p in routes()}
        self.assertTrue(table)
        self.assertEqual(table - listed, set())
        self.assertEqual(listed - table, set())


class Fields(unittest.TestCase):
    """Every field that a reader of bodies knows stands in openapi.yaml, and no other."""

    # a field of a table or of a body; bodies of other APIs copy some by the names in `same`
    KEYS = re.compile(r'body, "([a-z_]+)"|^ +\{"([a-z_]+)", (?:FIELD|NOTHING)_'
                      r'|^ +\{"([a-z_]+)", (?:PITH_TOKENIZE|0)', re.M)
    LISTS = re.compile(r"const char \*const (?:same|keys)\[\] = \{(.*?)\};", re.S)

    def read(self, *names):
        keys = set()
        for name in names:
            with open(os.path.join(ROOT, *name.split("/")), encoding="utf-8") as f:
                text = f.read()
            keys |= {k for found in self.KEYS.findall(text) for k in found if k}
            if name.endswith(("messages.c", "responses.c")):
                for names_ in self.LISTS.findall(text):
                    keys |= set(re.findall(r'"([a-z_]+)"', names_))
        return keys

    def listed(self, *names):
        """Properties of schemas, with those that they include."""
        with open(os.path.join(ROOT, "docs", "openapi.yaml"), encoding="utf-8") as f:
            text = f.read()
        text = text[text.index("\n  schemas:\n"):]
        keys = set()
        for name in names:
            part = re.search(rf"\n    {name}:\n(.*?)(?=\n    \S|\Z)", text, re.S).group(1)
            keys |= set(re.findall(r"^        ([a-z_]+):", part, re.M))
            keys |= self.listed(*re.findall(r"^      allOf:.*", part, re.M) and
                                re.findall(r"schemas/(\w+)", part.split("properties:")[0]))
        return keys

    def test_figures_are_listed(self):
        """What usage.pith says."""
        with open(os.path.join(ROOT, "src/serve/api/reply_figures.c"), encoding="utf-8") as f:
            text = f.read()
        said = set(re.findall(r'reply_set\(reply, (?:pith|object), "([a-z_]+)"', text))
        self.assertEqual(said, self.listed("Pith"))
        words = set(re.findall(r'\[PITH_REUSE_[A-Z]+\] = "([a-z]+)"', text))
        with open(os.path.join(ROOT, "docs", "openapi.yaml"), encoding="utf-8") as f:
            listed = re.search(r"cache_why:\n +enum: \[(.*)\]", f.read()).group(1)
        self.assertEqual(words, set(re.findall("[a-z]+", listed)))

    def test_what_is_read_is_listed(self):
        serve = "src/serve/api/request_"
        for files, schemas in (
                (("fields", "session", "bias", "refused", "samplers", "format", "chat", "tools",
                  "prompts", "infill"), ("Chat", "Text", "Completion", "Infill")),
                (("messages", "session"), ("Messages",)),
                (("responses", "session"), ("Responses",))):
            read = self.read(*(f"{serve}{name}.c" for name in files))
            listed = self.listed(*schemas)
            self.assertGreater(len(read), 10)
            self.assertEqual(read - listed, set(), "is read and not listed")
            self.assertEqual(listed - read, set(), "is listed and not read")
        self.assertEqual(self.read("server/tokens.c"), self.listed("Tokenize", "Detokenize"))
        self.assertEqual(self.read("server/slots.c"), self.listed("SlotFile"))


class Memory(unittest.TestCase):
    """What bodies took goes back to the system."""

    def resident_kib(self, s):
        with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def setUp(self):
        if rig.is_sanitized() or not os.path.exists("/proc/self/status"):
            self.skipTest("a sanitizer keeps what was freed, or there is no /proc")

    def test_answers_go_back(self):
        plain = dict(CHAT, max_tokens=300, n=4, seed=1, ignore_eos=True)
        scored = dict(plain, logprobs=True, top_logprobs=20)
        with rig.Server() as s:
            rig.together([lambda: s.post("/v1/chat/completions", plain)] * 4)
            s.until("pith_answers_running", 0)
            before = self.resident_kib(s)  # KV memory is there
            rig.together([lambda: s.post("/v1/chat/completions", scored)] * 4)
            s.until("pith_answers_running", 0)
            end = time.monotonic() + 10  # it is given back after the answer
            while self.resident_kib(s) >= before + (6 << 10) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertLess(self.resident_kib(s), before + (6 << 10))

    def test_lists_of_tokens_are_written_as_they_are_made(self):
        with rig.Server() as s:
            for pieces in (False, True):
                body = {"content": "1 " * 200000, "with_pieces": pieces}
                self.assertEqual(len(s.post("/tokenize", body).json()["tokens"]), 400000)
            with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
                most = int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1))
            self.assertLess(most, 64 << 10)

    def test_bodies_go_back(self):
        cut = b'{"prompt": "' + b"a" * (20 << 20)
        numbers = b'{"prompt": "The", "n_predict": 1, "x": [1' + b",1" * 1000000 + b"]}"
        with rig.Server() as s:
            self.assertEqual(s.post("/completion", cut[:1 << 20]).code, 400)
            before = self.resident_kib(s)
            for _ in range(3):
                rig.together([lambda: s.post("/completion", cut)] * 3)
                self.assertEqual(s.post("/completion", numbers).code, 200)
            s.until("pith_answers_running", 0)
            end = time.monotonic() + rig.PATIENCE_S  # it is given back after the answer
            while self.resident_kib(s) >= before + (12 << 10) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertLess(self.resident_kib(s), before + (12 << 10))


class Budget(unittest.TestCase):
    """`--kv`: the whole process, or each conversation's share."""

    def peak_kib(self, s):
        with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1))

    def talk(self, s, n):
        """Conversations of some 700 tokens that have nothing in common."""
        for i in range(n):
            said = s.post("/completion", {"prompt": [(7 * i + k * k) % 4000 + 300 for k in range(700)],
                                          "n_predict": 2})
            self.assertEqual(said.code, 200, said.body)

    def test_a_size_is_the_whole_process(self):
        if rig.is_sanitized() or not os.path.exists("/proc/self/status"):
            self.skipTest("a sanitizer takes memory of its own, or there is no /proc")
        taken = float(re.search(r"process take ([\d.]+) MiB", Start().fails(
            "-t", "1", "--chunk", "64", "--port", "0", "--kv", "1MiB", code=1)).group(1))
        for kv, swap in ((taken + 6, ()), (taken + 12, ("--swap", "6MiB"))):
            with rig.Server("--kv", f"{kv:.1f}MiB", "-c", "1024", *swap) as s:
                self.talk(s, 14)
                self.assertEqual(s.metric("pith_swapped_bytes") > 0, bool(swap))
                self.assertLess(self.peak_kib(s), kv * 1024)
        self.assertIn("--swap takes 1.00 GiB of the ",
                      Start().fails("--port", "0", "--kv", "512MiB", "--swap", "1GiB", code=1))

    def test_a_share_is_one_of_the_context(self):
        with rig.Server("--kv", "50%", "-c", "512") as s:
            self.assertIn("one request may take 512 tokens", s.said)
            reserved = s.get("/kv").json()["memory"]["reserved"]
            self.assertLess(reserved, 4 * 0.5 * 512 * 3120)
            said = s.post("/completion", {"prompt": list(range(300, 812)), "n_predict": 1})
            self.assertEqual(said.code, 400)
            self.assertEqual(said.error()["n_ctx"], 512)
            said = s.post("/completion", {"prompt": [300] * 400, "n_predict": -1,
                                          "ignore_eos": True}).json()
            self.assertEqual(said["tokens_predicted"], 113)  # the last one is not evaluated

    def test_a_drafting_model_has_its_part(self):
        with rig.Server("--kv", "50%", "-c", "1024", "--draft", rig.MODEL) as s:
            self.talk(s, 2)
            parts = s.get("/kv").json()["memory"]["parts"]
            self.assertIn("draft_model", parts)


class Keys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.file.write("third\n\nfourth\n")
        cls.file.flush()
        cls.s = rig.Server("--api-key", "first,second", "--api-key-file",
                           cls.file.name).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__()
        cls.file.close()

    def test_without(self):
        for path in ("/v1/models", "/props", "/metrics", "/slots", "/kv"):
            a = self.s.get(path)
            self.assertEqual(a.code, 401, path)
            self.assertEqual(a.headers["www-authenticate"], "Bearer")
        for path in ("/completion", "/v1/chat/completions", "/tokenize", "/slots/0?action=erase"):
            self.assertEqual(self.s.post(path, {}).code, 401, path)
        self.assertEqual(self.s.post("/v1/messages", {}).json()["type"], "error")

    def test_wrong(self):
        for header in ({"Authorization": "Bearer firs"}, {"Authorization": "Bearer firsts"},
                       {"Authorization": "first"}, {"x-api-key": "zweite"}, {"x-api-key": ""}):
            self.assertEqual(self.s.get("/props", headers=header).code, 401, header)

    def test_right(self):
        for key in ("first", "second", "third", "fourth"):
            self.assertEqual(
                self.s.get("/props", headers={"Authorization": f"Bearer {key}"}).code, 200)
            self.assertEqual(self.s.get("/kv", headers={"x-api-key": key, "Host": "a.b"}).code, 200)

    def test_open(self):
        for path in ("/health", "/v1/health", "/"):
            self.assertEqual(self.s.get(path).code, 200)
        a = self.s.ask("OPTIONS", "/props", headers={"Origin": "http://a.b"})
        self.assertEqual(a.code, 200)


class Limits(unittest.TestCase):
    def test_memory_of_json(self):
        with rig.Server("--body-memory", "1MiB") as s:
            for many in ("1", "{}", "[]", '""', '{"a":1}'):
                body = '{"prompt": "a", "n_predict": 1, "x": [%s]}' % ",".join([many] * 50000)
                for path in ("/completion", "/tokenize"):
                    a = s.post(path, body)
                    self.assertEqual(a.code, 413, many)
                    self.assertIn("more than 1048576 bytes of memory", a.error()["message"])
            # A list of tokens is weighed, too.
            many = {"content": "1 " * 100000, "with_pieces": True}
            a = s.post("/tokenize", many)
            self.assertEqual(a.code, 413)
            self.assertIn("tokens takes more than 1048576 bytes", a.error()["message"])
            # a text takes little more than itself
            self.assertEqual(s.post("/tokenize", {"content": "a" * 200000}).code, 200)
            body = {"prompt": "a", "n_predict": 1, "x": [1] * 5000}
            for _ in range(20):  # what was counted is given back
                self.assertEqual(s.post("/completion", body).code, 200)

    def test_bodies_that_are_together_too_large(self):
        """A body that is refused leaves its room to the others while the rest of it comes."""
        for options in (("--body-memory", "1MiB"), ("--body", "36KiB", "--body-memory", "8MiB")):
            text = ('{"content": "a", "x": [1' + ",1" * 17000 + "]}").encode()
            with rig.Server(*options) as s:
                links = [rig.socket.create_connection(("127.0.0.1", s.port)) for _ in range(7)]
                for c in links:
                    c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                              b"Content-Length: %d\r\n\r\n" % len(text))
                for at in range(0, len(text), 2000):
                    for c in links:
                        c.sendall(text[at:at + 2000])
                    time.sleep(0.02)
                codes = []
                for c in links:
                    c.settimeout(rig.PATIENCE_S)
                    codes.append(c.recv(12)[9:])
                    c.close()
                self.assertEqual(set(codes), {b"200", b"503"})
                self.assertGreaterEqual(codes.count(b"200"), 3, codes)

    def test_body(self):
        with rig.Server("--body", "4KiB") as s:
            self.assertEqual(s.post("/tokenize", {"content": "a" * 3000}).code, 200)
            a = s.post("/tokenize", {"content": "a" * 300000})
            self.assertEqual(a.code, 413)
            self.assertIn("4096", a.error()["message"])
            a = s.post("/tokenize", {"content": "a" * 300000}, headers={"Expect": "100-continue"})
            self.assertEqual(a.code, 413)
            self.assertEqual(s.get("/health").code, 200)

    def test_a_body_has_one_size(self):
        """Else a proxy may take a part of it for the next request."""
        body = b'{"content": "a"}'
        with rig.Server("--body", "4KiB") as s:
            def code(*lines, rest=body):
                with rig.socket.create_connection(("127.0.0.1", s.port)) as c:
                    c.settimeout(rig.PATIENCE_S)
                    c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\n" +
                              b"".join(line + b"\r\n" for line in lines) + b"\r\n" + rest)
                    said = c.recv(65536)
                    if b"Connection: close" in said.split(b"\r\n\r\n")[0]:
                        while c.recv(65536):
                            pass  # it is closed
                    return int(said[9:12]), b"Connection: close" in said
            size = b"Content-Length: %d" % len(body)
            chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            self.assertEqual(code(size), (200, False))
            self.assertEqual(code(size, size), (200, False))
            self.assertEqual(code(b"Transfer-Encoding: chunked", rest=chunked), (200, False))
            self.assertEqual(code(size, b"Content-Length: 3"), (400, True))
            self.assertEqual(code(size, b"Transfer-Encoding: chunked", rest=chunked), (400, True))
            self.assertEqual(code(size, b"Transfer-Encoding : chunked", rest=chunked), (400, True))
            self.assertEqual(code(b"Content-Length : 3"), (400, True))
            # Of another encoding no end is known.
            self.assertEqual(code(b"Transfer-Encoding: gzip, chunked", rest=chunked), (501, True))
            # A client that waits for the word to go on is told at once.
            self.assertEqual(code(b"Content-Length: 5000", b"Expect: 100-continue", rest=b"")[0],
                             413)

    def test_head(self):
        with rig.Server() as s:
            a = s.get("/health", headers={"x-long": "a" * 60000})
            self.assertIn(a.code, (413, 431))
            self.assertEqual(s.get("/health").code, 200)

    def test_what_never_fits(self):
        with rig.Server("-c", "256", "--page", "16") as s:
            n = s.get("/props").json()["default_generation_settings"]["n_ctx"]
            long = {"prompt": "The friend of Otto. " * 200, "n_predict": 4}
            a = s.post("/completion", long)
            self.assertEqual(a.code, 400)
            e = a.error()
            self.assertEqual(e["type"], "exceed_context_size_error")
            self.assertEqual(e["n_ctx"], n)
            self.assertGreater(e["n_prompt_tokens"], n)
            most = {"prompt": "The friend of", "n_predict": 10**30, "ignore_eos": True}
            a = s.post("/completion", most).json()  # a ceiling
            self.assertEqual((a["stop_type"], a["tokens_predicted"]),
                             ("limit", a["pith"]["max_tokens"]))
            self.assertEqual(a["tokens_evaluated"] + a["tokens_predicted"], n + 1)
            a = s.post("/v1/messages", {"max_tokens": 4, "messages": [
                {"role": "user", "content": long["prompt"]}]}).json()
            self.assertRegex(a["error"]["message"], "^prompt is too long: [0-9]+ tokens > [0-9]+ maximum$")
            a = s.post("/v1/completions", {"prompt": long["prompt"]})
            self.assertEqual(a.error()["code"], "context_length_exceeded")
            self.assertIn(f"maximum context length is {n} tokens", a.error()["message"])
            good = {"prompt": "The friend of", "n_predict": 4, "ignore_eos": True}
            bad, fine = rig.together([lambda: s.post("/completion", long),
                                      lambda: s.post("/completion", good)])
            self.assertEqual((bad.code, fine.code), (400, 200))

    def test_connections(self):
        with rig.Server("--connections", "4") as s:
            held = [s.connect() for _ in range(4)]
            for c in held:
                s.get("/health", connection=c)
            fifth = s.connect(timeout=0.5)
            with self.assertRaises(OSError):  # it waits
                s.get("/health", connection=fifth)
            fifth.close()
            for c in held:
                c.close()
            self.assertEqual(s.get("/health").code, 200)


class Start(unittest.TestCase):
    def fails(self, *options, code=2):
        done = rig.subprocess.run([rig.PITH, "serve", "-m", rig.MODEL, *options], timeout=60,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_wrong_options(self):
        self.assertIn("70000", self.fails("--port", "70000"))
        self.assertIn("--ssl-cert-file", self.fails("--ssl-key-file", "x.pem"))
        self.assertIn("nope", self.fails("--slot-save-path", "/nope"))
        self.assertIn("--api-key", self.fails("--api-key", ","))
        self.assertIn("nope", self.fails("--keep", "nope"))

    def test_broken_template(self):
        self.assertIn("--chat-template: chat template: line 1",
                      self.fails("--chat-template", "{% if %}", code=1))
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{{ messages | nosuchfilter }}")
            file.flush()
            self.assertIn("--chat-template-file: chat template: line 1",
                          self.fails("--chat-template-file", file.name, code=1))

    def test_addresses(self):
        if not rig.socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
            self.skipTest("there is no IPv6 here")
        for host, ask in (("[::1]", ("::1",)), ("::", ("::1", "127.0.0.1")),
                          ("0.0.0.0", ("127.0.0.1",)), ("localhost", ("localhost",))):
            with rig.Server("--host", host) as s:
                self.assertIn(f"http://[{host}]:" if host == "::" else f"http://{host}:", s.said)
                for address in ask:
                    c = rig.http.client.HTTPConnection(address, s.port, timeout=rig.PATIENCE_S)
                    self.assertEqual(s.get("/kv", connection=c).code, 200, (host, address))
                    c.close()
            self.assertEqual("--api-key" in s.err, host in ("::", "0.0.0.0"), s.err)

    def test_taken_port(self):
        with rig.Server() as s:
            self.assertIn(str(s.port), self.fails("--port", str(s.port), code=1))

    def test_wrong_host(self):
        self.assertIn("no.such.host.invalid",
                      self.fails("--host", "no.such.host.invalid", "--port", "0", code=1))


if __name__ == "__main__":
    rig.main()
