# trial.sh - a stage with one of its files replaced, built in a copy of the tree; and the simplest problem on which it is wrong.
#
# exercise.sh and bug.sh read this file with `.` and set
#
#     copy          where the copy lies. The tree itself is never changed
#     stage         04_fa2
#     variant       the variant to try, or nothing
#     original      the file in the tree, and
#     file          the one that takes its place
#
# MAKE, OUT, TRACE_OUT and DEVICE are make's.
. common/classroom/tools.sh
: "${MAKE:=make}" "${OUT:=build/cpu}" "${TRACE_OUT:=build/cpu-trace}" "${DEVICE:=cpu}"

# The sources are copied each time, with their times, and of what is built the first time all that the stage needs: so make
# compiles what the file touches. In an absolute OUT what depends on what names that folder: then all is compiled.
copy_tree() { # OUT
    rm -rf "$copy/common" "$copy"/[0-9]*_* && mkdir -p "$copy/notes/exercises" "$copy/tests" &&
        cp -pRH Makefile common [0-9]*_* "$copy/" && cp -p tests/*.[ch] "$copy/tests/" &&
        cp -p notes/exercises/*.[ch]* "$copy/notes/exercises/" && chmod -R u+w "$copy" ||
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
    [ "$1" -ne 124 ] || { echo '    It does not come to an end.'; return; }
    awk '{sub(/^# /, ""); sub(/^[^ ]*[^ )]: /, ""); print "    " $0}
        /^O\[/ {o = 1}
        /^LSE\[/ {lse = 1}
        END {if (o != lse) print "    " (o ? "LSE" : "O") " is right."}'
}

# Small problems for the stage's program, from the simplest on: each has one thing that those before it do not have. Fails at
# the first that is wrong, and says in `wrong` how.
try_problems() {
    right=
    while IFS='|' read -r words shape; do
        line="$built/$stage/$stage ${variant:+--variant $variant }--batch 1 --heads 1 --head-dim 64 --iters 1 $shape"
        progress "$words ..."
        said=$(timeout 120 $line --json 2>&1 >/dev/null </dev/null)
        code=$?
        case $code$said in
        0*) right=$words ;;
        [!2]* | 2kernel\ *) # another 2 says that it is no problem for this stage
            wrong="${right:+right for $right, }wrong for $words.
$(echo "$said" | complaint $code)
  See it again: $line"
            return 1 ;;
        esac
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

# The grid; of the first case that is wrong the command, and what stands up to the next case's.
try_grid() { # ORDER SECONDS OPTION...
    progress 'trying shapes and masks ...'
    order=$1 seconds=$2
    shift 2
    grid="timeout $seconds $built/tests/grid_$stage $* ${variant:+--variant $variant}"
    said=$(CPU_DEVICE_ORDER=$order $grid 2>&1 >/dev/null </dev/null)
    code=$?
    [ $code -ne 0 ] || return 0
    [ "$order" = forward ] && order= || order=', with the threads in another order,'
    line=$(echo "$said" | sed -n 's/.*\( --variant .*\)/\1/p' | sed 1q)
    wrong="small problems are right, the grid$order sees that it is wrong.
$(echo "$said" | if [ "$line" ]; then awk '/ --variant / {case++; next} case == 1'; else cat; fi | complaint $code)${line:+
  See it again: $built/$stage/$stage$line}"
    return 1
}

# Builds the stage and its grid and tries both, the grid with two orders of the threads. Fails if something is wrong: then `error` or
# `wrong` says what.
try_stage() { # nothing, or "whole" for the whole grid, too
    build_copy "$OUT" "$stage/$stage tests/grid_$stage" DEVICE="$DEVICE" &&
        try_problems && try_grid forward 300 --quick && try_grid shuffle 300 --quick && { [ ! "$1" ] || try_grid forward 1200; }
}
