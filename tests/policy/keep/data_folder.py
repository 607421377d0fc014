"""Test data of others: the folders of testing.h, for tests in Python."""
import os
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
FOLDERS = [os.environ.get("PITH_DATA"), os.path.join(SOURCE, "build-data"),
           os.path.join(SOURCE, "..", "shared", "data")]
SKIP = 77


def find(name):
    """The path of a file such as "stats/aime24_qwen3_8b.pt"; ends as skipped where it is not."""
    for folder in FOLDERS:
        if folder and os.access(os.path.join(folder, name), os.R_OK):
            return os.path.join(folder, name)
    print(f"skipped: there is no {name}; to fetch it: scripts/data.sh")
    sys.exit(SKIP)
