/* Lab 08: the kernel of notes/hopper/ring.cu for attention's scores: the producer is ours, the consumer the student's. */
#include "../finish.cuh"
#include "kernel.h"

__global__ void ring_scores(Problem p, const int *key_lengths, float *S, float *LSE, const __grid_constant__ TensorMap q_map,
                            const __grid_constant__ TensorMap k_map) {
    SHARED_MEMORY(ring, Ring);
    const int head = blockIdx.y, batch = blockIdx.z, batch_head = batch * p.heads + head, tiles = ceil_div(p.seqlen_k, Bc);
    if (threadIdx.x == 0) {
        mbarrier_init(&ring.q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&ring.full[i], 1);               /* the producer arrives, and TMA brings bytes */
            mbarrier_init(&ring.empty[i], CONSUMER_WARPS); /* each warp of the consumer arrives */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 32 * CONSUMER_WARPS) {
        consume(ring, tiles, p, key_length(&p, key_lengths, batch), blockIdx.x * Br,
                S + (size_t)batch_head * p.seqlen_q * p.seqlen_k, LSE + (size_t)batch_head * p.seqlen_q);
        return;
    }
    if (elect_one()) {
        ring.q.expect_and_load(q_map, blockIdx.x * Br, 0, batch_head, &ring.q_full);
        for (int n = 0; n < tiles; n++) {
            mbarrier_wait(&ring.empty[n % STAGES], n / STAGES % 2 ^ 1);
            ring.k[n % STAGES].expect_and_load(k_map, n * Bc, 0, batch * p.kv_heads + kv_head_of(&p, head), &ring.full[n % STAGES]);
        }
    }
}

LAUNCHER(lab_launch) {
    const dim3 grid(ceil_div(p->seqlen_q, Br), p->heads, p->batch);
    LAUNCH(ring_scores, grid, 32 * CONSUMER_WARPS + 32, sizeof(Ring), *p, t->key_lengths, (float *)workspace[0].pointer, t->lse,
           tensor_map<__half, 128>(t->q, D, p->seqlen_q, p->batch * p->heads, Br),
           tensor_map<__half, 128>(t->k, D, p->seqlen_k, p->batch * p->kv_heads, Bc));
    launch_finish<__half>(p, t, workspace, nullptr);
}
