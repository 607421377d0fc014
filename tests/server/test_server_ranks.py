"""One server over several ranks, which mpirun starts: rank 0 has the clients, and the others
follow. Answers are those of one process. The fourth argument is mpirun."""

import concurrent.futures
import os
import signal
import sys
import time
import unittest

import server_rig as rig

MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
       "OMPI_MCA_pml": "ob1",  # looking for networks takes as long as a run
       "OMPI_MCA_hwloc_base_binding_policy": "none",  # else a rank has one processor
       "ASAN_OPTIONS": "detect_leaks=0"}
MPIEXEC = ""
LOST_S = 5    # in which all end when one is lost
IDLE_S = 2    # over which an idle rank is watched
LARGEST = 0.01  # of a processor, that it may take


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Ranks(rig.Server):
    """A server over n ranks. A signal goes to rank 0, as mpirun itself ends all at once."""

    def __init__(self, n, *options):
        super().__init__(*options, launcher=(MPIEXEC, "-np", str(n)))

    def pid(self, rank):
        me = self.process.pid
        with open(f"/proc/{me}/task/{me}/children", encoding="utf-8") as f:
            children = f.read().split()
        for child in children:
            with open(f"/proc/{child}/environ", encoding="utf-8", errors="replace") as f:
                if f"OMPI_COMM_WORLD_RANK={rank}" in f.read().split("\0"):
                    return int(child)
        raise AssertionError(f"there is no rank {rank}")

    def terminate(self):
        os.kill(self.pid(0), signal.SIGTERM)

    def lose(self, rank):
        """Kills a rank; the seconds until all have ended."""
        pids = [self.pid(r) for r in range(2)]
        start = time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)
        while any(is_alive(p) for p in pids):
            if time.monotonic() - start > rig.PATIENCE_S:
                raise AssertionError("a rank lives on")
            time.sleep(0.02)
        seconds = time.monotonic() - start
        self.process.wait(rig.PATIENCE_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return seconds


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}},
          "required": ["name"]}
LONG = "Anna asked Robert, and Robert asked Lena. " * 12
QUESTIONS = [
    {"prompt": "The friend of the friend", "max_tokens": 24, "temperature": 0.8, "seed": 3},
    {"prompt": ["Once upon a time", "There was"], "max_tokens": 12, "n": 2, "temperature": 0.9,
     "seed": 5, "stop": ["e "]},
    {"prompt": LONG, "max_tokens": 30, "temperature": 0, "logprobs": 3},
    {"prompt": LONG + "Then", "max_tokens": 16, "temperature": 0.7, "seed": 9},
    {"prompt": "Robert", "max_tokens": 40, "temperature": 0.8, "seed": 4,
     "response_format": {"type": "json_schema",
                         "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"prompt": "Lena", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1},
]


def choices(server, body):
    answer = server.post("/v1/completions", body)
    if answer.code != 200:
        raise AssertionError(answer.body)
    return answer.json()["choices"]


def together(server, questions):
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda q: choices(server, q), questions))


class RanksTest(unittest.TestCase):
    def expect_same(self, launch, *options, questions=QUESTIONS, beside=True):
        """Of ranks by the words of `launch`, the answers of one process. beside: in company,
        too."""
        with rig.Server(*options) as one:
            expected = [choices(one, q) for q in questions]
        with Ranks(2, *options, *launch) as all_ranks:
            if beside:
                self.assertEqual(together(all_ranks, questions), expected)
            self.assertEqual([choices(all_ranks, q) for q in questions], expected)
            return all_ranks.metric("pith_preempted_total")

    def test_answers_are_those_of_one_process(self):
        self.expect_same(["-t", "2"])
        self.expect_same(["-t", "2", "--split", "layers"])

    def test_with_recurrent_layers(self):
        """Each rank has states of its own, and conversations go back to where all ranks can."""
        hybrid = os.path.join(os.path.dirname(rig.MODEL), "pith-hybrid.gguf")
        self.expect_same(["--split", "layers"], "-m", hybrid, questions=QUESTIONS[:4])

    def test_under_a_keep_policy_too(self):
        """Where a conversation goes on, what it lost decides how much of it is reused."""
        keep = "snapkv:budget=48,slack=16,window=8,granularity="
        for launch, granularity in ([], "all"), (["--split", "layers"], "layer"):
            options = ["--recall", "none", "--keep", keep + granularity]
            self.expect_same(launch, *options, beside=False)
            self.expect_same(launch, *options, "--no-prefix")

    def test_where_memory_is_short(self):
        long = [{"prompt": q, "max_tokens": 100, "temperature": 0.8, "seed": 7, "ignore_eos": True}
                for q in ("Anna", "Robert", "Lena", "Once upon", "There")]
        n = self.expect_same([], "--kv-memory", "300KiB", "-ctk", "q8_0", "-ctv", "turbo3",
                             questions=long)
        self.assertGreater(n, 0)

    def test_who_goes_away_ends_everywhere(self):
        with Ranks(2) as server:
            endless = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True,
                       "seed": 1}
            stream = server.stream("/v1/completions", endless)
            next(stream.events())
            server.until("pith_answers_running", 1)
            stream.connection.close()
            server.until("pith_answers_running", 0)
            self.assertEqual(len(choices(server, QUESTIONS[0])), 1)

    def test_a_conversation_stays_until_it_is_erased(self):
        with Ranks(2) as server:
            body = {**QUESTIONS[2], "id_slot": 3}
            server.post("/v1/completions", body)
            again = server.post("/v1/completions", {**body, "prompt": LONG + "And then"}).json()
            self.assertGreater(again["usage"]["pith"]["cached_tokens"], 100)
            erased = server.post("/slots/3?action=erase", {}).json()
            self.assertGreater(erased["n_erased"], 100)
            self.assertEqual(server.post("/slots/3?action=erase", {}).json()["n_erased"], 0)
            self.assertEqual(len(choices(server, QUESTIONS[1])), 4)

    def test_an_idle_rank_sleeps(self):
        with Ranks(2) as server:
            choices(server, QUESTIONS[0])
            time.sleep(0.5)
            pid, start = server.pid(1), time.monotonic()
            before = cpu_s(pid)
            time.sleep(IDLE_S)
            taken = (cpu_s(pid) - before) / (time.monotonic() - start)
            self.assertLess(taken, LARGEST + 0.02)  # some ticks of the clock more or less

    def test_a_lost_rank_ends_all(self):
        for rank in (0, 1):
            server = Ranks(2)
            choices(server, QUESTIONS[0])
            self.assertLess(server.lose(rank), LOST_S)


if __name__ == "__main__":
    MPIEXEC = sys.argv.pop(3)
    os.environ.update(MPI)
    rig.main()
