"""`python -m tools.build_executable OUT`: pdctl as one executable that needs no Python (docs/install.md).

Builds a static CPython from Debian's source package, which takes minutes; `--work DIR` keeps it for the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import marshal
import os
import shlex
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.one_file.archive import package, pinned, zipped
from tools.one_file.standard import closure

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).with_name("one_file") / "executable"
SOURCE, VERSION, SHA256 = "python3.11", "3.11.2", "2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849"
DEBIAN = "3.11.2-6+deb12u8"  # bookworm's, with its security patches; other ones give other bytes
NEEDED = "gcc make dpkg-dev libssl-dev zlib1g-dev libbz2-dev liblzma-dev libffi-dev libzstd-dev"
MADE = "1700000000"  # SOURCE_DATE_EPOCH: the time the interpreter says it was built at
LIBRARIES = "-lffi -ldl -lm"
WRAPPED = ("dlopen", "dlsym", "dlclose", "dlerror", "X509_get_default_cert_file", "X509_get_default_cert_dir")
MARK = b"PDCTL-LAYOUT-V1\0"
# How the checkpoints were made; they come along, for a Python that has the engine.
SERVED = ("engine", "engines", "layout", "router")
# The engine and router run in another Python, which compiles them itself; this one is too new for typing_extensions.
ELSEWHERE = ("pdctl/engine/", "pdctl/router/")
LEFT_OUT = ("pdctl/checkpoints/make", "pdctl/checkpoints/corpus")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.build_executable", description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write, such as pdctl")
    parser.add_argument("--work", type=Path, help="directory for the interpreter's source and objects, kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    args = parser.parse_args()
    if sys.version_info[:2] != (3, 11):
        raise SystemExit("error: the modules are compiled for CPython 3.11: run this with python3.11")
    with tempfile.TemporaryDirectory(prefix="pdctl-build-") as spare:
        work = (args.work or Path(spare)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        source = _source(work)
        inner = _interpreter(work, source, args.jobs)
        outer = _loader(work)
    whole = _joined(outer, inner, _modules(source / "Lib"))
    args.out.write_bytes(whole)
    args.out.chmod(0o755)
    print(f"{args.out}: {len(whole) / 1e6:.1f} MB, sha256 {hashlib.sha256(whole).hexdigest()}")


def _run(command: str, folder: Path) -> None:
    """With the same words in the same place: object files name neither this directory nor this moment."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": MADE, "LC_ALL": "C.UTF-8"}
    with (folder / "build.log").open("ab") as log:
        done = subprocess.run(["sh", "-ec", command], cwd=folder, env=env, stdout=log, stderr=log, check=False)
    if done.returncode:
        hint = f"apt-get install {NEEDED}; its source: a deb-src line in apt's sources"
        raise SystemExit(f"error: `{command:.200}` failed; see {folder / 'build.log'}\n  fix: {hint}")


def _source(work: Path) -> Path:
    """Debian's source with its security patches. Raise SystemExit if the original is not the one that is expected."""
    folder = work / f"{SOURCE}-{VERSION}"
    if not folder.is_dir():
        _run(f"apt-get source {SOURCE}={DEBIAN}", work)
    original = work / f"{SOURCE}_{VERSION}.orig.tar.gz"
    found = hashlib.sha256(original.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"error: {original} has sha256 {found}, not {SHA256}")
    return folder


def _interpreter(work: Path, source: Path, jobs: int) -> bytes:
    """The interpreter as a static program, without symbols."""
    build = work / "build"
    if not (build / "libpython3.11.a").exists():
        build.mkdir(exist_ok=True)
        maps = f"-ffile-prefix-map={build}=. -ffile-prefix-map={source}=."
        words = ["--disable-shared", "--disable-test-modules", "--without-ensurepip", "--without-doc-strings"]
        words += ["--with-openssl=/usr", "MODULE_BUILDTYPE=static", "LDFLAGS=-static", "LINKFORSHARED= "]
        words += [f"CFLAGS=-fno-pie {maps}"]
        _run(f"../{source.name}/configure {shlex.join(words)}", build)  # its own path becomes part of the program
        (build / "Modules" / "Setup.local").write_bytes((HERE / "Setup.local").read_bytes())
        _run(f"make -j{jobs} LIBS={shlex.quote(LIBRARIES)} libpython3.11.a", build)
    wraps = ",".join(f"--wrap={name}" for name in WRAPPED)
    libraries = f"$(make -s LIBS={shlex.quote(LIBRARIES)} --eval='show: ; @echo $(MODLIBS) $(LIBS)' show)"
    flags = f"-O2 -fno-pie -no-pie -static -ffile-prefix-map={HERE}=. -Wl,--build-id=none,{wraps}"
    include = f"-I. -I{source}/Include"
    _run(f"gcc {flags} {include} {HERE}/interpreter.c libpython3.11.a -o {work}/interpreter {libraries}", build)
    _run("strip -s interpreter", work)
    return (work / "interpreter").read_bytes()


def _loader(work: Path) -> bytes:
    flags = f"-Os -static -no-pie -ffile-prefix-map={HERE}=. -Wl,--gc-sections,--build-id=none"
    include = os.environ.get("PDCTL_BUILD_FLAGS", "")  # where libzstd-dev is not installed but unpacked
    _run(f"gcc {flags} {HERE}/loader.c {include} -lzstd -o loader && strip -s loader", work)
    return (work / "loader").read_bytes()


def _modules(library: Path) -> dict[str, bytes]:
    """All modules compiled, below `lib/` those that are not pdctl's: another Python that runs the file for the engine
    sees pdctl alone, whose engine it reads as source."""
    libraries = {name: content for name, content in pinned().items() if name != "typing_extensions.py"}
    ours = {name: content for name, content in package().items() if not name.startswith(LEFT_OUT)}
    here = {name: content for name, content in ours.items() if not name.startswith(ELSEWHERE)}
    standard = closure(library, {**libraries, **here})
    start = {"pdctl_start.py": (HERE / "pdctl_start.py").read_bytes()}
    found = {f"lib/{name}": content for name, content in _compiled({**standard, **libraries, **start}, 2).items()}
    found |= _compiled(here, 0)
    found |= {name: content for name, content in ours.items() if name.endswith(".py") and _served(name)}
    return found | {"__main__.py": b"from pdctl.__main__ import main\n\nmain()\n"}


def _served(name: str) -> bool:
    """Whether the engine or router may import it: they use these rooms and the ground floor."""
    parts = name.split("/")
    return len(parts) == 2 or parts[1] in SERVED


def _compiled(files: Mapping[str, bytes], optimize: int) -> dict[str, bytes]:
    """Modules as .pyc whose source is never looked for (PEP 552), other files as they are."""
    found: dict[str, bytes] = {}
    for name, content in files.items():
        if not name.endswith(".py"):
            found[name] = content
            continue
        code = compile(content, name, "exec", dont_inherit=True, optimize=optimize)
        head = importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + importlib.util.source_hash(content)
        found[f"{name}c"] = head + marshal.dumps(code)
    return found


def _joined(outer: bytes, inner: bytes, modules: Mapping[str, bytes]) -> bytes:
    """Loader, compressed interpreter, archive. A zip archive is read from its end, whatever stands before it."""
    import zstandard

    packed = zstandard.ZstdCompressor(level=19).compress(inner)
    at = outer.index(MARK) + len(MARK)
    layout = struct.pack("<QQQ", len(outer), len(packed), len(inner))
    return outer[:at] + layout + outer[at + len(layout) :] + packed + zipped(modules)


if __name__ == "__main__":
    main()
