# trial.sh - a stage with one of its files replaced, built in a copy of the tree; and the simplest problem on which it is wrong.
#
# exercise.sh and bug.sh read this file with `.` and set
#
#     copy          where the copy lies, or beside it if that is in use. The tree itself is never changed
#     stage         04_fa2
#     variant       the variant to try, or nothing
#     original      the file in the tree, and
#     file          the one that takes its place
#
# MAKE, OUT, TRACE_OUT and DEVICE are make's.
. common/classroom/tools.sh
: "${MAKE:=make}" "${OUT:=build/cpu}" "${TRACE_OUT:=build/cpu-trace}" "${DEVICE:=cpu}"

# Takes the first of copy, copy-2, ... that nobody uses at present: two may be at work in one tree.
busy=
trap 'rm -rf "$busy"' EXIT
trap 'exit 130' HUP INT TERM
claim_copy() {
    mkdir -p "${copy%/*}" 2>/dev/null && [ -w "${copy%/*}" ] || stop "${copy%/*} cannot be written"
    first=$copy count=1
    until mkdir "$copy.busy" 2>/dev/null; do
        count=$((count + 1)) copy=$first-$count
        [ $count -lt 100 ] || stop "$first.busy, ... -99.busy: remove those that nobody uses"
    done
    busy=$copy.busy
}

# The sources are copied each time, with their times, and of what is built the first time all that the stage needs: so make
# compiles what the file touches. In an absolute OUT what depends on what names that folder: then all is compiled.
copy_tree() { # OUT
    rm -rf "$copy/common" "$copy"/[0-9]*_* && mkdir -p "$copy/notes/exercises" "$copy/tests" &&
        cp -pRH Makefile common [0-9]*_* "$copy/" && cp -p tests/*.[ch] "$copy/tests/" &&
        cp -p notes/exercises/*.[ch]* "$copy/notes/exercises/" && { [ ! -d notes/hopper ] || cp -pRH notes/hopper "$copy/notes/"; } &&
        chmod -R u+w "$copy" ||
        stop "$copy: no copy of the tree can be made"
    if [ "${1#/}" = "$1" ] && [ ! -d "$copy/$1" ]; then
        mkdir -p "$copy/$1/tests"
        cp -pR "$1/common" "$1/00_naive" "$1/$stage" "$1"/*.a "$1"/flags-* "$copy/$1/" 2>/dev/null
        cp -p "$1"/tests/grid*.[od] "$copy/$1/tests/" 2>/dev/null
    fi
    cp -p "$file" "$copy/$original"
}

# Sets `built` to the folder that the programs are in. If they do not compile it fails, and `error` says why. What came along
# has other flags than the file that is new, as -Og compiles in a quarter of the time: with IS_FLAGS make does not mind.
build_copy() { # OUT "PROGRAM..." VARIABLE=VALUE...
    progress 'building ...'
    [ "$busy" ] || claim_copy
    copy_tree "$1"
    out=$1 && [ "${1#/}" = "$1" ] || out=build/${1##*/} # the copy stays inside its folder
    built=$copy/$out targets=$(printf "$out/%s " $2)
    shift 2
    flags=$(cd "$copy" && ls "$out"/flags-* 2>/dev/null)
    error=$(cd "$copy" && "$MAKE" --no-print-directory "$@" OUT="$out" WARN=-w KERNEL_OPTIMISE="-Og -g0" COMMIT=scratch \
        ${flags:+IS_FLAGS="$flags"} $targets 2>&1) && error= && return
    error=$({ echo "$error" | grep -m 1 -w error || echo "$error"; } | sed "1!d; s|^$original|$file|")
    return 1
}

# What stands on a program's stderr, without "# " and the variant's name; of O and LSE also which one is right.
complaint() { # EXIT-CODE
    [ "$1" -ne 124 ] || { echo '    It does not terminate.'; return; }
    awk '{sub(/^# /, ""); sub(/^[^ ]*[^ )]: /, ""); print "    " $0}
        /^O\[/ {o = 1}
        /^LSE\[/ {lse = 1}
        END {if (o != lse) print "    " (o ? "LSE" : "O") " is right."}'
}

# Whether a command finds the mistake: it disagrees, breaks or does not come to an end. An exit code 2 says that the stage cannot run
# the problem, unless it is a kernel that ended the program. Sets `code`, and `said` to what stands on stderr.
finds() {
    said=$(timeout 120 env "$@" 2>&1 >/dev/null </dev/null)
    code=$?
    case $code$said in 0* | 2*) case $said in kernel\ *) ;; *) return 1 ;; esac ;; esac
}

