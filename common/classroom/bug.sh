# bug.sh - plants a mistake in a copy of a stage, and shows what one sees of it.                            (make bug N=04.12)
#
#     sh common/classroom/bug.sh             lists the mistakes; with 04 those of 04_fa2
#     sh common/classroom/bug.sh 04.12       shows the lines, old and new, asks, runs the stage, and says what saw it
#
#     BLIND=1 sh common/classroom/bug.sh 04.12          shows a command that fails, and not the lines: you find them, in a copy of the file
#     BLIND=1 sh common/classroom/bug.sh 04.12 88       whether line 88 of the copy is one of them; without a line: whether the copy is cured
#
# Exit code: 0, 1 if no check saw it, or for "not yet", 2 if there is no such mistake. The mistakes are those that `make mutations` plants:
# tests/mutations_kernels.txt. Everything runs on the CPU device, as it does there.
name=bug asked=$1 answer=$2 list=tests/mutations_kernels.txt
. common/classroom/trial.sh

bugs() { awk '/^[0-9]/ {number = substr($1, 1, 2); print number "." ++count[number], $0}' $list; } # 04.12 04_fa2 tuned 04_fa2/tuned.cu: the mistake
[ ! "$BLIND" ] || [ "$asked" ] || asked=$(bugs | awk -v r="$(od -An -N2 -tu2 /dev/urandom)" '{all[NR] = $1} END {print all[r % NR + 1]}')
bug=$(bugs | awk -v asked="$asked" '$1 "" == asked || $1 == "0" asked')
if [ ! "$bug" ]; then
    case $asked in '' | [0-9][0-9]) list=$(bugs | grep "^$asked") ;; *) list= ;; esac
    [ "$list" ] || stop "N=$asked: there is no such bug; make bug lists them"
    echo "$list" | while read -r number stage variant file mistake; do
        printf '%-6s %-32s %s\n' "$number" "${file%:}" "$mistake"
    done
    echo 'make bug N=04.12 plants one in a copy and shows which check catches it.'
    exit
fi
read -r number stage variant original mistake <<END
$bug
END
original=${original%:} variant=${variant#-} copy=$OUT-scratch/bug
plant() { # the file with the mistake, everywhere in it
    awk -v number="$number" '
        FNR == NR && /^[0-9]/ {here = substr($1, 1, 2) "." ++count[substr($1, 1, 2)] == number}
        FNR == NR && here && /^-/ {from = from (from == "" ? "" : "\n") substr($0, 3)}
        FNR == NR && here && /^\+/ {to = to (lines++ ? "\n" : "") substr($0, 3)}
        FNR != NR {text = text $0 "\n"}
        END { # everywhere in the file
            for (; place = index(text, from); text = substr(text, place + length(from)))
                planted = planted substr(text, 1, place - 1) to
            printf "%s", planted text
        }' $list "$original"
}

# The student finds the lines alone. The copy that they work on is never written over.
blind() {
    case $OUT in /*) file=$OUT/ ;; *) file= ;; esac
    file=${file}exercises/bug-$number/${original##*/} again="make bug N=$number BLIND=1"
    if [ ! -e "$file" ]; then
        mkdir -p "${file%/*}" 2>/dev/null && plant >"$file" || stop "$file cannot be written"
        DEVICE=cpu try_stage || DEVICE=cpu try_stage whole || true
        progress
        echo "$number  There is a mistake somewhere in $file. ${error:+It does not compile: $error}$wrong"
        echo "Which line is it? Answer with $again ANSWER=88. Then fix it there; $again tells you whether it is cured."
    elif [ "$answer" ]; then
        line=${answer##*:}
        case $line in '' | *[!0-9]*) stop "ANSWER=$answer: choose a line of $file, like 88 or ${file##*/}:88" ;; esac
        # diff says 88c88, 88,90c88 or, where lines are missing after the 88th, 88a89: then 88 and 89 are right
        plant | diff - "$original" | sed -n 's/^\([0-9]*\)a.*/\1 a/p; s/^\([0-9]*\)[cd].*/\1 \1/p; s/^\([0-9]*\),\([0-9]*\)[cd].*/\1 \2/p' |
            awk -v line="$line" 'line >= $1 && line <= ($2 == "a" ? $1 + 1 : $2) {found = 1} END {exit !found}' ||
            { echo "not yet: line $line is not where the mistake is."; exit 1; }
        echo "right: line $line is where the mistake is."
    elif DEVICE=cpu try_stage; then
        progress
        echo "right: no check finds anything in $file now. The mistake was: $mistake"
    else
        progress
        echo "not yet: ${error:+it does not compile: }${error:-$wrong}"
        exit 1
    fi
}
[ ! "$BLIND" ] || { blind; exit; }

claim_copy
rm -rf "$copy"
file=$copy.planted
plant >"$file"
echo "$number  $original: $mistake"
cmp -s "$original" "$file" && stop "$number: the line is no longer in $original"
diff -U 0 "$original" "$file" | sed 1,2d
echo 'What will you see: NaN, some wrong rows, nothing at all? With which shapes? Which check will catch it?'
if [ -t 0 ]; then
    printf '(Press Enter to run it.)'
    read -r _
fi
build_copy "$OUT" "$stage/$stage" DEVICE=cpu || stop "$number does not compile: $error"
command="$stage/$stage${variant:+ --variant $variant}"
progress 'running ...'
said=$(timeout 120 "$built/"$command 2>&1) && usual=', though not with its usual options' || usual=
progress
printf '\n%s\n%s\n\n' "$command" "$said"
DEVICE=cpu try_stage whole && { progress; echo 'No check catches it.'; exit 1; }
progress
echo "Caught$usual: $wrong"
