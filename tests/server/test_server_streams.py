#!/usr/bin/env python3
"""`pith serve` under way: company, clients that hang up or do not read, a full queue, the end."""

import json
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import server_rig as rig

N_LONG = 7500  # about all that the context holds: a few seconds
LONG = {"prompt": "The friend of Otto is", "n_predict": N_LONG, "ignore_eos": True, "stream": True}
PROMPT = "The friend of Otto is Maria. " * 900  # some 7000 tokens


class Company(unittest.TestCase):
    def test_same_texts(self):
        names = ["Otto", "Maria", "Walter", "Victor", "Martin", "Anna", "Peter", "Laura"]
        bodies = [{"prompt": f"The friend of {name} is", "n_predict": 40, "seed": i,
                   "temperature": 1.0, "ignore_eos": True} for i, name in enumerate(names)]

        def ask(s, body):
            return s.post("/completion", body).json()["content"]

        with rig.Server("-np", "8", "--no-prefix") as s:
            alone = [ask(s, b) for b in bodies]
            self.assertEqual(len(set(alone)), len(alone))
            company = rig.together([lambda b=b: ask(s, b) for b in bodies])
            streams = rig.together([lambda b=b: "".join(
                d.get("content", "") for d in
                s.stream("/completion", dict(b, stream=True)).documents()) for b in bodies])
        self.assertEqual(company, alone)
        self.assertEqual(streams, alone)

    def test_without_seed_texts_differ(self):
        body = {"prompt": "The", "n_predict": 20, "temperature": 1.5, "ignore_eos": True}
        with rig.Server() as s:
            texts = {s.post("/completion", body).json()["content"] for _ in range(4)}
        self.assertGreater(len(texts), 1)


class HangUp(unittest.TestCase):
    def test_stream(self):
        with rig.Server() as s:
            stream = s.stream("/completion", LONG)
            next(stream.events())
            stream.close()
            s.until("pith_requests_cancelled_total", 1)
            s.until("pith_answers_running", 0)
            self.assertEqual(s.metric("pith_http_gone_total"), 1)
            self.assertLess(s.metric("pith_generated_tokens_total"), N_LONG)

    def test_document(self):
        with rig.Server() as s:
            c = rig.raw(s, "POST", "/completion", dict(LONG, stream=False))
            s.until("pith_answers_running", 1)
            c.close()
            s.until("pith_requests_cancelled_total", 1)
            self.assertLess(s.metric("pith_generated_tokens_total"), N_LONG)
            s.until("pith_http_gone_total", 1)
            self.assertEqual(s.metric("pith_http_refused_total"), 0)

    def test_prompt(self):
        with rig.Server() as s:
            n = len(s.post("/tokenize", {"content": PROMPT}).json()["tokens"])
            self.assertGreater(n, 5000)
            rig.raw(s, "POST", "/completion", dict(LONG, prompt=PROMPT)).close()
            s.until("pith_http_gone_total", 1)  # it may go before its request is one
            s.until("pith_answers_running", 0)
            self.assertLess(s.metric("pith_prompt_tokens_total"), n)
            self.assertEqual(s.metric("pith_generated_tokens_total"), 0)

    def test_queue(self):
        with rig.Server("-np", "1") as s:
            first = s.stream("/completion", LONG)
            next(first.events())
            c = rig.raw(s, "POST", "/completion", LONG)
            s.until("pith_requests_waiting", 1)
            c.close()
            s.until("pith_requests_waiting", 0)
            first.close()
            s.until("pith_requests_cancelled_total", 2)

    def test_half_a_body(self):
        with rig.Server() as s:
            c = rig.socket.create_connection(("127.0.0.1", s.port))
            c.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            c.close()
            c = rig.socket.create_connection(("127.0.0.1", s.port))
            c.sendall(b"POST /comp")
            c.close()
            self.assertEqual(s.get("/health").code, 200)

    def test_request_that_never_ends(self):
        head = b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        with rig.Server("--timeout", "1") as s:
            begun = []
            start = time.monotonic()
            for text in (head, b"POST /comp", b""):
                c = rig.socket.create_connection(("127.0.0.1", s.port), timeout=rig.PATIENCE_S)
                c.sendall(text)
                begun.append((c, text))
            for c, text in begun:
                self.assertEqual(c.recv(1), b"", text)
                self.assertLess(time.monotonic() - start, 20)
                c.close()

    def test_head_of_a_stream(self):
        with rig.Server() as s:
            self.assertEqual(s.ask("HEAD", "/kv/events").code, 200)
            s.until("pith_http_gone_total", 1)


