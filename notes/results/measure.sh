# measure.sh - measures on this machine's GPU what the notes tell, into a folder beside this file.
#
#     sh notes/results/measure.sh my-gpu               writes notes/results/my-gpu/*; some eight minutes on an H200
#     PARTS="ladder decode" sh notes/results/measure.sh my-gpu
#
# PARTS      which of: ceilings ladder backward fp8 decode splits sparse peers   (the last two need PyTorch, JAX for 8 bits)
# FA3, TWO   files: time FlashAttention-3 beside 08_fa3 and 09_fa3_backward, too, and 08_fa3 with two consumers; see peers.py
# ROUNDS     how often each stage is run for ladder, backward, fp8 and decode, one after the other; 3
#
# The kernels of a round come one after the other, then the next round: what the clock and the power do meanwhile meets all alike.
# The notes show nvidia-h200; to see your own figures there, copy your files over it, edit its machine.tsv, and run
# `perl notes/tables.pl` and `make pictures`. `make plots` draws them without that, into a folder beside them.
stop() { echo "measure.sh: $1" >&2; exit 2; }
[ $# -eq 1 ] || stop 'usage: sh notes/results/measure.sh FOLDER, a name such as my-gpu'
case $1 in */* | .*) stop "$1: choose a name such as my-gpu, it becomes notes/results/my-gpu" ;; esac
[ -f common/ladder.txt ] || stop 'run it in the folder that holds the Makefile'
make -s all DEVICE=cuda || exit 2
into=notes/results/$1
mkdir -p "$into" || exit 2
: "${PARTS:=ceilings ladder backward fp8 decode splits sparse peers}" "${ROUNDS:=3}"

rounds() { # options, and --: the stages' programs; their rows, one a variant
    options=
    while [ "$1" != -- ]; do options="$options $1"; shift; done
    shift
    for round in $(seq "$ROUNDS"); do
        for stage; do "./$stage/$stage" $options --json; done
    done | perl notes/rounds.pl
}
peers() { python3 notes/results/peers.py "$@"; }
fa3=${FA3:+--fa3 $FA3}

ladder='--batch 4 --heads 16 --seqlen 4096 --head-dim 128'
for part in $PARTS; do
    echo "$part"
    case $part in
    ceilings) make -s ceilings DEVICE=cuda | grep -v '^  ' >"$into/ceilings.tsv" ;;
    ladder) rounds $ladder --no-validate -- 00_naive 01_tiled 02_online_softmax 03_fa1 04_fa2 08_fa3 >"$into/ladder.jsonl"
        ./04_fa2/04_fa2 $ladder >"$into/04_fa2.txt" ;;
    backward) rounds $ladder --no-validate -- 05_fa2_backward 09_fa3_backward >"$into/backward.jsonl" ;;
    fp8) rounds $ladder -- 06_fp8 >"$into/fp8.jsonl" ;;
    decode)
        rounds -- 07_flash_decoding >"$into/decode.jsonl"
        rounds --kv-cache e4m3 -- 07_flash_decoding >"$into/decode_e4m3.jsonl" ;;
    splits) sh notes/splits.sh 07_flash_decoding/07_flash_decoding >"$into/splits.tsv" ;;
    sparse)
        rounds --batch 1 --heads 16 --seqlen 16384 --head-dim 128 --blocks random:12.5:1 --no-validate -- 10_block_sparse >"$into/sparse.jsonl"
        peers sparse ${TWO:+--two "$TWO"} >"$into/sparse_fp16.txt" ;;
    peers)
        for dtype in fp16 bf16; do
            peers forward --dtype $dtype >"$into/forward_$dtype.txt"
            peers forward --dtype $dtype --program 08_fa3/08_fa3 $fa3 >"$into/fa3_forward_$dtype.txt"
            peers backward --dtype $dtype >"$into/backward_$dtype.txt"
            peers backward --dtype $dtype --program 09_fa3_backward/09_fa3_backward --variant overlapped $fa3 \
                >"$into/fa3_backward_$dtype.txt"
        done
        peers backward --variant two_pass >"$into/backward_two_pass_fp16.txt"
        peers forward --lengths 512,1024,2048,4096,8192,16384,32768 >"$into/forward_lengths_fp16.txt"
        peers decode >"$into/decode.txt"
        peers fp8 >"$into/fp8_forward.txt" ;;
    *) stop "PARTS=$part: choose from ceilings ladder backward fp8 decode splits sparse peers" ;;
    esac || stop "$part failed"
done
