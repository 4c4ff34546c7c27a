/* 05_fa2_backward/atomic - all three gradients in one pass over the tiles of S; dQ by atomic additions.
 *
 * The idea. two_pass computes S and dP twice, because dK and dV are sums over queries and dQ is one over keys. But dQ can be
 * summed in device memory: each block, which owns some keys, adds its share dS K to a dQ in fp32 that all blocks of the head
 * have in common. 5 products instead of 7. It costs 4 D bytes of atomic additions for each query and key tile; an
 * accumulator of 4 D bytes a query, zeroed before and converted after; and the order of the additions, another one in each
 * run, on which sums of floats depend in the last bits.
 *
 * Who owns what. As in key_gradients of two_pass, and then a fifth product: dQ needs the dS of all keys of the block, so
 * dS^T goes through shared memory in any case, and each warp computes a piece of 32 rows of the tile of dQ.
 *
 *     D = 64    4 warps    dQ's tile  64 x 64 , 32 x 32 a warp      81 KB of shared memory, two blocks a multiprocessor
 *     D = 128   8 warps    dQ's tile 128 x 128, 32 x 64 a warp      226 KB, one block
 *
 * The accumulator is laid out as the fragments lie in the registers: [tile][warp][fragment][lane][4 floats]. A lane then
 * adds 16 neighbouring bytes with one instruction, and a warp 512; convert_dq puts the elements into their places.
 *
 * Costs, for each tile of Br queries and Bc keys: 10 Br Bc D FLOPs, Br Bc exponentials, 4 Br D bytes of atomics, 4 Br D
 * bytes of Q and dO, mostly from L2. Chips with less shared memory get smaller tiles: launch_if_it_fits.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant atomic --head-dim 128 --causal
 */
#include "backward.cuh"

template <typename T, int D, typename S> struct AtomicShared {
    Tile<T, S::Bc, D> k, v;
    Tile<T, S::Br, D> q[2], d_o[S::paired ? 1 : 2];
    Tile<T, S::Bc, S::Br> ds;                /* dS^T: [key][query] */
    Tile<T, S::paired ? S::Bc : 8, S::Br> p; /* P^T, of pairs only */
    StatisticsTile<S::Br> statistics[2];
};