class Watching(unittest.TestCase):
    def test_cancel_and_follow(self):
        with rig.Server() as s:
            stream = s.stream("/completion", LONG)
            events = stream.events()
            next(events)
            mine = [i for i in s.get("/slots").json() if i["state"] == "generating"]
            self.assertEqual(len(mine), 1)
            task = mine[0]["id_task"]
            self.assertGreater(mine[0]["kv_bytes"], 0)
            self.assertEqual(s.post(f"/kv/follow?id={task}&answer=0", "").code, 200)
            self.assertEqual(s.post(f"/kv/cancel?id={task + 1000}", "").code, 404)
            for query in ("", "?id=x", "?id=-1"):
                bad = s.post("/kv/cancel" + query, "")
                self.assertEqual(bad.code, 400)
                self.assertIn("the number of a request", bad.error()["message"])
            self.assertEqual(s.post(f"/kv/cancel?id={task}", "", headers={"Origin": "http://a.b"})
                             .code, 403)
            self.assertEqual(s.post(f"/kv/cancel?id={task}", "").code, 200)
            last = [json.loads(data) for _, data in events if data != "[DONE]"][-1]
            self.assertIn("error", last)
            s.until("pith_requests_cancelled_total", 1)

    def test_events_are_few(self):
        with rig.Server() as s:
            view = rig.Stream(s, "/kv/events", None, method="GET")
            events = view.events()
            first = json.loads(next(events)[1])
            start = time.monotonic()
            s.post("/completion", dict(LONG, stream=False, n_predict=800))
            n = 0
            s.terminate()  # which ends the stream
            for _, data in events:
                self.assertEqual(json.loads(data)["version"], first["version"])
                n += 1
            self.assertGreater(n, 0)
            self.assertLess(n, 5 * (time.monotonic() - start) + 2)

    def test_progress(self):
        with rig.Server() as s:
            body = dict(LONG, prompt=PROMPT[:len(PROMPT) // 2], n_predict=2,
                        return_progress=True)
            told = [d["prompt_progress"] for d in s.stream("/completion", body).documents()
                    if "prompt_progress" in d]
            self.assertGreater(len(told), 3)
            read = [t["processed"] for t in told]
            self.assertEqual(read, sorted(read))
            self.assertLessEqual(read[-1], told[-1]["total"])


class Caches(unittest.TestCase):
    def test_prefix_salt_and_none(self):
        text = "The friend of Otto is Maria. " * 40

        def cached(s, **more):
            a = s.post("/completion", dict(prompt=text, n_predict=1, **more)).json()
            return a["timings"]["cache_n"]

        with rig.Server("--page", "16") as s:
            self.assertEqual(cached(s), 0)
            self.assertGreater(cached(s), 0)
            self.assertEqual(cached(s, cache_prompt=False), 0)
            self.assertEqual(cached(s, cache_salt="a"), 0)
            self.assertGreater(cached(s, cache_salt="a"), 0)
            self.assertEqual(cached(s, cache_salt="b"), 0)
        with rig.Server("--no-prefix") as s:
            self.assertEqual([cached(s), cached(s)], [0, 0])

    def test_why_no_more_was_reused(self):
        with rig.Server() as s:
            def ask(prompt, **more):
                body = dict({"prompt": prompt, "n_predict": 2, "ignore_eos": True}, **more)
                a = s.post("/completion", body).json()
                pith = a.get("pith", {})
                return a["timings"]["cache_n"], pith.get("cache_why"), pith.get("cache_differs_at")

            long = "The friend of Otto is Maria. " * 20
            self.assertEqual(ask(long, id_slot=1)[1:], ("new", None))  # nothing was there
            n, why, at = ask(long + "And", id_slot=1)
            self.assertGreater(n, 20)
            n, why, at = ask("The friend of Anna", id_slot=1)
            self.assertEqual(why, "differs")
            self.assertGreater(at, 0)
            self.assertEqual(ask("The friend of", id_slot=1, cache_salt="x")[1], "salt")
            t = s.post("/completion", {"prompt": long, "n_predict": 2, "id_slot": 2}).json()["timings"]
            self.assertTrue(all(isinstance(v, (int, float)) for v in t.values()))  # others rely on it
            a = s.post("/v1/messages", {"model": "x", "max_tokens": 2, "id_slot": 1,
                                        "messages": [{"role": "user", "content": "Hello"}]}).json()
            self.assertEqual(a["usage"]["pith"]["cache_why"], "salt")

    def test_a_short_prompt_is_no_policys_doing(self):
        with rig.Server() as s:
            body = {"prompt": "The friend of Otto is", "n_predict": 2, "ignore_eos": True}
            s.post("/completion", body)
            pith = s.post("/completion", body).json()["pith"]
            self.assertEqual((pith["cached_tokens"], pith["cache_why"]), (0, "short"))
            self.assertEqual(pith["cache_differs_at"], pith["read_tokens"])
            self.assertEqual(s.metric("pith_reuse_short_total"), 1)
            self.assertEqual(s.metric("pith_reuse_policy_total"), 0)

    def test_a_budget_that_does_not_fit_is_named(self):
        with rig.Server("--keep", "streaming:budget=256", "--recall", "none") as s:
            for budget, why in (("10%", "pith.budget: 10% is not a number of entries, as the "
                                        "engine's is, nor none"),
                                ("1k", 'pith.budget: "1k" is no number of tokens')):
                body = {"prompt": "x", "n_predict": 1, "pith": {"budget": budget}}
                error = s.post("/completion", body).error()
                self.assertIn(why, error["message"])
                self.assertEqual(error["param"], "pith.budget")

    def test_slot_goes_on_under_a_policy(self):
        with rig.Server("--keep", "streaming:budget=128", "--page", "16") as s:
            text, body = "The friend of Otto is Maria. " * 30, {"n_predict": 20, "id_slot": 0,
                                                                "ignore_eos": True}
            for turn in range(3):
                a = s.post("/completion", dict(body, prompt=text)).json()
                text += a["content"] + " The friend of Maria is"
                self.assertEqual(a["timings"]["cache_n"] > 0, turn > 0)
            self.assertGreater(s.metric("pith_kv_evicted_entries_total"), 0)
            s.until("pith_parked_slots", 1)

    def test_recall_by_default(self):
        body = {"prompt": "The friend of Otto is Maria. " * 60, "n_predict": 8, "id_slot": 0}
        for options, recall in (([], "kv"), (["--recall", "none"], "none"),
                                (["--keep", "none"], None)):
            with rig.Server("--keep", "streaming:budget=192", "--page", "16", *options) as s:
                a = s.post("/completion", body).json()
                self.assertEqual(s.get("/kv").json()["policies"]["recall"], recall)
                self.assertEqual(a["pith"].get("recalled_entries", 0) > 0, recall == "kv")
                self.assertEqual("doubt" in a["pith"], recall == "kv")
                self.assertTrue(0 <= a["pith"].get("doubt", 0) <= 1)

    def test_slot_goes_on_from_its_own_spelling(self):
        def ids(text, special=False):
            return s.post("/tokenize", {"content": text, "parse_special": special}).json()["tokens"]

        def cached(prompt, slot):
            return s.post("/completion", {"prompt": prompt, "n_predict": 1, "id_slot": slot,
                                          "ignore_eos": True}).json()["timings"]["cache_n"]

        with rig.Server("--keep", "streaming:budget=128", "--page", "16", "--no-prefix") as s:
            before, after = ids("The friend of Otto is Maria. " * 60), ids(" is Maria.")
            word, space, end = ids(" Otto"), ids(" "), s.get("/props").json()["eos_token"]
            self.assertEqual(len(word), 1)
            spelled = space + ids("Otto")
            # Other tokens, and those of an answer that ends within one: all of it is there, and
            # what is counted are tokens of the prompt.
            self.assertEqual(cached(before + spelled, 0), 0)
            self.assertEqual(cached(before + word + after, 0), len(before) + 1)
            self.assertEqual(cached(before + space + ids("O"), 1), 0)
            self.assertEqual(cached(before + word + after, 1), len(before) + 1 - len(ids("tto")))
            # Later turns differ at the same place, and go on all the same.
            self.assertEqual(cached(before + word + after + after, 0),
                             len(before) + 1 + len(after))
            # Another word is another prompt, and so is the text of a control token.
            self.assertLess(cached(before + ids(" Paul") + after, 0), 16)
            control = ids(end, special=True)
            self.assertEqual((len(control), len(ids(end)) > 1), (1, True))
            self.assertEqual(cached(before + control, 2), 0)
            self.assertLess(cached(before + ids(end) + after, 2), 16)

    def test_slot_pins_the_system_prompt(self):
        messages = [{"role": "system", "content": "The friend of Otto is Maria. " * 12}]
        keep = "streaming:budget=192,slack=16,pin-prompt=on"
        with rig.Server("--keep", keep, "--page", "16", "-c", "512") as s:
            used = []
            for turn in range(8):
                messages.append({"role": "user", "content": "The friend of Maria is Otto. " * 8})
                a = s.post("/v1/chat/completions", {"messages": messages, "id_slot": 0, "seed": 1,
                                                    "max_tokens": 8, "ignore_eos": True})
                self.assertEqual(a.code, 200, a.body)
                answer = a.json()
                messages.append(answer["choices"][0]["message"])
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached > 84, turn > 0)
                s.until("pith_parked_slots", 1)
                used.append(s.metric("pith_kv_used_bytes"))
            self.assertGreater(answer["usage"]["pith"]["evicted_entries"], 0)
            self.assertGreater(answer["usage"]["prompt_tokens"], 600)
            self.assertLessEqual(max(used[2:]), 1.1 * min(used[2:]))
            # What is to stay can be said, too. More than half of the budget is not pinned.
            body = {"prompt": "The friend of Otto is Maria. " * 60, "n_predict": 1, "id_slot": 1}
            self.assertEqual(s.post("/completion", dict(body, n_keep=20)).code, 200)
            self.assertEqual(s.post("/completion", dict(body, n_keep=400)).code, 200)
            self.assertEqual(s.post("/completion", dict(body, n_keep=-1)).code, 200)
            self.assertIn("n_keep", s.post("/completion", dict(body, n_keep=-2)).error()["message"])

    def test_prompt_is_scored(self):
        with rig.Server() as s:
            a = s.post("/v1/completions", {"prompt": "The friend of Otto", "max_tokens": 1,
                                           "echo": True, "logprobs": 1}).json()
            scores = a["choices"][0]["logprobs"]["token_logprobs"]
            n = a["usage"]["prompt_tokens"]
            self.assertEqual(len(scores), n + 1)
            self.assertIsNone(scores[0])
            self.assertTrue(all(x <= 0 for x in scores[1:]))

    def test_schema_is_followed(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}},
                  "required": ["age"], "additionalProperties": False}
        with rig.Server() as s:
            a = s.post("/completion", {"prompt": "The", "n_predict": 60, "seed": 1,
                                       "json_schema": schema}).json()
            self.assertIsInstance(json.loads(a["content"])["age"], int)


