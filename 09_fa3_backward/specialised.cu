/* 09_fa3_backward/specialised - warps with roles: one warp loads ahead, two warpgroups compute,
 * and dQ is added by bulk copies.
 *
 * The idea. In `wgmma` the tensor cores of a block stand still while it computes P and dS, while it waits for a tile,
 * and while it adds dQ. Four changes fill that time. Their numbers are at their lines in the code, and
 * notes/09_fa3_backward.md says how fast a kernel is without those that can be left out:
 *
 * [1] roles      a producer warp loads Q and dO into rings, two consumer warpgroups compute. A block owns 128 keys, so
 *                that dQ is added half as often
 * [2] overlap    the next product is started before the threads work on the one before: P is computed under dP, dS
 *                under dV, and dQ is stored under dK
 * [3] late dQ    dQ needs the dS of both consumers. It is computed one step later, when both have long stored it: so
 *                they need not wait for each other, and one can compute P while the other multiplies
 * [4] bulk_add   dQ goes to shared memory, and a copy that runs by itself adds it to the accumulator, 4 KB per warp
 *
 *     step n        tensor cores            threads of a consumer
 *                   S(n), then dP(n)
 *                   dP(n)                   P(n) from S(n)
 *                   dV(n)                   dS(n) from P(n) and dP(n), to shared memory
 *                   dQ(n-1), dK(n)
 *                   dK(n)                   dQ(n-1) to shared memory; bulk_add
 *
 * Who owns what. A block is a producer warpgroup, of which one warp produces, and two consumer warpgroups, 64 keys
 * each, with the queries of one head. P^T and dS^T of a consumer's keys are operands in its registers, and its
 * rows of dK and dV stay there. dQ is a sum over the keys of both: at D = 128 each consumer computes 64 of its
 * columns, at D = 64 half of its rows.
 *
 *                                            D = 64                               D = 128
 *     keys Bc, queries Br a step             128, 128                             128, 64
 *     shared memory                          K, V 32; Q, dO 2 x 32;               K, V 64; Q, dO 2 x 32;
 *                                            dS 2 x 32; dQ 32: 192 KB             dS 2 x 16; dQ 32: 192 KB
 *     registers per consumer, of 240         dK, dV 64; S, dP 64 each;            dK, dV 128; S, dP 32 each;
 *                                            dQ 32; P, dS as operands 32 each     dQ 32; P, dS as operands 16 each
 *
 * What a step costs: 10 Br Bc D FLOPs, 2560 cycles of the tensor cores; Br Bc exponentials, 1024 cycles of the
 * special-function units at D = 64, 512 at D = 128; 4 Br D bytes of additions, 32 KB.
 *
 * The tile primitives are those of `wgmma`. What `overlapped` does alike (the loads of a step, dS to shared memory, dQ)
 * is in roles.cuh.
 *
 *     make 09_fa3_backward && ./09_fa3_backward/09_fa3_backward --variant specialised --head-dim 128
 */
#include "roles.cuh"

template <typename T, int D> struct SpecialisedShared {
    Panels<T, Bc, D> k, v;
    Panels<T, Br<D>, D> q[STAGES], d_o[STAGES];
    Panels<T, Bc, Br<D>> ds[STAGES]; /* dS^T: [key][query] */
    alignas(128) float dq[CONSUMERS * 4][8 * 32 * 4]; /* each warp's part */
    Statistics<Br<D>> statistics[STAGES]; /* LSE comes with Q, delta with dO */
    Mbarrier kv_full;
    /* q_empty is for dO, too */
    Mbarrier q_full[STAGES], d_o_full[STAGES], q_empty[STAGES], ds_full[STAGES], ds_empty[STAGES];
};

/* ---- [1] the producer: one thread ---- */

template <typename T, int D>
__device__ inline void produce(SpecialisedShared<T, D> &shared, const Problem &p, const KeyTile &here,
                               const RowStatistics &statistics, const TensorMaps &maps) {
    mbarrier_arrive_expect(&shared.kv_full, shared.k.bytes + shared.v.bytes);
    shared.k.load(maps.k, here.first_key, 0, here.kv_head, &shared.kv_full);
    shared.v.load(maps.v, here.first_key, 0, here.kv_head, &shared.kv_full);
    for (int n = 0, query = here.first_query; n < here.steps; n++, query += Br<D>) {
        load_q(shared, p, statistics, maps.q, here, query, n);
        load_d_o(shared, p, statistics, maps.d_o, here, query, n);
    }
}

/* ---- a consumer: a warpgroup ---- */

/* [4] Adds the warp's part of dQ to the accumulator. */
template <typename T, int D>
__device__ inline void add_dq(SpecialisedShared<T, D> &shared, const float (&dq)[1][8][4], float *dq_accumulator,
                              size_t padded_row, int warp, int consumer) {
    float *own = shared.dq[warp];
    if (elect_one())
        bulk_wait_read<0>(); /* the addition of the step before has read this buffer */
    __syncwarp();
    UNROLL for (int n = 0; n < 8; n++)
        store_4(own + (n * 32 + threadIdx.x % 32) * 4, make_float4(dq[0][n][0], dq[0][n][1], dq[0][n][2], dq[0][n][3]));
    proxy_fence();
    __syncwarp();
    if (elect_one()) {
        float *lanes_own = dq_accumulator + own_dq_offset<D>(padded_row, consumer);
        bulk_add(lanes_own - threadIdx.x % 32 * 4, own, sizeof shared.dq[0]); /* from where the part of lane 0 begins */
        bulk_commit();
    }
}

