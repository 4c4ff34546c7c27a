/* Lab fragments: a block for each tile of S. What follows the scores is ours. */
#include "../finish.cuh"
#include "kernel.h"

LAUNCHER(lab_launch) {
    const dim3 grid(ceil_div(p->seqlen_k, Bc), ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    LAUNCH(mma_scores, grid, THREADS, SHARED_BYTES, *p, (const __half *)t->q, (const __half *)t->k, t->key_lengths,
           (float *)workspace[0].pointer);
    launch_finish<__half>(p, t, workspace, t->lse);
}