template <typename T, int D, typename S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    backward_atomic(Problem p, Tensors t, RowStatistics statistics, float *dq_accumulator) {
    using Shared = AtomicShared<T, D, S>;
    constexpr int Br = S::Br, Bc = S::Bc, THREADS = S::threads;
    SHARED_MEMORY(Shared, shared);
    const int warp = threadIdx.x / 32;
    const int warp_key = warp / S::sharing * 32;                 /* its first key in the tile */
    const int warp_query = warp % S::sharing * (8 * S::n_tiles); /* its first query in a chunk, for S and dP */
    const int warp_column = warp % S::sharing * 64;              /* its first column, of 64, of dK and dV */

    const int key_tiles = ceil_div(p.seqlen_k, Bc);
    const int batch = blockIdx.x / key_tiles / p.kv_heads, kv_head = blockIdx.x / key_tiles % p.kv_heads;
    const int first_key = blockIdx.x % key_tiles * Bc;
    const int keys = key_length(&p, t.key_lengths, batch);
    const size_t kv_offset = key_head_offset(&p, batch, kv_head);

    /* A step is one query tile of one head. Under a causal mask, row first_key - (keys - seqlen_q) is the first to see any
     * of these keys. The heads of the group follow each other: dK and dV are summed over all of them. */
    const int query_tiles = ceil_div(p.seqlen_q, Br), group = p.heads / p.kv_heads;
    const int first_row = p.causal ? max(first_key - (keys - p.seqlen_q), 0) : 0;
    const int first_tile = min(first_row / Br, query_tiles);
    const int steps = first_key < keys ? group * (query_tiles - first_tile) : 0;

    auto load_q = [&](int head, int tile, int stage) {
        const size_t first = ((size_t)batch * p.heads + head) * padded_rows(&p) + tile * Br;
        load_statistics_async(shared.statistics[stage], statistics, first);
        const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
        load_tile_async<THREADS>(shared.q[stage], q, tile * Br, p.seqlen_q);
    };
    auto load_d_o = [&](int head, int tile, int stage) {
        const T *d_o = (const T *)t.d_o + query_head_offset(&p, batch, head);
        load_tile_async<THREADS>(shared.d_o[stage], d_o, tile * Br, p.seqlen_q);
    };

    load_tile_async<THREADS>(shared.k, (const T *)t.k + kv_offset, first_key, keys);
    load_tile_async<THREADS>(shared.v, (const T *)t.v + kv_offset, first_key, keys);
    int head = kv_head * group, tile = first_tile;
    if (steps > 0) {
        load_q(head, tile, 0);
        load_d_o(head, tile, 0);
    }

    float dk[2][8][4] = {}, dv[2][8][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int stage = step % 2, d_o_stage = S::paired ? 0 : stage, row = tile * Br;
        const bool last_tile = tile + 1 == query_tiles;
        const int next_tile = last_tile ? first_tile : tile + 1, next_head = last_tile ? head + 1 : head;
        cp_async_wait<0>();
        __syncthreads(); /* Q and dO are there, and every warp is done with the step before */
        if (step + 1 < steps) {
            load_q(next_head, next_tile, stage ^ 1);
            if (!S::paired)
                load_d_o(next_head, next_tile, stage ^ 1);
        }

#pragma unroll 1
        for (int chunk = 0; chunk < Br; chunk += S::chunk) {
            const int first_query = chunk + warp_query;
            uint32_t p_a[S::n_tiles / 2][2][4], ds_a[S::n_tiles / 2][2][4];
            compute_p_and_ds<S>(p_a, ds_a, p, keys, shared.k, shared.v, first_key, warp_key, shared.q[stage],
                                shared.d_o[d_o_stage], shared.statistics[stage], row, first_query);
            if (S::paired)
                store_operands(shared.p, p_a, warp_key, first_query);
            store_operands(shared.ds, ds_a, warp_key, first_query);
            if (S::paired)
                __syncthreads(); /* the other warp's P and dS are there */

            /* dV += P^T dO, dK += dS^T Q */
            accumulate<S>(dv, p_a, shared.p, warp_key, shared.d_o[d_o_stage], chunk, warp_query, warp_column);
            if (S::paired) {
                __syncthreads(); /* every warp is done with dO, of which there is room for one tile only */
                if (step + 1 < steps)
                    load_d_o(next_head, next_tile, 0);
            }
            accumulate<S>(dk, ds_a, shared.ds, warp_key, shared.q[stage], chunk, warp_query, warp_column);
        }
        if (!S::paired)
            __syncthreads(); /* the dS of all warps is there */

        /* dQ += dS K: a piece of 32 rows of the tile a warp, added as it lies in the registers */
        constexpr int down = Br / 32;
        const int address = address_lane<D>(), dq_row = warp % down * 32, dq_column = warp / down * S::dq_columns;
        float dq[2][S::dq_columns / 8][4] = {};
#pragma unroll
        for (int k = 0; k < Bc / 16; k++) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_a_fragment_trans(a[i], shared.ds, k, dq_row + 16 * i, address);
            multiply_step(dq, a, shared.k, k, dq_column, address);
        }
        const size_t padded_row = ((size_t)batch * p.heads + head) * padded_rows(&p) + row;
        float *to = dq_accumulator + padded_row * D + warp * 32 * S::dq_columns;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int d = 0; d < S::dq_columns / 8; d++)
                atomic_add_4(to + ((i * (S::dq_columns / 8) + d) * 32 + address) * 4,
                             make_float4(dq[i][d][0], dq[i][d][1], dq[i][d][2], dq[i][d][3]));
        head = next_head, tile = next_tile;
    }

    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int key = first_key + warp_key + 16 * i;
        store_gradient<T, D>((T *)t.dk + kv_offset, key, p.seqlen_k, warp_column, dk[i], p.scale);
        store_gradient<T, D>((T *)t.dv + kv_offset, key, p.seqlen_k, warp_column, dv[i], 1);
    }
}

