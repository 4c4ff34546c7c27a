/* Lab 02: a warp for each query, four of a head in a block. */
#include "../lab.h"
#include "kernel.h"

PLANNER(lab_plan) { return (void)workspace, 0; }

LAUNCHER(lab_launch) {
    LAUNCH(online, dim3(ceil_div(p->seqlen_q, WARPS), p->heads, p->batch), 32 * WARPS, 0, *p, (const float *)t->q, (const float *)t->k,
           (const float *)t->v, t->key_lengths, (float *)t->o, t->lse);
}
