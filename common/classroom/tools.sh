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
progress() { # what goes on, on a line of the terminal; nothing wipes it off
    if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then printf '\r\033[K%s' "$1" >&2; fi
}
