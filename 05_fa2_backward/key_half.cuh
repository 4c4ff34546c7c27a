/* key_half.cuh - the half of the backward pass that two_pass and atomic have in common: dK and dV of a tile of keys.
 *
 * Who owns what. A block owns Bc keys of one key/value head. It walks over the queries that see any of these keys, Br
 * at a time: in two_pass over those of all query heads that share the K/V head, in atomic over those of one of them. So
 * in atomic several blocks may add to the same dK and dV, in fp32 accumulators in device memory. S and dP are computed
 * transposed: rows are keys, columns are queries. So a warp owns rows of S^T, that is keys: P^T and dS^T turn from
 * accumulators into the left operands of dV = P^T dO and dK = dS^T Q without leaving its registers, and dK and dV stay
 * there until the end. With the largest tiles (chips with less shared memory get smaller ones, and fewer warps):
 *
 *     D = 64   4 warps, each owns 32 keys        D = 128   8 warps. dK and dV of 32 keys x 128 columns would fill 256
 *              S^T of 32 queries at a time                 registers per lane, so two warps share 32 keys. For S and dP
 *              dK, dV: 32 x 64, 128 registers              each takes half of the queries; for dK and dV half of the
 *                                                          columns, and the other's P and dS through shared memory
 *
 * The tile primitives (add_abt, add_step, store_rows) are in common/gpu/warp.cuh.
 */
#ifndef FA_KEY_HALF_CUH
#define FA_KEY_HALF_CUH

#include "backward.cuh"

/* ---- the shape of a block ---- */

/* A warp computes S^T of 32 keys x 8 n_tiles queries. At D = 128 (paired) these are 64 queries with the largest tiles,
 * so that each fragment of K, once read, is multiplied by eight fragments of Q: such a kernel waits for reads of shared
 * memory more than for products. At D = 64 a warp takes 32 queries at a time. Registers per lane: dK and dV 128, S or
 * dP at most 64, P and dS as operands 4 n_tiles each.
 *
 * keeps_ds: dS^T of all keys is stored in `ds` at every D, since atomic needs it there. Without it only pairs of warps
 * use `ds`. */
template <typename T_, int D_, int Br_, int Bc_, bool keeps_ds_> struct KeyShape {
    using T = T_;
    static constexpr int D = D_, Br = Br_, Bc = Bc_;
    static constexpr bool paired = D == 128, keeps_ds = keeps_ds_;
    static constexpr int sharing = paired ? 2 : 1; /* warps that share 32 keys */
    static constexpr int WARPS = Bc / 32 * sharing, THREADS = 32 * WARPS;
    static constexpr int chunk = paired ? Br : 32; /* queries at a time: a pair exchanges P and dS once per tile */
    static constexpr int n_tiles = chunk / 8 / sharing;
    static constexpr int blocks = paired ? 1 : 2; /* per multiprocessor */

    struct Shared {
        Tile<T, Bc, D> k, v;
        Tile<T, Br, D> q[2], d_o[paired ? 1 : 2];
        Tile<T, paired || keeps_ds ? Bc : 8, Br> ds; /* dS^T: [key][query] */
        Tile<T, paired ? Bc : 8, Br> p;              /* P^T, used by pairs of warps only */
        StatisticsTile<Br> statistics[2];
    };
};

/* use(shape) with the first that fits. Behind them: what a block of `atomic` needs at D = 64 and 128. */
template <typename T, int D, bool keeps_ds, typename Use> auto with_key_shape(Use use) {
    constexpr int large = D == 64 ? 64 : 128, small = D == 64 ? 64 : 32;
    return with_shape_that_fits<KeyShape<T, D, large, 128, keeps_ds>,    /* 82 KB, 226 KB */
                                KeyShape<T, D, 64, 64, keeps_ds>,        /* 58 KB, 97 KB */
                                KeyShape<T, D, small, small, keeps_ds>>( /* 58 KB, 45 KB */
        keeps_ds ? "dQ, dK and dV" : "dK and dV", use);
}
template <bool keeps_ds> TileShape key_tile(const Problem *p) {
    WITH_HEAD_DIM_64_128(p->head_dim, D, return with_key_shape<__half, D, keeps_ds>(tile_of));
}

