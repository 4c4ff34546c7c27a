/* key_half.cuh - the half of the backward pass that two_pass and atomic have in common: dK and dV of a tile of keys.
 *
 * Who owns what. A block owns Bc keys of one key/value head. It walks over the queries that see any of these keys, Br at
 * a time. It computes S and dP transposed: rows are keys, columns are queries. So a warp owns rows of S^T, that is keys:
 * P^T and dS^T turn from accumulators into the left operands of dV = P^T dO and dK = dS^T Q without leaving its
 * registers, and dK and dV stay there until the end. With LargeTiles (chips with less shared memory get smaller
 * tiles, and fewer warps):
 *
 *     D = 64   4 warps, each owns 32 keys             D = 128   8 warps. dK and dV of 32 keys x 128 columns would fill 256
 *              S^T of 32 queries at a time                      registers a lane, so two warps share 32 keys. For S and dP
 *              dK, dV: 32 x 64, 128 registers                   each takes half of the queries; for dK and dV half of the
 *                                                               columns, and the other's P and dS through shared memory
 */
#ifndef FA_KEY_HALF_CUH
#define FA_KEY_HALF_CUH

#include "backward.cuh"

/* ---- the shape of a block ---- */

/* A warp computes S^T of 32 keys x 8 n_tiles queries. At D = 128 (paired) these are 64 queries with LargeTiles, so
 * that each fragment of K, once read, is multiplied by eight fragments of Q: such a kernel waits for reads of shared
 * memory more than for products. At D = 64 a warp takes 32 queries at a time. Registers a lane: dK and dV 128, S or dP
 * at most 64, P and dS as operands 4 n_tiles each. */
template <int D, int Br_, int Bc_> struct KeyShape {
    static constexpr int Br = Br_, Bc = Bc_;
    static constexpr bool paired = D == 128;
    static constexpr int sharing = paired ? 2 : 1; /* warps that share 32 keys */
    static constexpr int WARPS = Bc / 32 * sharing, THREADS = 32 * WARPS;
    static constexpr int chunk = paired ? Br : 32; /* queries at a time: a pair exchanges P and dS once a tile */
    static constexpr int n_tiles = chunk / 8 / sharing;
    static constexpr int blocks = paired ? 1 : 2; /* a multiprocessor */
};

/* The shapes, by what a block of `atomic` needs of shared memory at D = 64 and 128. The first that fits is launched. */
template <int D> using LargeTiles = KeyShape<D, D == 64 ? 64 : 128, 128>;             /* 82 KB, 226 KB */
template <int D> using MediumTiles = KeyShape<D, 64, 64>;                             /* 58 KB, 97 KB */
template <int D> using SmallTiles = KeyShape<D, D == 64 ? 64 : 32, D == 64 ? 64 : 32>; /* 58 KB, 45 KB */

/* keeps_ds: dS^T of all keys is stored in `ds` at every D, since atomic needs it there. Without it only pairs of warps
 * use `ds`. */
template <typename T, int D, typename S, bool keeps_ds_> struct KeyShared {
    static constexpr bool keeps_ds = keeps_ds_;
    Tile<T, S::Bc, D> k, v;
    Tile<T, S::Br, D> q[2], d_o[S::paired ? 1 : 2];
    Tile<T, S::paired || keeps_ds ? S::Bc : 8, S::Br> ds; /* dS^T: [key][query] */
    Tile<T, S::paired ? S::Bc : 8, S::Br> p;              /* P^T, used by pairs of warps only */
    StatisticsTile<S::Br> statistics[2];
};

/* Calls use(tiles) with the first of these shapes that fits: for the launch, and for what the formula is told. */
template <int D, bool keeps_ds, typename Use> void with_key_tiles(Use use) {
    if (fits(sizeof(KeyShared<__half, D, LargeTiles<D>, keeps_ds>)))
        use(LargeTiles<D>());
    else if (fits(sizeof(KeyShared<__half, D, MediumTiles<D>, keeps_ds>)))
        use(MediumTiles<D>());
    else if (fits(sizeof(KeyShared<__half, D, SmallTiles<D>, keeps_ds>)))
        use(SmallTiles<D>());
    else
        nothing_fits(keeps_ds ? "dQ, dK and dV" : "dK and dV", D);
}
template <bool keeps_ds> TileShape key_tile(const Problem *p) {
    TileShape tile = {};
    WITH_HEAD_DIM_64_128(p->head_dim, D,
                         with_key_tiles<D, keeps_ds>([&](auto tiles) { tile = {tiles.Br, tiles.Bc}; }));
    return tile;
}

template <typename S> int key_blocks(const Problem &p) { return ceil_div(p.seqlen_k, S::Bc) * p.batch * p.kv_heads; }

