/* 05_fa2_backward/two_pass - dK and dV by one kernel, dQ by another: blocks share nothing, and every sum has one order.
 *
 * The idea. The forward pass keeps LSE, one number a row, and from it any tile of P can be computed again: P = e^(S -
 * LSE), with no maximum and no sum to carry along. But dK and dV are sums over queries, and dQ is a sum over keys. A
 * block that keeps dK and dV in registers has all queries but only some keys, so it cannot have the whole sum of dQ. So
 * there are two kernels, and both compute S and dP:
 *
 *     key_gradients      a block owns keys and walks over queries:    S, dP, dV += P^T dO, dK += dS^T Q     4 products
 *     query_gradients    a block owns queries and walks over keys:    S, dP, dQ += dS K                     3 products
 *
 * 7 products where 5 would do, 14 N^2 D FLOPs instead of 10; in return no atomics, no accumulator of dQ in device memory,
 * and the same bits in every run. The workspace is two floats a query row (backward.cuh).
 *
 * Who owns what. key_gradients is key_half.cuh and nothing else. query_gradients is like the forward pass with dQ instead
 * of O: 4 warps own 16 m_tiles queries each, and take 32 keys at a time. Registers a lane: dQ D, S and dP 32 each. Chips
 * with less shared memory get smaller tiles.
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

template <typename T, int D, int Br> struct QueryShared {
    static constexpr int Bc = D == 64 ? 64 : 32; /* D = 128: two blocks of 96 KB fit on an H100's multiprocessor */
    Tile<T, Br, D> q, d_o;
    Tile<T, Bc, D> k[2], v[2];
};

template <typename T, int D, int Br>
__global__ void __launch_bounds__(THREADS, 2) query_gradients(Problem p, Tensors t, RowStatistics statistics) {
    using Shared = QueryShared<T, D, Br>;
    constexpr int Bc = Shared::Bc, m_tiles = Br / (16 * WARPS);
    SHARED_MEMORY(Shared, shared);
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * m_tiles; /* the warp's first row in the tile */

    /* The last query tile first: under a causal mask it sees the most keys */
    const int query_tiles = ceil_div(p.seqlen_q, Br);
    const int batch_head = blockIdx.x / query_tiles, batch = batch_head / p.heads, head = batch_head % p.heads;
    const int first_row = (query_tiles - 1 - blockIdx.x % query_tiles) * Br, row = first_row + warp_row + lane / 4;
    const size_t query_offset = query_head_offset(&p, batch, head);
    const size_t key_offset = key_head_offset(&p, batch, kv_head_of(&p, head));

    /* Key tiles up to the last key that the tile's last row sees; those below whole_tiles are seen whole by its first
     * row */
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

    /* LSE and delta of the lane's rows. Index [i][h]: row + 16 i + 8 h */
    const size_t padded_row = (size_t)batch_head * padded_rows(&p) + row;
    float lse[m_tiles][2], delta[m_tiles][2];
#pragma unroll
    for (int i = 0; i < 2 * m_tiles; i++)
        lse[i / 2][i % 2] = statistics.lse[padded_row + 8 * i], delta[i / 2][i % 2] = statistics.delta[padded_row + 8 * i];

    float dq[m_tiles][D / 8][4] = {};
    const float scale_log2 = p.scale * LOG2_E;
#pragma unroll 1
    for (int tile = 0; tile < key_tiles; tile++) {
        cp_async_wait<0>();
        __syncthreads(); /* K and V are there; every warp has read the K and V before, whose place the next ones take */
        if (tile + 1 < key_tiles)
            load_keys(tile + 1);

#pragma unroll 1
        for (int first_key = 0; first_key < Bc; first_key += 32) {
            /* S = Q K^T and dP = dO V^T */
            float s[m_tiles][4][4] = {}, dp[m_tiles][4][4] = {};
            multiply_transposed<4>(s, shared.q, warp_row, shared.k[tile % 2], first_key);
            multiply_transposed<4>(dp, shared.d_o, warp_row, shared.v[tile % 2], first_key);

            /* Mask, only in tiles that the diagonal or the end of the keys cuts */
            if (tile >= whole_tiles)
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int column = tile * Bc + first_key + 2 * (lane % 4);
                        const int visible = visible_keys(&p, keys, row + 16 * i + 8 * h) - column;
#pragma unroll
                        for (int n = 0; n < 4; n++) {
                            s[i][n][2 * h] = 8 * n < visible ? s[i][n][2 * h] : -INFINITY;
                            s[i][n][2 * h + 1] = 8 * n + 1 < visible ? s[i][n][2 * h + 1] : -INFINITY;
                        }
                    }

            /* P = 2^(scale_log2 S - lse); dS = P (dP - delta), rounded, is the left operand of dQ += dS K */
            const int address = address_lane<D>();
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t ds_a[m_tiles][4];
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int quarter = 0; quarter < 4; quarter++) { /* % 2: 8 rows down; / 2: 8 keys right */
                        const int n = 2 * k + quarter / 2, h = quarter % 2;
                        const float *s_ij = &s[i][n][2 * h], *dp_ij = &dp[i][n][2 * h];
                        ds_a[i][quarter] =
                            pack_pair<T>(exp2_approx(s_ij[0] * scale_log2 - lse[i][h]) * (dp_ij[0] - delta[i][h]),
                                         exp2_approx(s_ij[1] * scale_log2 - lse[i][h]) * (dp_ij[1] - delta[i][h]));
                    }
                multiply_step(dq, ds_a, shared.k[tile % 2], first_key / 16 + k, 0, address);
            }
        }
    }

    cp_async_wait<0>();
    store_gradient<T, D>((T *)t.dq + query_offset, first_row + warp_row, p.seqlen_q, 0, dq, p.scale);
}