/* Where several blocks add dK and dV; NULL if one block has the whole sum. */
struct KeySums {
    float *dk, *dv;
};

/* What a block of the grid owns: Bc keys, and of the group of query heads that share them one (of atomic), or all. */
struct KeyBlock {
    int head, first_column; /* its first head, counted through the batch; its first key */
};
template <typename S> __device__ inline KeyBlock key_block(const Problem &p) {
    const int key_tiles = ceil_div(p.seqlen_k, S::Bc), group = p.heads / p.kv_heads;
    const int block = blockIdx.x, kv_heads = p.batch * p.kv_heads;
    if (S::keeps_ds)
        return {block / key_tiles, block % key_tiles * S::Bc};
    /* Head by head. But under a causal mask blocks that walk over a group differ by much, and
     * all the longest ones begin. */
    if (p.causal && group > 1)
        return {block % kv_heads * group, block / kv_heads * S::Bc};
    return {block / key_tiles * group, block % key_tiles * S::Bc};
}
template <typename S> int key_blocks(const Problem &p, int rows) {
    return ceil_div(p.seqlen_k, S::Bc) * p.batch * rows;
}

/* The accumulators of dK and dV have the order in which the lanes hold them: [key tile][warp][fragment][lane][4
 * floats]. This is where the lane's first four floats of the key tile from padded_key on are. */
template <typename S> __device__ inline size_t key_offset(size_t padded_key) {
    return padded_key * S::D + (threadIdx.x / 32 * 16 * 32 + threadIdx.x % 32) * 4;
}

/* Adds a warp's piece, 32 x 8 N, where this lane's first four floats are at `to`. */
template <int N> __device__ inline void add_piece(float *to, const float (&c)[2][N][4]) {
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int n = 0; n < N; n++)
            atomic_add_4(to + (i * N + n) * 128, make_float4(c[i][n][0], c[i][n][1], c[i][n][2], c[i][n][3]));
}

/* ---- P and dS of a warp ---- */

/* P^T and dS^T of 32 keys x 16 Steps queries are kept as left operands: [16 queries][m16 tile of keys].
 * This is the quarter of an operand (instructions.cuh draws them) with the lane's two queries of the n-th
 * eight, in its row number r. */
template <int Steps> __device__ inline uint32_t &quarter(uint32_t (&a)[Steps][2][4], int r, int n) {
    return a[n / 2][r / 2][2 * (n % 2) + r % 2];
}

/* Computes them. The keys lie in tiles k and v from warp_key on, the queries in tiles q and d_o from first_query on;
 * first_column and first_row are the first key and the first query of these tiles. */
