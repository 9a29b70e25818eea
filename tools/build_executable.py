"""`python -m tools.build_executable OUT`: pdctl as one executable that needs no Python (docs/install.md).

Builds a static CPython from Debian's source package, which takes minutes; `--work DIR` keeps it for the next time.
`--target aarch64` builds one for Arm servers with a cross compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import marshal
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.one_file.archive import package, pinned, zipped
from tools.one_file.standard import closure

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).with_name("one_file") / "executable"
SOURCE, VERSION, SHA256 = "python3.11", "3.11.2", "2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849"
DEBIAN = "3.11.2-6+deb12u8"  # bookworm's, with its security patches; another version gives other bytes
MADE = "1700000000"  # SOURCE_DATE_EPOCH: the build time that the interpreter reports
LIBRARIES = "-lffi -ldl -lm"
# Debian's packages with static libraries, and one library of each.
STATIC = {
    "libssl-dev": "libssl.a", "zlib1g-dev": "libz.a", "libbz2-dev": "libbz2.a", "liblzma-dev": "liblzma.a",
    "libffi-dev": "libffi.a", "libzstd-dev": "libzstd.a",
}  # fmt: skip
WRAPPED = ("dlopen", "dlsym", "dlclose", "dlerror", "X509_get_default_cert_file", "X509_get_default_cert_dir")
MARK = b"PDCTL-LAYOUT-V1\0"
STARTED = ("pdctl_start.py", "zstandard.py")
# How the checkpoints were made; they come along, for a Python that has the engine.
SERVED = ("engine", "engines", "layout", "router")
# The engine and router run in another Python, which compiles them itself; this one is too new for typing_extensions.
ELSEWHERE = ("pdctl/engine/", "pdctl/router/")
LEFT_OUT = ("pdctl/checkpoints/make", "pdctl/checkpoints/corpus")


class Target(NamedTuple):
    """A processor to build for.

    `triple`: prefix of the cross compiler's programs, "" for a native build; `debian`: Debian's architecture name.
    `answers`: what configure cannot find out, because it cannot run what it compiles.
    """

    triple: str
    debian: str
    compiler: str
    answers: tuple[str, ...] = ()

    def tool(self, name: str) -> str:
        return f"{self.triple}-{name}" if self.triple else name

    def flags(self, work: Path) -> str:
        """The cross compiler's flags for the headers and libraries of STATIC."""
        if not self.triple:
            return ""
        usr = work / "sysroot" / "usr"
        return f"-I{usr}/include -I{usr}/include/{self.triple} -L{usr}/lib/{self.triple}"