constexpr int CONVERT_THREADS = 256;

/* dQ = scale x accumulator, in the problem's dtype and order. A thread takes one row of the upper and of the lower half of a
 * fragment: 4 lanes' registers, 64 bytes in, 2 x 16 bytes out. */
template <typename T, int D, int Br, int dq_columns>
__global__ void __launch_bounds__(CONVERT_THREADS)
    convert_dq(Problem p, Tensors t, const float *dq_accumulator, size_t count) {
    size_t thread = (size_t)blockIdx.x * CONVERT_THREADS + threadIdx.x;
    if (thread >= count)
        return;
    const float *from = dq_accumulator + 16 * thread;
    constexpr int fragments = dq_columns / 8, down = Br / 32;
    int inside = thread % (Br * D / 16); /* in the tile: [warp][i][d][row of eight] */
    size_t padded_row = thread / (Br * D / 16) * Br;
    int warp = inside / (16 * fragments), i = inside / (8 * fragments) % 2, d = inside / 8 % fragments;
    size_t matrix = padded_row / padded_rows(&p);
    int row = padded_row % padded_rows(&p) + 32 * (warp % down) + 16 * i + inside % 8;
    T *to = (T *)t.dq + matrix * p.seqlen_q * D + dq_columns * (warp / down) + 8 * d;
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

extern "C" int backward_atomic_plan(const Problem *p, Buffer *workspace) {
    int count = plan_statistics(p, workspace);
    workspace[count++] = Buffer{"dQ accumulator", all_padded_rows(p) * p->head_dim * sizeof(float), nullptr, 0};
    return count;
}

/* Launches the kernels in this shape, if a block can have as much shared memory. */
template <typename T, int D, int key_groups, int n_tiles, int chunks>
static bool launch_if_it_fits(const Problem &p, const Tensors &t, const Buffer *workspace) {
    using S = Shape<D, key_groups, n_tiles, chunks>;
    using Shared = AtomicShared<T, D, S>;
    if (sizeof(Shared) > device_properties()->shared_bytes)
        return false;
    RowStatistics statistics = statistics_in(workspace);
    float *dq_accumulator = (float *)workspace[2].pointer;
    int blocks = ceil_div(p.seqlen_k, S::Bc) * p.batch * p.kv_heads;
    size_t count = all_padded_rows(&p) * D / 16; /* convert_dq's threads */
    launch_prepare_rows<T, D>(p, t, statistics, dq_accumulator);
    LAUNCH((backward_atomic<T, D, S>), blocks, S::threads, sizeof(Shared), p, t, statistics, dq_accumulator);
    LAUNCH((convert_dq<T, D, S::Br, S::dq_columns>), blocks_for(count, CONVERT_THREADS), CONVERT_THREADS, 0, p, t,
           dq_accumulator, count);
    return true;
}

extern "C" void backward_atomic(const Problem *p, const Tensors *t, const Buffer *workspace) {
    WITH_HALF_TYPE(p->dtype, T, {
        if (p->head_dim == 64)
            launch_if_it_fits<T, 64, 4, 4, 2>(*p, *t, workspace) || launch_if_it_fits<T, 64, 2, 4, 2>(*p, *t, workspace);
        else
            launch_if_it_fits<T, 128, 4, 8, 1>(*p, *t, workspace) || launch_if_it_fits<T, 128, 2, 4, 1>(*p, *t, workspace) ||
                launch_if_it_fits<T, 128, 1, 2, 1>(*p, *t, workspace);
    });
}