template <typename S, int Steps>
__device__ inline void compute_p_and_ds(uint32_t (&p_a)[Steps][2][4], uint32_t (&ds_a)[Steps][2][4], const Problem &p,
                                        int keys, typename S::Shared &shared, int stage, int first_column, int warp_key,
                                        int first_row, int first_query) {
    using T = typename S::T;
    constexpr int n_tiles = 2 * Steps;
    const int lane = threadIdx.x % 32, query = first_query + 2 * (lane % 4); /* the lane's first */
    const StatisticsTile<S::Br> &statistics = shared.statistics[stage];
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    /* S^T = K Q^T. P^T = 2^(scale_log2 S^T - lse): 0 in rows that are not there or see no key, whose lse is +inf */
    float s[2][n_tiles][4] = {};
    add_abt<T>(s, shared.k, warp_key, shared.q[stage], first_query);
    UNROLL for (int n = 0; n < n_tiles; n++) {
        const float2 lse = *reinterpret_cast<const float2 *>(&statistics.lse[query + 8 * n]);
        UNROLL for (int r = 0; r < 4; r++) {
            float *s_ij = &s[r / 2][n][2 * (r % 2)];
            s_ij[0] = exp2_approx(s_ij[0] * scale_log2 - lse.x);
            s_ij[1] = exp2_approx(s_ij[1] * scale_log2 - lse.y);
        }
    }

    /* The mask, only in tiles that the diagonal or the end of the keys cuts. It sets P to 0, not S to -inf: with this
     * branch before the exponentials the compiler would not let them begin among the last products. */
    if (first_column + S::Bc > visible_keys(&p, keys, first_row)) {
        const int column = first_column + warp_key + lane / 4;
        UNROLL for (int n = 0; n < n_tiles; n++)
            UNROLL for (int j = 0; j < 2; j++) {
                const int visible = visible_keys(&p, keys, first_row + query + 8 * n + j) - column;
                UNROLL for (int r = 0; r < 4; r++)
                    if (8 * r >= visible)
                        s[r / 2][n][2 * (r % 2) + j] = 0;
            }
    }
    UNROLL for (int n = 0; n < n_tiles; n++)
        UNROLL for (int r = 0; r < 4; r++)
            quarter(p_a, r, n) = pack_pair<T>(s[r / 2][n][2 * (r % 2)], s[r / 2][n][2 * (r % 2) + 1]);

    /* dP^T = V dO^T, 32 queries at a time; dS^T = P^T (dP^T - delta) */
    constexpr int width = n_tiles < 4 ? n_tiles : 4;
    UNROLL for (int first = 0; first < n_tiles; first += width) {
        float dp[2][width][4] = {};
        add_abt<T, 4>(dp, shared.v, warp_key, shared.d_o[S::paired ? 0 : stage], first_query + 8 * first);
        UNROLL for (int n = first; n < first + width; n++) {
            const float2 delta = *reinterpret_cast<const float2 *>(&statistics.delta[query + 8 * n]);
            UNROLL for (int r = 0; r < 4; r++) {
                /* at D = 128 dP needs the registers of S, and P comes back from its rounded form */
                const float *s_ij = &s[r / 2][n][2 * (r % 2)], *dp_ij = &dp[r / 2][n - first][2 * (r % 2)];
                const float2 p_ij = S::paired ? unpack_pair<T>(quarter(p_a, r, n)) : make_float2(s_ij[0], s_ij[1]);
                quarter(ds_a, r, n) = pack_pair<T>(p_ij.x * (dp_ij[0] - delta.x), p_ij.y * (dp_ij[1] - delta.y));
            }
        }
    }
}

/* Stores P^T or dS^T into a tile [key][query] in shared memory, for other warps. */
template <typename T, int Bc, int Br, int Steps>
__device__ inline void store_operands(Tile<T, Bc, Br> &tile, uint32_t (&a)[Steps][2][4], int warp_key,
                                      int first_query) {
    UNROLL for (int n = 0; n < 2 * Steps; n++)
        UNROLL for (int r = 0; r < 4; r++) {
            T *to = tile.chunk(warp_key + row_of(r), first_query / 8 + n) + 2 * (threadIdx.x % 4);
            *reinterpret_cast<uint32_t *>(to) = quarter(a, r, n);
        }
}

/* C += A B over the queries of a chunk, 16 at a time; A is P^T or dS^T and B is dO or Q. First the queries of which the
 * warp has computed A itself, in `own`; then, in a pair, those of the other warp, whose A is in `tile`. */
template <typename S, typename A, typename B, int N, int Steps>
__device__ inline void accumulate(float (&c)[2][N][4], const uint32_t (&own)[Steps][2][4], A &tile, int warp_key,
                                  B &b_tile, int first_query, int warp_d) {
    UNROLL for (int k = 0; k < Steps; k++)
        add_step(c, own[k], b_tile, first_query / 16 + k, warp_d);
    if (S::paired)
        UNROLL for (int k = 0; k < Steps; k++) {
            const int other_query = (first_query ^ 16 * Steps) + 16 * k;
            uint32_t other[2][4];
            UNROLL for (int i = 0; i < 2; i++)
                load_a_fragment(other[i], tile, warp_key + 16 * i, other_query / 16);
            add_step(c, other, b_tile, other_query / 16, warp_d);
        }
}

/* ---- the walk ---- */

/* Computes and writes dK and dV of the block's keys. After each query tile it calls finish_tile(head, first_row);
 * with S::keeps_ds each warp has then stored dS^T of its keys in shared.ds. */
