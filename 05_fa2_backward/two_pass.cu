/* 05_fa2_backward/two_pass - dK and dV by one kernel, dQ by another: blocks share nothing, and every sum has one order.
 *
 * The idea. The forward pass keeps LSE, one number a row, and from it any tile of P can be computed again: P = e^(S - LSE),
 * with no maximum and no sum to carry along. But dK and dV are sums over queries and dQ is a sum over keys, and a block that
 * keeps one of them in registers walks past the other. So there are two kernels, which both compute S and dP:
 *
 *     key_gradients      a block owns keys and walks over queries:    S, dP, dV += P^T dO, dK += dS^T Q     4 products
 *     query_gradients    a block owns queries and walks over keys:    S, dP, dQ += dS K                     3 products
 *
 * 7 products where 5 would do, 14 N^2 D FLOPs instead of 10; in return no atomics, no accumulator of dQ in device memory,
 * and the same bits in every run. The workspace is two floats a query row (backward.cuh).
 *
 * Who owns what. key_gradients computes S and dP transposed, [key][query], so that a warp owns keys as split_q's warps own
 * queries: P^T and dS^T go from accumulators to left operands in registers, and dK and dV never leave a warp's registers.
 *
 *     D = 64   4 warps, 32 keys each                  D = 128   8 warps; two share 32 keys, since dK and dV of 32 keys x 128
 *              S^T of a chunk of 32 queries                     columns would fill 256 registers a lane. Each takes half of
 *              dK, dV: 32 x 64, 128 registers                   the queries for S and dP and half of the columns of dK, dV;
 *                                                               the other's P and dS come through shared memory
 *
 * query_gradients is the forward pass with dQ in O's place: 4 warps, 32 queries each, 32 keys at a time. Registers a lane:
 * dQ D, S and dP 32 each. Chips with less shared memory get smaller tiles: launch_..._gradients.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant two_pass --head-dim 128 --causal
 */
#include "backward.cuh"

/* ---- dK and dV ---- */

template <typename T, int D, typename S> struct KeyShared {
    Tile<T, S::Bc, D> k, v;
    Tile<T, S::Br, D> q[2], d_o[S::paired ? 1 : 2];
    Tile<T, S::paired ? S::Bc : 8, S::Br> p, ds; /* P^T and dS^T of pairs: [key][query] */
    StatisticsTile<S::Br> statistics[2];
};

template <typename T, int D, typename S>
__global__ void __launch_bounds__(S::threads, S::blocks) key_gradients(Problem p, Tensors t, RowStatistics statistics) {
    using Shared = KeyShared<T, D, S>;
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
            if (S::paired) {
                store_operands(shared.p, p_a, warp_key, first_query);
                store_operands(shared.ds, ds_a, warp_key, first_query);
                __syncthreads(); /* the other warp's P and dS are there */
            }

            /* dV += P^T dO, dK += dS^T Q */
            accumulate<S>(dv, p_a, shared.p, warp_key, shared.d_o[d_o_stage], chunk, warp_query, warp_column);
            if (S::paired) {
                __syncthreads(); /* every warp is done with dO, of which there is room for one tile only */
                if (step + 1 < steps)
                    load_d_o(next_head, next_tile, 0);
            }
            accumulate<S>(dk, ds_a, shared.ds, warp_key, shared.q[stage], chunk, warp_query, warp_column);
        }
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

/* ---- dQ ---- */

constexpr int QUERY_WARPS = 4;
constexpr int QUERY_THREADS = 32 * QUERY_WARPS;

template <int D, int m_tiles> struct QueryShape {
    static constexpr int Br = 16 * m_tiles * QUERY_WARPS;
    static constexpr int Bc = D == 64 ? 64 : 32; /* at D = 128 two blocks of 96 KB fit on a multiprocessor */
};

template <typename T, int D, int m_tiles> struct QueryShared {
    Tile<T, QueryShape<D, m_tiles>::Br, D> q, d_o;
    Tile<T, QueryShape<D, m_tiles>::Bc, D> k[2], v[2];
};

template <typename T, int D, int m_tiles>
__global__ void __launch_bounds__(QUERY_THREADS, 2) query_gradients(Problem p, Tensors t, RowStatistics statistics) {
    constexpr int Br = QueryShape<D, m_tiles>::Br, Bc = QueryShape<D, m_tiles>::Bc;
    using Shared = QueryShared<T, D, m_tiles>;
    SHARED_MEMORY(Shared, shared);
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * m_tiles;

    /* The last query tile first: under a causal mask it sees the most keys */
    const int query_tiles = ceil_div(p.seqlen_q, Br);
    const int batch_head = blockIdx.x / query_tiles, batch = batch_head / p.heads, head = batch_head % p.heads;
    const int first_row = (query_tiles - 1 - blockIdx.x % query_tiles) * Br;
    const size_t query_offset = query_head_offset(&p, batch, head);
    const size_t key_offset = key_head_offset(&p, batch, kv_head_of(&p, head));

    /* Key tiles up to the last key that the tile's last row sees; those below whole_tiles are seen whole by its first row */
    const int keys = key_length(&p, t.key_lengths, batch);
    const int key_tiles = ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc);
    const int whole_tiles = visible_keys(&p, keys, first_row) / Bc;

    auto load_keys = [&](int tile) {
        load_tile_async<QUERY_THREADS>(shared.k[tile % 2], (const T *)t.k + key_offset, tile * Bc, keys);
        load_tile_async<QUERY_THREADS>(shared.v[tile % 2], (const T *)t.v + key_offset, tile * Bc, keys);
    };
    load_tile_async<QUERY_THREADS>(shared.q, (const T *)t.q + query_offset, first_row, p.seqlen_q);
    load_tile_async<QUERY_THREADS>(shared.d_o, (const T *)t.d_o + query_offset, first_row, p.seqlen_q);
    if (key_tiles > 0)
        load_keys(0);

    /* The lane's rows are indexed [i][h]: row 16 i + 8 h + lane / 4 of the warp */
    float lse[m_tiles][2], delta[m_tiles][2];
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t row = (size_t)batch_head * padded_rows(&p) + first_row + warp_row + 16 * i + 8 * h + lane / 4;
            lse[i][h] = statistics.lse[row], delta[i][h] = statistics.delta[row];
        }

    float dq[m_tiles][D / 8][4] = {};
    const float scale_log2 = p.scale * LOG2_E;
