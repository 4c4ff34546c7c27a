/* finish.cuh - what follows the scores in labs whose kernel does not compute O: LSE, the weights and O, one thread per row. A score that is
 * wrong, or not -infinity where the query does not see the key, then shows in O and LSE, which are what the judge knows. */
#ifndef FA_LAB_FINISH_CUH
#define FA_LAB_FINISH_CUH

#include "../gpu/kernel.cuh"
#include "lab.h"

/* S: [rows][seqlen_k], fp32. lse: NULL, if the lab's kernel stores it. */
template <typename T> __global__ void finish(Problem p, Tensors t, const float *S, float *lse) {
    const size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= row_count(&p))
        return;
    const RowIndex i = row_index(&p, row);
    const T *v = (const T *)t.v + key_head_offset(&p, i.batch, kv_head_of(&p, i.head));
    const float *scores = S + row * p.seqlen_k;
    float m = -INFINITY, l = 0;
    for (int j = 0; j < p.seqlen_k; j++)
        m = scores[j] > m || scores[j] != scores[j] ? scores[j] : m; /* NaN stays */
    const float shift = m == -INFINITY ? 0 : m;
    for (int j = 0; j < p.seqlen_k; j++)
        l += expf(scores[j] - shift);
    for (int d = 0; d < p.head_dim; d++) {
        float o = 0;
        for (int j = 0; j < p.seqlen_k; j++) {
            const float weight = expf(scores[j] - shift);
            if (weight != 0) /* V may be NaN where no key exists */
                o += weight * to_float(v[(size_t)j * p.head_dim + d]);
        }
        ((T *)t.o)[row * p.head_dim + d] = from_float<T>(l == 0 ? 0 : o / l);
    }
    if (lse)
        lse[row] = shift + logf(l);
}

PLANNER(lab_plan) { return workspace[0] = Buffer{"S", score_elements(p) * sizeof(float), nullptr, 0}, 1; }

template <typename T> void launch_finish(const Problem *p, const Tensors *t, const Buffer *workspace, float *lse) {
    LAUNCH(finish<T>, blocks_for(row_count(p), 128), 128, 0, *p, *t, (const float *)workspace[0].pointer, lse);
}

#endif
