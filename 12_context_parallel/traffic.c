/* traffic.c - the bytes that the kernels of all devices move: those of the attention kernel's formula for each launch,
 * and those of merge_part. Copies between devices are no kernels; link_bytes has them. */
#include "../common/host/memory.h"
#include "../common/traffic.h"
#include "shards.h"

#include <stdlib.h>
#include <string.h>

extern Predictor fa2_tuned_traffic, fa3_overlapped_traffic;

int context_alone_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return (device_properties()->has_hopper ? fa3_overlapped_traffic : fa2_tuned_traffic)(p, key_lengths, traffic);
}

/* Adds to the entry of this kernel and tensor, or begins one. Returns how many there are. */
static int add(Traffic *all, int count, Traffic one) {
    for (int i = 0; i < count; i++)
        if (strcmp(all[i].kernel, one.kernel) == 0 && strcmp(all[i].tensor, one.tensor) == 0) {
            all[i].read += one.read, all[i].written += one.written;
            return count;
        }
    all[count] = one;
    return count + 1;
}

/* A launch for one chunk: K and V are in the allocation `keys`, O and LSE in those of the other names. */
static int add_attention(Traffic *all, int count, const Problem *p, const int *seen, const char *keys, const char *o,
                         const char *lse) {
    const char *const names[][2] = {{"Q", "Q shard"}, {"K", keys}, {"V", keys}, {"O", o}, {"LSE", lse}};
    Traffic launch[MAX_TRAFFIC];
    const int kernels = context_alone_traffic(p, seen, launch);
    for (int i = 0; i < kernels; i++) {
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            if (strcmp(launch[i].tensor, names[n][0]) == 0) {
                launch[i].tensor = names[n][1];
                break;
            }
        count = add(all, count, launch[i]);
    }
    return count;
}

/* Every thread of a row reads its LSE. */
static int add_merge(Traffic *all, int count, const Problem *p, int is_first) {
    const double o = query_bytes(p), sum = 4 * (double)query_elements(p), lse = row_bytes(p),
                 read_lse = lse * p->head_dim / 8;
    const Traffic merge[] = {{"merge_part", "partial O", o, 0},
                             {"merge_part", "partial LSE", read_lse, 0},
                             {"merge_part", "O accumulator", is_first ? 0 : sum, sum},
                             {"merge_part", "LSE shard", is_first ? 0 : read_lse, lse},
                             {"merge_part", "O shard", 0, o}};
    for (size_t i = 0; i < sizeof merge / sizeof *merge; i++)
        count = add(all, count, merge[i]);
    return count;
}

/* The launch of a chunk with the keys of the shard of `from`, or of the WHOLE sequence. */
static int add_chunk(Traffic *all, int count, const Problem *p, const int *key_lengths, int device, int half, int from) {
    const int chunk = chunk_of(p, device, half), is_own = from == device, is_whole = from == WHOLE;
    Problem part = *p;
    part.seqlen_q = queries_of(p, chunk).count;
    part.seqlen_k = is_whole ? p->seqlen_k : shard_keys(p);
    part.causal = p->causal && (is_own || is_whole);
    if (part.seqlen_q == 0 || (!is_own && !is_whole && most_seen(p, key_lengths, from, chunk) == 0))
        return count;
    int *seen = host_alloc((size_t)p->batch, sizeof *seen);
    for (int b = 0; b < p->batch; b++)
        seen[b] = shard_keys_seen(p, key_length(p, key_lengths, b), from, chunk);
    count = is_whole ? add_attention(all, count, &part, seen, "K and V of others", "O shard", "LSE shard")
                     : add_merge(all,
                                 add_attention(all, count, &part, seen, is_own ? "K and V shard" : "K and V of others",
                                               "partial O", "partial LSE"),
                                 &part, is_own);
    free(seen);
    return count;
}

int context_gather_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int count = 0;
    for (int r = 0; r < devices_of(p); r++)
        for (int half = 0; half < HALVES; half++)
            count = add_chunk(traffic, count, p, key_lengths, r, half, WHOLE);
    return count;
}

int context_rounds_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int count = 0;
    for (int r = 0; r < devices_of(p); r++)
        for (int half = 0; half < HALVES; half++)
            for (int from = 0; from < devices_of(p); from++)
                count = add_chunk(traffic, count, p, key_lengths, r, half, from);
    return count;
}
