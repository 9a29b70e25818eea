"""Shell completion: the script to install, and the candidates, found without loading the command-line library."""

from __future__ import annotations

import os
import sys

from pdctl.cli.completion_table import OPTIONS, RUN_VERBS

SCRIPTS = {
    "bash": """_pdctl() {
  local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  mapfile -t COMPREPLY < <(_PDCTL_COMPLETE=1 pdctl "${words[@]}" 2>/dev/null)
}
complete -o default -F _pdctl pdctl
""",
    "zsh": """#compdef pdctl
_pdctl() {
  local -a found
  found=(${(f)"$(_PDCTL_COMPLETE=1 pdctl ${words[2,$CURRENT]} 2>/dev/null)"})
  if (( $#found )); then compadd -a found; else _files; fi
}
compdef _pdctl pdctl
""",
    "fish": """function __pdctl
  set -lx _PDCTL_COMPLETE 1
  pdctl (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c pdctl -a '(__pdctl)'
""",
}


def complete() -> None:
    """Print the candidates for the last word of argv, one per line; if there are none, the shell offers files."""
    words = sys.argv[1:] or [""]
    *before, last = words
    verbs = [word for word in before if not word.startswith("-")]
    sys.stdout.write("".join(f"{word}\n" for word in candidates(verbs, last)))


def candidates(verbs: list[str], last: str) -> list[str]:
    """The verbs; once a verb is typed, its options, or its sub-verbs and the names of runs on disk."""
    if not verbs:
        return [verb for verb in sorted({path.split()[0] for path in OPTIONS}) if verb.startswith(last)]
    path = " ".join(verbs[:2]) if " ".join(verbs[:2]) in OPTIONS else verbs[0]
    if last.startswith("-"):
        return [option for option in OPTIONS.get(path, ()) if option.startswith(last)]
    words = [sub.split()[1] for sub in OPTIONS if sub.startswith(f"{verbs[0]} ")] if len(verbs) == 1 else []
    if verbs[0] in RUN_VERBS:
        words += runs()
    return [word for word in words if word.startswith(last)]


def runs() -> list[str]:
    """Names of the runs on this machine (the directory names under the state directory)."""
    from pdctl.errors import UsageError  # imported late: verbs and options are completed without pathlib and enum
    from pdctl.user_files import state_directory

    try:
        folder = state_directory(os.environ) / "runs"
    except UsageError:  # no home directory
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(pdctl completion bash)"
    zsh:   eval "$(pdctl completion zsh)"
    fish:  pdctl completion fish | source
    """
    from pdctl.errors import UsageError

    if shell not in SCRIPTS:
        raise UsageError(f"no completion for `{shell}`", f"choose one of {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[shell])
