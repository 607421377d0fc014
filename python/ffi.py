"""ffi.py CC ROOT OUT.c HEADER... - writes the extension's C text from Pith's headers.

The compiler's preprocessor reads them, so that Python sees the declarations that C sees. What
cffi does not know is cut: attributes, and all that comes from the system's headers.
"""
import re
import subprocess
import sys

import cffi

# The functions of Python that C calls. Each one's user data is a handle (native.py).
CALLBACKS = """
extern "Python" bool on_progress(void *user, double fraction);
extern "Python" bool on_advance(void *user, int64_t n_read, int64_t n_token);
extern "Python" bool on_logits(void *user, pith_seq *seq, int32_t pos, const float *logits);
extern "Python" bool on_tap(void *user, const pith_tap_rows *rows);
extern "Python" bool on_score(void *user, const pith_keep_lane *lane, float *score);
extern "Python" bool on_mark(void *user, const pith_keep_new *entries, float *mark);
extern "Python" bool on_read(void *user, const pith_read_chunk *chunk, float *score);
extern "Python" bool on_measure(void *user, double fraction, const char *what);
extern "Python" bool on_answer_token(void *user, const pith_answer_token *token);
extern "Python" void on_answer_done(void *user, const pith_answer_result *result);
#define PITH_N_VERB 4
"""


def declarations(compiler: str, root: str, names: "list[str]") -> str:
    text = "".join(f"#include <{name}>\n" for name in names)
    command = [compiler, "-E", "-I", root, "-I", f"{root}/include", "-x", "c", "-"]
    out = subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, check=True).stdout
    lines, is_ours = [], False
    for line in out.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            is_ours = re.search(r"(pith/\w+|eval/call)\.h$", marker.group(1)) is not None
        elif is_ours:
            lines.append(line)
    ours = re.sub(r"__attribute__\s*\(\(.*?\)\)\)?", "", "\n".join(lines))
    return ours.replace("_Bool", "bool")


def main() -> None:
    compiler, root, out, *names = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.cdef(declarations(compiler, root, names) + CALLBACKS)
    ffi.set_source("pithkv._pith", "".join(f"#include <{name}>\n" for name in names))
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main()