class SlowReader(unittest.TestCase):
    def test_is_dropped_and_holds_nobody_up(self):
        with rig.Server("--behind", "4KiB", "--timeout", "1") as s:
            slow = rig.raw(s, "POST", "/completion",
                           dict(LONG, n_probs=20), small=True)
            other = s.post("/completion", dict(LONG, stream=False, n_predict=50))
            self.assertEqual(other.code, 200)
            s.until("pith_http_dropped_total", 1)
            s.until("pith_answers_running", 0)
            self.assertLess(s.metric("pith_generated_tokens_total"), N_LONG)
            slow.close()

    def test_viewer(self):
        with rig.Server("--behind", "1KiB") as s:
            slow = rig.raw(s, "GET", "/kv/events", None, small=True)
            a = s.post("/completion", dict(LONG, stream=False, n_predict=2000))
            self.assertEqual(a.code, 200)
            slow.close()


class Full(unittest.TestCase):
    def test_queue(self):
        with rig.Server("-np", "1", "--queue", "1") as s:
            streams = [s.stream("/completion", LONG)]
            next(streams[0].events())
            waits = rig.raw(s, "POST", "/completion", LONG)
            s.until("pith_requests_waiting", 1)
            a = s.post("/completion", dict(LONG, stream=False))
            self.assertEqual(a.code, 429)
            self.assertGreaterEqual(int(a.headers["retry-after"]), 1)
            self.assertIn("message", a.error())
            waits.close()
            streams[0].close()
            s.until("pith_answers_running", 0)
            self.assertEqual(
                s.post("/completion", {"prompt": "The", "n_predict": 2}).code, 200)


    def test_more_prompts_than_the_queue_has_places(self):
        with rig.Server("-np", "2", "--queue", "3") as s:
            body = {"prompt": [f"The {i}" for i in range(40)], "max_tokens": 2, "seed": 1}
            for path, of in (("/v1/completions", lambda a: a["choices"]), ("/completion", list)):
                a = s.post(path, body)
                self.assertEqual(a.code, 200, a.body)
                self.assertEqual(len(of(a.json())), 40)
            parts = s.stream("/v1/completions", dict(body, stream=True)).documents()
            ends = [d["choices"][0]["index"] for d in parts if d["choices"][0]["finish_reason"]]
            self.assertEqual(sorted(ends), list(range(40)))
            # A client that goes away takes those with it that wait outside of the queue.
            gone = rig.raw(s, "POST", "/v1/completions",
                           dict(body, max_tokens=4000, ignore_eos=True))
            s.until("pith_requests_waiting", 3)
            gone.close()
            s.until("pith_requests_waiting", 0)
            s.until("pith_answers_running", 0)
            self.assertEqual(s.metric("pith_requests_refused_total"), 0)
            self.assertEqual(s.post("/completion", {"prompt": "The", "n_predict": 2}).code, 200)

    def test_time_of_a_request(self):
        with rig.Server("-np", "1", "--queue", "2") as s:
            long = {"max_tokens": 100000, "ignore_eos": True, "timeout": 1e-6, "seed": 1}
            hello = {"messages": [{"role": "user", "content": "Hello"}]}
            for path, more in (("/v1/chat/completions", hello), ("/completion", {"prompt": "The"}),
                               ("/v1/completions", {"prompt": ["The"] * 5, "timeout": 0.2}),
                               ("/v1/responses", {"input": "The"}), ("/v1/messages", hello)):
                a = s.post(path, {**long, **more})
                self.assertEqual(a.code, 504, (path, a.body))
                self.assertEqual(a.error()["type"], "timeout_error")
                self.assertRegex(a.error()["message"], r"^timeout: [0-9.e-]+ s have passed")


