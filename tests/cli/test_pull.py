"""`pith pull`, `-hf` and `pith models` against a hub of our own.

usage: test_pull.py PITH MODEL
"""
import fcntl
import hashlib
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from hub_server import Hub

PITH, MODEL = sys.argv[1:3]
REPO = "maker/Small-Model-GGUF"
PATIENCE_S = 100
with open(MODEL, "rb") as f:
    WEIGHTS = f.read()
OTHER = WEIGHTS[:-1] + b"?"


class Pull(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp()
        self.folder = os.path.join(self.home, "pith", "models")
        self.files = {"README.md": b"# a model", "small-Q8_0.gguf": OTHER,
                      "small-Q4_K_M.gguf": WEIGHTS, "mmproj-small-Q4_K_M.gguf": b"picture",
                      "small-Q4_K.gguf": b"no weights"}
        self.hub = Hub({REPO: self.files})

    def tearDown(self):
        self.hub.close()
        shutil.rmtree(self.home)

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        env.update(XDG_CACHE_HOME=self.home, HF_ENDPOINT=self.hub.url + "/", no_proxy="*")
        env.update(more)
        return env

    def run_pith(self, *args, status=0, **env):
        done = subprocess.run([PITH, *args], env=self.environment(**env), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, status, done.stderr)
        if status:
            self.assertEqual(done.stderr.count("\n"), 1 + done.stderr.count("trying"), done.stderr)
        return done

    def there(self, name="small-Q4_K_M.gguf", repo=REPO):
        return os.path.join(self.folder, repo.replace("/", "--"), name)

    def read(self, *args):
        with open(self.there(*args), "rb") as f:
            return f.read()

    def parts(self):
        return [n for _, _, names in os.walk(self.home) for n in names if n.endswith(".part")]

    def asked(self, where="store"):
        return [entry for entry in self.hub.log if entry[0] == where]

    def test_pull_run_list_remove(self):
        done = self.run_pith("pull", REPO)
        self.assertEqual(done.stdout, self.there() + "\n")
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertEqual(self.read(), WEIGHTS)
        self.assertEqual(self.parts(), [])
        self.assertEqual(len(self.asked()), 1)
        # What is there is not fetched again, by name or by -hf, and without the hub.
        self.assertIn("already", self.run_pith("pull", REPO).stderr)
        self.assertEqual(len(self.asked()), 1)
        front = len(self.asked("front"))
        plain = self.run_pith("run", "-m", MODEL, "-p", "Where is", "-n", "4", "-q").stdout
        for how in (["-hf", REPO], ["-hf", REPO + ":q4_k_m"], ["-m", REPO], [REPO + ":Q4_K_M"]):
            done = self.run_pith("run", *how, "-p", "Where is", "-n", "4", "-q", HF_HUB_OFFLINE="1")
            self.assertEqual(done.stdout, plain)
        self.run_pith("info", "-hf", REPO)
        self.run_pith("tokenize", "-m", REPO, "-p", "x")
        self.assertEqual(len(self.asked("front")), front)
        # Another quant comes with -hf itself.
        self.run_pith("run", "-hf", REPO + ":Q8_0", "-p", "Where", "-n", "1", "-q")
        self.assertEqual(self.read("small-Q8_0.gguf"), OTHER)
        listed = self.run_pith("models").stdout
        self.assertIn(f"{REPO}:Q4_K_M", listed)
        self.assertIn(f"{REPO}:Q8_0", listed)
        self.assertIn("2 models", listed)
        self.assertEqual(self.run_pith("models", "list").stdout, listed)
        self.run_pith("models", "rm", REPO + ":Q8_0")
        self.assertFalse(os.path.exists(self.there("small-Q8_0.gguf")))
        self.assertTrue(os.path.exists(self.there()))
        self.run_pith("models", "rm", REPO)
        self.assertEqual(os.listdir(self.folder), [])
        self.assertIn("no such model", self.run_pith("models", "rm", REPO, status=1).stderr)
        self.assertIn("There is no model", self.run_pith("models").stdout)

    def test_a_changed_file_is_pulled_again(self):
        self.run_pith("pull", REPO)
        self.files["small-Q4_K_M.gguf"] = OTHER
        self.run_pith("pull", REPO)
        self.assertEqual(self.read(), OTHER)

    def test_choice(self):
        self.run_pith("pull", REPO + ":Q4_K")  # not that of Q4_K_M
        self.assertEqual(self.read("small-Q4_K.gguf"), b"no weights")
        self.run_pith("pull", REPO, "-hff", "README.md")
        self.assertEqual(self.read("README.md"), b"# a model")
        said = self.run_pith("pull", REPO + ":Q2_K", status=1).stderr
        self.assertIn("no file of quant Q2_K, but Q4_K, Q4_K_M, Q8_0", said)
        self.assertIn("no file \"x.gguf\"",
                      self.run_pith("pull", REPO, "-hff", "x.gguf", status=1).stderr)
        del self.files["small-Q4_K_M.gguf"], self.files["small-Q4_K.gguf"]
        self.run_pith("pull", REPO)  # the first there is
        self.assertEqual(self.read("small-Q8_0.gguf"), OTHER)
        del self.files["small-Q8_0.gguf"]
        self.assertIn("no model as GGUF", self.run_pith("pull", REPO, status=1).stderr)
        for name in ("maker", "maker/", "/x", "a/b/c", "a/..", "a/b:", "a/b:c/d", "../x"):
            self.assertIn("neither", self.run_pith("pull", name, status=2).stderr, name)

    def test_split(self):
        names = [f"Q8_0/big model-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        self.files.update({n: n.encode() * 1000 for n in names})
        self.hub.wrong["many"] = 2  # and the list in pages
        done = self.run_pith("pull", REPO, "-hff", names[1])
        self.assertEqual(done.stdout, self.there(names[0]) + "\n")
        for n in names:
            self.assertEqual(self.read(n), n.encode() * 1000)
        self.assertIn(REPO + ":Q8_0", self.run_pith("models").stdout)
        self.hub.log.clear()
        del self.files[names[2]]
        self.assertIn("00003-of-00003.gguf\" is missing there",
                      self.run_pith("pull", REPO, "-hff", names[0], status=1).stderr)
        self.assertEqual(self.asked(), [])

    def test_broken_connections(self):
        self.hub.wrong.update(cut=3, busy=1)
        self.run_pith("pull", REPO)
        self.assertEqual(self.read(), WEIGHTS)
        ranges = [h.get("Range") for _, _, h in self.asked()]
        n, expected, at = len(WEIGHTS), [None], 0
        for _ in range(3):
            at += (n - at) // 2
            expected.append(f"bytes={at}-")
        self.assertEqual(ranges, expected)

    def test_broken_for_good(self):
        """What came stays, and the next call asks for the rest alone; ranges may not be known."""
        self.hub.wrong["busy"] = 100
        self.assertIn("HTTP 503", self.run_pith("pull", REPO, status=1).stderr)
        self.hub.wrong.update(busy=0, stall=True)
        with self.pulling() as p:
            self.wait_for_part()
            os.kill(p.pid, signal.SIGINT)
            said = p.communicate(timeout=PATIENCE_S)[1]
            self.assertEqual(p.returncode, 130)
            self.assertIn("goes on from there", said)
        self.assertEqual(len(self.parts()), 1)
        self.hub.wrong.update(stall=False)
        self.hub.log.clear()
        self.run_pith("pull", REPO)
        self.assertRegex(self.asked()[0][2]["Range"], r"bytes=[1-9]\d*-")
        self.assertEqual(self.read(), WEIGHTS)
        self.run_pith("models", "rm", REPO)
        self.hub.wrong.update(whole=True, cut=1)
        self.run_pith("pull", REPO)
        self.assertEqual(self.read(), WEIGHTS)

    def pulling(self):
        return subprocess.Popen([PITH, "pull", REPO], env=self.environment(), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def wait_for_part(self):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for folder, _, names in os.walk(self.home):
                for n in names:
                    if n.endswith(".part") and os.path.getsize(os.path.join(folder, n)) > 0:
                        return
            time.sleep(0.02)
        self.fail("nothing comes")

    def test_two_at_once(self):
        self.hub.wrong["stall"] = True
        with self.pulling() as a:
            self.wait_for_part()
            with self.pulling() as b:
                said = [p.communicate(timeout=PATIENCE_S) for p in (a, b)]
        self.assertEqual([a.returncode, b.returncode], [0, 0], said)
        self.assertIn("waiting", said[1][1])
        self.assertEqual(len(self.asked()), 1)
        self.assertEqual(self.read(), WEIGHTS)

    def test_the_lock_may_be_removed_meanwhile(self):
        """As `pith models rm` does it; whoever waited makes another for those who come then."""
        os.makedirs(os.path.dirname(self.there()))
        with open(self.there(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.pulling() as p:
                self.assertIn("waiting", p.stderr.readline())
                os.remove(self.there(".lock"))
                lock.close()
                p.communicate(timeout=PATIENCE_S)
        self.assertEqual(p.returncode, 0)
        self.assertTrue(os.path.exists(self.there(".lock")))

    def test_wrong_sums(self):
        for wrong, word in (("sum", "the sum of the received file is"), ("long", "more bytes came")):
            self.hub.wrong = {wrong: True}
            said = self.run_pith("pull", REPO, status=1).stderr
            self.assertIn(word, said)
            self.assertIn("removed", said)
            self.assertFalse(os.path.exists(self.there()))
            self.assertEqual(self.parts(), [])

    def test_odd_answers(self):
        loop = self.hub.url + f"/api/models/{REPO}/tree/main?recursive=true"
        for wrong, word in (
                ({"list": (204, b"")}, "the hub answers with HTTP 204"),
                ({"list": (300, b"")}, "the hub answers with HTTP 300"),
                ({"list": (200, b"[" + b" " * (65 << 20) + b"]")}, "larger than 64 MiB"),
                ({"next": loop}, "has no end"),
                ({"next": f"file://{MODEL}"}, "not safe to follow"),
                ({"entry": {"size": "9", "lfs": None}}, "has no size of \"small-Q4_K_M.gguf\""),
                ({"entry": {"lfs": {"size": 9, "oid": "0" * 63}}}, "is no SHA-256"),
                ({"entry": {"lfs": {"size": 1 << 62, "oid": "0" * 64}}}, "has no size of"),
                ({"store": 416}, "the hub answers with HTTP 416"),
                ({"store": 204}, "the hub answers with HTTP 204")):
            self.hub.wrong = wrong
            self.assertIn(word, self.run_pith("pull", REPO, status=1).stderr, wrong)
            self.assertFalse(os.path.exists(self.there()))
        self.hub.wrong = {}
        self.files["a\nb-Q2_K.gguf"] = WEIGHTS  # no line could name it
        self.assertIn("no file of quant", self.run_pith("pull", REPO + ":Q2_K", status=1).stderr)
        for name, text in (("HF_TOKEN", "hf_test\r"), ("HF_ENDPOINT", "http://")):
            self.assertIn(name, self.run_pith("pull", REPO, status=1, **{name: text}).stderr)

    def test_sums_may_have_capitals(self):
        digits = hashlib.sha256(WEIGHTS).hexdigest().upper()
        self.hub.wrong["entry"] = {"lfs": {"oid": digits, "size": len(WEIGHTS)}}
        self.run_pith("pull", REPO)
        self.files["small-Q4_K_M.gguf"] = WEIGHTS[:-1] + b"!"
        os.remove(self.there())
        said = self.run_pith("pull", REPO, status=1).stderr
        self.assertIn("not " + digits.lower(), said)

    def test_damaged_entries(self):
        self.run_pith("pull", REPO)
        with open(os.path.join(self.folder, "maker--Small-Model-GGUF--Q4_K_M.json"), "w") as f:
            json.dump({"repo": REPO, "quant": "Q4_K_M", "files": [5]}, f)
        self.assertIn("incomplete", self.run_pith("models").stdout)
        self.assertIn("cannot open", self.run_pith("info", "-m", REPO, status=1).stderr)
        self.run_pith("models", "rm", REPO)

    def test_removal_leaves_nothing(self):
        """Of a broken pull in a folder of the repository, either."""
        self.files["Q2_K/small-Q2_K.gguf"] = WEIGHTS
        self.run_pith("pull", REPO + ":Q8_0")
        self.hub.wrong["store"] = 403
        self.run_pith("pull", REPO + ":Q2_K", status=1)
        self.assertEqual(len(self.parts()), 1)
        self.run_pith("models", "rm", REPO)
        self.assertEqual(os.listdir(self.folder), [])

    def test_token(self):
        self.hub.wrong["auth"] = True
        said = self.run_pith("pull", REPO, status=1).stderr
        self.assertIn("HTTP 401", said)
        self.assertIn("HF_TOKEN", said)
        self.run_pith("pull", REPO, status=1, HF_TOKEN="other")
        self.hub.log.clear()
        self.run_pith("pull", REPO, HF_TOKEN="hf_test")
        for where, _, headers in self.hub.log:  # the store is another port, and never sees it
            self.assertEqual("Authorization" in headers, where == "front")
        self.assertEqual(self.read(), WEIGHTS)

    def test_refusals(self):
        self.assertIn("HTTP 404", self.run_pith("pull", "maker/none", status=1).stderr)
        self.assertIn("HF_HUB_OFFLINE",
                      self.run_pith("run", "-hf", REPO, "-p", "x", status=1, HF_HUB_OFFLINE="1").stderr)
        self.assertEqual(len(self.hub.log), 1)
        self.assertIn("not like https://HOST",
                      self.run_pith("pull", REPO, status=1, HF_ENDPOINT="ftp://x").stderr)
        self.assertIn("pith pull smollm2", self.run_pith("run", "-m", "smollm2", "-p", "x",
                                                         status=1).stderr)
        self.assertIn("give one", self.run_pith("run", "-m", MODEL, "-hf", REPO, "-p", "x",
                                                status=2).stderr)
        with open(os.path.join(self.home, "pith"), "w"):
            self.assertIn("cannot make the folder", self.run_pith("pull", REPO, status=1).stderr)
        os.remove(os.path.join(self.home, "pith"))
        port = self.hub.url
        self.hub.close()
        self.assertIn("cannot be reached", self.run_pith("pull", REPO, status=1,
                                                         HF_ENDPOINT=port).stderr)
        self.hub = Hub({})

    def test_short_names(self):
        listed = [line.split() for line in self.run_pith("pull", "--list").stdout.splitlines()]
        nick, repo = listed[-1]
        self.hub.repos[repo] = {"x-Q4_K_M.gguf": WEIGHTS}
        self.run_pith("pull", nick)
        self.assertIn(f"{nick}:Q4_K_M", self.run_pith("models").stdout)
        for name in (nick, nick.upper() + ":Q4_K_M", repo):
            self.run_pith("tokenize", "-m", name, "-p", "x")
        self.run_pith("models", "rm", nick)

    def test_full_disk(self):
        """Beyond the limit of a file's size: what came stays."""
        most = len(WEIGHTS) // 2
        done = subprocess.run([PITH, "pull", REPO], env=self.environment(), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                                                    (most, most)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)
        self.assertIn("goes on from them", done.stderr)
        self.assertEqual(len(self.parts()), 1)
        self.run_pith("pull", REPO)
        self.assertEqual(self.read(), WEIGHTS)

    def test_a_disk_that_has_room_for_the_rest(self):
        """What came counts: on a disk of one and a half files the second try fits."""
        size, most = len(WEIGHTS) * 3 // 2, len(WEIGHTS) * 9 // 10 // 512
        both = (f"mount -t tmpfs -o size={size} none \"$2\" || exit 77; "
                f"(ulimit -f {most}; \"$0\" pull \"$1\"); \"$0\" pull -q \"$1\"")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", both, PITH, REPO, self.home],
                              env=self.environment(), capture_output=True, text=True,
                              timeout=PATIENCE_S)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("no file system can be mounted here")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("goes on from them", done.stderr)

    def test_paths_stay_inside(self):
        self.files.clear()
        self.files.update({"../../evil-Q4_K_M.gguf": b"x", "/etc/evil-Q4_K_M.gguf": b"x",
                           "a/../evil-Q4_K_M.gguf": b"x"})
        self.assertIn("no model as GGUF", self.run_pith("pull", REPO, status=1).stderr)

    def test_bar(self):
        self.hub.wrong["stall"] = True
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(PITH, [PITH, "pull", REPO], self.environment())
        text = b""
        while True:
            try:
                more = os.read(fd, 65536)
            except OSError:
                break
            if not more:
                break
            text += more
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        os.close(fd)
        self.assertRegex(text, rb"\[#+\.+\] +\d+ %  pulling small-Q4_K_M.gguf: [\d.]+ \wiB of "
                               rb"[\d.]+ MiB, [\d.]+ \w+/s, \d+ s left")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
