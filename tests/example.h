/* example.h - what tests of the judge share: problems in fp32, so that what is stored is what was meant, their inputs, the outputs of
 * a forward pass as a kernel would store them, and where a comparison points.
 */
#ifndef FA_EXAMPLE_H
#define FA_EXAMPLE_H

#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "../common/judge/compare.h"
#include "../common/judge/gradient.h"
#include "../common/judge/oracle.h"
#include <stdlib.h>

#define FP32_PROBLEM(BATCH, HEADS, KV_HEADS, SEQLEN_Q, SEQLEN_K, HEAD_DIM, CAUSAL, SCALE)                                   \
    {.batch = (BATCH), .heads = (HEADS), .kv_heads = (KV_HEADS), .seqlen_q = (SEQLEN_Q), .seqlen_k = (SEQLEN_K),            \
     .head_dim = (HEAD_DIM), .dtype = DTYPE_FP32, .causal = (CAUSAL), .scale = (SCALE)}

static inline float *normal(size_t count, uint32_t stream, double mean) {
    float *values = host_alloc(count, sizeof *values);
    random_normal(DTYPE_FP32, values, count, 9, stream, mean, 1);
    return values;
}

/* N(0,1), but for the mean of K. */
static inline HostTensors draw_inputs(const Problem *p, double mean_of_k) {
    size_t queries = query_elements(p), keys = key_elements(p);
    return (HostTensors){normal(queries, 0, 0), normal(keys, 1, mean_of_k), normal(keys, 2, 0), normal(queries, 3, 0)};
}

/* O and LSE of all rows, rounded to floats. */
static inline void round_samples(const Samples *s, float *o, float *lse) {
    for (size_t i = 0; i < query_elements(s->p); i++)
        o[i] = (float)s->o[i];
    for (size_t i = 0; i < row_count(s->p); i++)
        lse[i] = (float)s->lse[i];
}

static inline void free_inputs(HostTensors *t) { free(t->q), free(t->k), free(t->v), free(t->d_o); }

static inline size_t gradient_elements(const Problem *p, Gradient which) {
    return which == GRADIENT_Q ? query_elements(p) : which == GRADIENT_SINKS ? (size_t)p->heads : key_elements(p);
}

static inline int stands_at(const Comparison *c, int batch, int head, int row, int column) {
    return c->batch == batch && c->head == head && c->row == row && c->column == column;
}

#endif
