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
 * Who owns what. key_gradients is key_half.cuh and nothing else. query_gradients is the forward pass with dQ in O's place:
 * 4 warps, 16 m_tiles queries each, 32 keys at a time. Registers a lane: dQ D, S and dP 32 each. Chips with less shared memory
 * get smaller tiles.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant two_pass --head-dim 128 --causal
 */
#include "key_half.cuh"

/* ---- dK and dV ---- */

template <typename T, int D, typename S>
__global__ void __launch_bounds__(S::THREADS, S::blocks) key_gradients(Problem p, Tensors t, RowStatistics statistics) {
    using Shared = KeyShared<T, D, S, false>;
    SHARED_MEMORY(Shared, shared);
    key_half<T, D, S>(p, t, statistics, shared, [](int, int) {});
}

/* ---- dQ ---- */

constexpr int WARPS = 4, THREADS = 32 * WARPS;

template <int D, int Br_> struct QueryShape {
    static constexpr int Br = Br_, Bc = D == 64 ? 64 : 32; /* at D = 128 two blocks of 96 KB fit on a multiprocessor */
    static constexpr int m_tiles = Br / (16 * WARPS);
};

template <typename T, int D, typename S> struct QueryShared {
    Tile<T, S::Br, D> q, d_o;
    Tile<T, S::Bc, D> k[2], v[2];
};

template <typename T, int D, typename S>
__global__ void __launch_bounds__(THREADS, 2) query_gradients(Problem p, Tensors t, RowStatistics statistics) {
    constexpr int Br = S::Br, Bc = S::Bc, m_tiles = S::m_tiles;
    using Shared = QueryShared<T, D, S>;
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
        load_tile_async<THREADS>(shared.k[tile % 2], (const T *)t.k + key_offset, tile * Bc, keys);
        load_tile_async<THREADS>(shared.v[tile % 2], (const T *)t.v + key_offset, tile * Bc, keys);
    };
    load_tile_async<THREADS>(shared.q, (const T *)t.q + query_offset, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.d_o, (const T *)t.d_o + query_offset, first_row, p.seqlen_q);
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
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int j = 0; j < 2; j++)
                            s[i][n][2 * h + j] = exp2_approx(s[i][n][2 * h + j] * scale_log2 - lse[i][h]);
            if (tile >= whole_tiles) {
                const int row = first_row + warp_row + lane / 4, column = tile * Bc + first_key + 2 * (lane % 4);
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int visible = visible_keys(&p, keys, row + 16 * i + 8 * h) - column;
#pragma unroll
                        for (int n = 0; n < 4; n++)
#pragma unroll
                            for (int j = 0; j < 2; j++)
                                if (8 * n + j >= visible)
                                    s[i][n][2 * h + j] = 0;
                    }
            }

            /* dS = P (dP - delta), rounded, is the left operand of dQ += dS K */
            const int address = address_lane<D>();
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t ds_a[m_tiles][4];
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int quarter = 0; quarter < 4; quarter++) { /* quarter % 2 is 8 rows down, quarter / 2 8 keys right */
                        const int n = 2 * k + quarter / 2, h = quarter % 2;
                        ds_a[i][quarter] = pack_pair<T>(s[i][n][2 * h] * (dp[i][n][2 * h] - delta[i][h]),
                                                        s[i][n][2 * h + 1] * (dp[i][n][2 * h + 1] - delta[i][h]));
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
template <typename T, int D, typename S>
static bool launch_key_gradients(const Problem &p, const Tensors &t, const RowStatistics &statistics) {
    using Shared = KeyShared<T, D, S, false>;
    if (sizeof(Shared) > device_properties()->shared_bytes)
        return false;
    int blocks = ceil_div(p.seqlen_k, S::Bc) * p.batch * p.kv_heads;
    LAUNCH((key_gradients<T, D, S>), blocks, S::THREADS, sizeof(Shared), p, t, statistics);
    return true;
}

template <typename T, int D, typename S>
static bool launch_query_gradients(const Problem &p, const Tensors &t, const RowStatistics &statistics) {
    using Shared = QueryShared<T, D, S>;
    if (sizeof(Shared) > device_properties()->shared_bytes)
        return false;
    int blocks = ceil_div(p.seqlen_q, S::Br) * p.batch * p.heads;
    LAUNCH((query_gradients<T, D, S>), blocks, THREADS, sizeof(Shared), p, t, statistics);
    return true;
}

extern "C" void backward_two_pass(const Problem *p, const Tensors *t, const Buffer *workspace) {
    RowStatistics statistics = statistics_in(workspace);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        using LargeQueries = QueryShape<D, 128>;
        using SmallQueries = QueryShape<D, D == 64 ? 128 : 64>;
        launch_prepare_rows<T, D>(*p, *t, statistics, nullptr);
        launch_key_gradients<T, D, LargeTiles<D>>(*p, *t, statistics) ||
            launch_key_gradients<T, D, MediumTiles<D>>(*p, *t, statistics) ||
            launch_key_gradients<T, D, SmallTiles<D>>(*p, *t, statistics) || nothing_fits("two_pass, dK and dV", D);
        launch_query_gradients<T, D, LargeQueries>(*p, *t, statistics) ||
            launch_query_gradients<T, D, SmallQueries>(*p, *t, statistics) || nothing_fits("two_pass, dQ", D);
    }));
}
