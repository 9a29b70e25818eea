"""`__main__.py` of pdctl.pyz. Every Python 3 must be able to parse it: it tells an old one which version is needed."""

import sys

if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.stderr.write("error: pdctl.pyz needs Python 3.10 to 3.13, and this is %d.%d\n" % sys.version_info[:2])  # noqa: UP031
    sys.stderr.write("  fix: python3.12 pdctl.pyz, or take the executable, which needs no Python\n")
    sys.exit(5)


def keep_bytecode() -> None:
    """Keep compiled modules in the cache directory, as an installed package does in __pycache__."""
    import marshal
    import os
    import types
    import zipimport

    from pdctl import program

    folder = program.cache()
    if not folder or sys.dont_write_bytecode:
        return
    folder = os.path.join(folder, sys.implementation.cache_tag)

    class Importer(zipimport.zipimporter):
        """Reads modules from the archive, except those that were compiled before."""

        def get_filename(self, fullname: str) -> str:
            """The module's file name. zipimport would compile the module just to know whether it is a .pyc."""
            tail = "/__init__.py" if self.is_package(fullname) else ".py"
            return os.path.join(self.archive, self.prefix + fullname.rpartition(".")[2] + tail)

        def get_code(self, fullname: str) -> types.CodeType:
            path = os.path.join(folder, fullname)
            try:
                with open(path, "rb") as kept:
                    code: types.CodeType = marshal.loads(kept.read())
                    return code
            except (OSError, ValueError, EOFError, TypeError):
                code = super().get_code(fullname)
            draft = "%s.%d" % (path, os.getpid())  # noqa: UP031
            try:
                os.makedirs(folder, exist_ok=True)
                with open(draft, "wb") as kept:
                    kept.write(marshal.dumps(code))
                os.replace(draft, path)
            except OSError:
                pass
            return code

    sys.path_hooks.insert(0, Importer)
    for path in [path for path in sys.path_importer_cache if path.startswith(program.FILE)]:
        del sys.path_importer_cache[path]


if __name__ == "__main__":
    keep_bytecode()
    from pdctl.__main__ import main

    main()