TARGETS = {
    "x86_64": Target("", "amd64", "gcc"),
    "aarch64": Target(
        "aarch64-linux-gnu", "arm64", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        (
            "ac_cv_file__dev_ptmx=yes", "ac_cv_file__dev_ptc=no", "ac_cv_buggy_getaddrinfo=no", "--enable-ipv6",
            "ac_cv_working_tzset=yes", "ac_cv_broken_sem_getvalue=no", "ac_cv_posix_semaphores_enabled=yes",
            "ac_cv_aligned_required=no", "ac_cv_wchar_t_signed=no",
        ),
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.build_executable", description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write, such as pdctl")
    parser.add_argument("--work", type=Path, help="directory for the interpreter's source and objects, kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--target", choices=sorted(TARGETS), default="x86_64", help="processor it runs on")
    args = parser.parse_args()
    target = TARGETS[args.target]
    if absent := lacking(target):
        raise SystemExit(f"error: the build needs what is not here: {', '.join(absent)}")
    with tempfile.TemporaryDirectory(prefix="pdctl-build-") as spare:
        work = (args.work or Path(spare)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        source = _source(work)
        if target.triple:
            _sysroot(work, target)
        inner = _interpreter(work, source, target, args.jobs)
        outer = _loader(work, target)
        whole = _joined(outer, inner, _modules(source / "Lib"))
    args.out.write_bytes(whole)
    args.out.chmod(0o755)
    print(f"{args.out}: {len(whole) / 1e6:.1f} MB, sha256 {hashlib.sha256(whole).hexdigest()}")


def lacking(target: Target) -> list[str]:
    """What a build for `target` needs and this machine lacks, as commands that install it."""
    found = []
    if sys.version_info[:2] != (3, 11):
        found.append(f"python3.11 to run this with (it compiles the modules; this is {sys.version.split()[0]})")
    if not importlib.util.find_spec("zstandard"):
        found.append("python3.11 -m pip install zstandard")
    programs = {"make": "make", "dpkg-source": "dpkg-dev", "apt-get": "apt", target.tool("gcc"): target.compiler}
    packages = [package for program, package in programs.items() if not shutil.which(program)]
    if not packages and not target.triple:
        packages = [package for package, library in STATIC.items() if not _has(library)]
    return found + ([f"apt-get install {' '.join(packages)}"] if packages else [])


def _has(library: str) -> bool:
    """Whether gcc finds the library; if not, gcc prints the bare name."""
    asked = ["gcc", f"-print-file-name={library}"]
    return "/" in subprocess.run(asked, capture_output=True, encoding="utf-8", check=True).stdout


def _run(command: str, folder: Path, hint: str = "") -> None:
    """Run a command so that object files contain neither this directory nor the time. SystemExit if it fails."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": MADE, "LC_ALL": "C.UTF-8"}
    with (folder / "build.log").open("ab") as log:
        done = subprocess.run(["sh", "-ec", command], cwd=folder, env=env, stdout=log, stderr=log, check=False)
    if done.returncode:
        fix = f"\n  fix: {hint}" if hint else ""
        raise SystemExit(f"error: `{command:.200}` failed; see {folder / 'build.log'}{fix}")


def _source(work: Path) -> Path:
    """The folder of Debian's source with its security patches. Raise SystemExit if the original's SHA-256 differs."""
    folder = work / f"{SOURCE}-{VERSION}"
    if not folder.is_dir():
        _run(f"apt-get source {SOURCE}={DEBIAN}", work, "a deb-src line in apt's sources, then apt-get update")
    original = work / f"{SOURCE}_{VERSION}.orig.tar.gz"
    found = hashlib.sha256(original.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"error: {original} has sha256 {found}, not {SHA256}")
    return folder


def _sysroot(work: Path, target: Target) -> None:
    """Unpack the other processor's static libraries in apt's current versions; nothing is installed."""
    root = work / "sysroot"
    if root.is_dir():
        return
    draft = work / "sysroot.part"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    packages = " ".join(f"{package}:{target.debian}" for package in STATIC)
    hint = f"dpkg --add-architecture {target.debian} && apt-get update"
    _run(f"apt-get download {packages}; for deb in *.deb; do dpkg -x $deb .; done", draft, hint)
    draft.rename(root)


def _interpreter(work: Path, source: Path, target: Target, jobs: int) -> bytes:
    """The interpreter as a static program, without symbols."""
    build = work / ("build" if not target.triple else f"build-{target.triple}")
    if not (build / "libpython3.11.a").exists():
        build.mkdir(exist_ok=True)
        maps = f"-ffile-prefix-map={work}=. -ffile-prefix-map={build}=. -ffile-prefix-map={source}=."
        words = ["--disable-shared", "--disable-test-modules", "--without-ensurepip", "--without-doc-strings"]
        words += ["MODULE_BUILDTYPE=static", "LINKFORSHARED= ", f"CFLAGS=-fno-pie {maps}"]
        found = target.flags(work)
        words += [f"LDFLAGS=-static {found}".strip()]
        if target.triple:
            words += ["--build=x86_64-linux-gnu", f"--host={target.triple}", f"--with-build-python={sys.executable}"]
            words += [f"CPPFLAGS={found}", f"--with-openssl={work / 'sysroot' / 'usr'}", *target.answers]
        else:
            words += ["--with-openssl=/usr"]
        _run(f"../{source.name}/configure {shlex.join(words)}", build)  # its path becomes part of the program
        (build / "Modules" / "Setup.local").write_bytes((HERE / "Setup.local").read_bytes())
        _run(f"make -j{jobs} LIBS={shlex.quote(LIBRARIES)} libpython3.11.a", build)
    wraps = ",".join(f"--wrap={name}" for name in WRAPPED)
    libraries = f"$(make -s LIBS={shlex.quote(LIBRARIES)} --eval='show: ; @echo $(MODLIBS) $(LIBS)' show) -lzstd"
    flags = f"-O2 -fno-pie -no-pie -static -ffile-prefix-map={HERE}=. -Wl,--gc-sections,--build-id=none,{wraps}"
    include = f"-I. -I{source}/Include {target.flags(work)}"
    out = build / "interpreter"
    _run(f"{target.tool('gcc')} {flags} {include} {HERE}/interpreter.c libpython3.11.a -o {out} {libraries}", build)
    _run(f"{target.tool('strip')} -s {out}", build)
    return out.read_bytes()


def _loader(work: Path, target: Target) -> bytes:
    flags = f"-Os -static -no-pie -ffile-prefix-map={HERE}=. -Wl,--gc-sections,--build-id=none"
    gcc = f"{target.tool('gcc')} {flags} {target.flags(work)} {HERE}/loader.c -lzstd -o loader"
    _run(f"{gcc} && {target.tool('strip')} -s loader", work)
    return (work / "loader").read_bytes()


def _modules(library: Path) -> dict[str, bytes]:
    """All modules, compiled; those that are not pdctl's are below `lib/`. Another Python that runs the file for the
    engine sees only pdctl, whose engine it reads as source."""
    libraries = {name: content for name, content in pinned().items() if name != "typing_extensions.py"}
    ours = {name: content for name, content in package().items() if not name.startswith(LEFT_OUT)}
    here = {name: content for name, content in ours.items() if not name.startswith(ELSEWHERE)}
    start = {name: (HERE / name).read_bytes() for name in STARTED}
    standard = closure(library, {**libraries, **here, **start})
    found = {f"lib/{name}": content for name, content in _compiled({**standard, **libraries, **start}, 2).items()}
    found |= _compiled(here, 0)
    found |= {name: content for name, content in ours.items() if name.endswith(".py") and _served(name)}
    return found | {"__main__.py": b"from pdctl.__main__ import main\n\nmain()\n"}


def _served(name: str) -> bool:
    """Whether the engine or router may import the module: it is in a package of SERVED or directly in pdctl."""
    parts = name.split("/")
    return len(parts) == 2 or parts[1] in SERVED


def _compiled(files: Mapping[str, bytes], optimize: int) -> dict[str, bytes]:
    """Modules as .pyc files that are never checked against a source (PEP 552), other files unchanged."""
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
    """Loader, compressed interpreter and archive in one file: a zip archive is read from its end."""
    import zstandard

    packed = zstandard.ZstdCompressor(level=19).compress(inner)
    at = outer.index(MARK) + len(MARK)
    layout = struct.pack("<QQQ", len(outer), len(packed), len(inner))
    return outer[:at] + layout + outer[at + len(layout) :] + packed + zipped(modules)


if __name__ == "__main__":
    main()
