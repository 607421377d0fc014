#!/usr/bin/env python3
"""scripts/stats_from_pt.py on archives that are made here, and on the published ones.

    test_stats_from_pt.py PITH            made here: what is right, damaged, or wants to be executed
    test_stats_from_pt.py PITH published  published; 77, a skip, where they are absent

What was converted is read by `pith calibrate inspect`.
"""

import io
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

import data_folder

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "..", "scripts", "stats_from_pt.py")
# Layers, query heads, mean R of all bands, as docs/stats.md prints them.
PUBLISHED = {"aime24_qwen3_8b.pt": (36, 32, 0.643), "aime24_ds_llama8b.pt": (32, 32, 0.640)}
FLOATS = (3, 0, 4, -1, 6, 1)


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s


def tensor(offset, n=2, stride=1, storage=b"ctorch\nFloatStorage\n", key=b"0"):
    """The opcodes of a tensor of n floats."""
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") + storage + text(key) +
            text(b"cpu") + b"K\x06tQK" + bytes([offset]) + b"K" + bytes([n]) + b"\x85K" +
            bytes([stride]) + b"\x85\x89ccollections\nOrderedDict\n)RtR")


def head(tensors=None):
    tensors = tensors or [tensor(0), tensor(2), tensor(4)]
    parts = (b"q_mean_real", b"q_mean_imag", b"q_abs_mean")
    return b"}(" + b"".join(text(part) + t for part, t in zip(parts, tensors)) + b"u"


def pickled(heads, style=b"half", dim=4):
    metadata = b"}(" + text(b"rope_style") + text(style) + text(b"head_dim") + b"K" + bytes([dim]) + b"u"
    stats = b"}(" + b"".join(text(key) + value for key, value in heads) + b"u"
    return b"\x80\x02}(" + text(b"metadata") + metadata + text(b"stats") + stats + b"u."


GOOD = pickled([(b"layer00_head00", head())])


def archived(pickle, floats=FLOATS, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("s/data.pkl", pickle)
        archive.writestr("s/data/0", struct.pack(f"<{len(floats)}f", *floats))
    return out.getvalue()


def convert(folder, data):
    """The exit status, what was said, the bytes that were written, or None."""
    source, target = os.path.join(folder, "a.pt"), os.path.join(folder, "a.stats")
    with open(source, "wb") as file:
        file.write(data)
    if os.path.exists(target):
        os.unlink(target)
    run = subprocess.run([sys.executable, "-B", SCRIPT, source, target], text=True,
                         capture_output=True, check=False)
    written = open(target, "rb").read() if os.path.exists(target) else None
    return run.returncode, run.stdout + run.stderr, written


def inspect(pith, path):
    run = subprocess.run([pith, "calibrate", "inspect", path], text=True, capture_output=True,
                         check=False)
    return run.returncode, run.stdout + run.stderr


def check_good(pith, folder):
    status, said, written = convert(folder, archived(GOOD))
    assert status == 0 and written is not None, said
    # The row is the storage's floats as they are: re, im, abs.
    assert struct.pack("<6f", *FLOATS) in written, written
    status, said = inspect(pith, os.path.join(folder, "a.stats"))
    assert status == 0 and "1 layers, 1 query heads, 2 bands, pairs halves" in said, said
    status, said = inspect(pith, os.path.join(folder, "a.pt"))
    assert status != 0 and "scripts/stats_from_pt.py" in said, said


def check_refused(folder):
    ran = os.path.join(folder, "ran")
    hostile = b"\x80\x02cos\nsystem\n(" + text(b"touch " + ran.encode()) + b"tR."
    whole = archived(GOOD)
    at = whole.index(struct.pack("<6f", *FLOATS))
    damaged = whole[:at] + b"\1" + whole[at + 1:]
    cases = [
        (archived(hostile), "os.system"),
        (archived(GOOD.replace(b"ctorch\nFloatStorage", b"ctorch\nHalfStorage\x20")), "Half"),
        (archived(b"\x80\x02}."), 'no "stats"'),
        (archived(b"\x80\x02"), "data.pkl"),
        (archived(pickled([(b"abc", head())])), "is no head"),
        (archived(pickled([(b"layer01_head00", head())])), "bands"),
        (archived(pickled([(b"layer00_head00", head()), (b"layer01_head01", head())])), "not all"),
        (archived(pickled([(b"layer00_head00", head([tensor(0), tensor(2)]))])), "q_abs_mean"),
        (archived(pickled([(b"layer00_head00", head([tensor(0), tensor(2), tensor(4, 1)]))])),
         "1 bands are not 2"),
        (archived(pickled([(b"layer00_head00", head([tensor(0), tensor(2), tensor(5)]))])),
         "shorter"),
        (archived(pickled([(b"layer00_head00", head([tensor(0), tensor(2), tensor(4, key=b"7")]))])),
         "no data/7"),
        (archived(pickled([(b"layer00_head00", head([tensor(0), tensor(2), tensor(0, 2, 2)]))])),
         "no row of floats"),
        (archived(pickled([(b"layer00_head00", head())], style=b"odd")), "rope_style"),
        (archived(pickled([(b"layer00_head00", head())], dim=6)), "head_dim"),
        (archived(GOOD, (3, 0, 4, -1, 6, float("nan"))), "no finite number"),
        (archived(GOOD, method=zipfile.ZIP_DEFLATED), "compressed"),
        (damaged, "CRC"),
        (whole[:-1], "zip"),
        (b"", "zip"),
    ]
    for data, word in cases:
        status, said, written = convert(folder, data)
        assert status != 0 and written is None and word in said, (word, said)
        assert "Traceback" not in said, said
    assert not os.path.exists(ran), "what a pickle asked for was executed"
    for cut in range(len(GOOD) - 1):
        status, said, written = convert(folder, archived(GOOD[:cut])) if cut % 16 == 0 else (1, "", None)
        assert status != 0 and written is None and "Traceback" not in said, said


def check_published(pith):
    with tempfile.TemporaryDirectory() as folder:
        for name, (n_layer, n_head, mean) in PUBLISHED.items():
            with open(data_folder.find(f"stats/{name}"), "rb") as file:
                status, said, _ = convert(folder, file.read())
            assert status == 0, said
            status, said = inspect(pith, os.path.join(folder, "a.stats"))
            assert f"{n_layer} layers, {n_head} query heads, 64 bands, pairs halves" in said, said
            rows = re.findall(r"^ *layer +\d+ +\|\S+\| (\d\.\d+)", said, re.M)
            assert len(rows) == n_layer, said
            assert abs(sum(map(float, rows)) / n_layer - mean) < 1e-3, rows


def main():
    pith = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        check_published(pith)
        return
    with tempfile.TemporaryDirectory() as folder:
        check_good(pith, folder)
        check_refused(folder)


if __name__ == "__main__":
    main()
