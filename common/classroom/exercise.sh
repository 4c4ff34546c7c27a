# exercise.sh - says whether an exercise of the notes is solved.                                      (make exercise N=04.1)
#
#     sh common/classroom/exercise.sh                  lists them
#     sh common/classroom/exercise.sh 04.1             what is asked; for an exercise with a file, hands it out or tries it
#     sh common/classroom/exercise.sh 04.1 50176       checks an answer: numbers, with commas between
#     HINT=1 sh common/classroom/exercise.sh 04.1      a hint; 2: and a second one
#     sh common/classroom/exercise.sh --solve 04.1     prints the answer
#
# Exit code: 0 right, or told what is asked; 1 not yet; 2 it cannot be checked, and one line says why. For make
# both are errors: it adds a line and ends with 2. notes/exercises/README.md says how an exercise is written.
name=exercise solve=
. common/classroom/trial.sh
[ "$1" != --solve ] || { solve=1; shift; }
asked=$1 answer=$2
line_width

if [ ! "$asked" ]; then
    [ ! "$answer" ] || stop "ANSWER=$answer: choose the exercise too, like N=04.1 (make exercise lists them)"
    awk 'function show() {if (number) print number "  " does ask; does = ""}
        {key = $1; text = $0; sub(/^[^ ]+ */, "", text)}
        key == "exercise" {show(); number = text}
        key == "ask" {ask = text}
        key == "change" {does = "change " text "; "}
        key == "blank" {does = "fill in " text ": "}
        key == "write" {does = "write a kernel: "}
        END {show()}' notes/exercises/*.txt | fold -s -w $((width - 8)) | sed '/^[a-z0-9_]*\.[0-9]*  /!s/^/        /'
    { echo 'The note has the whole question: exercise 04.1 is number 1 under Exercises in notes/04_fa2.md.'
        echo 'make exercise N=04.1 asks it; ANSWER=... (several: ANSWER=p,q) checks your answer; HINT=1 or 2 gives a hint.'
    } | fold -s -w "$width"
    exit
fi

# ---- the exercise at hand

scratch=$(mktemp -d) && trap 'rm -rf "$scratch" "$busy"' EXIT || stop 'cannot create a temporary folder'
awk -v asked="$asked" '
    /^exercise / {on = $2 "" == asked || $2 == "0" asked; if (on) print "note " FILENAME}
    on && !/^#/' notes/exercises/*.txt >"$scratch/exercise"
values() { sed -n "s/^$1  *//p" "$scratch/exercise"; }
value() { values "$1" | sed -n "${2:-1}p"; } # the first, or that of this number

number=$(value exercise) note=$(value note) stage=$(value stage) variant=$(value variant) program=$(value program)
[ "$number" ] || stop "N=$asked: there is no such exercise; make exercise lists them"
note=${note##*/} note=${note%.txt}
: "${stage:=$note}"
free=$(values measure | grep ANSWER)
[ ! "$(value needs)" ] || [ "$DEVICE" = cuda ] || stop "N=$number needs a GPU, because its answer is measured there"
[ ! "$solve" ] || { [ "$(value answer)" ] && [ ! "$free" ]; } || stop "N=$number has no numbers to print"
case $HINT in
'') ;;
1) value hint; exit ;;
2) values hint; exit ;;
*) stop "HINT=$HINT: choose 1 or 2" ;;
esac

# The student's own copy of a file. What is there is never written over.
original=$(awk '$1 ~ /^(change|blank|write)$/ {sub(/:$/, "", $2); print $2}' "$scratch/exercise")
copy=$OUT-scratch/$number
case $OUT in /*) file=$OUT/ ;; *) file= ;; esac
file=${original:+${file}exercises/$number/${original##*/}}
is_new=
hand_out() { # COMMAND that prints the file
    [ "$file" ] && [ ! -e "$file" ] || return
    mkdir -p "${file%/*}" 2>/dev/null && "$@" >"$file" || stop "$file cannot be written"
    is_new=1
}

right() { # and why, in a sentence, and where to compare
    progress
    why=$(value hint 2) solution=notes/solutions.md
    grep -qs "^## $note\$" $solution || solution=notes/$note.md
    echo right
    : "${why:=$(value hint)}"
    echo "  ${why:+Because: $why. }The solution of $number, for comparison: $solution" | fold -s -w "$width"
}
not_yet() { # why
    progress
    printf 'not yet: %s\n' "$1"
    hints
}
hints() {
    [ ! "$(value hint)" ] || echo "  Hint: $(value hint | sed '/?$/!s/$/./')"
    [ ! "$(value hint 2)" ] || echo "  Another hint: make exercise N=$number HINT=2"
    exit 1
}

# ---- what programs print

# Sets `built`, where the stage's program (or another) is, with the student's file if there is one. `traced`: 1 or nothing
build() { # PROGRAM
    if [ "$traced" ]; then out=$TRACE_OUT device=cpu; else out=$OUT device=$DEVICE; fi
    if [ ! "$file" ]; then
        built=$out
        progress 'building ...'
        error=$("$MAKE" --no-print-directory DEVICE=$device TRACE=$traced OUT="$out" "$out/$1" 2>&1) ||
            stop "$out/$1 cannot be built: $(echo "$error" | sed 1q)"
    elif ! build_copy "$out" "$1" DEVICE=$device TRACE=$traced; then
        not_yet "it does not compile: $error"
    fi
    progress 'running ...'
}

