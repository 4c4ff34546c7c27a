# measure.sh - measures this machine's GPU into notes/results/<its name>/, as the notes tell it of an H200.      (make results)
#
#     make results                                 all parts, the ladder first: ten minutes a call
#     make results PARTS="ladder decode"           some
#
# PARTS      which of these. What needs PyTorch or JAX is left out without them, and says so
#   ladder     the stages but 10 to 12 on one problem, full and causal; backward, fp8 and decode their own; cuDNN and the like behind them
#   forward    08_fa3 beside PyTorch's FlashAttention-2, cuDNN and FlashAttention-3, shape by shape; so
#   backward   09_fa3_backward,
#   decode     07_flash_decoding,
#   fp8        06_fp8 (JAX),
#   tuned      04_fa2,
#   atomic     05_fa2_backward,
#   two_pass   its kernel without atomics,
#   sparse     10_block_sparse, beside FlexAttention,
#   forward_bf16, backward_bf16, tuned_bf16, atomic_bf16   the same in bf16,
#   lengths    tuned at more lengths, for the plots
#   ceilings   what the chip can do
#   splits     07_flash_decoding/split_k over the number of pieces
#   uneven     07_flash_decoding where pieces of equal number are a bad cut: 17 texts; one long text among 16
#   score      (if named) 11_score_mod beside FlexAttention, one f after the other
#   tuned_without, fa3_rungs   (if named) 04_fa2/tuned and 08_fa3/overlapped with one thing left out at a time: without.pl
#   fa2_changes   (if named) what 04_fa2's page asks of epilogue, parallel, loop_swap and split_q: other grids, equal tiles
# FA3, TWO   files: FlashAttention-3, another peer in 16 bits, and 08_fa3 with two consumers, for sparse; see peers.py
# ROUNDS     how often each stage is run for the ladder, one after the other; 3
# LIMIT      seconds: no part, nor a round of the ladder, begins later than this; 540. A further `make results` measures what is missing
#
# A part that was measured at this commit is not measured again: runs.tsv has a line of each, with the clock and the power during it.
# The kernels of a round come one after the other, each in a process of its own, so that none begins on a chip that the one before has
# heated; then the next round: what clock and power do meanwhile meets all alike.
# How to send in what was measured, and how to see it in the notes: README.md beside this file.
name=results
. common/classroom/tools.sh
programs=${1:-.} # the folder with the stages' programs
parts="ladder ceilings decode fp8 splits forward tuned backward atomic sparse uneven forward_bf16 backward_bf16 tuned_bf16 atomic_bf16 two_pass lengths"
: "${PARTS:=$parts}"
: "${ROUNDS:=3}" "${LIMIT:=540}"
began=$(date +%s)
since() { echo $(($(date +%s) - began)); }

