"""`lockstep completion`: prints a script with which a shell completes commands, flags, recipes and their options."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import Parsers

_BASH = r"""# lockstep completion bash: for ~/.bashrc, `source <(lockstep completion bash)`
_lockstep_complete() {
    local line=${COMP_LINE:0:COMP_POINT} word head=""
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local current=${words[${#words[@]}-1]}
    # bash takes a word apart at = and :, and replaces the last part alone.
    [[ $COMP_WORDBREAKS == *=* && $current == *=* ]] && head="${current%%=*}="
    [[ $COMP_WORDBREAKS == *:* && $current == *:* ]] && head="${current%"${current##*:}"}"
    COMPREPLY=()
    while IFS= read -r word; do
        [[ $word == *[.=/] ]] && compopt -o nospace 2> /dev/null
        COMPREPLY+=("${word#"$head"}")
    done < <("${COMP_WORDS[0]/#\~/$HOME}" complete -- "${words[@]:1}" 2> /dev/null)
}
complete -o default -F _lockstep_complete lockstep
"""
_ZSH = r"""#compdef lockstep
# lockstep completion zsh: for ~/.zshrc behind compinit, `source <(lockstep completion zsh)`
_lockstep() {
    local -a found open closed
    found=("${(@f)$(${(Q)words[1]/#\~/$HOME} complete -- "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    open=(${(M)found:#*[.=/]})
    closed=(${found:#*[.=/]})
    (( $#open )) && compadd -S '' -- $open
    (( $#closed )) && compadd -- $closed
    (( $#open + $#closed )) || _files
}
compdef _lockstep lockstep
"""
_FISH = r"""# lockstep completion fish: for ~/.config/fish/config.fish, `lockstep completion fish | source`
function __lockstep_complete
    set -l words (commandline -opc)
    set -l program (string replace -r '^~(?=/)' $HOME -- $words[1])
    set -l found ($program complete -- $words[2..-1] (commandline -ct) 2> /dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c lockstep -f -a '(__lockstep_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add(parsers: Parsers) -> None:
    """Adds the command to a parser, and the one that the scripts call, which --help does not list."""
    completion = parsers.add_parser("completion", help="print a script for your shell that completes this command")
    completion.add_argument("shell", choices=tuple(SCRIPTS), help="such as bash: source <(lockstep completion bash)")
    completion.set_defaults(command=run)
    complete = parsers.add_parser("complete")
    complete.add_argument("words", nargs=argparse.REMAINDER, help="what is typed so far; the last is to be completed")
    complete.set_defaults(command=list_candidates)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    print(SCRIPTS[options.shell], end="")
    return 0


def list_candidates(options: argparse.Namespace) -> int:
    """Prints what the last word can become, a line each. Returns the exit code."""
    from lockstep.commands.candidates import find_candidates

    words: list[str] = options.words[1:] if options.words[:1] == ["--"] else options.words
    found = find_candidates(options.parser, words or [""])
    print("".join(f"{word}\n" for word in found), end="")
    return 0