template <typename S, typename FinishTile>
__device__ inline void key_half(const Problem &p, const Tensors &t, const RowStatistics &statistics,
                                const KeySums &sums, typename S::Shared &shared, FinishTile finish_tile) {
    using T = typename S::T;
    constexpr int D = S::D, Br = S::Br, THREADS = S::THREADS;
    const int warp = threadIdx.x / 32;
    const int warp_key = warp / S::sharing * 32;                 /* the warp's first key in the tile */
    const int warp_query = warp % S::sharing * (8 * S::n_tiles); /* its first query in a chunk, for S and dP */
    const int warp_d = warp % S::sharing * 64;                   /* its first column, of 64, of dK and dV */

    const KeyBlock here = key_block<S>(p);
    const int first_column = here.first_column, group = p.heads / p.kv_heads;
    const int kv_head = here.head / group; /* the K/V head, counted through the batch */
    const int keys = key_length(&p, t.key_lengths, kv_head / p.kv_heads);
    const size_t kv_offset = (size_t)kv_head * p.seqlen_k * D;

    /* A step is one query tile of one head. Under a causal mask, row first_column - (keys - seqlen_q) is the first to
     * see any of these keys. The block's heads follow each other: dK and dV are summed over all of them. */
    const int query_tiles = ceil_div(p.seqlen_q, Br);
    const int first_seeing = p.causal ? max(first_column - (keys - p.seqlen_q), 0) : 0;
    const int first_tile = min(first_seeing / Br, query_tiles);
    const int steps = first_column < keys ? (S::keeps_ds ? 1 : group) * (query_tiles - first_tile) : 0;

    auto load_q = [&](int head, int tile, int stage) {
        load_statistics_async(shared.statistics[stage], statistics, (size_t)head * padded_rows(&p) + tile * Br);
        load_tile_async<THREADS>(shared.q[stage], (const T *)t.q + (size_t)head * p.seqlen_q * D, tile * Br,
                                 p.seqlen_q);
    };
    auto load_d_o = [&](int head, int tile, int stage) {
        load_tile_async<THREADS>(shared.d_o[stage], (const T *)t.d_o + (size_t)head * p.seqlen_q * D, tile * Br,
                                 p.seqlen_q);
    };

    load_tile_async<THREADS>(shared.k, (const T *)t.k + kv_offset, first_column, keys);
    load_tile_async<THREADS>(shared.v, (const T *)t.v + kv_offset, first_column, keys);
    int head = here.head, tile = first_tile;
    if (steps > 0)
        load_q(head, tile, 0), load_d_o(head, tile, 0);

    float dk[2][8][4] = {}, dv[2][8][4] = {};
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int stage = step % 2, d_o_stage = S::paired ? 0 : stage, first_row = tile * Br;
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
        for (int first_query = warp_query; first_query < Br; first_query += S::chunk) {
            uint32_t p_a[S::n_tiles / 2][2][4], ds_a[S::n_tiles / 2][2][4];
            compute_p_and_ds<S>(p_a, ds_a, p, keys, shared, stage, first_column, warp_key, first_row, first_query);
            if (S::paired)
                store_operands(shared.p, p_a, warp_key, first_query);
            if (S::paired || S::keeps_ds)
                store_operands(shared.ds, ds_a, warp_key, first_query);
            if (S::paired)
                __syncthreads(); /* the other warp's P and dS are there */

            /* dV += P^T dO, dK += dS^T Q */
            accumulate<S>(dv, p_a, shared.p, warp_key, shared.d_o[d_o_stage], first_query, warp_d);
            if (S::paired) {
                __syncthreads(); /* every warp is done with dO, of which there is room for one tile only */
                if (step + 1 < steps)
                    load_d_o(next_head, next_tile, 0);
            }
            accumulate<S>(dk, ds_a, shared.ds, warp_key, shared.q[stage], first_query, warp_d);
        }
        finish_tile(head, first_row);
        head = next_head, tile = next_tile;
    }

    cp_async_wait<0>();
    const int first_key = first_column + warp_key;
    if (!S::keeps_ds || !sums.dk) {
        store_rows<D>((T *)t.dk + kv_offset + warp_d, first_key, p.seqlen_k, dk, p.scale);
        store_rows<D>((T *)t.dv + kv_offset + warp_d, first_key, p.seqlen_k, dv, 1);
    } else if (steps > 0) {
        const size_t offset = key_offset<S>((size_t)kv_head * padded_keys(&p) + first_column);
        add_piece(sums.dk + offset, dk);
        add_piece(sums.dv + offset, dv);
    }
}

#endif