# Small problems for the stage's program, from the simplest on: each has one thing that those before it do not have. Fails at
# the first that is wrong, and says in `wrong` how.
try_problems() {
    right=
    while IFS='|' read -r words shape; do
        line="$built/$stage/$stage ${variant:+--variant $variant }--batch 1 --heads 1 --head-dim 64 --iters 1 $shape"
        progress "$words ..."
        if finds $line --json; then
            wrong="${right:+right for $right, }wrong for $words.
$(echo "$said" | complaint $code)
  See it again: $line"
            return 1
        fi
        [ $code -ne 0 ] || right=$words
    done <<'END'
one query and one key|--seqlen 1 --seqlen-k 1
one query and two keys|--seqlen 1 --seqlen-k 2
two queries and two keys|--seqlen 2 --seqlen-k 2
one query and 64 keys|--seqlen 1 --seqlen-k 64
one query and 65 keys|--seqlen 1 --seqlen-k 65
one query and 300 keys|--seqlen 1 --seqlen-k 300
16 queries and 64 keys|--seqlen 16 --seqlen-k 64
64 queries and 64 keys|--seqlen 64 --seqlen-k 64
128 queries and 128 keys|--seqlen 128 --seqlen-k 128
256 queries and 256 keys|--seqlen 256 --seqlen-k 256
150 queries and 300 keys|--seqlen 150 --seqlen-k 300
64 queries and 64 keys, causal|--seqlen 64 --seqlen-k 64 --causal
100 queries and 150 keys, causal|--seqlen 100 --seqlen-k 150 --causal
two heads|--seqlen 64 --heads 2
four heads that share two of K and V|--seqlen 64 --heads 4 --kv-heads 2
three batch entries, of which the first has no key and the second one|--seqlen 64 --batch 3 --lengths 0,1,64
large scores: the scale is 1, not 1/8|--seqlen 64 --scale 1
head dim 128|--seqlen 100 --head-dim 128
END
}

# The grid; of the first case that is wrong what stands up to the next case's, and a command that shows it again: the stage's
# program, if it finds the mistake, else the grid itself, whose cases may have inputs that no option of the program gives.
try_grid() { # ORDER SECONDS OPTION...
    progress 'trying shapes and masks ...'
    order=$1 seconds=$2
    shift 2
    grid="$built/tests/grid_$stage${*:+ $*}${variant:+ --variant $variant}"
    said=$(CPU_DEVICE_ORDER=$order timeout $seconds $grid 2>&1 >/dev/null </dev/null)
    code=$?
    [ $code -ne 0 ] || return 0
    [ "$order" = forward ] && in_order= || in_order="CPU_DEVICE_ORDER=$order "
    line=$(echo "$said" | sed -n 's/.*\( --variant .*\)/\1/p' | sed 1q)
    what=$(echo "$said" | if [ "$line" ]; then awk '/ --variant / {case++; next} case == 1'; else cat; fi | complaint $code)
    again=$built/$stage/$stage$line
    [ "$line" ] && finds $in_order $again || again=$grid
    wrong="small problems are right, the grid${in_order:+, with the threads in another order,} sees that it is wrong.
$what
  See it again: $in_order$again"
    return 1
}

# Builds the stage and its grid and tries both, the grid with two orders of the threads. Fails if something is wrong: then `error` or
# `wrong` says what.
try_stage() { # nothing, or "whole" for the whole grid, too
    build_copy "$OUT" "$stage/$stage tests/grid_$stage" DEVICE="$DEVICE" &&
        try_problems && try_grid forward 300 --quick && try_grid shuffle 300 --quick && { [ ! "$1" ] || try_grid forward 1200; }
}
