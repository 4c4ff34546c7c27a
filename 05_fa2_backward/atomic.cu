/* 05_fa2_backward/atomic - all three gradients in one pass over the tiles of S; dQ by atomic additions.
 *
 * The idea. two_pass computes S and dP twice, because dK and dV are sums over queries and dQ is a sum over keys. But dQ
 * can be summed in device memory: each block, which owns some keys, adds its share dS K to an fp32 array that all
 * blocks of the head have in common, the accumulator. That makes 5 products instead of 7. It costs
 *
 *     4 Br D bytes of atomic additions for each tile of Br queries and Bc keys;
 *     an accumulator of 4 D bytes per query, zeroed before and converted to the dtype after;
 *     the same bits in every run: the order of the additions differs from run to run, and with it the last bits of dQ.
 *
 * Who owns what. As in key_half.cuh, with one query head for each block: if several share a K/V head, dK and dV are
 * added, too, and convert_keys writes them. The fifth product, dQ += dS K, is a sum over all keys of the block, so the
 * warps put their dS^T into shared memory, and each warp computes a piece of 32 rows of the tile of dQ.
 *
 *     D = 64    4 warps    dQ's tile  64 x 64 , 32 x 32 per warp  82 KB of shared memory: two blocks per multiprocessor
 *     D = 128   8 warps    dQ's tile 128 x 128, 32 x 64 per warp  226 KB: one block
 *
 * The accumulator has the order in which the lanes hold dQ: [tile][warp][fragment][lane][4 floats]. So a lane adds 16
 * neighboring bytes with one instruction, and a warp 512. convert_dq puts the elements into rows.
 *
 * Costs, for each tile of Br queries and Bc keys: 10 Br Bc D FLOPs, Br Bc exponentials, 4 Br D bytes of atomics, 4 Br D
 * bytes of Q and dO, mostly from L2. Chips with less shared memory get smaller tiles.
 *
 * The tile primitives (add_step, store_rows) are in common/gpu/warp.cuh.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant atomic --head-dim 128 --causal
 */
#include "key_half.cuh"

/* The warps of a block divide a tile of dQ into pieces of 32 rows and so many columns, below each other first. */
template <typename S> constexpr int dq_columns = S::D * (S::Br / 32) / S::WARPS;

/* Where the accumulator has the lane's four floats of fragment (i, d) of the warp's piece of
 * the tile from padded_row on. */
template <typename S> __device__ inline size_t dq_offset(size_t padded_row, int i, int d) {
    const int fragment = (threadIdx.x / 32 * 2 + i) * (dq_columns<S> / 8) + d;
    return padded_row * S::D + (fragment * 32 + threadIdx.x % 32) * 4;
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::blocks)
    backward_atomic(Problem p, Tensors t, RowStatistics statistics, float *dq_accumulator, KeySums sums) {
    SHARED_MEMORY(shared, typename S::Shared);
    key_half<S>(p, t, statistics, sums, shared, [&](int head, int first_row) {
        if (!S::paired)
            __syncthreads(); /* the dS of all warps is there */

        /* dQ += dS K */
        constexpr int down = S::Br / 32, columns = dq_columns<S>;
        const int warp = threadIdx.x / 32;
        float dq[2][columns / 8][4] = {};
        UNROLL for (int k = 0; k < S::Bc / 16; k++) {
            uint32_t a[2][4];
            UNROLL for (int i = 0; i < 2; i++)
                load_a_fragment_trans(a[i], shared.ds, k, warp % down * 32 + 16 * i);
            add_step(dq, a, shared.k, k, warp / down * columns);
        }
        const size_t padded_row = (size_t)head * padded_rows(&p) + first_row;
        add_piece(dq_accumulator + dq_offset<S>(padded_row, 0, 0), dq);
    });
}

/* dQ = scale x accumulator, in the problem's dtype and order. A block takes a tile, and
 * its warps the pieces as above. */
