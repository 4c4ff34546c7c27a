/* 05_fa2_backward/two_pass - dK and dV by one kernel, dQ by another: blocks share nothing, and every sum has one order.
 *
 * The idea. The forward pass keeps LSE, one number per row, and from it any tile of P can be computed again:
 * P = e^(S - LSE), with no maximum and no sum to carry along. But dK and dV are sums over queries, and dQ is a sum over
 * keys. A block that keeps dK and dV in registers has all queries but only some keys, so it cannot have the whole sum
 * of dQ. So there are two kernels, and both compute S and dP:
 *
 *     key_gradients      a block owns keys and walks over queries:    S, dP, dV += P^T dO, dK += dS^T Q     4 products
 *     query_gradients    a block owns queries and walks over keys:    S, dP, dQ += dS K                     3 products
 *
 * 7 products where 5 would do, 14 N^2 D FLOPs instead of 10; in return no atomics, no accumulator of dQ in device
 * memory, and the same bits in every run. The workspace is two floats per query row (backward.cuh).
 *
 * Who owns what. key_gradients is key_half.cuh and nothing else. query_gradients is like the forward pass with dQ
 * instead of O: 4 warps own 16 m_tiles queries each, and take 32 keys at a time. Registers per lane: dQ D, S and dP 32
 * each. Chips with less shared memory get smaller tiles.
 *
 * The tile primitives (add_abt, mask, add_ab, store_rows) are in common/gpu/warp.cuh, query_tile in query_tile.cuh
 * beside it.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant two_pass --head-dim 128 --causal
 */
#include "../common/gpu/query_tile.cuh"
#include "key_half.cuh"

/* ---- dK and dV ---- */

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::blocks) key_gradients(Problem p, Tensors t, RowStatistics statistics) {
    SHARED_MEMORY(shared, typename S::Shared);
    key_half<S>(p, t, statistics, KeySums{}, shared, [](int, int) {});
}

/* ---- dQ ---- */

constexpr int WARPS = 4, THREADS = 32 * WARPS;

template <typename T_, int D_, int Br_> struct QueryShape {
    using T = T_;
    static constexpr int D = D_, Br = Br_;
    static constexpr int Bc = D == 64 ? 64 : 32; /* D = 128: two blocks of 96 KB fit on an H100's multiprocessor */
    struct Shared {
        Tile<T, Br, D> q, d_o;
        Tile<T, Bc, D> k[2], v[2];
    };
};
template <typename T, int D, typename Use> auto with_query_shape(Use use) {
    return with_shape_that_fits<QueryShape<T, D, 128>, QueryShape<T, D, D == 64 ? 128 : 64>>("dQ", use);
}

template <typename S>
__global__ void __launch_bounds__(THREADS, 2) query_gradients(Problem p, Tensors t, RowStatistics statistics) {
    using T = typename S::T;
    constexpr int D = S::D, Br = S::Br, Bc = S::Bc, m_tiles = Br / 16 / WARPS;
    SHARED_MEMORY(shared, typename S::Shared);

    /* Head by head, the last query tile first: under a causal mask it sees the most keys */
    const QueryTile here = query_tile(p, t.key_lengths, 1, blockIdx.x, Br, Bc);
    const HeadTensors<T> head = head_tensors<T>(p, t, here.batch_head);
    const int warp_row = threadIdx.x / 32 * 16 * m_tiles; /* the warp's first row in the tile */

    auto load_keys = [&](int tile) {
        load_tile_async<THREADS>(shared.k[tile % 2], head.k, tile * Bc, here.keys);
        load_tile_async<THREADS>(shared.v[tile % 2], head.v, tile * Bc, here.keys);
    };
    load_tile_async<THREADS>(shared.q, head.q, here.first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.d_o, (const T *)t.d_o + head.first_row * D, here.first_row, p.seqlen_q);
    if (here.key_tiles > 0)
        load_keys(0);

    /* LSE and delta of the lane's rows */
    const size_t padded_row = (size_t)here.batch_head * padded_rows(&p) + here.first_row + warp_row;
    float lse[2 * m_tiles], delta[2 * m_tiles];
    UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
        lse[r] = statistics.lse[padded_row + row_of(r)];
        delta[r] = statistics.delta[padded_row + row_of(r)];
    }

    float dq[m_tiles][D / 8][4] = {};
    const float scale_log2 = p.scale * LOG2_E;
    #pragma unroll 1
    for (int tile = 0; tile < here.key_tiles; tile++) {
        cp_async_wait<0>();
        __syncthreads(); /* K and V are there; every warp has read the K and V before, which the next ones overwrite */
        if (tile + 1 < here.key_tiles)
            load_keys(tile + 1);

        #pragma unroll 1
        for (int first_key = 0; first_key < Bc; first_key += 32) {
            /* S = Q K^T and dP = dO V^T. The mask only in tiles that the diagonal or the end of the keys cuts */
            float s[m_tiles][4][4] = {}, dp[m_tiles][4][4] = {};
            add_abt<T, 4>(s, shared.q, warp_row, shared.k[tile % 2], first_key);
            add_abt<T, 4>(dp, shared.d_o, warp_row, shared.v[tile % 2], first_key);
            if (tile >= here.whole_tiles)
                mask(s, p, here.keys, here.first_row + warp_row, tile * Bc + first_key);

            /* P = 2^(scale_log2 S - lse), dS = P (dP - delta), dQ += dS K */
            UNROLL for (int i = 0; i < m_tiles; i++)
                UNROLL for (int n = 0; n < 4; n++)
                    UNROLL for (int j = 0; j < 4; j++) {
                        const int r = 2 * i + j / 2;
                        s[i][n][j] = exp2_approx(s[i][n][j] * scale_log2 - lse[r]) * (dp[i][n][j] - delta[r]);
                    }
            add_ab(dq, s, shared.k[tile % 2], first_key);
        }
    }
    cp_async_wait<0>();
    store_rows<D>((T *)t.dq + head.first_row * D, here.first_row + warp_row, p.seqlen_q, dq, p.scale);
}

/* ---- launching ---- */

PLANNER(backward_two_pass_plan) { return plan_statistics(p, workspace); }

LAUNCHER(backward_two_pass) {
    const RowStatistics statistics = statistics_in(workspace);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        launch_prepare_rows<T, D>(*p, *t, workspace, nullptr);
        with_key_shape<T, D, false>([&](auto shape) {
            using S = decltype(shape);
            LAUNCH(key_gradients<S>, key_blocks<S>(*p, p->kv_heads), S::THREADS, sizeof(typename S::Shared), *p, *t,
                   statistics);
        });
        with_query_shape<T, D>([&](auto shape) {
            using S = decltype(shape);
            const int blocks = ceil_div(p->seqlen_q, S::Br) * p->batch * p->heads;
            LAUNCH(query_gradients<S>, blocks, THREADS, sizeof(typename S::Shared), *p, *t, statistics);
        });
    }));
}

extern "C" TileShape two_pass_key_tile(const Problem *p) { return key_tile<false>(p); }
extern "C" TileShape two_pass_query_tile(const Problem *p) {
    WITH_HEAD_DIM_64_128(p->head_dim, D, return with_query_shape<__half, D>(tile_of));
}
