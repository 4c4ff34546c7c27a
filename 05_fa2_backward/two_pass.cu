/* 05_fa2_backward/two_pass - dK and dV by one kernel, dQ by another: nothing is shared between blocks, every sum has one order.
 */
#include "backward.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;

template <int D> struct KeyShape {
    static constexpr int m_tiles = D == 64 ? 2 : 1;
    static constexpr int Bc = 16 * m_tiles * WARPS;
    static constexpr int Br = D == 64 ? 64 : 32;
};

template <typename T, int D> struct KeyShared {
    Tile<T, KeyShape<D>::Bc, D> k, v;
    Tile<T, KeyShape<D>::Br, D> q[2], d_o[2];
    alignas(16) RowStatistics statistics[2][KeyShape<D>::Br];
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2) key_gradients(Problem p, Tensors t, const RowStatistics *statistics) {
    constexpr int m_tiles = KeyShape<D>::m_tiles, Br = KeyShape<D>::Br, Bc = KeyShape<D>::Bc;
    using Shared = KeyShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    const int lane = threadIdx.x % 32, warp_key = threadIdx.x / 32 * 16 * m_tiles;

    const int key_tiles = ceil_div(p.seqlen_k, Bc);
    const int batch = blockIdx.x / key_tiles / p.kv_heads, kv_head = blockIdx.x / key_tiles % p.kv_heads;
    const int first_key = blockIdx.x % key_tiles * Bc;
    const int keys = key_length(&p, t.key_lengths, batch);
    const size_t kv_offset = key_head_offset(&p, batch, kv_head);

    const int query_tiles = ceil_div(p.seqlen_q, Br), group = p.heads / p.kv_heads;
    const int first_row = p.causal ? max(first_key - (keys - p.seqlen_q), 0) : 0;
    const int first_tile = min(first_row / Br, query_tiles);
    const int steps = first_key < keys ? group * (query_tiles - first_tile) : 0;

    auto row_of_step = [&](int step) { return (first_tile + step % (query_tiles - first_tile)) * Br; };
    auto load_step = [&](int step) {
        const int head = kv_head * group + step / (query_tiles - first_tile), row = row_of_step(step);
        const size_t offset = query_head_offset(&p, batch, head);
        load_statistics_async(shared.statistics[step % 2],
                              statistics + ((size_t)batch * p.heads + head) * padded_rows(&p) + row);
        load_tile_async<THREADS>(shared.q[step % 2], (const T *)t.q + offset, row, p.seqlen_q);
        load_tile_async<THREADS>(shared.d_o[step % 2], (const T *)t.d_o + offset, row, p.seqlen_q);
    };

    load_tile_async<THREADS>(shared.k, (const T *)t.k + kv_offset, first_key, keys);
    load_tile_async<THREADS>(shared.v, (const T *)t.v + kv_offset, first_key, keys);
    if (steps > 0)
        load_step(0);

    float dk[m_tiles][D / 8][4] = {}, dv[m_tiles][D / 8][4] = {};
    const float scale_log2 = p.scale * LOG2_E;
    for (int step = 0; step < steps; step++) {
        const int stage = step % 2, row = row_of_step(step);
        cp_async_wait<0>();
        __syncthreads(); /* Q and dO are there, and every warp is done with the other stage */
        if (step + 1 < steps)
            load_step(step + 1);

        const bool masked = first_key + Bc > visible_keys(&p, keys, row);
#pragma unroll 1
        for (int chunk = 0; chunk < Br; chunk += 32) {
            /* S^T = K Q^T and dP^T = V dO^T */
            float s[m_tiles][4][4] = {}, dp[m_tiles][4][4] = {};
            multiply_transposed(s, shared.k, warp_key, shared.q[stage], chunk);
            float delta[4][2];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint4 both = load_16(&shared.statistics[stage][chunk + 8 * c + 2 * (lane % 4)]);
                const float lse[2] = {__uint_as_float(both.x), __uint_as_float(both.z)};
                delta[c][0] = __uint_as_float(both.y), delta[c][1] = __uint_as_float(both.w);
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][c][e] = exp2_approx(s[i][c][e] * scale_log2 - lse[e % 2]);
            }
            if (masked) {
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int query = row + chunk + 8 * c + 2 * (lane % 4) + e % 2;
                        const int seen = visible_keys(&p, keys, query) - first_key - warp_key - lane / 4 - 8 * (e / 2);
#pragma unroll
                        for (int i = 0; i < m_tiles; i++)
                            s[i][c][e] = 16 * i < seen ? s[i][c][e] : 0;
                    }
            }
            multiply_transposed(dp, shared.v, warp_key, shared.d_o[stage], chunk);
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        dp[i][c][e] = s[i][c][e] * (dp[i][c][e] - delta[c][e % 2]);

            accumulate<T>(dv, s, shared.d_o[stage], chunk);
            accumulate<T>(dk, dp, shared.q[stage], chunk);
        }
    }

    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < m_tiles; i++) {
        const int key = first_key + warp_key + 16 * i;
        store_gradient((T *)t.dk + kv_offset, key, p.seqlen_k, dk[i], p.scale, shared.k, warp_key + 16 * i);
        store_gradient((T *)t.dv + kv_offset, key, p.seqlen_k, dv[i], 1, shared.v, warp_key + 16 * i);
    }
}

