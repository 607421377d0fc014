"""KV events as a router reads them: from one server, and from two behind HAProxy, where a reader
knows before each answer how many tokens of its prompt the server has. Skipped without libzmq."""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest

import kv_reader
import server_rig as rig
import test_server_balance as balance

PROMPT = "The friend of Otto is a friend of Maria. " * 12


def body(**more):
    return {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "seed": 1, **more}


class Events(unittest.TestCase):
    def setUp(self):
        self.reader = kv_reader.Reader(kv_reader.library())

    def tearDown(self):
        self.reader.close()

    def server(self, name, *options, **more):
        config = {"endpoint": self.reader.endpoint, "topic": f"kv@{name}@mini", **more}
        return rig.Server("--kv-events-config", json.dumps(config), "--alias", name, "--page", "16",
                          "--slot-count", "0", *options)

    def settle(self, *servers):
        """Asks until the subscription has come to each, and what it published from there."""
        for n, s in enumerate(servers):
            start = self.reader.n_batch
            i = 0
            while self.reader.n_batch == start:
                s.post("/v1/completions", body(prompt=[300 + n, 301 + i] * 20))
                self.reader.read(100)
                i += 1

    def catch_up(self, s, topic):
        """Reads all that a server has sent."""
        rig.wait_for(lambda: s.metric("pith_answers_running") == 0)
        n = int(s.metric("pith_kv_events_total"))
        rig.wait_for(lambda: self.reader.read(20) or self.reader.next.get(topic, 0) >= n)

    def test_what_is_cached_is_told_and_what_is_salted_is_not(self):
        z = kv_reader.library()
        with tempfile.TemporaryDirectory() as folder:
            place = f"ipc://{folder}/replay"
            with self.server("one", "-c", "512", replay_endpoint=place) as s:
                tokens = s.post("/tokenize", {"content": PROMPT, "add_special": True}).json()["tokens"]
                self.settle(s)
                s.post("/v1/completions", body(cache_salt="mine"))
                self.catch_up(s, "kv@one@mini")
                self.assertEqual(self.reader.known("kv@one@mini", tokens), 0)
                s.post("/v1/completions", body())
                self.catch_up(s, "kv@one@mini")
                self.assertEqual(self.reader.known("kv@one@mini", tokens),
                                 (len(tokens) - 1) // 16 * 16)
                for i in range(4):  # others need the memory
                    s.post("/v1/completions", body(prompt=[400 + i] * 300))
                self.catch_up(s, "kv@one@mini")
                known = self.reader.known("kv@one@mini", tokens)
                answer = s.post("/v1/completions", body()).json()
                self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], known)
                self.assertLess(known, (len(tokens) - 1) // 16 * 16)
                self.assertEqual(self.reader.missed, 0)
                # One that comes late knows the same by a replay.
                self.catch_up(s, "kv@one@mini")
                late = kv_reader.Reader(z)
                replay = kv_reader.Socket(z, kv_reader.DEALER)
                replay.connect(place)
                replay.send(b"", bytes(8))
                while True:
                    _, topic, counter, payload = replay.receive(10000)
                    if not payload:
                        break
                    late.take(topic.decode(), int.from_bytes(counter, "big"), payload)
                self.assertEqual((topic, counter), (b"", b"\xff" * 8))
                self.assertLessEqual(self.reader.pages["kv@one@mini"].items(),
                                     late.pages["kv@one@mini"].items())
                replay.close()
                late.close()

    def test_what_cannot_be_published_is_said_before_the_model_is_loaded(self):
        for config, why in (("{", "the value is no JSON"),
                            ('{"x": 1}', "x: there is no such key"),
                            ('{"endpoint": "tcp://*:99999"}', "endpoint: ends with no port"),
                            ('{"endpoint": "tcp://*:5557x"}', "endpoint: ends with no port"),
                            ('{"endpoint": "tcp://a"}', "endpoint: ends with no port"),
                            ('{"endpoint": "inproc://a"}', "endpoint: does not begin with tcp://"),
                            ('{"replay_endpoint": ""}', "replay_endpoint: does not begin with")):
            done = subprocess.run([rig.PITH, "serve", "-m", "/nope", "--port", "0",
                                   "--kv-events-config", config], capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--kv-events-config: " + why, done.stderr)

    def test_a_reader_knows_what_two_servers_behind_haproxy_have(self):
        if shutil.which("haproxy") is None:
            self.skipTest("there is no haproxy; apt-get install haproxy")
        with self.server("one") as one, self.server("two") as two:
            self.settle(one, two)
            with balance.Balancer((one, two)) as balancer:
                at, n_hit = {}, 0
                for turn in range(3):
                    for talk in range(6):
                        text = f"Talk {talk}: " + PROMPT * (turn + 1)
                        tokens = one.post(
                            "/tokenize", {"content": text, "add_special": True}).json()["tokens"]
                        answer = balancer.ask("POST", "/v1/completions", body(prompt=text),
                                              {"X-Session-ID": f"talk-{talk}"}).json()
                        name = answer["model"]
                        self.assertEqual(at.setdefault(talk, name), name)  # it stays
                        known = self.reader.known(f"kv@{name}@mini", tokens)
                        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                        self.assertEqual(cached, known)
                        n_hit += known > 0
                        self.catch_up(one if name == "one" else two, f"kv@{name}@mini")
                self.assertEqual(n_hit, 2 * 6)
                self.assertEqual(set(at.values()), {"one", "two"})
                self.assertEqual(self.reader.missed, 0)


def build_has_none(pith):
    """Whether the command was built without libzmq, which its answer to no JSON tells."""
    p = subprocess.run([pith, "serve", "-m", sys.argv[2], "--port", "0", "--kv-events-config", "-"],
                       capture_output=True, text=True, check=False)
    return "no libzmq" in p.stderr


if __name__ == "__main__":
    if kv_reader.library() is None or build_has_none(sys.argv[1]):
        print("skipped: there is no libzmq, here or in the build; to fetch it: "
              "apt-get install libzmq3-dev")
        sys.exit(77)
    rig.main()