class End(unittest.TestCase):
    def test_waiting_requests_are_told_to_ask_again(self):
        with rig.Server("-np", "1", "--queue", "2", "--drain", "0") as s:
            hello = {"messages": [{"role": "user", "content": "Hello"}]}
            bodies = (("/completion", dict(LONG, stream=False)),
                      ("/v1/messages", dict(hello, max_tokens=100000, ignore_eos=True)),
                      ("/v1/completions", dict(LONG, stream=False, prompt=["The"] * 4)))
            answers = []
            threads = [rig.threading.Thread(target=lambda p=p, b=b: answers.append(s.post(p, b)))
                       for p, b in bodies]
            for i, t in enumerate(threads):
                t.start()
                s.until("pith_answers_running" if i == 0 else "pith_requests_waiting", max(i, 1))
            s.terminate()
            for t in threads:
                t.join()
            self.assertEqual([a.code for a in answers], [503] * 3)
            self.assertEqual(sorted(a.error()["type"] for a in answers),
                             ["overloaded_error", "unavailable_error", "unavailable_error"])
            for a in answers:
                self.assertGreaterEqual(int(a.headers["retry-after"]), 1)
                self.assertEqual(a.error()["message"], "the server is shutting down")

    def test_running_request_ends(self):
        with rig.Server("--drain", "200") as s:
            stream = s.stream("/completion", dict(LONG, n_predict=1500))
            events = stream.events()
            next(events)
            s.terminate()
            a = s.post("/completion", {"prompt": "The", "n_predict": 1})
            while a.code == 200:  # the signal is on its way
                a = s.post("/completion", {"prompt": "The", "n_predict": 1})
            self.assertEqual(a.code, 503)
            self.assertIn("retry-after", a.headers)
            self.assertEqual(s.get("/health").code, 503)
            last = None
            for _, data in events:
                if data != "[DONE]":
                    last = json.loads(data)
            self.assertTrue(last["stop"])
            self.assertEqual(last["tokens_predicted"], 1500)
            s.process.wait(rig.PATIENCE_S)
            self.assertEqual(s.process.returncode, 0)

    def test_limit(self):
        with rig.Server("--drain", "0") as s:
            stream = s.stream("/completion", LONG)
            events = stream.events()
            next(events)
            s.terminate()
            try:
                rest = [json.loads(data) for _, data in events if data != "[DONE]"]
                self.assertTrue("error" in rest[-1] or rest[-1].get("stop"), rest[-1])
            except rig.http.client.HTTPException:
                pass  # cut off
            s.process.wait(rig.PATIENCE_S)
            self.assertEqual(s.process.returncode, 0)

    def test_idle(self):
        with rig.Server() as s:
            stream = rig.Stream(s, "/kv/events", None, method="GET")
            next(stream.events())
            kept = s.connect()
            s.get("/health", connection=kept)
            start = time.monotonic()
            s.terminate()
            s.process.wait(rig.PATIENCE_S)
            self.assertLess(time.monotonic() - start, 10)
            stream.close()
            kept.close()


if __name__ == "__main__":
    rig.main()
