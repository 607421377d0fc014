#!/usr/bin/env python3
"""Fails where a file reaches up: includes a header of a higher floor, or uses a function that is
defined there (pith.h declares functions of every floor to all). FLOORS is the one list of floors;
ARCHITECTURE.md must show the same one. The folders of ONLY may include from src/ nothing but what
stands there: what they need else, pith.h is missing. Outside of src/policy/ no file of src/ looks
at which policies an engine has: engine_traits says it. Outside of src/device/ none includes what is
inside of a device, and the pass and the store have no kernel table: device.h is all they compute
by. SEEN says which headers of a room a higher folder may see: policies know a model's shape, not
its weights, and the command knows lines of a batch, not bodies of requests.
Headers do not include each other in a circle, and files of two folders do not either: a file here
is NAME.c and NAME.h together. Within a folder files may share an internal header, NAME_internal.h,
which no other folder includes but src/device/, whose code works on the store's pages.

    scripts/check_layers.py
"""

import re
import sys
from pathlib import Path

# From the ground up.
FLOORS = (
    "include",
    "src/base",
    "src/tensor",
    "src/file",
    "src/text/value",
    "src/text/vocab",
    "src/text/template",
    "src/text/grammar",
    "src/text",
    "src/cpu",
    "src/device",
    "src/kv",
    "src/device/cpu",
    "src/device/checked",
    "src/device/gpu",
    "src/device/cuda",
    "src/device/emulated",
    "src/model",
    "src/policy",
    "src/policy/keep/stats",
    "src/policy/keep/rules",
    "src/policy/keep/learn",
    "src/policy/keep/methods",
    "src/policy/read",
    "src/policy/recall",
    "src/policy/share",
    "src/policy/traits",
    "src/engine",
    "src/serve",
    "src/serve/tools",
    "src/serve/scheduler",
    "src/serve/api",
    "src/serve/batch",
    "src/serve/view",
    "page",
    "eval",
    "server",
    "cli",
)

# base.h has macros and small arithmetic; safetensors.c is compiled into eval/; replay.h is
# exported.
ONLY = {
    "eval": ("src/base/base.h", "src/base/new_file.h", "src/file/safetensors.h", "src/engine/replay.h"),
    # The layer between requests and the scheduler, which pith_serve holds beside the library.
    "server": ("src/serve/json.h", "src/serve/api/request.h", "src/serve/api/reply.h", "src/serve/view/view.h"),
    "cli": ("src/base/new_file.h", "src/serve/batch/batch.h"),
}

# (folder, a room below it): what of the room the folder may see, at once or by way of a header.
SEEN = {
    ("src/policy", "src/model"): ("src/model/shape.h", "src/model/forward.h"),
    ("cli", "src/serve"): ("src/serve/batch/batch.h",),
}

# (file, what it reaches for): why.
EXCEPTIONS = {
    ("src/device/gpu/gpu.h", "src/device/emulated/emu.h"): "what its functions mean to a host compiler",
    ("src/kv/top.c", "pi_kernels"): "it chooses by scores that the host has",
    ("src/kv/type.c", "pi_kernels"): "it rounds vectors that the host has",
}

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for top in ("include", "src", "page", "eval", "server", "cli") for path in
                 (ROOT / top).rglob("*.[ch]"))
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.S)
# A definition begins in the first column, its parameters may take several lines.
DEFINITION = re.compile(r"^[A-Za-z_][\w \t*]*?\b(\w+_\w+)\([^;{}]*\)\s*\{", re.M)
STATIC = re.compile(r"\bstatic\b[^;{}()=]*?\b(\w+)\(")
WORD = re.compile(r"\b[A-Za-z_]\w+\b")
# Whether there is a policy, and which form of recall or share.
LOOK = re.compile(r"\b(?:keep|read)\.policy\s*[!=]=|\b(?:recall|share)\.kind\b|"
                  r"\b(?:RECALL|SHARE)_(?:NONE|KV|TEXT|MEMSHARE|RANDOM)\b")
# The kernel table.
KERNELS = re.compile(r"\bpi_kernels\b")


def floor_of(name):
    """The place in FLOORS of a file's folder; -1: none."""
    found = [i for i, floor in enumerate(FLOORS) if name.startswith(floor + "/")]
    return max(found, key=lambda i: len(FLOORS[i]), default=-1)


def resolve(path, header):
    """The file that an #include means, as a name under ROOT; None: it is nowhere."""
    for folder in (path.parent, ROOT / "src", ROOT / "eval", ROOT / "server", ROOT / "include"):
        if (folder / header).is_file():
            return (folder / header).resolve().relative_to(ROOT).as_posix()
    return None


def check_includes(texts):
    for path, text in texts.items():
        name = path.relative_to(ROOT).as_posix()
        top = name.split("/")[0]
        for header in INCLUDE.findall(text):
            target = resolve(path, header)
            if target is None:
                yield name, header, f'includes "{header}", which is nowhere'
            elif floor_of(target) > floor_of(name):
                yield name, target, f"includes {target}, which is above it"
            elif target.startswith("src/") and target not in ONLY.get(top, (target,)):
                yield name, target, f"includes {target}, which is inside the library"


