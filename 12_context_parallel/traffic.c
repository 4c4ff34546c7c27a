/* traffic.c - the bytes that the kernels of all devices move: those of the attention kernel's formula for each launch,
 * and those of merge_part. Copies between devices are no kernels; link_bytes has them. */
#include "../common/traffic.h"
#include "shards.h"

#include <stdlib.h>

extern Predictor fa2_tuned_traffic, fa3_overlapped_traffic;

int context_alone_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return (device_properties()->has_hopper ? fa3_overlapped_traffic : fa2_tuned_traffic)(p, key_lengths, traffic);
}

/* The allocation that holds a tensor of a launch. The own shard's part, and that of the whole sequence, is O. */
static const char *allocation_of(const char *tensor, int rows, int is_own, int is_whole) {
    switch (tensor[0]) {
    case 'Q': return rows == BOTH || is_whole ? "Q shard" : "Q of one half";
    case 'K':
    case 'V': return is_own ? "K and V shard" : "K and V of others";
    case 'O': return is_own || is_whole ? "O shard" : "partial O";
    case 'L': return is_own || is_whole ? "LSE shard" : "partial LSE";
    default: return tensor;
    }
}

/* Of a half's rows. Every thread of a row reads its LSE. */
static void add_merge(TrafficSum *sum, const Problem *p, int is_first, int is_last) {
    const double o = query_bytes(p), floats = 4 * (double)query_elements(p), lse = row_bytes(p),
                 read_lse = lse * p->head_dim / 8;
    add_traffic(sum, "merge_part", "partial O", o, 0);
    add_traffic(sum, "merge_part", "partial LSE", read_lse, 0);
    add_traffic(sum, "merge_part", "LSE shard", read_lse, lse);
    add_traffic(sum, "merge_part", "O shard", is_first ? o : 0, is_last ? o : 0);
    add_traffic(sum, "merge_part", "O accumulator", is_first ? 0 : floats, is_last ? 0 : floats);
}

static void add_part(TrafficSum *sum, const Problem *p, const int *key_lengths, int device, int rows, int from) {
    const Problem part = part_of(p, key_lengths, device, rows, from);
    if (part.seqlen_q == 0)
        return;
    int *seen = keys_of_part(p, key_lengths, device, rows, from);
    Traffic launch[MAX_TRAFFIC];
    const int entries = context_alone_traffic(&part, seen, launch);
    for (const Traffic *t = launch; t < launch + entries; t++)
        add_traffic(sum, t->kernel, allocation_of(t->tensor, rows, from == device, from == WHOLE), t->read, t->written);
    free(seen);
}

/* What a device computes in a round, and merges. */
static void add_round(TrafficSum *sum, const Problem *p, const int *key_lengths, int device, int round) {
    const int from = shard_in_round(p, device, round), is_one = are_one_problem(p, key_lengths, device, from);
    if (is_one)
        add_part(sum, p, key_lengths, device, BOTH, from);
    for (int half = 0; half < HALVES; half++) {
        if (!is_one)
            add_part(sum, p, key_lengths, device, half, from);
        const Problem part = part_of(p, key_lengths, device, half, from);
        if (round > 0 && part.seqlen_q > 0)
            add_merge(sum, &part, !sees_in_rounds(p, key_lengths, device, half, 1, round - 1),
                      !sees_in_rounds(p, key_lengths, device, half, round + 1, devices_of(p) - 1));
    }
}

int context_gather_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    TrafficSum sum = {traffic, 0};
    for (int chunk = 0; chunk < HALVES * devices_of(p); chunk++)
        add_part(&sum, p, key_lengths, chunk / HALVES, chunk % HALVES, WHOLE);
    return sum.count;
}
int context_rounds_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    TrafficSum sum = {traffic, 0};
    for (int device = 0; device < devices_of(p); device++)
        for (int round = 0; round < devices_of(p); round++)
            add_round(&sum, p, key_lengths, device, round);
    return sum.count;
}