#pragma unroll 1
    for (int tile = 0; tile < key_tiles; tile++) {
        const int stage = tile % 2;
        cp_async_wait<0>();
        __syncthreads(); /* K and V are there, and every warp is done with the other stage */
        if (tile + 1 < key_tiles)
            load_keys(tile + 1);

#pragma unroll 1
        for (int first_key = 0; first_key < Bc; first_key += 32) {
            /* S = Q K^T and dP = dO V^T */
            float s[m_tiles][4][4] = {}, dp[m_tiles][4][4] = {};
            multiply_transposed<4>(s, shared.q, warp_row, shared.k[stage], first_key);
            multiply_transposed<4>(dp, shared.d_o, warp_row, shared.v[stage], first_key);

            /* P = 2^(scale_log2 S - lse) */
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][c][e] = exp2_approx(s[i][c][e] * scale_log2 - lse[i][e / 2]);
            if (tile >= whole_tiles) {
                const int row = first_row + warp_row + lane / 4, key = tile * Bc + first_key + 2 * (lane % 4);
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (key + 8 * c + e % 2 >= visible_keys(&p, keys, row + 16 * i + 8 * (e / 2)))
                                s[i][c][e] = 0;
            }

            /* dS = P (dP - delta), rounded, is the left operand of dQ += dS K */
            const int address = address_lane<D>();
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t ds_a[m_tiles][4];
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) { /* quarters: j % 2 is 8 rows down, j / 2 is 8 keys right */
                        const int c = 2 * k + j / 2, h = j % 2;
                        ds_a[i][j] = pack_pair<T>(s[i][c][2 * h] * (dp[i][c][2 * h] - delta[i][h]),
                                                  s[i][c][2 * h + 1] * (dp[i][c][2 * h + 1] - delta[i][h]));
                    }
                multiply_step(dq, ds_a, shared.k[stage], first_key / 16 + k, 0, address);
            }
        }
    }

    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
        store_gradient<T, D>((T *)t.dq + query_offset, first_row + warp_row + 16 * i, p.seqlen_q, 0, dq[i], p.scale);
}

/* ---- launching ---- */

extern "C" int backward_two_pass_plan(const Problem *p, Buffer *workspace) { return plan_statistics(p, workspace); }

/* Each launches its kernel in this shape, if a block can have as much shared memory. */
template <typename T, int D, int key_groups, int n_tiles, int chunks>
static bool launch_key_gradients(const Problem &p, const Tensors &t, const RowStatistics &statistics) {
    using S = Shape<D, key_groups, n_tiles, chunks>;
    using Shared = KeyShared<T, D, S>;
    if (sizeof(Shared) > device_properties()->shared_bytes)
        return false;
    int blocks = ceil_div(p.seqlen_k, S::Bc) * p.batch * p.kv_heads;
    LAUNCH((key_gradients<T, D, S>), blocks, S::threads, sizeof(Shared), p, t, statistics);
    return true;
}

template <typename T, int D, int m_tiles>
static bool launch_query_gradients(const Problem &p, const Tensors &t, const RowStatistics &statistics) {
    using Shared = QueryShared<T, D, m_tiles>;
    if (sizeof(Shared) > device_properties()->shared_bytes)
        return false;
    int blocks = ceil_div(p.seqlen_q, QueryShape<D, m_tiles>::Br) * p.batch * p.heads;
    LAUNCH((query_gradients<T, D, m_tiles>), blocks, QUERY_THREADS, sizeof(Shared), p, t, statistics);
    return true;
}

extern "C" void backward_two_pass(const Problem *p, const Tensors *t, const Buffer *workspace) {
    RowStatistics statistics = statistics_in(workspace);
    WITH_HALF_TYPE(p->dtype, T, {
        if (p->head_dim == 64) {
            launch_prepare_rows<T, 64>(*p, *t, statistics, nullptr);
            launch_key_gradients<T, 64, 4, 4, 2>(*p, *t, statistics) ||
                launch_key_gradients<T, 64, 2, 4, 2>(*p, *t, statistics);
            launch_query_gradients<T, 64, 2>(*p, *t, statistics);
        } else {
            launch_prepare_rows<T, 128>(*p, *t, statistics, nullptr);
            launch_key_gradients<T, 128, 4, 8, 1>(*p, *t, statistics) ||
                launch_key_gradients<T, 128, 2, 4, 1>(*p, *t, statistics) ||
                launch_key_gradients<T, 128, 1, 2, 1>(*p, *t, statistics);
            launch_query_gradients<T, 128, 2>(*p, *t, statistics) || launch_query_gradients<T, 128, 1>(*p, *t, statistics);
        }
    });
}
