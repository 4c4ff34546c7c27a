/* shards.c - see shards.h. */
#include "shards.h"
#include "../common/host/memory.h"
#include "../common/traffic.h"

#include <stdlib.h>

enum { FEW = 4 }; /* devices on the CPU device, unless told otherwise */

int devices_of(const Problem *p) {
    const int there = device_peers();
    return p->settings[DEVICES] ? p->settings[DEVICES] : device_properties()->is_cpu && there > FEW ? FEW : there;
}

int chunk_of(const Problem *p, int device, int half) {
    if (p->settings[CHUNKS] == CONTIGUOUS)
        return 2 * device + half;
    return half ? 2 * devices_of(p) - 1 - device : device;
}

/* The i-th of so many parts, none of which is longer by more than one than another. */
static Span part(int total, int parts, int i) {
    const int first = (int)((long long)total * i / parts);
    return (Span){first, (int)((long long)total * (i + 1) / parts) - first};
}

Span queries_of(const Problem *p, int chunk) { return part(p->seqlen_q, 2 * devices_of(p), chunk); }

static int at_least_0(int x) { return x > 0 ? x : 0; }
static int seen_by_all(const Problem *p, int length) { return p->causal ? at_least_0(length - p->seqlen_q) : length; }

Span keys_of(const Problem *p, int length, int device, int piece) {
    if (piece == 0)
        return part(seen_by_all(p, length), devices_of(p), device);
    if (!p->causal)
        return (Span){length, 0};
    /* The causal mask's diagonal: query i is the first that sees key i + length - Sq */
    const Span queries = queries_of(p, chunk_of(p, device, piece - 1));
    const int first = at_least_0(queries.first + length - p->seqlen_q);
    return (Span){first, at_least_0(queries.first + queries.count + length - p->seqlen_q) - first};
}

int shard_keys_seen(const Problem *p, int length, int from, int chunk) {
    if (from == WHOLE) {
        const Span queries = queries_of(p, chunk);
        return p->causal ? at_least_0(length - (p->seqlen_q - queries.first - queries.count)) : length;
    }
    int keys = keys_of(p, length, from, 0).count;
    for (int half = 0; half < HALVES; half++)
        keys += chunk_of(p, from, half) <= chunk ? keys_of(p, length, from, half + 1).count : 0;
    return keys;
}

int most_seen(const Problem *p, const int *key_lengths, int from, int chunk) {
    int most = 0;
    for (int b = 0; b < p->batch; b++) {
        const int seen = shard_keys_seen(p, key_length(p, key_lengths, b), from, chunk);
        most = seen > most ? seen : most;
    }
    return most;
}

int queries_of_rows(const Problem *p, int device, int rows) {
    const int first = queries_of(p, chunk_of(p, device, 0)).count, second = queries_of(p, chunk_of(p, device, 1)).count;
    return rows == BOTH ? first + second : rows ? second : first;
}

int are_one_problem(const Problem *p, const int *key_lengths, int device, int from) {
    int alike = 1;
    for (int b = 0; b < p->batch && alike && from != device; b++) {
        const int length = key_length(p, key_lengths, b);
        alike = shard_keys_seen(p, length, from, chunk_of(p, device, 0)) ==
                shard_keys_seen(p, length, from, chunk_of(p, device, 1));
    }
    return alike;
}

int halves_alone(const Problem *p) {
    if (!p->causal || p->settings[CHUNKS] == CONTIGUOUS || devices_of(p) == 1)
        return 0;
    return seen_by_all(p, p->seqlen_k) > 0 ? HALVES : 1;
}

int shard_in_round(const Problem *p, int device, int round) {
    return (device - round + devices_of(p)) % devices_of(p);
}

int sees_in_rounds(const Problem *p, const int *key_lengths, int device, int half, int first, int last) {
    int seen = 0;
    for (int round = first; round <= last; round++)
        seen |= most_seen(p, key_lengths, shard_in_round(p, device, round), chunk_of(p, device, half)) > 0;
    return seen;
}

/* The last of their chunks sees what both see, or more. */
static int last_chunk(const Problem *p, int device, int rows) { return chunk_of(p, device, rows > 0); }

Problem part_of(const Problem *p, const int *key_lengths, int device, int rows, int from) {
    const int chunk = last_chunk(p, device, rows), has_diagonal = from == device || from == WHOLE;
    Problem part = *p;
    part.seqlen_q =
        has_diagonal || most_seen(p, key_lengths, from, chunk) > 0 ? queries_of_rows(p, device, rows) : 0;
    part.seqlen_k = from == WHOLE ? p->seqlen_k : shard_keys(p);
    part.causal = p->causal && has_diagonal;
    return part;
}

int *keys_of_part(const Problem *p, const int *key_lengths, int device, int rows, int from) {
    int *seen = host_alloc((size_t)p->batch, sizeof *seen);
    for (int b = 0; b < p->batch; b++)
        seen[b] = shard_keys_seen(p, key_length(p, key_lengths, b), from, last_chunk(p, device, rows));
    return seen;
}

/* Rounding favors the last chunk. */
int largest_chunk(const Problem *p) { return queries_of(p, 2 * devices_of(p) - 1).count; }

int shard_keys(const Problem *p) {
    const int keys = part(seen_by_all(p, p->seqlen_k), devices_of(p), devices_of(p) - 1).count +
                     (p->causal ? HALVES * largest_chunk(p) : 0);
    return keys < p->seqlen_k ? keys : p->seqlen_k;
}

double link_bytes(const Problem *p, const int *key_lengths, int from, int to) {
    double keys = 0;
    for (int b = 0; b < p->batch && from != to; b++)
        keys += shard_keys_seen(p, key_length(p, key_lengths, b), from, chunk_of(p, to, 1));
    return 2 * keys * p->kv_heads * p->head_dim * (double)dtype_bytes(p->dtype);
}

double device_pairs(const Problem *p, const int *key_lengths, int device) {
    double pairs = 0;
    for (int half = 0; half < HALVES; half++) {
        const Problem part = part_of(p, key_lengths, device, half, WHOLE);
        int *seen = keys_of_part(p, key_lengths, device, half, WHOLE);
        pairs += visible_pairs(&part, seen);
        free(seen);
    }
    return pairs;
}
