/* 09_fa3_backward/overlapped - `specialised`, tuned: blocks that stay, dQ added from registers, dK that runs into the next
 * step.
 *
 * The idea. Three things still cost `specialised` time:
 *
 *     blocks     a block that begins waits for K and V, and one that ends writes dK and dV while nothing multiplies. Now there
 *                are as many blocks as multiprocessors, and a block works on many key tiles. The producer draws the next
 *                tile's number from a counter in device memory; it loads that tile's Q, V and K as soon as their places are free, while the
 *                consumers still write dK and dV of the tile before
 *     dQ         shared memory is the busiest unit beside the tensor cores: wgmma reads 64 rows of A and 64 rows of B at 128
 *                bytes a clock, all that it gives. dQ on its way to a bulk copy crosses it twice. Here a lane adds 16 bytes
 *                at a time from its registers, as in `wgmma`
 *     dK         at D = 128 a consumer does not wait for dK before it starts the next step's S and dP. At D = 64, with S and dP
 *                of 64 registers each, there are none left for that
 *
 *     step n        tensor cores, D = 128   threads of a consumer
 *                   dK(n-1), S(n), dP(n)
 *                   dP(n)                   P(n) from S(n)
 *                   dV(n)                   dS(n) from P(n) and dP(n), to shared memory
 *                   dQ(n-1), dK(n)
 *                   dK(n)                   dQ(n-1) to the accumulator
 *
 * Who owns what: as in `specialised`. Without a place for dQ shared memory holds 160 KB. K and V have one place each, and an
 * `empty` mbarrier now, since they are loaded many times. So has the description of the key tile, which the producer hands to
 * the consumers.
 *
 * What each change brought, and what was tried, is in notes/09_fa3_backward.md.
 *
 *     make 09_fa3_backward && ./09_fa3_backward/09_fa3_backward --variant overlapped --head-dim 128 --causal
 */
#include "fa3_backward.cuh"

constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS), Bc = 64 * CONSUMERS, STAGES = 2;
/* (24 + 2 x 240) x 128 = 64512 of the multiprocessor's 65536 */
[[maybe_unused]] constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
[[maybe_unused]] constexpr int ZEROED = 1; /* the named barrier at which consumers have zeroed the last rows of K and V */
template <int D> constexpr int Br = D == 64 ? 128 : 64;

template <typename T, int D> struct OverlappedShared {
    Panels<T, Bc, D> k, v;
    Panels<T, Br<D>, D> q[STAGES], d_o[STAGES];
    Panels<T, Bc, Br<D>> ds[STAGES]; /* dS^T: [key][query] */
    Statistics<Br<D>> statistics[STAGES]; /* LSE comes with Q, delta with dO */
    KeyTile tile; /* the key tile that the producer is loading */
    Mbarrier tile_full, tile_empty, k_full, k_empty, v_full, v_empty;
    Mbarrier q_full[STAGES], d_o_full[STAGES], q_empty[STAGES], ds_full[STAGES], ds_empty[STAGES]; /* dO is free when Q is */
};

/* Step n, counted from the block's first one, has place n % STAGES of each ring, and is that place's phase number n / STAGES.
 * */
__device__ inline int place(int n) { return n % STAGES; }
__device__ inline int parity(int n) { return n / STAGES % 2; }

/* ---- the producer: one thread ---- */

/* Tells the consumers which key tile comes next, once all of them have read the description of the one before. */
template <typename Shared> __device__ inline void hand_over(Shared &shared, const KeyTile &tile, int turn) {
    mbarrier_wait(&shared.tile_empty, turn % 2 ^ 1);
    shared.tile = tile;
    mbarrier_arrive(&shared.tile_full);
}

template <typename T, int D>
__device__ inline void produce(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t, const KeyTileOrder &order,
                               uint32_t *next, const RowStatistics &statistics, const TensorMap &q_map,
                               const TensorMap &d_o_map, const TensorMap &k_map, const TensorMap &v_map) {
    int turn = 0, kv_turn = 0, n = 0, i = blockIdx.x; /* the block's first key tile; later ones come from the counter */
    for (; i < order.count; turn++) {
        const KeyTile here = key_tile(p, t.key_lengths, order.together, i, Br<D>, Bc);
        hand_over(shared, here, turn);
        const uint32_t taken = atomicAdd(next, 1u);
        Walk walk(p, here);
        for (int step = 0; step < here.steps; step++, n++, walk.next(p, here, Br<D>)) {
            const int j = place(n), row_bytes = Br<D> * sizeof(float);
            const size_t padded_row = (size_t)walk.matrix * padded_rows(&p) + walk.row;
            mbarrier_wait(&shared.q_empty[j], parity(n) ^ 1);
            mbarrier_arrive_expect(&shared.q_full[j], shared.q[j].bytes + row_bytes);
            shared.q[j].load(q_map, walk.row, 0, walk.matrix, &shared.q_full[j]);
            bulk_load(shared.statistics[j].lse, statistics.lse + padded_row, row_bytes, &shared.q_full[j]);
            if (step == 0) { /* K is needed first, but the consumers are done with V earlier */
                mbarrier_wait(&shared.v_empty, kv_turn % 2 ^ 1);
                mbarrier_arrive_expect(&shared.v_full, shared.v.bytes);
                shared.v.load(v_map, here.first_key, 0, here.kv_matrix, &shared.v_full);
                mbarrier_wait(&shared.k_empty, kv_turn++ % 2 ^ 1);
                mbarrier_arrive_expect(&shared.k_full, shared.k.bytes);
                shared.k.load(k_map, here.first_key, 0, here.kv_matrix, &shared.k_full);
            }
            mbarrier_arrive_expect(&shared.d_o_full[j], shared.d_o[j].bytes + row_bytes);
            shared.d_o[j].load(d_o_map, walk.row, 0, walk.matrix, &shared.d_o_full[j]);
            bulk_load(shared.statistics[j].delta, statistics.delta + padded_row, row_bytes, &shared.d_o_full[j]);
        }
        if (taken == (uint32_t)order.count - 1)
            *next = 0; /* each key tile draws once, so this was the launch's last draw; the next begins at 0 */
        i = gridDim.x + taken;
    }
    hand_over(shared, KeyTile{-1, 0, 0, 0, 0, 0}, turn); /* head -1: there are no more */
}

