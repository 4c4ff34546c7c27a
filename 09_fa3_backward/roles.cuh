/* roles.cuh - what the kernels with a producer and consumers share: the shape of their tiles, the rings of Q, dO and
 * dS, and the parts of a step that are the same in all. The order of a step's parts, and what is waited for where, is
 * each kernel's own. `Shared` is its shared memory. specialised.cu explains the roles.
 */
#ifndef FA_ROLES_CUH
#define FA_ROLES_CUH

#include "fa3_backward.cuh"

constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS), Bc = 64 * CONSUMERS, STAGES = 2;
/* (24 + 2 x 240) x 128 = 64512 of the multiprocessor's 65536 */
[[maybe_unused]] constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
[[maybe_unused]] constexpr int ZEROED = 1; /* the named barrier: consumers have zeroed the last rows of K and V */
template <int D> constexpr int Br = D == 64 ? 128 : 64;

/* Step n, counted from the block's first one, uses stage n % STAGES of each ring, and is that stage's phase number
 * n / STAGES. */
__device__ inline int stage(unsigned n) { return n % STAGES; }
__device__ inline int parity(unsigned n) { return n / STAGES % 2; }

template <typename Shared> __device__ inline void init_rings(Shared &shared) {
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(&shared.q_full[i], 1);
        mbarrier_init(&shared.d_o_full[i], 1);
        mbarrier_init(&shared.q_empty[i], 4 * CONSUMERS); /* an arrival per warp */
        mbarrier_init(&shared.ds_full[i], 4 * CONSUMERS);
        mbarrier_init(&shared.ds_empty[i], 4 * CONSUMERS);
    }
}

/* ---- the producer ---- */

/* Loads Q of step n, and with it LSE, as soon as the stage is free. */
template <typename Shared>
__device__ inline void load_q(Shared &shared, const Problem &p, const RowStatistics &statistics, const TensorMap &map,
                              const KeyTile &here, int query, int n) {
    const int i = stage(n);
    mbarrier_wait(&shared.q_empty[i], parity(n) ^ 1);
    load_rows(shared.q[i], shared.statistics[i].lse, map, statistics.lse, p, here, query, &shared.q_full[i]);
}

/* dO, and with it delta. The stage is free, because Q's was. */
template <typename Shared>
__device__ inline void load_d_o(Shared &shared, const Problem &p, const RowStatistics &statistics, const TensorMap &map,
                                const KeyTile &here, int query, int n) {
    const int i = stage(n);
    load_rows(shared.d_o[i], shared.statistics[i].delta, map, statistics.delta, p, here, query, &shared.d_o_full[i]);
}

/* ---- a consumer: a warpgroup ---- */

/* The warp's rows of dS of step n go to shared memory, for both consumers' dQ. */
template <typename Shared, int Steps>
__device__ inline void share_ds(Shared &shared, const uint32_t (&ds_a)[Steps][4], int n, int warp) {
    mbarrier_wait(&shared.ds_empty[stage(n)], parity(n) ^ 1);
    store_operand(shared.ds[stage(n)], ds_a, 16 * warp);
    proxy_fence();
    __syncwarp();
    warp_arrive(&shared.ds_full[stage(n)]);
}

/* dQ of step n: this consumer's half of it, 64 x 64. At D = 64 that is 64 of the 128 queries: panel number
 * `consumer` of dS^T, with all columns of K, one panel. At D = 128 it is 64 columns: panel number
 * `consumer` of K, with all 64 queries. */
template <int D, typename Shared>
__device__ inline void start_dq(float (&dq)[1][8][4], Shared &shared, int n, int consumer) {
    const int rows = D == 64 ? consumer : 0, columns = D == 64 ? 0 : consumer; /* the panels */
    mbarrier_wait(&shared.ds_full[stage(n)], parity(n));
    start_atb(dq, shared.ds[stage(n)], rows, shared.k, columns);
}

/* Where in the accumulator the lane's first four floats of that belong. */
template <int D> __device__ inline size_t own_dq_offset(size_t padded_row, int consumer) {
    return D == 64 ? accumulator_offset(padded_row + 64 * consumer, D, 0)
                   : accumulator_offset(padded_row, D, 8 * consumer);
}

#endif
