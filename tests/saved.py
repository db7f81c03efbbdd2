"""What a checkpoint holds, but for what depends on how long things took."""

import json


def content(path):
    """What is said of its tensors, where the run stood, and all numbers as they are in the file."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    about = header.pop("__metadata__")
    progress = json.loads(about.pop("progress"))
    del progress["timings_bytes"]  # a file of seconds
    del about["digest"]  # which that is part of
    return header, about, progress, raw[start:]
