/* traffic.c - the bytes that the kernels of all devices move: those of the attention kernel's formula for each launch,
 * and those of merge_part. Copies between devices are no kernels; link_bytes has them. */
#include "../common/traffic.h"
#include "shards.h"

#include <stdlib.h>

extern Predictor fa2_tuned_traffic, fa3_overlapped_traffic;

int context_alone_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return (device_properties()->has_hopper ? fa3_overlapped_traffic : fa2_tuned_traffic)(p, key_lengths, traffic);
}

/* The allocation that holds a tensor of a launch. */
static const char *allocation_of(const char *tensor, int is_own, int is_whole) {
    switch (tensor[0]) {
    case 'Q': return "Q shard";
    case 'K':
    case 'V': return is_own ? "K and V shard" : "K and V of others";
    case 'O': return is_whole ? "O shard" : "partial O";
    case 'L': return is_whole ? "LSE shard" : "partial LSE";
    default: return tensor;
    }
}

/* Every thread of a row reads its LSE. */
static void add_merge(TrafficSum *sum, const Problem *p, int is_first) {
    const double o = query_bytes(p), floats = 4 * (double)query_elements(p), lse = row_bytes(p),
                 read_lse = lse * p->head_dim / 8;
    add_traffic(sum, "merge_part", "partial O", o, 0);
    add_traffic(sum, "merge_part", "partial LSE", read_lse, 0);
    add_traffic(sum, "merge_part", "O accumulator", is_first ? 0 : floats, floats);
    add_traffic(sum, "merge_part", "LSE shard", is_first ? 0 : read_lse, lse);
    add_traffic(sum, "merge_part", "O shard", 0, o);
}

static void add_part(TrafficSum *sum, const Problem *p, const int *key_lengths, int device, int half, int from) {
    const Problem part = part_of(p, key_lengths, device, half, from);
    if (part.seqlen_q == 0)
        return;
    int *seen = keys_of_part(p, key_lengths, device, half, from);
    Traffic launch[MAX_TRAFFIC];
    const int entries = context_alone_traffic(&part, seen, launch);
    for (const Traffic *t = launch; t < launch + entries; t++)
        add_traffic(sum, t->kernel, allocation_of(t->tensor, from == device, from == WHOLE), t->read, t->written);
    if (from != WHOLE)
        add_merge(sum, &part, from == device);
    free(seen);
}

/* Each chunk with the shards from `first` to `last`. */
static int all_parts(const Problem *p, const int *key_lengths, int first, int last, Traffic *traffic) {
    TrafficSum sum = {traffic, 0};
    for (int chunk = 0; chunk < HALVES * devices_of(p); chunk++)
        for (int from = first; from <= last; from++)
            add_part(&sum, p, key_lengths, chunk / HALVES, chunk % HALVES, from);
    return sum.count;
}

int context_gather_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return all_parts(p, key_lengths, WHOLE, WHOLE, traffic);
}
int context_rounds_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return all_parts(p, key_lengths, 0, devices_of(p) - 1, traffic);
}