/* ---- P and dS of a warp ---- */

/* P^T and dS^T of 32 keys x 8 n_tiles queries, as left operands: [16 queries][m16 tile of keys]. The keys lie in tiles k
 * and v from warp_key on, the queries in tiles q and d_o from first_query on; first_column and first_row are the first
 * key and the first query of these tiles. */
template <typename S, typename T, int Bc, int Br, int D, int n_steps>
__device__ inline void compute_p_and_ds(uint32_t (&p_a)[n_steps][2][4], uint32_t (&ds_a)[n_steps][2][4], const Problem &p,
                                        int keys, Tile<T, Bc, D> &k, Tile<T, Bc, D> &v, int first_column, int warp_key,
                                        Tile<T, Br, D> &q, Tile<T, Br, D> &d_o, const StatisticsTile<Br> &statistics,
                                        int first_row, int first_query) {
    constexpr int n_tiles = 2 * n_steps;
    const int lane = threadIdx.x % 32;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    /* S^T = K Q^T. P^T = 2^(scale_log2 S^T - lse): 0 in rows that are not there or see no key, whose lse is +inf */
    float s[2][n_tiles][4] = {};
    multiply_transposed<D / 16>(s, k, warp_key, q, first_query);
#pragma unroll
    for (int n = 0; n < n_tiles; n++) {
        const float2 lse = load_pair(&statistics.lse[first_query + 8 * n + 2 * (lane % 4)]);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s[i][n][2 * h] = exp2_approx(s[i][n][2 * h] * scale_log2 - lse.x);
                s[i][n][2 * h + 1] = exp2_approx(s[i][n][2 * h + 1] * scale_log2 - lse.y);
            }
    }

    /* Mask, only in tiles that the diagonal or the end of the keys cuts */
    if (first_column + Bc > visible_keys(&p, keys, first_row)) {
        const int column = first_column + warp_key + lane / 4, row = first_row + first_query + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < n_tiles; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int visible = visible_keys(&p, keys, row + 8 * n + j) - column;
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (16 * i + 8 * h >= visible)
                            s[i][n][2 * h + j] = 0;
            }
    }

    /* P^T as left operands: the accumulators of 8 queries, n, are two quarters of operand n / 2, which has 16 queries
     * (the quarters are drawn in instructions.cuh) */
#pragma unroll
    for (int n = 0; n < n_tiles; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                p_a[n / 2][i][2 * (n % 2) + h] = pack_pair<T>(s[i][n][2 * h], s[i][n][2 * h + 1]);

    /* dP^T = V dO^T, 32 queries at a time; dS^T = P^T (dP^T - delta) */
    constexpr int width = n_tiles < 4 ? n_tiles : 4;
#pragma unroll
    for (int first = 0; first < n_tiles; first += width) {
        float dp[2][width][4] = {};
        multiply_transposed<4>(dp, v, warp_key, d_o, first_query + 8 * first);
#pragma unroll
        for (int offset = 0; offset < width; offset++) {
            const int n = first + offset;
            const float2 delta = load_pair(&statistics.delta[first_query + 8 * n + 2 * (lane % 4)]);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    /* at D = 128 dP needs the registers of S, and P comes back from its rounded form */
                    const float2 p_ij = S::paired ? unpack_pair<T>(p_a[n / 2][i][2 * (n % 2) + h])
                                                  : make_float2(s[i][n][2 * h], s[i][n][2 * h + 1]);
                    const float *dp_ij = &dp[i][offset][2 * h];
                    ds_a[n / 2][i][2 * (n % 2) + h] =
                        pack_pair<T>(p_ij.x * (dp_ij[0] - delta.x), p_ij.y * (dp_ij[1] - delta.y));
                }
        }
    }
}

/* Stores P^T or dS^T, held as left operands, into a tile [key][query] in shared memory, for other warps. */
template <typename T, int Bc, int Br, int n_steps>
__device__ inline void store_operands(Tile<T, Bc, Br> &tile, const uint32_t (&a)[n_steps][2][4], int warp_key,
                                      int first_query) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < n_steps; k++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                const int key = warp_key + 16 * i + 8 * (quarter % 2) + lane / 4;
                const int chunk = first_query / 8 + 2 * k + quarter / 2;
                *reinterpret_cast<uint32_t *>(tile.chunk(key, chunk) + 2 * (lane % 4)) = a[k][i][quarter];
            }
}

/* c += A B over the queries of a chunk, 16 at a time; A is P^T or dS^T and B is dO or Q. First the queries of which the
 * warp has computed A itself, in `own`; then, in a pair, those of the other warp, whose A is in `tile`. */
