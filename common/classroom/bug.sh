# bug.sh - plants a mistake in a copy of a stage, and shows what one sees of it.                            (make bug N=04.12)
#
#     sh common/classroom/bug.sh             lists the mistakes; with 04 those of 04_fa2
#     sh common/classroom/bug.sh 04.12       shows the lines, old and new, asks, runs the stage, and says what saw it
#
# Exit code: 0, 1 if no check saw it, 2 if there is no such mistake. The mistakes are those that `make mutations` plants:
# tests/mutations_kernels.txt. Everything runs on the CPU device, as it does there.
name=bug asked=$1 list=tests/mutations_kernels.txt
. common/classroom/trial.sh

bugs() { awk '/^[0-9]/ {number = substr($1, 1, 2); print number "." ++count[number], $0}' $list; } # 04.12 04_fa2 tuned 04_fa2/tuned.cu: the mistake
bug=$(bugs | awk -v asked="$asked" '$1 "" == asked || $1 == "0" asked')
if [ ! "$bug" ]; then
    case $asked in '' | [0-9][0-9]) list=$(bugs | grep "^$asked") ;; *) list= ;; esac
    [ "$list" ] || stop "N=$asked: there is no such bug, make bug lists them"
    echo "$list" | while read -r number stage variant file mistake; do
        printf '%-6s %-32s %s\n' "$number" "${file%:}" "$mistake"
    done
    echo 'make bug N=04.12 plants one in a copy, and shows what sees it.'
    exit
fi
read -r number stage variant original mistake <<END
$bug
END
original=${original%:} variant=${variant#-} copy=$OUT-scratch/bug
claim_copy
rm -rf "$copy"
file=$copy.planted
awk -v number="$number" '
    FNR == NR && /^[0-9]/ {here = substr($1, 1, 2) "." ++count[substr($1, 1, 2)] == number}
    FNR == NR && here && /^-/ {from = from (from == "" ? "" : "\n") substr($0, 3)}
    FNR == NR && here && /^\+/ {to = to (lines++ ? "\n" : "") substr($0, 3)}
    FNR != NR {text = text $0 "\n"}
    END { # everywhere in the file
        for (; place = index(text, from); text = substr(text, place + length(from)))
            planted = planted substr(text, 1, place - 1) to
        printf "%s", planted text
    }' $list "$original" >"$file"
echo "$number  $original: $mistake"
cmp -s "$original" "$file" && stop "$number: the line is no longer in $original"
diff -U 0 "$original" "$file" | sed 1,2d
echo 'What will one see? NaN, some wrong rows, nothing at all? With which shapes? What will see it?'
if [ -t 0 ]; then
    printf '(Enter runs it.)'
    read -r _
fi
build_copy "$OUT" "$stage/$stage" DEVICE=cpu || stop "$number does not compile: $error"
command="$stage/$stage${variant:+ --variant $variant}"
progress 'running ...'
said=$(timeout 120 "$built/"$command 2>&1) && usual=', though not with its usual options' || usual=
progress
printf '\n%s\n%s\n\n' "$command" "$said"
DEVICE=cpu try_stage whole && { progress; echo 'No check sees it.'; exit 1; }
progress
echo "Seen$usual: $wrong"