def check_seen(texts):
    targets = {path.relative_to(ROOT).as_posix():
               {resolve(path, header) for header in INCLUDE.findall(text)} - {None}
               for path, text in texts.items()}
    for (folder, room), shown in SEEN.items():
        todo = [name for name in targets if name.startswith(folder + "/")]
        seen = set(todo)
        while todo:
            name = todo.pop()
            for target in sorted(targets.get(name, ())):
                if target.startswith(room + "/") and target not in shown:
                    yield name, target, f"shows {folder}/ {target}, which is inside of {room}/"
                elif target not in seen:
                    seen.add(target)
                    todo.append(target)


def check_uses(texts):
    codes = {path: COMMENT.sub(" ", text) for path, text in texts.items()}
    statics = {path: set(STATIC.findall(code)) for path, code in codes.items()}
    home = {}
    for path, code in codes.items():
        name = path.relative_to(ROOT).as_posix()
        if name.endswith(".c") and name.startswith("src/"):
            home.update((function, name) for function in DEFINITION.findall(code)
                        if function not in statics[path])
    for path, code in codes.items():
        name = path.relative_to(ROOT).as_posix()
        if name.endswith(".h"):
            continue  # a header declares what its floor defines, and pith.h what all do
        own = floor_of(name)
        for word in sorted(set(WORD.findall(code)) - statics[path]):
            if word in home and floor_of(home[word]) > own:
                yield name, word, f"uses {word}, which is above it, in {home[word]}"


def check_looks(texts):
    for path, text in texts.items():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("src/") and not name.startswith("src/policy/"):
            for look in sorted(set(LOOK.findall(COMMENT.sub(" ", text)))):
                yield name, look, f"looks at {look}: engine_traits says which policies there are"


def check_internal(texts):
    for path, text in texts.items():
        name = path.relative_to(ROOT).as_posix()
        for target in (resolve(path, header) for header in INCLUDE.findall(text)):
            folder, _, file = (target or "").rpartition("/")
            inside = file.endswith("_internal.h") or file == "internal.h"
            if inside and not name.startswith((folder + "/", "src/device/")):
                yield name, target, f"includes {target}, which is inside of {folder}/"


def check_devices(texts):
    for path, text in texts.items():
        name = path.relative_to(ROOT).as_posix()
        for header in INCLUDE.findall(text):
            if not name.startswith("src/device/") and header.startswith(("device/cpu/",
                                                                         "device/checked/")):
                yield name, header, f'includes "{header}", which is inside of a device'
        if name.startswith(("src/model/", "src/kv/")):
            for word in sorted(set(KERNELS.findall(COMMENT.sub(" ", text)))):
                yield name, word, f"uses {word}: it computes by the operations of device.h"


def circles(graph):
    """The strongly connected parts of a graph that have more than one member (Tarjan)."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            part = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(part) > 1:
                found.append(sorted(part))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def check_circles(texts):
    headers, files = {}, {}
    for path, text in texts.items():
        name = path.relative_to(ROOT).as_posix()
        targets = {target for target in (resolve(path, header) for header in INCLUDE.findall(text))
                   if target is not None}
        if name.endswith(".h"):
            headers[name] = sorted(targets)
        files.setdefault(name[:-2], set()).update(target[:-2] for target in targets
                                                  if target[:-2] != name[:-2])
    for part in circles(headers):
        yield part[0], "circle", f"is in a circle of headers: {', '.join(part)}"
    for part in circles({name: sorted(others) for name, others in files.items()}):
        if len({name.rsplit("/", 1)[0] for name in part}) > 1:
            yield part[0], "circle", f"is in a circle of files: {', '.join(part)}"


def check_drawing():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = re.search(r"^## Floors.*?\n\n(.*?)\n\n", text, re.M | re.S)
    shown = re.findall(r"^    ([a-z/]+)/  ", found.group(1), re.M) if found else []
    if tuple(shown) != FLOORS:
        yield "ARCHITECTURE.md", "floors", f"shows the floors {shown}, FLOORS has {list(FLOORS)}"


def main():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    found = [*check_includes(texts), *check_seen(texts), *check_uses(texts), *check_looks(texts),
             *check_circles(texts), *check_internal(texts), *check_devices(texts), *check_drawing()]
    for name, target, what in found:
        if (name, target) not in EXCEPTIONS:
            print(f"check_layers.py: {name} {what}", file=sys.stderr)
    met = {(name, target) for name, target, _ in found}
    for name, target in EXCEPTIONS.keys() - met:
        print(f"check_layers.py: {name} no longer reaches for {target}: delete its exception",
              file=sys.stderr)
    return 0 if met == EXCEPTIONS.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