# Hands the rows, and what the exercise says is to be computed of them, to exercise.awk.
compute() {
    { echo 'END {need_rows()'
        sed -n 's/^answer  *\(.*\)/right[++answers] = (\1)/p
            s/^part  *\([^:]*\): *\(.*\)/part[++parts] = (\2); meaning[parts] = "\1"/p
            s/^score  *\([^:]*\): *\(.*\) <= \(.*\)/of[++scores] = "\1"; yours[scores] = (\2); wanted[scores] = (\3)/p' "$scratch/exercise"
        echo 'if (scores) score(); else check()}'
    } >"$scratch/script"
    progress
    ANSWER=$answer ASK=$(value ask) awk -v runs="$runs" -v free="$free" -v solve="$solve" -v within="$(value within)" \
        -f common/classroom/rows.awk -f common/classroom/exercise.awk -f "$scratch/script" "$scratch/rows"
    code=$?
    [ $code -ne 1 ] || hints
    [ $code -ne 0 ] || [ "$solve" ] || right
    exit $code
}

# The rows of all `trace` and `measure` lines have a field `run` that counts these lines.
check() {
    runs=0
    grep -E '^(trace|measure) ' "$scratch/exercise" >"$scratch/runs"
    while read -r how options; do
        runs=$((runs + 1)) traced=
        [ "$how" = measure ] || traced=1
        build "${program:-$stage/$stage}" </dev/null
        [ ! "$free" ] || options=${options%ANSWER}$answer
        if [ "$program" ]; then # it takes no options, and what it prints are no rows
            timeout 120 env ${options%%--*} "$built/$program" 2>&1 </dev/null |
                sed "s/[\"\\\\]/ /g; s/.*/{\"run\": $runs, \"said\": \"&\"}/"
        else
            env ${options%%--*} "$built/$stage/$stage" --json ${traced:+--trace} --${options#*--} 2>&1 </dev/null |
                sed "s/^{/{\"run\": $runs, /"
        fi
    done <"$scratch/runs" >"$scratch/rows"
    compute
}

# ---- the four kinds of exercises

# Whether the change has been made: what is new stands in the student's file, what goes does not, behind `after`.
is_changed() {
    text=$(cat "$file") after=$(value after) changed=$(value changed) gone=$(value gone)
    case $text in *"$after"*) text=${text#*"$after"} ;; *) return 1 ;; esac
    case $text in *"$changed"*) ;; *) return 1 ;; esac
    [ ! "$gone" ] || case $text in *"$gone"*) return 1 ;; esac
}

question() {
    hand_out cat "$original"
    change=$(value change) change=${change#*: }
    if [ "$answer" ]; then
        [ ! "$change" ] || is_changed || { echo "not yet: this change is still missing in $file: $change"; exit 1; }
        [ ! "$free" ] || case $answer in
        *[!a-zA-Z0-9\ .,=-]*) stop "ANSWER=$answer: choose options of the program" ;;
        esac
        check
    fi
    echo "$number  $(value ask)" | fold -s -w "$width"
    echo "For the whole question, see Exercises in notes/$note.md."
    [ ! "$is_new" ] || echo "$file is a copy of $original to work on. Change it there: $change."
    [ "$is_new" ] || [ ! "$change" ] || echo "Your copy is $file. Change it there: $change."
    answers=$(values answer | grep -c .)
    [ "$answers" -gt 1 ] && letters=$(echo p,q,r,s,t,u,v,w,x,y,z | cut -d, -f "1-$answers") || letters=...
    within=$(value within | awk '{printf " An answer within %g %% is accepted.", 100 * $1}')
    echo "Then: make exercise N=$number ANSWER=$letters or HINT=1.$within"
}

# The original without its blank: from the first line with `from` behind `after` to the one with `to`, and on to where braces
# that open in between are closed.
cut_out() {
    ASK=$(value ask) AFTER=$(value after) FROM=$(value from) TO=$(value to) STUB=$(value stub) awk '
        !behind && (ENVIRON["AFTER"] == "" || index($0, ENVIRON["AFTER"])) {behind = 1}
        behind && !first && index($0, ENVIRON["FROM"]) {
            first = NR
            match($0, /^ */)
            printf "%*s/* YOUR LINES: %s */\n", RLENGTH, "", ENVIRON["ASK"]
            if (ENVIRON["STUB"] != "")
                printf "%*s%s\n", RLENGTH, "", ENVIRON["STUB"]
        }
        first && !last {
            depth += gsub(/{/, "{") - gsub(/}/, "}")
            if (index($0, ENVIRON["TO"]))
                ends = 1
            if (ends && depth <= 0)
                last = NR
            next
        }
        {print}
        END {exit !last}' "$original" || { rm -f "$file"; stop "N=$number: the lines to fill in are no longer in $original"; }
}

fill_in() {
    hand_out cut_out
    if [ "$is_new" ]; then
        first=$(grep -n 'YOUR LINES' "$file" | cut -d: -f1)
        missing=$(($(wc -l <"$original") - $(wc -l <"$file") + 1 + $(values stub | wc -l)))
        echo "$number  $file is $original with $missing lines missing, at line $first: $(value ask)."
        echo "Write them, then run: make exercise N=$number"
    elif try_stage; then
        right
    else
        not_yet "${error:+it does not compile: }${error:-$wrong}"
    fi
}

# A kernel's score under the trace, beside the one that is wanted.
write_kernel() {
    hand_out cat "$original"
    traced=1
    if [ "$is_new" ]; then
        echo "$number  $(value ask)."
        echo "$file compiles, but its results are wrong. Finish it, then run: make exercise N=$number"
        exit
    fi
    build "$program"
    timeout 120 "$built/$program" >"$scratch/rows" 2>&1
    compute
}

if [ "$solve" ]; then
    hand_out cat "$original"
    check
elif [ "$(value write)" ]; then
    write_kernel
elif [ "$(value blank)" ]; then
    fill_in
else
    question
fi