probe=$("$programs/04_fa2/04_fa2" --json --batch 1 --heads 1 --seqlen 16 --head-dim 64 --iters 1 --variant fma --no-validate) || exit 2
field() { echo "$probe" | sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p"; }
device=$(field device) cuda=$(field cuda) commit=$(field commit)
[ "$cuda" ] || stop 'needs a GPU: DEVICE=cuda'
: "${RESULTS:=notes/results/$(echo "$device" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9][^a-z0-9]*/-/g; s/^-//; s/-$//')}"
mkdir -p "$RESULTS" || exit 2
runs=$RESULTS/runs.tsv
[ -s "$runs" ] || printf 'part\tcommit\tdate\tseconds\tMHz, median\tMHz, lowest\tW, highest\tfiles\n' >"$runs"

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | sed 1q; }
here=$(python3 -c 'from importlib.util import find_spec
print(*filter(find_spec, ("torch", "jax")))' 2>/dev/null)
"$programs/08_fa3/08_fa3" --batch 1 --heads 1 --seqlen 16 --iters 1 --variant wgmma --no-validate >/dev/null 2>&1 && here="$here Hopper"
fa3=${FA3:+--fa3 $FA3}

# The clock and the power, which nvidia-smi samples beside a part.
clock=$RESULTS/clock.csv watcher=
watch_clock() { nvidia-smi --query-gpu=clocks.sm,power.draw,utilization.gpu --format=csv,noheader,nounits -lms 200 >"$clock" 2>/dev/null & watcher=$!; }
clock_seen() { # tab between: the median and the lowest clock, the highest power, of the samples in which the GPU had work
    [ ! "$watcher" ] || kill $watcher 2>/dev/null
    watcher=
    awk -F', *' '$3 > 0 && $1 > 0' "$clock" | sort -n | awk -F', *' '
        {mhz[NR] = $1; if ($2 > watts) watts = $2}
        END {printf "%s\t%s\t%s", NR ? mhz[int((NR + 1) / 2)] : "", NR ? mhz[1] : "", NR ? sprintf("%.0f", watts) : ""}'
    rm -f "$clock"
}
trap '[ ! "$watcher" ] || kill $watcher 2>/dev/null' EXIT

into() { # file command...: the file appears when it is whole
    file=$RESULTS/$1
    shift
    "$@" >"$file.part" && [ -s "$file.part" ] && mv "$file.part" "$file" && files="$files ${file##*/}"
}
peers() { python3 -B common/results/peers.py "$@"; }
stage() { # name option...: its rows
    program=$programs/$1/$1
    shift
    for variant in $(variants "$program"); do
        progress "$part, round $round of $ROUNDS: ${program##*/}/$variant ..."
        "$program" "$@" --variant "$variant" --json
    done
}
problem='--batch 4 --heads 16 --seqlen 4096 --head-dim 128'
a_round() { # of what is in common/results/ladder.tsv, but 10 to 12. A stage that cannot run here leaves a row that says why, or none
    for each in 00_naive 01_tiled 02_online_softmax 03_fa1 04_fa2 08_fa3 05_fa2_backward 09_fa3_backward 06_fp8; do
        stage $each $problem --mask full,causal --no-validate
    done
    stage 07_flash_decoding
    stage 07_flash_decoding --kv-cache e4m3
    progress "ladder, round $round of $ROUNDS: cuDNN ..."
    case $here in *torch*) peers ladder $fa3 ;; esac
    case $here in *jax*Hopper*) peers ladder8 ;; esac
    true
}
right() { # no figure is of a kernel that is wrong; 1 is the exit code that says so
    for each in 00_naive 01_tiled 02_online_softmax 03_fa1 04_fa2 05_fa2_backward 06_fp8 07_flash_decoding 08_fa3 09_fa3_backward 10_block_sparse \
        11_score_mod 11_score_mod_backward; do
        progress "ladder: is $each right? ..."
        "$programs/$each/$each" --seqlen-k 1000 --head-dim 64,128 --iters 1 $([ $each = 07_flash_decoding ] || echo --batch 1 --heads 2 --seqlen 1000) >/dev/null
        [ $? != 1 ] || { echo "$each is wrong" >&2; return 1; }
    done
}
ladder() { # rounds that were done before, too; then a file for each problem
    right || return
    for round in $(seq "$ROUNDS"); do
        file=$RESULTS/round-$round.jsonl
        if [ -s "$file" ] && grep -q "\"commit\": \"$commit\"" "$file"; then continue; fi
        [ "$round" = 1 ] || [ "$(since)" -lt "$LIMIT" ] || break
        a_round >"$file.part" && mv "$file.part" "$file"
    done
    all=$RESULTS/rounds.part
    cat "$RESULTS"/round-[0-9]*.jsonl | grep '^{' | perl common/results/rounds.pl >"$all" || return
    if grep '"ok": false' "$all" >&2; then return 1; fi
    full() { grep -v '"causal": true' "$all" | grep -E "\"stage\": \"($1)" | grep -E "${2:-.}"; }
    into ladder.jsonl full '0[0-4]|08' && into backward.jsonl full '05|09' && into fp8.jsonl full 06 || return
    into decode.jsonl full 07 kv-cache=same && into decode_e4m3.jsonl full 07 kv-cache=e4m3
    into causal.jsonl sh -c "grep '\"causal\": true' '$all' | grep -v '\"stage\": \"peers'"
    ! grep -q '"stage": "peers' "$all" || into peers.jsonl grep '"stage": "peers' "$all"
    into 04_fa2.txt "$programs/04_fa2/04_fa2" $problem
    rm -f "$all" "$RESULTS"/round-[0-9]*.jsonl
}
measure() { # part
    case $1 in
    ladder) ladder ;;
    forward) into fa3_forward_fp16.txt peers forward --program 08_fa3/08_fa3 $fa3 ;;
    backward) into fa3_backward_fp16.txt peers backward --program 09_fa3_backward/09_fa3_backward --variant overlapped $fa3 ;;
    decode) into decode.txt peers decode $fa3 ;;
    fp8) into fp8_forward.txt peers fp8 && into fp8_forward_wgmma.txt peers fp8 --variant wgmma ;;
    tuned) into forward_fp16.txt peers forward $fa3 ;;
    atomic) into backward_fp16.txt peers backward $fa3 ;;
    two_pass) into backward_two_pass_fp16.txt peers backward --variant two_pass $fa3 ;;
    forward_bf16) into fa3_forward_bf16.txt peers forward --dtype bf16 --program 08_fa3/08_fa3 $fa3 ;;
    backward_bf16) into fa3_backward_bf16.txt peers backward --dtype bf16 --program 09_fa3_backward/09_fa3_backward --variant overlapped $fa3 ;;
    tuned_bf16) into forward_bf16.txt peers forward --dtype bf16 $fa3 ;;
    atomic_bf16) into backward_bf16.txt peers backward --dtype bf16 $fa3 ;;
    lengths) into forward_lengths_fp16.txt peers forward --lengths 512,1024,2048,4096,8192,16384,32768 $fa3 ;;
    sparse)
        into sparse.jsonl sparse_rounds && into sparse_fp16.txt peers sparse ${TWO:+--two "$TWO"} ;;
    score) into score_fp16.txt peers score ;;
    ceilings) into ceilings.tsv sh -c "'$programs/common/results/ceilings' | grep -v '^  '" ;;
    tuned_without | fa3_rungs | fa2_changes) perl common/results/without.pl build $1 && into $1.tsv perl common/results/without.pl $1 ;;
    splits) into splits.tsv sh common/results/splits.sh "$programs/07_flash_decoding/07_flash_decoding" ;;
    uneven)
        into decode_17.jsonl decode_rounds --batch 17 --seqlen-k 8192 &&
            into decode_long.jsonl decode_rounds --batch 16 --seqlen-k 65536 --lengths 65536$(printf ',4096%.0s' $(seq 15)) ;;
        esac
}
sparse_rounds() {
    for round in $(seq "$ROUNDS"); do
        stage 10_block_sparse --batch 1 --heads 16 --seqlen 16384 --head-dim 128 --blocks random:12.5:1 --no-validate
    done | perl common/results/rounds.pl
}

