/* 05_fa2_backward/atomic - all three gradients in one pass over the tiles of S; dQ by atomic additions.
 *
 * The idea. two_pass computes S and dP twice, because dK and dV are sums over queries and dQ is a sum over keys. But dQ
 * can be summed in device memory: each block, which owns some keys, adds its share dS K to an fp32 array that all blocks
 * of the head have in common, the accumulator. That makes 5 products instead of 7. It costs
 *
 *     4 Br D bytes of atomic additions for each tile of Br queries and Bc keys;
 *     an accumulator of 4 D bytes a query, zeroed before and converted to the dtype after;
 *     the same bits in every run: the order of the additions differs from run to run, and with it the last bits of dQ.
 *
 * Who owns what. As in key_half.cuh. The fifth product, dQ += dS K, is a sum over all keys of the block, so the warps put
 * their dS^T into shared memory, and each warp computes a piece of 32 rows of the tile of dQ.
 *
 *     D = 64    4 warps    dQ's tile  64 x 64 , 32 x 32 a warp      82 KB of shared memory, two blocks a multiprocessor
 *     D = 128   8 warps    dQ's tile 128 x 128, 32 x 64 a warp      226 KB, one block
 *
 * The accumulator has the order in which the lanes hold dQ: [tile][warp][fragment][lane][4 floats]. So a lane adds 16
 * neighbouring bytes with one instruction, and a warp 512. convert_dq puts the elements into rows.
 *
 * Costs, for each tile of Br queries and Bc keys: 10 Br Bc D FLOPs, Br Bc exponentials, 4 Br D bytes of atomics, 4 Br D
 * bytes of Q and dO, mostly from L2. Chips with less shared memory get smaller tiles.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant atomic --head-dim 128 --causal
 */
#include "key_half.cuh"

/* Columns of the 32 rows of dQ that a warp computes. */
template <int D, typename S> constexpr int dq_columns = D / (S::WARPS / (S::Br / 32));

template <typename T, int D, typename S>
__global__ void __launch_bounds__(S::THREADS, S::blocks)
    backward_atomic(Problem p, Tensors t, RowStatistics statistics, float *dq_accumulator) {
    using Shared = KeyShared<T, D, S, true>;
    SHARED_MEMORY(Shared, shared);
    key_half<T, D, S>(p, t, statistics, shared, [&](int batch_head, int first_row) {
        if (!S::paired)
            __syncthreads(); /* the dS of all warps is there */

        /* dQ += dS K: each warp a piece of 32 rows of the tile of dQ, added in the order in which its lanes hold it */
        constexpr int down = S::Br / 32, columns = dq_columns<D, S>;
        const int warp = threadIdx.x / 32, address = address_lane<D>();
        const int dq_row = warp % down * 32, dq_column = warp / down * columns;
        float dq[2][columns / 8][4] = {};
#pragma unroll
        for (int k = 0; k < S::Bc / 16; k++) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_a_fragment_trans(a[i], shared.ds, k, dq_row + 16 * i, address);
            multiply_step(dq, a, shared.k, k, dq_column, address);
        }
        const size_t padded_row = (size_t)batch_head * padded_rows(&p) + first_row;
        float *to = dq_accumulator + padded_row * D + warp * 32 * columns;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int d = 0; d < columns / 8; d++)
                atomic_add_4(to + ((i * (columns / 8) + d) * 32 + address) * 4,
                             make_float4(dq[i][d][0], dq[i][d][1], dq[i][d][2], dq[i][d][3]));
    });
}

constexpr int CONVERT_THREADS = 256;

/* dQ = scale x accumulator, in the problem's dtype and order. A thread takes what the four lanes of a quad held of a
 * fragment, 64 bytes: 8 columns of row r and of row r + 8. It writes 2 x 16 bytes. */
template <typename T, int D, int Br, int columns>
__global__ void __launch_bounds__(CONVERT_THREADS)
    convert_dq(Problem p, Tensors t, const float *dq_accumulator, size_t count) {
    size_t thread = (size_t)blockIdx.x * CONVERT_THREADS + threadIdx.x;
    if (thread >= count)
        return;
    const float *from = dq_accumulator + 16 * thread;
    constexpr int fragments = columns / 8, down = Br / 32;
    int inside = thread % (Br * D / 16); /* in the tile: [warp][i][d][row of eight] */
    size_t padded_row = thread / (Br * D / 16) * Br;
    int warp = inside / (16 * fragments), i = inside / (8 * fragments) % 2, d = inside / 8 % fragments;
    size_t matrix = padded_row / padded_rows(&p);
    int row = padded_row % padded_rows(&p) + 32 * (warp % down) + 16 * i + inside % 8;
    T *to = (T *)t.dq + matrix * p.seqlen_q * D + columns * (warp / down) + 8 * d;
    uint32_t upper[4], lower[4];
    for (int j = 0; j < 4; j++) {
        uint4 bits = load_16(from + 4 * j);
        upper[j] = pack_pair<T>(p.scale * __uint_as_float(bits.x), p.scale * __uint_as_float(bits.y));
        lower[j] = pack_pair<T>(p.scale * __uint_as_float(bits.z), p.scale * __uint_as_float(bits.w));
    }
    if (row < p.seqlen_q)
        store_16(to + (size_t)row * D, make_uint4(upper[0], upper[1], upper[2], upper[3]));
    if (row + 8 < p.seqlen_q)
        store_16(to + (size_t)(row + 8) * D, make_uint4(lower[0], lower[1], lower[2], lower[3]));
}

PLANNER(backward_atomic_plan) {
    int count = plan_statistics(p, workspace);
    workspace[count++] = Buffer{"dQ accumulator", all_padded_rows(p) * p->head_dim * sizeof(float), nullptr, 0};
    return count;
}

template <typename T, int D, typename S>
static void launch_atomic(const Problem &p, const Tensors &t, const Buffer *workspace) {
    using Shared = KeyShared<T, D, S, true>;
    float *dq_accumulator = (float *)workspace[2].pointer;
    const size_t count = all_padded_rows(&p) * D / 16; /* convert_dq's threads */
    launch_prepare_rows<T, D>(p, t, workspace, dq_accumulator);
    LAUNCH((backward_atomic<T, D, S>), key_blocks<S>(p), S::THREADS, sizeof(Shared), p, t, statistics_in(workspace),
           dq_accumulator);
    LAUNCH((convert_dq<T, D, S::Br, dq_columns<D, S>>), blocks_for(count, CONVERT_THREADS), CONVERT_THREADS, 0, p, t,
           dq_accumulator, count);
}

LAUNCHER(backward_atomic) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        with_key_tiles<D, true>([&](auto tiles) { launch_atomic<T, D, decltype(tiles)>(*p, *t, workspace); });
    }));
}

extern "C" TileShape atomic_tile(const Problem *p) { return key_tile<true>(p); }
