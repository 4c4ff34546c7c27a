/* direction.c - see direction.h. */
#include "direction.h"

/* clang-format off: a table */
const DirectionKind directions[] = {
    /*                name                   passes  Q, O, dO, dQ  K, V  dK, dV  LSE    what a launch is made of */
    [FORWARD_PASS] = {"forward", 1, 2, 2, 0, 1, .launches = 1},
    [BACKWARD_PASS] = {"backward", 2.5, 4, 2, 2, 1, .launches = 1},
    [BOTH] = {"both", 3.5, 6, 4, 2, 2, .launches = 1, .runs_forward = 1},
    [PREPARE] = {"prepare", 0, 2, 2, 0, 1, .prepares = 1},
    [WITH_PREPARE] = {"prepare and forward", 1, 2, 2, 0, 1, .launches = 1, .prepares = 1},
};
/* clang-format on */

/* Pairs of a query and a key that sees it, in one head. Causal: the last query sees all keys, each before it one fewer. */
static double seen_pairs(const Problem *p, int keys) {
    double rows = p->causal && keys < p->seqlen_q ? keys : p->seqlen_q;
    return rows * keys - (p->causal ? rows * (rows - 1) / 2 : 0);
}

double counted_flops(const Problem *p, const int *key_lengths, Direction direction) {
    double pairs = (double)row_count(p) * p->seqlen_k / (p->causal ? 2 : 1);
    if (key_lengths) {
        pairs = 0;
        for (int b = 0; b < p->batch; b++)
            pairs += p->heads * seen_pairs(p, key_lengths[b]);
    }
    return directions[direction].passes * 4.0 * pairs * p->head_dim;
}

double compulsory_bytes(const Problem *p, const int *key_lengths, Direction direction) {
    const DirectionKind *d = &directions[direction];
    double existing = 0; /* elements of K, and of V */
    for (int b = 0; b < p->batch; b++)
        existing += (double)key_length(p, key_lengths, b) * p->kv_heads * p->head_dim;
    double elements =
        d->queries * (double)query_elements(p) + d->keys * existing + d->key_gradients * (double)key_elements(p);
    return elements * dtype_bytes(p->dtype) + (double)d->rows * row_count(p) * sizeof(float);
}