/* ---- launching ---- */

PLANNER(backward_two_pass_plan) { return plan_statistics(p, workspace); }

template <typename T, int D, typename S>
static void launch_key_half(const Problem &p, const Tensors &t, const Buffer *workspace) {
    const size_t shared_bytes = sizeof(KeyShared<T, D, S, false>);
    LAUNCH((key_gradients<T, D, S>), key_blocks<S>(p), S::THREADS, shared_bytes, p, t, statistics_in(workspace));
}

template <typename T, int D, int Br>
static void launch_query_half(const Problem &p, const Tensors &t, const Buffer *workspace) {
    const int blocks = ceil_div(p.seqlen_q, Br) * p.batch * p.heads;
    LAUNCH((query_gradients<T, D, Br>), blocks, THREADS, sizeof(QueryShared<T, D, Br>), p, t, statistics_in(workspace));
}

/* Br of query_gradients: as large as fits. */
template <int D> constexpr int small_rows = D == 64 ? 128 : 64;
template <int D> static int query_rows() {
    if (!fits(sizeof(QueryShared<__half, D, small_rows<D>>)))
        nothing_fits("dQ", D);
    return fits(sizeof(QueryShared<__half, D, 128>)) ? 128 : small_rows<D>;
}

LAUNCHER(backward_two_pass) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        launch_prepare_rows<T, D>(*p, *t, workspace, nullptr);
        with_key_tiles<D, false>([&](auto tiles) { launch_key_half<T, D, decltype(tiles)>(*p, *t, workspace); });
        if (query_rows<D>() == 128)
            launch_query_half<T, D, 128>(*p, *t, workspace);
        else
            launch_query_half<T, D, small_rows<D>>(*p, *t, workspace);
    }));
}

extern "C" TileShape two_pass_key_tile(const Problem *p) { return key_tile<false>(p); }
extern "C" TileShape two_pass_query_tile(const Problem *p) {
    TileShape tile = {};
    WITH_HEAD_DIM_64_128(p->head_dim, D, (tile = {query_rows<D>(), QueryShared<__half, D, 128>::Bc}));
    return tile;
}
