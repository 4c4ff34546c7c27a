# splits.sh - decoding: latency over the number of pieces that the keys are cut into, for notes/results/<device>/splits.tsv.
#
#     sh common/results/splits.sh build/cuda-90a/07_flash_decoding/07_flash_decoding [OPTION...] > splits.tsv
#
# The options say the problem, and SPLITS, with spaces between, which numbers; else those of the notes.
export LC_ALL=C # with a decimal point whatever the user's language
program=$1
shift
[ $# -gt 0 ] || set -- --batch 1 --heads 32 --kv-heads 8 --seqlen 1 --seqlen-k 65536 --head-dim 128
printf 'splits\tlatency, us\tGB/s\tof a read\tof a copy\n'
for splits in ${SPLITS:-1 2 4 8 12 16 24 32 33 48 64 96 128 256 auto}; do
    "$program" --csv "$@" --variant split_k --no-validate --splits "$splits" | awk -F, -v splits="$splits" '
        function share(of) { return $at[of] > 0 ? sprintf("%.0f %%", 100 * $at["gbps"] / $at[of]) : "" }
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["latency_ms"] != "" { printf "%s\t%.1f\t%.4g\t%s\t%s\n", splits, 1000 * $at["latency_ms"], $at["gbps"], share("read_gbps"), share("copy_gbps") }'
done
