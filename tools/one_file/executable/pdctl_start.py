"""The executable's entry point. multiprocessing starts its workers as `FILE -FLAGS -c CODE WORDS`."""

import sys


def main() -> None:
    words = sys.argv[1:]
    flags = next((at for at, word in enumerate(words) if word == "-c" or not word.startswith("-")), len(words))
    if words[flags : flags + 1] == ["-c"] and all(len(word) == 2 for word in words[:flags]) and len(words) > flags + 1:
        sys.argv = ["-c", *words[flags + 2 :]]
        exec(compile(words[flags + 1], "<string>", "exec"), {"__name__": "__main__"})
        return
    from pdctl.__main__ import main as pdctl

    pdctl()
