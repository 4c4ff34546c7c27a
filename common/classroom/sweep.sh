# sweep.sh - latency of every variant over lengths, head dims and masks, as rows of notes/results/<device>/sweep.csv.    (make sweep)
#
#     sh common/classroom/sweep.sh PROGRAM...        the programs of stages; what is measured say the variables:
#
#     LENGTHS      sequence lengths, ascending
#     TOKENS       batch is TOKENS / length, at least 1
#     HIDDEN       heads are HIDDEN / head dim
#     HEAD_DIMS, MASKS, DTYPE
#     LIMIT        milliseconds a launch. A variant that took longer is not measured at the next length
#     RESULTS      the folder, instead of notes/results/<device>
#
# A decoding stage gets one query, several times LENGTHS keys and no mask. It can be interrupted and started again: a shape that
# is in the file is not measured again. Remove lines of it to measure them anew.
name=sweep
. common/classroom/tools.sh
[ $# -gt 0 ] || stop 'usage: sweep.sh PROGRAM...'
# What a program prints with --csv, its own rows alone, each behind the date. Titles as well, for a file that has none yet.
sweep_rows() { # stage
    awk -F, -v stage="$1" -v date="$(date -u +%Y-%m-%d)" 'NR == 1 {print "date," $0} NR > 1 && ($2 == stage || index($2, stage "/") == 1) {print date "," $0}'
}
# Of rows with titles, the first one's cell in a column. No cell before `device` has a comma in it.
cell() { # column
    awk -F, -v column="$1" 'NR == 1 {for (i = 1; i <= NF; i++) at[$i] = i} NR == 2 {gsub(/"/, "", $at[column]); print $at[column]}'
}

probe=$("$1" --csv --batch 1 --heads 1 --seqlen 16 --seqlen-k 16 --head-dim 64 --iters 1 --no-validate) || stop "$1 does not run"
columns=$(echo "$probe" | sweep_rows "${1##*/}" | sed 1q)
device=$(echo "$probe" | cell device)
cuda=$(echo "$probe" | cell cuda)
if [ "$cuda" ]; then
    : "${LENGTHS:=512,1024,2048,4096,8192,16384,32768,65536}" "${TOKENS:=16384}" "${HIDDEN:=2048}" "${HEAD_DIMS:=128,64}"
    : "${LIMIT:=500}"
    decode='--heads 32 --kv-heads 8' keys=2
else
    : "${LENGTHS:=64,128,256}" "${TOKENS:=1}" "${HIDDEN:=64}" "${HEAD_DIMS:=64}" "${LIMIT:=2000}"
    decode='--heads 8 --kv-heads 2' keys=16
fi
: "${MASKS:=full,causal}" "${DTYPE:=fp16}"
: "${RESULTS:=notes/results/$(echo "$device" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9][^a-z0-9]*/-/g; s/^-//; s/-$//')}"
for list in LENGTHS TOKENS HIDDEN HEAD_DIMS LIMIT; do
    eval "value=\$$list"
    echo "$value" | grep -Eqx '[1-9][0-9]*(,[1-9][0-9]*)*' || stop "$list=$value: choose whole numbers, with commas between"
done
each() { echo "$1" | tr , ' '; }

mkdir -p "$RESULTS" && file=$RESULTS/sweep.csv || exit 2
[ -s "$file" ] || echo "$columns" >"$file"
[ "$(sed 1q "$file")" = "$columns" ] || stop "$file has columns that this sweep does not write: move it, or choose another folder with RESULTS"
[ -z "$(tail -c 1 "$file")" ] || sed -i '$d' "$file" # a line that was cut in writing
broken=0

# One variant at one head dim and mask, over the lengths.
series() { # program variant head_dim mask kind options
    stage=${1##*/}
    for length in $(each "$LENGTHS"); do
        heads=$((HIDDEN > $3 ? HIDDEN / $3 : 1)) batch=$((TOKENS > length ? TOKENS / length : 1))
        shape="--batch $batch --heads $heads --kv-heads $heads --seqlen $length --seqlen-k $length"
        [ "$5" = DECODING ] && shape="--batch 1 $decode --seqlen 1 --seqlen-k $((length * keys))"
        shape="$shape --head-dim $3 --dtype $DTYPE --mask $4"
        row=$stage/$2
        [ "$2" = "$stage" ] && row=$stage
        key="[^,]*,$stage,$row,[a-z ]*,$(echo "$shape" | sed 's/--mask full/false/; s/--mask causal/true/; s/--[a-z-]* //g; s/ /,/g'),"
        if ! grep -q "^$key" "$file"; then
            progress "$row $shape ..."
            new=$("$1" --csv $shape $6 --variant "$2" --no-validate 2>"$file.err")
            code=$?
            if [ $code -gt 2 ] || [ -z "$new" ]; then
                [ $code -eq 2 ] && stop "$(tail -n 1 "$file.err")"
                broken=$((broken + 1))
                echo "$row $shape: exit code $code: $(tail -n 1 "$file.err")"
                return
            fi
            echo "$new" | sweep_rows "$stage" | sed 1d >>"$file"
        fi
        # Nothing more to learn where memory has ended or a launch takes too long.
        { echo "$columns" && grep "^$key" "$file"; } | awk -F, -v limit="$LIMIT" '
            NR == 1 {for (i = 1; i <= NF; i++) if ($i == "latency_ms") at = i; next}
            /memory/ || $at > limit {exit 1}' || return
    done
}

for program in "$@"; do
    kind=$(sed -n 's/^ *\.kind = \([A-Z]*\),.*/\1/p' "${program##*/}/main.c")
    dense=$("$program" --help | sed -n 's/^  --blocks .*/--blocks all/p') # the same problem for all stages
    for variant in $(variants "$program"); do
        for head_dim in $(each "$HEAD_DIMS"); do
            for mask in $(each "$([ "$kind" = DECODING ] && echo full || echo "$MASKS")"); do
                series "$program" "$variant" "$head_dim" "$mask" "$kind" "$dense"
            done
        done
    done
done
progress
rm -f "$file.err"
echo "$file: $(($(wc -l <"$file") - 1)) rows$([ $broken -eq 0 ] || echo ", $broken series broke; the next sweep tries them again")"
[ $broken -eq 0 ]