template <typename S, typename T, int Bc, int Br, int D, int n_steps, int d_tiles>
__device__ inline void accumulate(float (&c)[2][d_tiles][4], const uint32_t (&own)[n_steps][2][4], Tile<T, Bc, Br> &tile,
                                  int warp_key, Tile<T, Br, D> &b_tile, int chunk, int warp_query, int warp_d) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < S::chunk / 16; step++) {
        const int k = chunk / 16 + (warp_query / 16 + step) % (S::chunk / 16);
        if (step < n_steps) {
            multiply_step(c, own[step % n_steps], b_tile, k, warp_d, lane);
        } else {
            uint32_t other[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_a_fragment(other[i], tile, warp_key + 16 * i, k, lane);
            multiply_step(c, other, b_tile, k, warp_d, lane);
        }
    }
}

/* ---- the walk ---- */

/* Computes and writes dK and dV of the block's keys. `shared` is a KeyShared. After each query tile it calls
 * finish_tile(batch x head, first_row); with Shared::keeps_ds each warp has then stored dS^T of its keys in shared.ds. */
template <typename T, int D, typename S, typename Shared, typename FinishTile>
__device__ inline void key_half(const Problem &p, const Tensors &t, const RowStatistics &statistics, Shared &shared,
                                FinishTile finish_tile) {
    constexpr int Br = S::Br, Bc = S::Bc, THREADS = S::THREADS;
    const int warp = threadIdx.x / 32;
    const int warp_key = warp / S::sharing * 32;                 /* the warp's first key in the tile */
    const int warp_query = warp % S::sharing * (8 * S::n_tiles); /* its first query in a chunk, for S and dP */
    const int warp_d = warp % S::sharing * 64;                   /* its first column, of 64, of dK and dV */

    const int key_tiles = ceil_div(p.seqlen_k, Bc);
    const int batch = blockIdx.x / key_tiles / p.kv_heads, kv_head = blockIdx.x / key_tiles % p.kv_heads;
    const int first_column = blockIdx.x % key_tiles * Bc;
    const int keys = key_length(&p, t.key_lengths, batch);
    const size_t kv_offset = key_head_offset(&p, batch, kv_head);

    /* A step is one query tile of one head. Under a causal mask, row first_column - (keys - seqlen_q) is the first to see
     * any of these keys. The heads of the group follow each other: dK and dV are summed over all of them. */
    const int query_tiles = ceil_div(p.seqlen_q, Br), group = p.heads / p.kv_heads;
    const int first_seeing = p.causal ? max(first_column - (keys - p.seqlen_q), 0) : 0;
    const int first_tile = min(first_seeing / Br, query_tiles);
    const int steps = first_column < keys ? group * (query_tiles - first_tile) : 0;

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

    load_tile_async<THREADS>(shared.k, (const T *)t.k + kv_offset, first_column, keys);
    load_tile_async<THREADS>(shared.v, (const T *)t.v + kv_offset, first_column, keys);
    int head = kv_head * group, tile = first_tile;
    if (steps > 0) {
        load_q(head, tile, 0);
        load_d_o(head, tile, 0);
    }

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
        for (int chunk = 0; chunk < Br; chunk += S::chunk) {
            const int first_query = chunk + warp_query;
            uint32_t p_a[S::n_tiles / 2][2][4], ds_a[S::n_tiles / 2][2][4];
            compute_p_and_ds<S>(p_a, ds_a, p, keys, shared.k, shared.v, first_column, warp_key, shared.q[stage],
                                shared.d_o[d_o_stage], shared.statistics[stage], first_row, first_query);
            if (S::paired)
                store_operands(shared.p, p_a, warp_key, first_query);
            if (S::paired || Shared::keeps_ds)
                store_operands(shared.ds, ds_a, warp_key, first_query);
            if (S::paired)
                __syncthreads(); /* the other warp's P and dS are there */

            /* dV += P^T dO, dK += dS^T Q */
            accumulate<S>(dv, p_a, shared.p, warp_key, shared.d_o[d_o_stage], chunk, warp_query, warp_d);
            if (S::paired) {
                __syncthreads(); /* every warp is done with dO, of which there is room for one tile only */
                if (step + 1 < steps)
                    load_d_o(next_head, next_tile, 0);
            }
            accumulate<S>(dk, ds_a, shared.ds, warp_key, shared.q[stage], chunk, warp_query, warp_d);
        }
        finish_tile(batch * p.heads + head, first_row);
        head = next_head, tile = next_tile;
    }

    cp_async_wait<0>();
    const int first_key = first_column + warp_key;
    store_gradient<T, D>((T *)t.dk + kv_offset, first_key, p.seqlen_k, warp_d, dk, p.scale);
    store_gradient<T, D>((T *)t.dv + kv_offset, first_key, p.seqlen_k, warp_d, dv, 1);
}

#endif
