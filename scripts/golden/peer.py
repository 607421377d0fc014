"""Compiles llama_logits.cpp against a build of llama.cpp and runs it. Standard library only."""
import os
import subprocess

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_logits.cpp")
LIBRARIES = ["src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a",
             "ggml/src/libggml-base.a"]


def output(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Peer:
    """llama.cpp. folder: its source tree, with a static build (BUILD_SHARED_LIBS=OFF) in build/."""

    def __init__(self, folder, work):
        self.folder, self.program = folder, os.path.join(work, "llama_logits")
        libraries = [os.path.join(folder, "build", name) for name in LIBRARIES]
        subprocess.run(["c++", "-O2", "-std=c++17", f"-I{folder}/include",
                        f"-I{folder}/ggml/include", SOURCE, "-o", self.program, *libraries,
                        "-fopenmp", "-lpthread", "-ldl"], check=True)

    def logits(self, model, ids, positions):
        """Lines "pos P", "top ID:LOGIT ...", "proj VALUE ..." for each position."""
        return output([self.program, model, ",".join(map(str, ids)), "logits",
                       ",".join(map(str, positions))]).splitlines()

    def story(self, model, text, n):
        """Lines "prompt ID ...", "ids ID ...", "gap LOGITS", "text" and text:
        the prompt and n greedy tokens."""
        return output([self.program, model, text, "story", str(n)])

    def to_f32(self, model, out):
        """The same weights, decoded to F32 by llama.cpp."""
        subprocess.run([os.path.join(self.folder, "build/bin/llama-quantize"), "--allow-requantize",
                        model, out, "F32"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
