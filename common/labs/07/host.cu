/* Lab 07: a block of `split` for each part of the keys of each query; then a block of `merge` for each query. */
#include "../lab.h"
#include "kernel.h"

PLANNER(lab_plan) {
    workspace[0] = Buffer{"partial O", SPLITS * query_elements(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"partial LSE", SPLITS * row_count(p) * sizeof(float), nullptr, 0};
    return 2;
}

LAUNCHER(lab_launch) {
    float *o = (float *)workspace[0].pointer, *lse = (float *)workspace[1].pointer;
    LAUNCH(split, dim3(SPLITS, p->seqlen_q, p->batch * p->heads), 32 * WARPS, SHARED_BYTES, *p, (const float *)t->q, (const float *)t->k,
           (const float *)t->v, t->key_lengths, o, lse);
    LAUNCH(merge, dim3(p->seqlen_q, p->batch * p->heads), D, 0, *p, o, lse, (float *)t->o, t->lse);
}
