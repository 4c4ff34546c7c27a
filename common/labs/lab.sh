# lab.sh - lists the labs, hands out a kernel to write, and judges it.                                         (make lab N=04)
#
#     sh common/labs/lab.sh              the labs, how far each is, and its best score
#     sh common/labs/lab.sh 04           the first time: labs/04/kernel.cu, a kernel without a body. Then: a verdict
#     HINT=1 sh common/labs/lab.sh 04    a hint; 2: and a second one
#
# Exit code: 0 if all properties hold, or told what to write; 1 not yet; 2 it cannot be judged, and one line says why.
#
# Environment: MAKE, OUT and TRACE_OUT as make has them; GPU_OUT, where there is a GPU, the folder for what is built for it; LABS, the folder of the student's files; LAB_OUT, the folder in OUT (and
# in TRACE_OUT) for what is built of them; SEED, from which the problems and their inputs follow, else a random number;
# CPU_SECONDS, the processor time that one problem may take, else 20. For grade.sh, LAB_OUT/04/verdict.tsv has the verdict in one
# line: the lab, how many properties hold and of how many, points and of how many, what is not right.
name=lab
. common/classroom/tools.sh
: "${MAKE:=make}" "${OUT:=build/cpu}" "${TRACE_OUT:=build/cpu-trace}" "${LABS:=labs}" "${LAB_OUT:=$OUT/labs}"
: "${TRACED_OUT:=$TRACE_OUT/${LAB_OUT#"$OUT"/}}"
rooms=common/labs bests=$LABS/bests.tsv
value() { sed -n "s/^$1  *//p" "$rooms/$lab/lab.txt" | sed -n "${2:-1}p"; }
value_here() { value "$1  *$property:" | grep . || value "$1"; } # of the property at hand, if the lab has a line for it
best() { awk -F '\t' -v lab="$lab" '$1 == lab {print $2 " of " $3}' "$bests" 2>/dev/null; }

if [ ! "$1" ]; then
    for file in "$rooms"/*/lab.txt; do
        lab=${file%/lab.txt} lab=${lab##*/}
        state='not begun' && [ -e "$LABS/$lab/kernel.cu" ] && state='begun'
        [ ! "$(best)" ] || state="$(best) points"
        printf '%-10s %-64s %s\n' "$lab" "$(value title)" "$state"
    done
    echo 'make lab N=04 hands out labs/04/kernel.cu, a kernel to write, and from then on judges it. HINT=1 and HINT=2 give hints.'
    exit
fi
lab=$1 file=$LABS/$1/kernel.cu
case $lab in */* | .*) lab= ;; esac
[ -e "$rooms/$lab/lab.txt" ] || stop "N=$1: choose one of $(cd "$rooms" && ls -d */ | tr -d / | tr '\n' ' ')"
case $HINT in
'') ;;
1) value hint; exit ;;
2) value hint; value hint 2; exit ;;
*) stop "HINT=$HINT: choose 1 or 2" ;;
esac
if [ ! -e "$file" ]; then
    mkdir -p "$LABS/$lab" 2>/dev/null && cp "$rooms/$lab/kernel.cu" "$file" 2>/dev/null || stop "$file cannot be written"
    chmod u+w "$file"
    echo "$file is yours to write: its comment says what the kernel is given and what it has to compute."
    echo "When it is written: make lab N=$lab"
    exit
fi

# ---- the student's program, twice, and the judge
properties=$(grep -c '^property' $rooms/properties.txt)
mkdir -p "$LAB_OUT/$lab" 2>/dev/null && scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT || stop "$LAB_OUT cannot be written"
verdict() { # PROPERTIES POINTS REASON
    most=$((properties + $(sed -n 's/^points  *\([0-9]*\).*/\1/p' "$rooms/$lab/lab.txt" | paste -sd+ | sed 's/^$/0/')))
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$lab" "$1" "$properties" "$2" "$most" "$3" >"$LAB_OUT/$lab/verdict.tsv"
    [ "$NO_BESTS" ] && return
    awk -F '\t' -v OFS='\t' -v lab="$lab" -v points="$2" -v most="$most" '
        $1 == lab {found = 1; if ($2 + 0 < points) $2 = points; $3 = most}
        {print}
        END {if (!found) print lab, points, most}' "$bests" 2>/dev/null >"$scratch/bests"
    [ -e "$bests" ] || awk -v OFS='\t' -v lab="$lab" -v points="$2" -v most="$most" 'BEGIN {print lab, points, most}' >"$scratch/bests"
    cp "$scratch/bests" "$bests"
    best=$(best)
    echo "points   $2 of $most; best so far: ${best% of *}"
}
build() { # OUT LAB_OUT PROGRAM... VARIABLE=VALUE
    out=$1 lab_out=$2
    shift 2
    "$MAKE" --no-print-directory DEVICE=cpu OUT="$out" LABS="$LABS" LAB_OUT="$lab_out" "$@" 2>&1
}
progress 'building ...'
build "$TRACE_OUT" "$TRACED_OUT" TRACE=1 "$TRACED_OUT/$lab/run" >"$scratch/traced" &
build "$OUT" "$LAB_OUT" "$LAB_OUT/$lab/run" "$OUT/lab" >"$scratch/built" && failed= || failed=built
wait $! || failed=${failed:-traced}
if [ "$failed" ]; then
    progress
    why=$(grep -v -e '^make' -e '^ *\[' -e '^rm ' "$scratch/$failed" | sed 4q)
    echo "$why"
    verdict 0 0 "it does not compile: $(echo "$why" | sed 1q)"
    exit 1