decode_rounds() { # option...
    for round in $(seq "$ROUNDS"); do stage 07_flash_decoding "$@" --no-validate; done | perl common/results/rounds.pl
}

machine() { # what it is; lines that somebody wrote below stay
    versions=$(python3 -c 'import torch
print(torch.__version__.split("+")[0], ".".join(str(torch.backends.cudnn.version() // n % 100) for n in (10000, 100)), sep=", ")' 2>/dev/null)
    printf 'what\tis\nGPU\t%s\ndriver\t%s\nmultiprocessors\t%s\npower limit\t%.0f W\nCUDA\t%s\n' "$device" "$(query driver_version)" \
        "$("$programs/04_fa2/04_fa2" --batch 1 --heads 1 --seqlen 16 --iters 1 --variant fma --no-validate | sed -n 's/.* \([0-9]*\) SMs.*/\1/p')" \
        "$(query power.limit)" "$cuda"
    [ ! "$versions" ] || printf 'PyTorch, cuDNN\t%s\n' "$versions"
    printf 'date\t%s\ncommit\t%s\n' "$(date -u +%Y-%m-%d)" "$commit"
    [ ! -f "$RESULTS/machine.tsv" ] ||
        grep -v -E '^(what|GPU|driver|multiprocessors|power limit|CUDA|PyTorch, cuDNN|date|commit)	' "$RESULTS/machine.tsv"
}
grep -q "^commit	$commit$" "$RESULTS/machine.tsv" 2>/dev/null || into machine.tsv machine

missing=
for part in $PARTS; do
    case $part in
    forward | backward | forward_bf16 | backward_bf16 | sparse) needs='Hopper torch' ;;
    decode | score | tuned | atomic | tuned_bf16 | atomic_bf16 | two_pass | lengths) needs=torch ;;
    fp8) needs='Hopper jax' ;;
    fa3_rungs) needs=Hopper ;;
    ladder | ceilings | splits | uneven | tuned_without | fa2_changes) needs= ;;
    *) stop "PARTS=$part: choose from $parts score tuned_without fa3_rungs fa2_changes" ;;
    esac
    lacking=
    for need in $needs; do case " $here " in *" $need "*) ;; *) lacking="$lacking $need" ;; esac; done
    if grep -q "^$part	$commit	" "$runs"; then
        echo "$part: measured already"
    elif [ "$lacking" ]; then
        echo "$part: left out, not here:$lacking"
    elif [ "$(since)" -ge "$LIMIT" ]; then
        echo "$part: no time left"
        missing="$missing $part"
    else
        progress "$part ..."
        start=$(since) files=
        watch_clock
        if measure "$part" 2>"$RESULTS/errors.part"; then
            printf '%s\t%s\t%s\t%d\t%s\t%s\n' "$part" "$commit" "$(date -u +%Y-%m-%d)" $(($(since) - start)) "$(clock_seen)" "${files# }" >"$runs.part"
            grep -v "^$part	" "$runs" | cat - "$runs.part" >"$runs.new" && mv "$runs.new" "$runs"
            progress
            echo "$part: $(($(since) - start)) s"
        else
            clock_seen >/dev/null
            progress
            echo "$part: failed: $(tail -n 1 "$RESULTS/errors.part")"
            missing="$missing $part"
        fi
        rm -f "$RESULTS"/*.part
    fi
done
[ ! -f "$RESULTS/ladder.jsonl" ] || perl common/results/beside.pl "$RESULTS"
[ -z "$missing" ] || stop "not measured:$missing; the same command again goes on"
