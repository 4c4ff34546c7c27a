/* parts.h - what crosses the links in the backward pass, for the copies and the formula. */
#ifndef FA_PARTS_H
#define FA_PARTS_H

#include "../12_context_parallel/shards.h"

/* Whether a device's queries see any key of the shard of `from`; then it has a part of that shard's dK and dV. */
static inline int has_part(const Problem *p, const int *key_lengths, int from, int device) {
    return most_seen(p, key_lengths, from, chunk_of(p, device, 1)) > 0;
}

/* Floats of a sum of dK, or of dV, for one shard; rows are padded as the kernels' accumulators are. */
enum { PADDING = 128 };
static inline size_t padded(int rows) { return ((size_t)rows + PADDING - 1) / PADDING * PADDING; }
static inline size_t sum_floats(const Problem *p) {
    return (size_t)p->batch * p->kv_heads * padded(shard_keys(p)) * p->head_dim;
}

#endif
