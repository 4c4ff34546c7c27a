/* Lab score: a block for each tile of queries of each head of each batch entry. */
#include "../lab.h"
#include "kernel.h"

PLANNER(lab_plan) { return (void)workspace, 0; }

LAUNCHER(lab_launch) {
    LAUNCH(scored, dim3(ceil_div(p->seqlen_q, Br), p->heads, p->batch), THREADS, SHARED_BYTES, *p, (const float *)t->q,
           (const float *)t->k, (const float *)t->v, t->key_lengths, t->score.softcap, t->score.alibi, t->score.sinks, (float *)t->o,
           t->lse);
}
