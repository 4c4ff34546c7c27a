# recorded.awk - from result files and their machine.tsv to the C that frame.c includes. After common/classroom/rows.awk.
$1 == "GPU" || $1 == "date" {
    split($0, words, "\t")
    said[$1] = words[2]
}
END {
    printf "#define RECORDED_ON \"%s, %s\"\n", said["GPU"], said["date"]
    print "static const struct {\n    const char *stage, *variant, *name, *problem;\n    int causal;\n    double ms;\n} RECORDED[] = {"
    for (i = 1; i <= rows; i++) {
        stage = cell[i, "stage"]
        name = variant = cell[i, "variant"]
        sub(/.*\//, "", name)
        heads = cell[i, "heads"]
        if (heads != cell[i, "kv_heads"])
            heads = heads "/" cell[i, "kv_heads"]
        keys = cell[i, "seqlen_k"]
        if (keys != cell[i, "seqlen_q"])
            keys = cell[i, "seqlen_q"] "x" keys
        causal = cell[i, "causal"] == "true"
        if (index(variant, stage) == 1 && cell[i, "direction"] ~ /^(forward|backward)$/)
            printf "    {\"%s\", \"%s\", \"%s\", \"%s, batch %s, %s heads, %s, head dim %s, %s, %s\", %d, %s},\n", stage, variant, name,
                cell[i, "direction"], cell[i, "batch"], heads, keys, cell[i, "head_dim"], cell[i, "dtype"],
                causal ? "causal" : "full", causal, cell[i, "latency_ms"]
    }
    print "    {0}};"
}