template <typename T, int D>
__device__ inline void consume(SpecialisedShared<T, D> &shared, const Problem &p, const Tensors &t, const KeyTile &here,
                               const Accumulators &sums, int warp) {
    const int consumer = warp / 4, key = here.first_key + 16 * warp; /* the warp's first key */
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};

    if (here.steps > 0) {
        mbarrier_wait(&shared.kv_full, 0);
        if (here.keys < here.first_key + Bc) {
            zero_rows(shared.k, here.keys - here.first_key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
            zero_rows(shared.v, here.keys - here.first_key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
            named_barrier_sync(ZEROED, 128 * CONSUMERS);
        }
        int query = here.first_query; /* the step's first */
        for (int n = 0; n < here.steps; n++, query += Br<D>) {
            const int i = stage(n);

            /* [2] S and dP start; under dP P */
            float s[1][Br<D> / 8][4], dp[1][Br<D> / 8][4];
            uint32_t p_a[Br<D> / 16][4], ds_a[Br<D> / 16][4];
            mbarrier_wait(&shared.q_full[i], parity(n));
            start_abt(s, shared.k, 64 * consumer, shared.q[i]);
            mbarrier_wait(&shared.d_o_full[i], parity(n));
            start_abt(dp, shared.v, 64 * consumer, shared.d_o[i]);
            wgmma_wait<1>(s);
            if (here.first_key + 64 * consumer + 64 > visible_keys(&p, here.keys, query))
                mask_transposed(s, p, here.keys, key, query);
            probabilities(s, shared.statistics[i].lse, scale_log2);
            to_operand<T>(p_a, s);

            /* [2] dV starts; under it dS */
            start_ab(dv, p_a, shared.d_o[i]);
            wgmma_wait<1>(dp);
            score_gradients<T>(dp, p_a, shared.statistics[i].delta);
            to_operand<T>(ds_a, dp);
            share_ds(shared, ds_a, n, warp);

            /* [3] dQ of the step before and dK start; [2] under dK the addition of dQ */
            if (n > 0) {
                float dq[1][8][4];
                start_dq<D>(dq, shared, n - 1, consumer);
                start_ab(dk, ds_a, shared.q[i]);
                wgmma_wait<1>(dq, dv, p_a); /* all but dK */
                warp_arrive(&shared.ds_empty[stage(n - 1)]);
                add_dq<T, D>(shared, dq, sums.dq, here.padded_row(p, query - Br<D>), warp, consumer);
                wgmma_wait<0>(dk, ds_a);
            } else {
                start_ab(dk, ds_a, shared.q[i]);
                wgmma_wait<0>(dk, ds_a, dv, p_a);
            }
            warp_arrive(&shared.q_empty[i]);
        }
        float dq[1][8][4];
        start_dq<D>(dq, shared, here.steps - 1, consumer);
        wgmma_wait<0>(dq);
        add_dq<T, D>(shared, dq, sums.dq, here.padded_row(p, query - Br<D>), warp, consumer);
    }

    finish_keys<T, D>(p, t, sums, here, here.first_key + 64 * consumer, dk, dv);
    if (elect_one())
        bulk_wait_read<0>(); /* shared memory must be there until the additions have read it */
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    specialised_backward(Problem p, Tensors t, KeyTileOrder order, RowStatistics statistics, Accumulators sums,
                         const __grid_constant__ TensorMaps maps) {
#ifdef HOPPER
    using Shared = SpecialisedShared<T, D>;
    SHARED_MEMORY(shared, Shared);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    const KeyTile here = key_tile(p, t.key_lengths, order, blockIdx.x, Br<D>, Bc);
    if (warp == 0 && elect_one()) {
        mbarrier_init(&shared.kv_full, 1);
        init_rings(shared);
        mbarrier_init_fence();
    }
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) { /* [1] */
        setmaxnreg_decrease<PRODUCER_REGISTERS>();
        if (warp == 0 && here.steps > 0 && elect_one())
            produce<T, D>(shared, p, here, statistics, maps);
    } else {
        setmaxnreg_increase<CONSUMER_REGISTERS>();
        consume<T, D>(shared, p, t, here, sums, warp - 4);
    }
#endif
}

PLANNER(fa3_backward_specialised_plan) { return plan_accumulators(p, workspace); }

LAUNCHER(fa3_backward_specialised) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TensorMaps maps = tensor_maps<T, D>(*p, *t, Br<D>, Bc);
        const KeyTileOrder order = key_tile_order(p, Bc);
        launch_backward<T, D>(*p, *t, workspace, [&](const RowStatistics &statistics, const Accumulators &sums) {
            LAUNCH((specialised_backward<T, D>), order.count, THREADS, sizeof(SpecialisedShared<T, D>), *p, *t, order,
                   statistics, sums, maps);
        });
    }));
}
