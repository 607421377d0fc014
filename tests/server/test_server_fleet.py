"""What routers, probes and autoscalers in front of several servers ask of each."""

import http.client
import os
import re
import subprocess
import tempfile
import threading
import unittest

import server_rig as rig
import test_server_balance as balance

PROMPT = "The friend of Otto is a friend of Maria. " * 12
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HISTOGRAMS = ("time_to_first_token_seconds", "time_per_output_token_seconds",
              "inter_token_latency_seconds", "e2e_request_latency_seconds",
              "request_queue_time_seconds")


def body(**more):
    return {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "seed": 1, **more}


class Metrics(unittest.TestCase):
    def test_an_idle_server_with_a_full_cache_is_free(self):
        with rig.Server("-c", "512", "--alias", 'a "b" \\c') as s:
            self.assertEqual(s.metric("pith_kv_claimed_ratio"), 0)
            stream = s.stream("/v1/completions", body(max_tokens=200, stream=True))
            next(stream.events())
            rig.wait_for(lambda: s.metric("vllm:kv_cache_usage_perc") > 0.3)
            list(stream.events())
            s.until("pith_answers_running", 0)
            rig.wait_for(lambda: s.metric("vllm:kv_cache_usage_perc") == 0)
            self.assertGreater(s.metric("pith_kv_usage_ratio"), 0.3)
            for line in s.get("/metrics").body.decode().splitlines():
                if line[0] != "#":  # escaped as Prometheus has it
                    self.assertIn('{model_name="a \\"b\\" \\\\c"', line)

    def test_histograms_and_blocks(self):
        with rig.Server("--page", "16") as s:
            s.post("/v1/completions", body(max_tokens=5))
            s.post("/v1/completions", body(max_tokens=5, n=2))
            s.until("pith_requests_done_total", 2)
            text = rig.without_model(s.get("/metrics").body.decode())
            counts = {"time_to_first": 3, "time_per": 12, "inter_token": 12}
            for name in HISTOGRAMS:
                found = re.findall(rf'^vllm:{name}_bucket{{le="(.+)"}} (\d+)$', text, re.M)
                below = [int(n) for _, n in found]
                self.assertEqual(below, sorted(below))
                self.assertEqual(found[-1][0], "+Inf")
                self.assertGreaterEqual(len(found), 20)
                n = next((n for begin, n in counts.items() if name.startswith(begin)), 3)
                self.assertEqual(below[-1], n, name)
                self.assertEqual(s.metric(f"vllm:{name}_count"), n)
                self.assertGreater(s.metric(f"vllm:{name}_sum"), 0)
            self.assertGreater(s.metric("vllm:prefix_cache_hits_total"), 0)
            info = re.search(r'vllm:cache_config_info{block_size="16",num_gpu_blocks="(\d+)"', text)
            self.assertGreater(int(info.group(1)), 100)


class Heads(unittest.TestCase):
    def test_names_of_requests_come_back(self):
        with rig.Server("-v") as s:
            a = s.get("/health", headers={"X-Request-Id": "abc-1", "traceparent": TRACE})
            self.assertEqual((a.headers["x-request-id"], a.headers["traceparent"]),
                             ("abc-1", TRACE))
            for odd in ("two words", "x" * 200, "\xe4"):
                a = s.get("/health", headers={"X-Request-Id": odd.encode("latin-1")})
                self.assertNotIn("x-request-id", a.headers)
        self.assertIn(f"id=abc-1 trace={TRACE}\n", s.err)

    def test_a_server_that_ends_sends_its_clients_away(self):
        with rig.Server() as s:
            c = s.connect()
            self.assertNotIn("connection", s.get("/health/ready", connection=c).headers)
            stream = s.stream("/v1/completions", body(max_tokens=20000, stream=True))
            next(stream.events())
            s.terminate()
            rig.wait_for(lambda: s.get("/health/ready").code == 503)
            a = s.post("/v1/completions", body())
            self.assertEqual((a.code, a.headers["connection"].lower(), a.headers["retry-after"]),
                             (503, "close", "1"))
            self.assertEqual(s.get("/health/live").code, 200)
            s.terminate()
            stream.close()
            c.close()

    def test_a_model_that_hangs_is_not_alive(self):
        """It reads a slot's file that nobody writes."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "slot"))
            with rig.Server("--hang", "2", "--slot-save-path", folder) as s:
                self.assertEqual(s.get("/health/live").code, 200)
                line = rig.raw(s, "POST", "/slots/0?action=restore", {"filename": "slot"})
                rig.wait_for(lambda: s.get("/health/live").code == 503)
                self.assertEqual(s.get("/health/ready").code, 200)  # what can be known without it
                with open(os.path.join(folder, "slot"), "wb"):
                    pass
                rig.wait_for(lambda: s.get("/health/live").code == 200)
                line.close()


class Loading(unittest.TestCase):
    def test_the_port_is_open_while_the_model_loads(self):
        """It waits for a template that comes through a pipe."""
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "template")
            os.mkfifo(pipe)
            port = balance.free_port()
            p = subprocess.Popen([rig.PITH, "serve", "-m", rig.MODEL, "-t", "1", "--port",
                                  str(port), "--chat-template-file", pipe],
                                 stdout=subprocess.PIPE, text=True)

            def ask(method, path, text=None):
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=rig.PATIENCE_S)
                try:
                    c.request(method, path, body=text)
                    return rig.Answer(c.getresponse())
                except OSError:
                    return None
                finally:
                    c.close()
            rig.wait_for(lambda: ask("GET", "/health/live") is not None)
            self.assertEqual(ask("GET", "/health/live").code, 200)
            for method, path, text in (("GET", "/health", None), ("GET", "/health/ready", None),
                                       ("POST", "/v1/completions", "{" * 100000)):
                a = ask(method, path, text)
                self.assertEqual((a.code, a.json()["status"], a.headers["retry-after"]),
                                 (503, "loading model", "1"))
            with open(pipe, "w", encoding="utf-8") as f:
                f.write("{{ messages[0].content }}")
            rig.wait_for(lambda: getattr(ask("GET", "/health/ready"), "code", 0) == 200)
            a = ask("POST", "/apply-template", '{"messages": [{"role": "user", "content": "x"}]}')
            self.assertEqual(a.json()["prompt"], "x")
            self.assertIn(f":{port}\n", p.stdout.readline())
            p.terminate()
            self.assertEqual(p.wait(rig.PATIENCE_S), 0)
            p.stdout.close()


class Priority(unittest.TestCase):
    def test_the_lowest_number_comes_first(self):
        with rig.Server("-np", "1") as s:
            order = []
            first = s.stream("/v1/completions", body(max_tokens=600, stream=True))
            next(first.events())

            def ask(priority):  # long enough that threads here come to know of the ends in order
                long = body(priority=priority, max_tokens=200)
                self.assertEqual(s.post("/v1/completions", long).code, 200)
                order.append(priority)
            threads = []
            for n, priority in enumerate((5, 0, -5)):
                threads.append(threading.Thread(target=ask, args=(priority,)))
                threads[-1].start()
                s.until("vllm:num_requests_waiting", n + 1)
            list(first.events())
            for thread in threads:
                thread.join()
            self.assertEqual(order, [-5, 0, 5])
            a = s.post("/v1/completions", body(priority="high"))
            self.assertEqual((a.code, a.error()["param"]), (400, "priority"))


if __name__ == "__main__":
    rig.main()
