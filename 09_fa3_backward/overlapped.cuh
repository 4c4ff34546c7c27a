/* overlapped.cuh - the kernel that overlapped and ordered share: its shared memory, the loads of a key tile, and a
 * consumer. Their own files have what tells them apart: which key tile a block takes next, and when dQ may be added.
 * overlapped.cu explains it all.
 */
#ifndef FA_OVERLAPPED_CUH
#define FA_OVERLAPPED_CUH

#include "roles.cuh"

template <typename T, int D> struct OverlappedShared {
    Panels<T, Bc, D> k, v;
    Panels<T, Br<D>, D> q[STAGES], d_o[STAGES];
    Panels<T, Bc, Br<D>> ds[STAGES]; /* dS^T: [key][query] */
    Statistics<Br<D>> statistics[STAGES]; /* LSE comes with Q, delta with dO */
    KeyTile key_tile; /* the key tile that the producer is loading */
    Mbarrier key_tile_full, key_tile_empty, k_full, k_empty, v_full, v_empty;
    /* q_empty is for dO, too */
    Mbarrier q_full[STAGES], d_o_full[STAGES], q_empty[STAGES], ds_full[STAGES], ds_empty[STAGES];
};

/* `readers` threads beside the consumers read the description of the key tile. */
template <typename Shared> __device__ inline void init_barriers(Shared &shared, int readers = 0) {
    constexpr int consumer_warps = 4 * CONSUMERS; /* one arrival each */
    mbarrier_init(&shared.key_tile_full, 1);
    mbarrier_init(&shared.key_tile_empty, 32 * consumer_warps + readers);
    mbarrier_init(&shared.k_full, 1);
    mbarrier_init(&shared.v_full, 1);
    mbarrier_init(&shared.k_empty, consumer_warps);
    mbarrier_init(&shared.v_empty, consumer_warps);
    init_rings(shared);
    mbarrier_init_fence();
}

/* ---- the producer: one thread ---- */

/* Tells the consumers which key tile comes next, once all of them have read the description of the one before. */
template <typename Shared> __device__ inline void hand_over(Shared &shared, const KeyTile &tile, int nth) {
    mbarrier_wait(&shared.key_tile_empty, nth % 2 ^ 1);
    shared.key_tile = tile;
    mbarrier_arrive(&shared.key_tile_full);
}
__device__ inline KeyTile no_more_tiles() { return {-1, -1, 0, 0, 0, 0}; }

/* Loads a key tile, and the queries of its steps. n counts the block's steps, kv_n its loads of K and V. */
template <int D, typename Shared>
__device__ inline void load_key_tile(Shared &shared, const Problem &p, const KeyTile &here,
                                     const RowStatistics &statistics, const TensorMaps &maps, int &n, int &kv_n) {
    for (int step = 0, query = here.first_query; step < here.steps; step++, n++, query += Br<D>) {
        load_q(shared, p, statistics, maps.q, here, query, n);
        if (step == 0) { /* K is needed first, but the consumers are done with V earlier */
            mbarrier_wait(&shared.v_empty, kv_n % 2 ^ 1);
            shared.v.expect_and_load(maps.v, here.first_key, 0, here.kv_head, &shared.v_full);
            mbarrier_wait(&shared.k_empty, kv_n++ % 2 ^ 1);
            shared.k.expect_and_load(maps.k, here.first_key, 0, here.kv_head, &shared.k_full);
        }
        load_d_o(shared, p, statistics, maps.d_o, here, query, n);
    }
}

/* ---- a consumer: a warpgroup ---- */

/* All key tiles that the producer hands over. in_turn(QUERIES, n, [&] { ... }) adds the dQ of the block's step n,
 * in_turn(KEYS, ...) dK and dV. */
