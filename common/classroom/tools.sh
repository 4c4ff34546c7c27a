# tools.sh - what the scripts here share. They run in the root of the tree, set `name` and read this file with `.`.
export LC_ALL=C # whatever the user's language, figures have a decimal point, and ranges like a-z are those of ASCII
stop() { # why: it cannot be done
    progress
    echo "$name: $1" >&2
    exit 2
}
variants() { # of a program, in order, without the 00_naive that most have behind their own
    "$1" --help | awk '/^variants/ {list = 1; next} list && NF && ($1 != "00_naive" || !count) {print $1; count++}'
}
line_width() { # sets `width`: the columns of the terminal, at most 120; for a file or a pipe 120
    width=120
    [ -t 1 ] && set -- $(stty size 2>/dev/null </dev/tty) && [ "${2:-0}" -gt 0 ] && [ "$2" -lt 120 ] && width=$2
    return 0
}
progress() { # what goes on, on a line of the terminal; nothing wipes it off
    if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then printf '\r\033[K%s' "$1" >&2; fi
}