template <typename S>
__global__ void __launch_bounds__(S::THREADS) convert_dq(Problem p, Tensors t, const float *dq_accumulator) {
    constexpr int down = S::Br / 32, columns = dq_columns<S>;
    const int warp = threadIdx.x / 32;
    const size_t padded_row = (size_t)blockIdx.x * S::Br, batch_head = padded_row / padded_rows(&p);
    float dq[2][columns / 8][4];
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int d = 0; d < columns / 8; d++) {
            const float4 x = load_4(dq_accumulator + dq_offset<S>(padded_row, i, d));
            dq[i][d][0] = x.x, dq[i][d][1] = x.y, dq[i][d][2] = x.z, dq[i][d][3] = x.w;
        }
    const int row = padded_row % padded_rows(&p) + warp % down * 32;
    auto *to = (typename S::T *)t.dq + batch_head * p.seqlen_q * S::D + warp / down * columns;
    store_rows<S::D>(to, row, p.seqlen_q, dq, p.scale);
}

/* dK = scale x accumulator (blocks with y = 0) and dV (y = 1). A block takes a key tile, and
 * leaves zeros for the next launch. */
template <typename S> __global__ void __launch_bounds__(S::THREADS) convert_keys(Problem p, Tensors t, KeySums sums) {
    const bool is_dk = blockIdx.y == 0;
    const int warp = threadIdx.x / 32;
    const size_t padded_key = (size_t)blockIdx.x * S::Bc, kv_head = padded_key / padded_keys(&p);
    float *from = (is_dk ? sums.dk : sums.dv) + key_offset<S>(padded_key), c[2][8][4];
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int n = 0; n < 8; n++) {
            const float4 x = load_4(from + (i * 8 + n) * 128);
            c[i][n][0] = x.x, c[i][n][1] = x.y, c[i][n][2] = x.z, c[i][n][3] = x.w;
        }
    UNROLL for (int n = 0; n < 16; n++) /* after all loads: a store after each is slower */
        store_4(from + n * 128, float4{});
    const int key = padded_key % padded_keys(&p) + warp / S::sharing * 32;
    auto *to = (typename S::T *)(is_dk ? t.dk : t.dv) + kv_head * p.seqlen_k * S::D + warp % S::sharing * 64;
    store_rows<S::D>(to, key, p.seqlen_k, c, is_dk ? p.scale : 1);
}

PLANNER(backward_atomic_plan) { return plan_accumulators(p, workspace); }

/* Some or all of the steps. If not all, dK and dV are sums in any case. */
extern "C" void backward_atomic_steps(const Problem *p, const Tensors *t, const Buffer *workspace, int steps) {
    float *dq_accumulator = (float *)workspace[2].pointer;
    KeySums sums = {};
    if (p->heads > p->kv_heads || steps != ALL_STEPS)
        sums = {(float *)workspace[3].pointer, (float *)workspace[4].pointer};
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        if (steps & PREPARE_ROWS)
            launch_prepare_rows<T, D>(*p, *t, workspace, dq_accumulator);
        with_key_shape<T, D, true>([&](auto shape) {
            using S = decltype(shape);
            if (steps & ADD_GRADIENTS)
                LAUNCH(backward_atomic<S>, key_blocks<S>(*p, p->heads), S::THREADS, sizeof(typename S::Shared), *p, *t,
                       statistics_in(workspace), dq_accumulator, sums);
            if (steps & WRITE_DQ)
                LAUNCH(convert_dq<S>, all_padded_rows(p) / S::Br, S::THREADS, 0, *p, *t, dq_accumulator);
            if (sums.dk && steps & WRITE_KEYS)
                LAUNCH(convert_keys<S>, dim3(all_padded_keys(p) / S::Bc, 2), S::THREADS, 0, *p, *t, sums);
        });
    }));
}

LAUNCHER(backward_atomic) { backward_atomic_steps(p, t, workspace, ALL_STEPS); }

extern "C" TileShape atomic_tile(const Problem *p) { return key_tile<true>(p); }