fi

# On a GPU: how long the kernel takes there beside ours, one after the other. For the reader alone: points are the same on all computers.
compare_speed() {
    ours=$(value ours) at=$(value speed)
    [ "$GPU_OUT" ] && [ "$ours" ] || return 0
    progress 'building for the GPU ...'
    stage=$GPU_OUT/${ours%/*}/${ours%/*} run=$GPU_OUT/labs/$lab/run
    "$MAKE" --no-print-directory DEVICE=cuda OUT="$GPU_OUT" LABS="$LABS" LAB_OUT="$GPU_OUT/labs" "$run" "$GPU_OUT/lab" "$stage" >"$scratch/said" 2>&1 &&
        progress 'running on the GPU ...' &&
        "$GPU_OUT/lab" "$run" $at --json >"$scratch/speed" 2>"$scratch/said" </dev/null &&
        "$stage" --variant "${ours#*/}" --dtype "$(value dtype)" $at --json >>"$scratch/speed" 2>"$scratch/said" </dev/null
    code=$?
    progress
    awk -v code=$code -v said="$(grep -v '^ *\[' "$scratch/said" | sed 1q)" -v ours="$ours" -v at="$at" -f common/classroom/rows.awk -f $rooms/speed.awk "$scratch/speed"
}

# ---- the properties, one by one
seed=${SEED:-$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}
case $seed in '' | *[!0-9]*) stop "SEED=$SEED: choose a whole number" ;; esac
set -- $(value tile)
Br=$1 Bc=$2 r=$(((seed * 1103515245 + 12345) % 1000003))
judge() { # OPTIONS: runs the judge on one problem. Fails if the kernel is wrong there; `said` is what it says
    said=$(ulimit -t "${CPU_SECONDS:-20}" && CPU_DEVICE_ORDER=${order:-forward} "$OUT/lab" $program "$@" --seed "$seed" --json 2>&1 >"$scratch/rows" </dev/null)
    code=$?
    [ $code -ne 2 ] || stop "the judge cannot run: $said"
    case $wanted$said in
    races*'is in no tensor'* | races*'is a local variable of'*) return 0 ;; # that is the next property's
    esac
    [ $code -eq 0 ]
}
explain() { # what is wrong in the problem at hand
    printf 'NO\n    the problem: %s.\n' "$words"
    echo "$said" | sed 's/^[^ ]*kernel: //; s/^/    /' | awk '!said[$0]++' | sed 6q
    likely=$(value "likely  *$property:" | grep . || echo "$likely")
    case $said in
    *'nothing was written to'*) ;;
    *'out of bounds)'*) # a comparison, which does not know the cause
        echo "    likely: $likely" | fold -s -w 112 | sed '2,$s/^/    /' ;;
    esac
    echo "    see it again: ${order:+CPU_DEVICE_ORDER=$order }$OUT/lab $program $options --seed $seed"
}
holding=0 property= program=$LAB_OUT/$lab/run order= wanted= failed=
echo "lab $lab   $(value title)   ($file)"
while read -r word rest; do
    case $word in
    property)
        [ ! "$property" ] || { echo yes; holding=$((holding + 1)); }
        property=$rest order= wanted= program=$LAB_OUT/$lab/run
        printf '%-30s' "$property" ;;
    likely) likely=$rest ;;
    order) order=$rest ;;
    traced) wanted=$rest program=$TRACED_OUT/$lab/run ;;
    try)
        words=${rest%%:*}
        eval "options=\"${rest#*:} $(value_here options)\"" && options=${options# }
        judge $options || { failed=$property; break; } ;;
    esac
done <$rooms/properties.txt
if [ "$failed" ]; then
    explain
    verdict $holding $holding "$failed: $(echo "$said" | sed 's/^[^ ]*kernel: //; 1q')"
    echo "not yet: $holding of $properties properties hold. Hint: make lab N=$lab HINT=1"
    exit 1
fi
echo yes

# ---- the score: what the trace counts on one problem
order= wanted= program=$TRACED_OUT/$lab/run
judge $(value shape) || { echo "$said"; verdict "$properties" "$properties" "$said"; exit 1; }
{ sed -n 's/^points  *\([0-9]*\)  *\([^:]*\): *\(.*\) <= \(.*\)/worth[++scores] = \1; of[scores] = "\2"; yours[scores] = (\3); most[scores] = (\4)/p
    s/^least  *\([^:]*\): *\(.*\) >= \(.*\)/least[++bounds] = "\1"; counted[bounds] = (\2); bound[bounds] = (\3)/p' "$rooms/$lab/lab.txt" |
    awk 'BEGIN {print "END {"} {print} END {print "score() }"}'
} >"$scratch/script"
awk -f common/classroom/rows.awk -f $rooms/score.awk -f "$scratch/script" "$scratch/rows" >"$scratch/score"
code=$?
sed '$d' "$scratch/score"
points=$(($(sed -n '$p' "$scratch/score") + properties))
[ $code -eq 0 ] || { verdict "$properties" "$properties" "$(sed 1q "$scratch/score")"; exit 1; }
compare_speed
verdict "$properties" "$points" ''
echo "right: all $properties properties hold. How our kernel does it: notes/$(value note).md"