template <typename T, int D, typename InTurn>
__device__ inline void consume(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t,
                               const Accumulators &sums, int warp, InTurn in_turn) {
    const int consumer = warp / 4;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
    int n = 0, kv_n = 0;
    for (int nth = 0;; nth++) {
        mbarrier_wait(&shared.key_tile_full, nth % 2);
        const KeyTile here = shared.key_tile;
        mbarrier_arrive(&shared.key_tile_empty); /* every thread has its own copy */
        if (here.batch_head < 0)
            break;
        const int key = here.first_key + 16 * warp; /* the warp's first key */
        float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};

        if (here.steps > 0) {
            mbarrier_wait(&shared.v_full, kv_n % 2);
            mbarrier_wait(&shared.k_full, kv_n++ % 2);
            if (here.keys < here.first_key + Bc) {
                zero_rows(shared.k, here.keys - here.first_key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
                zero_rows(shared.v, here.keys - here.first_key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
                named_barrier_sync(ZEROED, 128 * CONSUMERS);
            }
            auto add_dq = [&](const float (&dq)[1][8][4], int query, int n) { /* of step n */
                float *to = sums.dq + own_dq_offset<D>(here.padded_row(p, query), consumer);
                in_turn(QUERIES, n, [&] { add_to(to, dq); });
            };
            int query = here.first_query; /* the step's first */
            uint32_t ds_a[Br<D> / 16][4];
            for (int step = 0; step < here.steps; n++, step++, query += Br<D>) {
                const int i = stage(n);

                /* S and dP start; under dP P. At D = 128 dK of the step before still runs: it is older than S, so the
                 * wait for S is one for dK, and for what dK reads, too */
                float s[1][Br<D> / 8][4], dp[1][Br<D> / 8][4];
                uint32_t p_a[Br<D> / 16][4];
                mbarrier_wait(&shared.q_full[i], parity(n));
                start_abt(s, shared.k, 64 * consumer, shared.q[i]);
                mbarrier_wait(&shared.d_o_full[i], parity(n));
                start_abt(dp, shared.v, 64 * consumer, shared.d_o[i]);
                if constexpr (D == 128) {
                    wgmma_wait<1>(s, dk, ds_a);
                    if (step > 0)
                        warp_arrive(&shared.q_empty[stage(n - 1)]);
                } else {
                    wgmma_wait<1>(s);
                }
                if (here.first_key + 64 * consumer + 64 > visible_keys(&p, here.keys, query))
                    mask_transposed(s, p, here.keys, key, query);
                probabilities(s, shared.statistics[i].lse, scale_log2);
                to_operand<T>(p_a, s);

                /* dV starts; under it dS */
                start_ab(dv, p_a, shared.d_o[i]);
                wgmma_wait<1>(dp);
                if (step + 1 == here.steps)
                    warp_arrive(&shared.v_empty);
                score_gradients<T>(dp, p_a, shared.statistics[i].delta);
                to_operand<T>(ds_a, dp);
                share_ds(shared, ds_a, n, warp);

                /* dQ of the step before and dK start; under dK the addition of dQ */
                if (step > 0) {
                    float dq[1][8][4];
                    start_dq<D>(dq, shared, n - 1, consumer);
                    start_ab(dk, ds_a, shared.q[i]);
                    wgmma_wait<1>(dq, dv, p_a); /* all but dK */
                    warp_arrive(&shared.ds_empty[stage(n - 1)]);
                    add_dq(dq, query - Br<D>, n - 1);
                } else {
                    start_ab(dk, ds_a, shared.q[i]);
                    wgmma_wait<1>(dv, p_a);
                }
                if constexpr (D == 64) {
                    wgmma_wait<0>(dk, ds_a);
                    warp_arrive(&shared.q_empty[i]);
                }
            }
            float dq[1][8][4];
            start_dq<D>(dq, shared, n - 1, consumer);
            wgmma_wait<0>(dq, dk, ds_a);
            if (elect_one()) {
                mbarrier_arrive(&shared.ds_empty[stage(n - 1)]);
                mbarrier_arrive(&shared.k_empty);
                if (D == 128)
                    mbarrier_arrive(&shared.q_empty[stage(n - 1)]);
            }
            add_dq(dq, query - Br<D>, n - 1);
        }
        finish_keys<T, D>(p, t, sums, here, here.first_key + 64 * consumer, dk, dv, kv_n - 1, in_turn);
    }
}

#endif
