/* traffic.c - the bytes that the kernels of all devices move: those of the backward kernels' formulas for each launch,
 * under the names of a device's allocations, and those of the kernels that clear and add parts. Copies between devices
 * are no kernels. */
#include "../common/traffic.h"
#include "parts.h"

#include <stdlib.h>

/* Of 05_fa2_backward: the queries and keys of a tile of `atomic`. */
typedef struct {
    int Br, Bc;
} TileShape;
TileShape atomic_tile(const Problem *p);
extern Predictor backward_atomic_traffic, fa3_backward_overlapped_traffic;

int context_backward_alone_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return (device_properties()->has_hopper ? fa3_backward_overlapped_traffic : backward_atomic_traffic)(p, key_lengths,
                                                                                                         traffic);
}

/* The allocation that holds this tensor of a launch, if the launch touches it: of a shard of others only the steps that
 * add gradients are run, and dK and dV are written once, from their sums. */
static const char *allocation_of(const char *tensor, int is_own) {
    const char *const names[][3] = {{"Q", "Q shard", "Q shard"},
                                    {"K", "K and V shard", "K and V of others"},
                                    {"V", "K and V shard", "K and V of others"},
                                    {"O", "O shard", NULL},
                                    {"dO", "dO shard", "dO shard"},
                                    {"LSE", "LSE shard", NULL},
                                    {"LSE in base 2", "LSE in base 2 and delta", "LSE in base 2 and delta"},
                                    {"delta", "LSE in base 2 and delta", "LSE in base 2 and delta"},
                                    {"dQ", "dQ shard", NULL},
                                    {"dK", NULL, NULL},
                                    {"dV", NULL, NULL},
                                    {"dK accumulator", "dK and dV sums", "dK and dV parts"},
                                    {"dV accumulator", "dK and dV sums", "dK and dV parts"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], tensor) == 0)
            return names[i][is_own ? 1 : 2];
    return tensor;
}

/* A chunk with one shard. dK and dV are sums even if no heads share keys, and then each key tile is added once per
 * head. */
static void add_part(TrafficSum *sum, const Problem *p, const int *key_lengths, int device, int half, int from) {
    const char *kernel = device_properties()->has_hopper ? "overlapped_backward" : "backward_atomic";
    const int is_own = from == device, Bc = device_properties()->has_hopper ? 128 : atomic_tile(p).Bc;
    const Problem part = part_of(p, key_lengths, device, half, from);
    if (part.seqlen_q == 0)
        return;
    int *seen = keys_of_part(p, key_lengths, device, half, from);
    double added = 0;
    for (int b = 0; b < p->batch; b++)
        added += 2 * p->heads * round_up(seen[b], Bc) * p->head_dim * 4;
    Traffic launch[MAX_TRAFFIC];
    const int entries = context_backward_alone_traffic(&part, seen, launch);
    for (const Traffic *t = launch; t < launch + entries; t++) {
        const char *name = allocation_of(t->tensor, is_own);
        if (name && (strcmp(t->kernel, kernel) == 0 || (is_own && strcmp(t->kernel, "convert_keys") != 0)))
            add_traffic(sum, t->kernel, name, t->read, t->written);
    }
    if (p->heads == p->kv_heads)
        add_traffic(sum, kernel, is_own ? "dK and dV sums" : "dK and dV parts", added, added);
    free(seen);
}

int context_backward_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const double sums = 2.0 * (double)sum_floats(p) * sizeof(float);
    const double keys = 2.0 * p->batch * p->kv_heads * shard_keys(p) * p->head_dim * (double)dtype_bytes(p->dtype);
    TrafficSum sum = {traffic, 0};
    for (int r = 0; r < devices_of(p); r++) {
        for (int from = 0; from < devices_of(p); from++) {
            for (int half = 0; half < HALVES; half++)
                add_part(&sum, p, key_lengths, r, half, from);
            if (from != r && has_part(p, key_lengths, from, r)) {
                add_traffic(&sum, "clear_part", "dK and dV parts", 0, sums);
                add_traffic(&sum, "add_part", "dK and dV of others", sums, 0);
                add_traffic(&sum, "add_part", "dK and dV sums", sums, sums);
            }
        }
        add_traffic(&sum, "convert_keys", "dK and dV sums", sums, sums); /* leaves zeros */
        add_traffic(&sum, "convert_keys", "dK and dV shard", 0, keys);
    }
    return sum.count;
}