template <int D> struct QueryShape {
    static constexpr int m_tiles = 2;
    static constexpr int Br = 16 * m_tiles * WARPS;
    static constexpr int Bc = D == 64 ? 64 : 32;
};

template <typename T, int D> struct QueryShared {
    Tile<T, QueryShape<D>::Br, D> q, d_o;
    Tile<T, QueryShape<D>::Bc, D> k[2], v[2];
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2) query_gradients(Problem p, Tensors t, const RowStatistics *statistics) {
    constexpr int m_tiles = QueryShape<D>::m_tiles, Br = QueryShape<D>::Br, Bc = QueryShape<D>::Bc;
    using Shared = QueryShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * m_tiles;

    const int query_tiles = ceil_div(p.seqlen_q, Br);
    const int batch_head = blockIdx.x / query_tiles, batch = batch_head / p.heads, head = batch_head % p.heads;
    const int first_row = (query_tiles - 1 - blockIdx.x % query_tiles) * Br;
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));
    const size_t offset = query_head_offset(&p, batch, head);

    const int keys = key_length(&p, t.key_lengths, batch);
    const int key_tiles = ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc);
    const int whole_tiles = visible_keys(&p, keys, first_row) / Bc;

    auto load_step = [&](int tile) {
        load_tile_async<THREADS>(shared.k[tile % 2], k, tile * Bc, keys);
        load_tile_async<THREADS>(shared.v[tile % 2], v, tile * Bc, keys);
    };
    load_tile_async<THREADS>(shared.q, (const T *)t.q + offset, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.d_o, (const T *)t.d_o + offset, first_row, p.seqlen_q);
    if (key_tiles > 0)
        load_step(0);

    RowStatistics own[m_tiles][2];
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            own[i][h] = statistics[(size_t)batch_head * padded_rows(&p) + first_row + warp_row + 16 * i + 8 * h + lane / 4];

    float dq[m_tiles][D / 8][4] = {};
    const float scale_log2 = p.scale * LOG2_E;
    for (int tile = 0; tile < key_tiles; tile++) {
        cp_async_wait<0>();
        __syncthreads();
        if (tile + 1 < key_tiles)
            load_step(tile + 1);
#pragma unroll 1
        for (int chunk = 0; chunk < Bc; chunk += 32) {
            float s[m_tiles][4][4] = {}, dp[m_tiles][4][4] = {};
            multiply_transposed(s, shared.q, warp_row, shared.k[tile % 2], chunk);
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][c][e] = exp2_approx(s[i][c][e] * scale_log2 - own[i][e / 2].lse_log2);
            if (tile >= whole_tiles) {
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = first_row + warp_row + 16 * i + 8 * (e / 2) + lane / 4;
                        const int seen = visible_keys(&p, keys, row) - tile * Bc - chunk - 2 * (lane % 4) - e % 2;
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            s[i][c][e] = 8 * c < seen ? s[i][c][e] : 0;
                    }
            }
            multiply_transposed(dp, shared.d_o, warp_row, shared.v[tile % 2], chunk);
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        dp[i][c][e] = s[i][c][e] * (dp[i][c][e] - own[i][e / 2].delta);
            accumulate<T>(dq, dp, shared.k[tile % 2], chunk);
        }
    }

    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
        store_gradient((T *)t.dq + offset, first_row + warp_row + 16 * i, p.seqlen_q, dq[i], p.scale, shared.q, warp_row + 16 * i);
}

extern "C" int backward_two_pass_plan(const Problem *p, Buffer *workspace) {
    workspace[0] = Buffer{"LSE, delta", all_padded_rows(p) * sizeof(RowStatistics), nullptr};
    return 1;
}

extern "C" void backward_two_pass(const Problem *p, const Tensors *t, const Buffer *workspace) {
    RowStatistics *statistics = (RowStatistics *)workspace[0].pointer;
    size_t rows = all_padded_rows(p);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((prepare_rows<T, D>), blocks_for(rows * (D / 8), PREPARE_THREADS), PREPARE_THREADS, 0, *p, *t, statistics,
               (float *)nullptr, rows);
        LAUNCH((key_gradients<T, D>), ceil_div(p->seqlen_k, KeyShape<D>::Bc) * p->batch * p->kv_heads, THREADS,
               sizeof(KeyShared<T, D>), *p, *t, statistics);
        LAUNCH((query_gradients<T, D>), ceil_div(p->seqlen_q, QueryShape<D>::Br) * p->batch * p->heads, THREADS,
               sizeof(QueryShared<T, D>), *p, *t, statistics);
    }));
}