/* ---- a consumer: a warpgroup ---- */

/* dQ of a step: this consumer's half of it, 64 x 64. At D = 64 that is 64 of the 128 queries: panel number `consumer` of dS^T,
 * with all columns of K, one panel. At D = 128 it is 64 columns: panel number `consumer` of K, with all 64 queries. */
template <typename T, int D>
__device__ inline void start_dq(float (&dq)[1][8][4], OverlappedShared<T, D> &shared, int n, int consumer) {
    mbarrier_wait(&shared.ds_full[place(n)], parity(n));
    start_atb(dq, shared.ds[place(n)], D == 64 ? consumer : 0, shared.k, D == 64 ? 0 : consumer);
}

/* Adds the warp's rows of it to the accumulator. */
template <int D>
__device__ inline void add_dq(const float (&dq)[1][8][4], const Problem &p, float *dq_accumulator, const Walk &walk,
                              int consumer) {
    const size_t padded_row = (size_t)walk.matrix * padded_rows(&p) + walk.row + (D == 64 ? 64 * consumer : 0);
    float *to = dq_accumulator + dq_place(padded_row, D, D == 64 ? 0 : 8 * consumer);
    UNROLL for (int n = 0; n < 8; n++)
        atomic_add_4(to + n * 128, make_float4(dq[0][n][0], dq[0][n][1], dq[0][n][2], dq[0][n][3]));
}

template <typename T, int D>
__device__ inline void consume(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t, float *dq_accumulator,
                               int warp) {
    const int consumer = warp / 4;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
    int n = 0, kv_turn = 0;
    for (int turn = 0;; turn++) {
        mbarrier_wait(&shared.tile_full, turn % 2);
        const KeyTile here = shared.tile;
        mbarrier_arrive(&shared.tile_empty); /* every thread has its own copy */
        if (here.kv_matrix < 0)
            break;
        const int key = here.first_key + 16 * warp; /* the warp's first key */
        float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};

        if (here.steps > 0) {
            mbarrier_wait(&shared.v_full, kv_turn % 2);
            mbarrier_wait(&shared.k_full, kv_turn++ % 2);
            if (here.keys < here.first_key + Bc) {
                zero_rows(shared.k, here.keys - here.first_key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
                zero_rows(shared.v, here.keys - here.first_key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
                named_barrier_sync(ZEROED, 128 * CONSUMERS);
            }
            Walk walk(p, here), before = walk;
            uint32_t ds_a[Br<D> / 16][4];
            for (int step = 0; step < here.steps; n++, step++) {
                const int i = place(n);

                /* S and dP start; under dP P */
                float s[1][Br<D> / 8][4], dp[1][Br<D> / 8][4];
                uint32_t p_a[Br<D> / 16][4];
                mbarrier_wait(&shared.q_full[i], parity(n));
                start_abt(s, shared.k, 64 * consumer, shared.q[i]);
                mbarrier_wait(&shared.d_o_full[i], parity(n));
                start_abt(dp, shared.v, 64 * consumer, shared.d_o[i]);
                if constexpr (D == 128) {
                    wgmma_wait<1>(s, dk, ds_a); /* and dK of the step before */
                    if (step > 0 && elect_one())
                        mbarrier_arrive(&shared.q_empty[place(n - 1)]);
                } else {
                    wgmma_wait<1>(s);
                }
                if (here.first_key + 64 * consumer + 64 > visible_keys(&p, here.keys, walk.row))
                    mask_transposed(s, p, here.keys, key, walk.row);
                probabilities(s, shared.statistics[i].lse, scale_log2);
                to_operand<T>(p_a, s);

                /* dV starts; under it dS */
                start_ab(dv, p_a, shared.d_o[i]);
                wgmma_wait<1>(dp);
                if (step + 1 == here.steps && elect_one())
                    mbarrier_arrive(&shared.v_empty);
                score_gradients<T>(dp, p_a, shared.statistics[i].delta);
                to_operand<T>(ds_a, dp);
                mbarrier_wait(&shared.ds_empty[i], parity(n) ^ 1);
                store_operand(shared.ds[i], ds_a, 16 * warp);
                proxy_fence();
                __syncwarp();
                if (elect_one())
                    mbarrier_arrive(&shared.ds_full[i]);

                /* dQ of the step before and dK start; under dK the addition of dQ */
                if (step > 0) {
                    float dq[1][8][4];
                    start_dq(dq, shared, n - 1, consumer);
                    start_ab(dk, ds_a, shared.q[i]);
                    wgmma_wait<1>(dq, dv, p_a);
                    if (elect_one())
                        mbarrier_arrive(&shared.ds_empty[place(n - 1)]);
                    add_dq<D>(dq, p, dq_accumulator, before, consumer);
                } else {
                    start_ab(dk, ds_a, shared.q[i]);
                    wgmma_wait<1>(dv, p_a);
                }
                if constexpr (D == 64) {
                    wgmma_wait<0>(dk, ds_a);
                    if (elect_one())
                        mbarrier_arrive(&shared.q_empty[i]);
                }
                before = walk;
                walk.next(p, here, Br<D>);
            }
            float dq[1][8][4];
            start_dq(dq, shared, n - 1, consumer);
            wgmma_wait<0>(dq, dk, ds_a);
            if (elect_one()) {
                mbarrier_arrive(&shared.ds_empty[place(n - 1)]);
                mbarrier_arrive(&shared.k_empty);
                if (D == 128)
                    mbarrier_arrive(&shared.q_empty[place(n - 1)]);
            }
            add_dq<D>(dq, p, dq_accumulator, before, consumer);
        }

        const size_t first = (size_t)here.kv_matrix * p.seqlen_k * D;
        store_rows<D>((T *)t.dk + first, key, p.seqlen_k, dk, p.scale);
        store_rows<D>((T *)t.dv + first, key, p.seqlen_k, dv, 1);
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    overlapped_backward(Problem p, Tensors t, KeyTileOrder order, uint32_t *next, RowStatistics statistics,
                        float *dq_accumulator, const __grid_constant__ TensorMap q_map,
                        const __grid_constant__ TensorMap d_o_map, const __grid_constant__ TensorMap k_map,
                        const __grid_constant__ TensorMap v_map) {
#ifdef HOPPER
    using Shared = OverlappedShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one()) {
        constexpr int consumer_warps = 4 * CONSUMERS; /* one arrival each */
        mbarrier_init(&shared.tile_full, 1);
        mbarrier_init(&shared.tile_empty, 32 * consumer_warps);
        mbarrier_init(&shared.k_full, 1);
        mbarrier_init(&shared.v_full, 1);
        mbarrier_init(&shared.k_empty, consumer_warps);
        mbarrier_init(&shared.v_empty, consumer_warps);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.q_full[i], 1);
            mbarrier_init(&shared.d_o_full[i], 1);
            mbarrier_init(&shared.q_empty[i], consumer_warps);
            mbarrier_init(&shared.ds_full[i], consumer_warps);
            mbarrier_init(&shared.ds_empty[i], consumer_warps);
        }
        mbarrier_init_fence();
    }
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one())
            produce<T, D>(shared, p, t, order, next, statistics, q_map, d_o_map, k_map, v_map);
    } else {
        setmaxnreg_increase<CONSUMER_REGISTERS>();
        consume<T, D>(shared, p, t, dq_accumulator, warp - 4);
    }
#endif
}

PLANNER(fa3_backward_overlapped_plan) {
    int count = plan_backward(p, workspace);
    workspace[count++] = {"next key tile", sizeof(uint32_t), nullptr, 1};
    return count;
}

LAUNCHER(fa3_backward_overlapped) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TensorMap q_map = tensor_map<T, 128>(t->q, D, p->seqlen_q, p->batch * p->heads, Br<D>);
        const TensorMap d_o_map = tensor_map<T, 128>(t->d_o, D, p->seqlen_q, p->batch * p->heads, Br<D>);
        const TensorMap k_map = tensor_map<T, 128>(t->k, D, p->seqlen_k, p->batch * p->kv_heads, Bc);
        const TensorMap v_map = tensor_map<T, 128>(t->v, D, p->seqlen_k, p->batch * p->kv_heads, Bc);
        const KeyTileOrder order = key_tile_order(*p, Bc);
        uint32_t *next = (uint32_t *)workspace[3].pointer; /* how many times blocks drew a tile */
        const int blocks = order.count < device_properties()->sm_count ? order.count : device_properties()->sm_count;
        launch_backward<T, D>(*p, *t, workspace, [&](const RowStatistics &statistics, float *dq_accumulator) {
            LAUNCH((overlapped_backward<T, D>), blocks, THREADS, sizeof(OverlappedShared<T, D>), *p, *t, order, next,
                   statistics, dq_accumulator, q_map, d_o_map, k_map, v_map);
        });
    }));
}
