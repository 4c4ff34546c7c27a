/* fa3_backward.cuh - what the kernels of 09_fa3_backward share: the order of the key tiles, P and dS of a tile in
 * registers, the accumulators in device memory, and the kernels before and after. This is 05_fa2_backward's arithmetic
 * on the registers of a warpgroup. Nothing here is asynchronous.
 *
 * The gradients, with dP = dO V^T and delta = rowsum(dO o O) (notes/05_fa2_backward.md derives them):
 *
 *     P = e^(scale S - LSE)     dS = P (dP - delta)     dV = P^T dO     dK = scale dS^T Q     dQ = scale dS K
 *
 * S and dP are computed transposed. Rows are keys: then P^T and dS^T, which dV and dK have as left operands, are in the
 * registers that they must be in.
 */
#ifndef FA_FA3_BACKWARD_CUH
#define FA_FA3_BACKWARD_CUH

#include "../common/gpu/prepare_rows.cuh"
#include "../common/gpu/warpgroup.cuh"
#include "key_tiles.h"

/* ---- the order of the key tiles ---- */

/* Bc keys, and the queries of one head that see any of them. */
struct KeyTile {
    int batch_head, kv_head;  /* the head's number in Q, and that of its K/V head in K and V, through the batch */
    int first_key, keys;    /* the tile's first key; how many keys the batch entry has */
    int first_query, steps; /* the first query of the first query tile; how many query tiles there are */
    __device__ size_t padded_row(const Problem &p, int query) const {
        return (size_t)batch_head * padded_rows(&p) + query;
    }
};

/* Piece number i in the order of work (key_tiles.h). Within a set of heads the first key tile of every head comes
 * first, because under a causal mask the most queries see it. */
__device__ inline KeyTile key_tile(const Problem &p, const int *key_lengths, const KeyTileOrder &order, int i, int Br,
                                   int Bc) {
    const int behind = max(i - order.whole, 0), cuts = i < order.whole ? 1 : order.cuts, piece = behind % order.cuts;
    const int tile = i - behind + behind / order.cuts;
    const int key_tiles = ceil_div(p.seqlen_k, Bc), first_head = tile / (order.together * key_tiles) * order.together;
    const int heads = min(order.together, p.batch * p.heads - first_head), turn = tile - first_head * key_tiles;
    const int batch_head = first_head + turn % heads, first_key = turn / heads * Bc;
    const int keys = key_length(&p, key_lengths, batch_head / p.heads);

    /* Under a causal mask row first_key - (keys - seqlen_q) is the first that sees any of these keys. */
    const int first_seeing = p.causal ? max(first_key - (keys - p.seqlen_q), 0) / Br : 0; /* the query tile */
    const int query_tiles = first_key < keys ? max(ceil_div(p.seqlen_q, Br) - first_seeing, 0) : 0;
    const int from = piece * query_tiles / cuts, to = (piece + 1) * query_tiles / cuts;
    return {batch_head, batch_head / (p.heads / p.kv_heads), first_key, keys, (first_seeing + from) * Br, to - from};
}

/* What TMA loads: Br rows of Q or dO, Bc rows of K or V. (static: the forward pass, 08's,
 * has a function of this name.) */
struct TensorMaps {
    TensorMap q, d_o, k, v;
};
template <typename T, int D> static TensorMaps tensor_maps(const Problem &p, const Tensors &t, int Br, int Bc) {
    const auto queries = [&](const void *rows) {
        return tensor_map<T, 128>(rows, D, p.seqlen_q, p.batch * p.heads, Br);
    };
    const auto keys = [&](const void *rows) {
        return tensor_map<T, 128>(rows, D, p.seqlen_k, p.batch * p.kv_heads, Bc);
    };
    return {queries(t.q), queries(t.d_o), keys(t.k), keys(t.v)};
}

/* ---- P and dS ---- */

/* LSE and delta of the queries of a tile, in shared memory. */
template <int Br> struct Statistics { alignas(128) float lse[Br], delta[Br]; };

/* Requests a tile of Q and LSE of its rows, or of dO and delta: `of_rows`, which lie at `from`.
 * To be called by one thread. */
template <typename Rows, int Br>
__device__ inline void load_rows(Rows &rows, float (&of_rows)[Br], const TensorMap &map, const float *from,
                                 const Problem &p, const KeyTile &here, int query, Mbarrier *full) {
    mbarrier_arrive_expect(full, rows.bytes + sizeof of_rows);
    rows.load(map, query, 0, here.batch_head, full);
    bulk_load(of_rows, from + here.padded_row(p, query), sizeof of_rows, full);
}

/* Scores of S^T that a query does not see become -inf. Its first row is key `key`, its first column query `query`. */
template <int N>
__device__ inline void mask_transposed(float (&s)[1][N][4], const Problem &p, int keys, int key, int query) {
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int j = 0; j < 2; j++) {
            const int visible = visible_keys(&p, keys, query + 8 * n + 2 * (threadIdx.x % 4) + j) - key;
            UNROLL for (int r = 0; r < 2; r++)
                if (row_of(r) >= visible)
                    s[0][n][2 * r + j] = -INFINITY;
        }
}

/* S^T becomes P^T = 2^(scale_log2 S^T - lse): 0 in columns whose query is not there or sees
 * no key, and has lse = +inf. */
template <int N> __device__ inline void probabilities(float (&s)[1][N][4], const float *lse, float scale_log2) {
    UNROLL for (int n = 0; n < N; n++) {
        const float2 shift = *reinterpret_cast<const float2 *>(&lse[8 * n + 2 * (threadIdx.x % 4)]);
        UNROLL for (int r = 0; r < 2; r++) {
            s[0][n][2 * r] = exp2_approx(s[0][n][2 * r] * scale_log2 - shift.x);
            s[0][n][2 * r + 1] = exp2_approx(s[0][n][2 * r + 1] * scale_log2 - shift.y);
        }
    }
}

/* dP^T becomes dS^T = P^T (dP^T - delta), with P^T as it was rounded for dV: so its floats need not be kept. */
template <typename T, int N>
__device__ inline void score_gradients(float (&dp)[1][N][4], const uint32_t (&p_a)[N / 2][4], const float *delta) {
    UNROLL for (int n = 0; n < N; n++) {
        const float2 shift = *reinterpret_cast<const float2 *>(&delta[8 * n + 2 * (threadIdx.x % 4)]);
        UNROLL for (int r = 0; r < 2; r++) {
            const float2 p = unpack_pair<T>(p_a[n / 2][2 * (n % 2) + r]); /* to_operand has put it there */
            dp[0][n][2 * r] = p.x * (dp[0][n][2 * r] - shift.x);
            dp[0][n][2 * r + 1] = p.y * (dp[0][n][2 * r + 1] - shift.y);
        }
    }
}

/* ---- the accumulators: dQ, and dK and dV of heads that share K and V ---- */

/* fp32 sums in device memory, to which several blocks add. dQ is a sum over key tiles. If several query heads share a
 * K/V head, dK and dV are sums over these heads; else one block has the whole sum, and dk and dv are NULL. */
struct Accumulators {
    float *dq, *dk, *dv;
};

/* An accumulator is not stored row by row, but as warpgroups hold it: 64 rows behind each other, of these the
 * 16 of each warp, of these 8 columns at a time, and of these 16 x 8 floats four of each lane: [64
 * rows][warp][8 columns][lane][4]. So what a warp adds is one piece of memory, and a lane adds 16 bytes at
 * once; the last kernels put rows together. This is where this thread's four floats of the n-th 8 columns are,
 * in the 64 rows from padded_row on. */
__device__ inline size_t accumulator_offset(size_t padded_row, int head_dim, int n) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    return padded_row * head_dim + ((warp * (head_dim / 8) + n) * 32 + lane) * 4;
}

/* Adds the warp's part of N x 8 columns, the first of which are at `to`. */
template <int N> __device__ inline void add_to(float *to, const float (&x)[1][N][4]) {
    UNROLL for (int n = 0; n < N; n++)
        atomic_add_4(to + n * 128, make_float4(x[0][n][0], x[0][n][1], x[0][n][2], x[0][n][3]));
}

/* The end of a piece of work: dK and dV of the warpgroup's 64 keys from first_key on are written, or added as the
 * block's addition of dK and dV number nth: by in_turn(KEYS, nth, [&] { ... }). */
enum Sum { QUERIES, KEYS, SUMS }; /* what is added: dQ; dK and dV */
struct AtOnce {
    template <typename Add> __device__ void operator()(Sum, int, Add add) const { add(); }
};
template <typename T, int D, typename InTurn = AtOnce>
__device__ inline void finish_keys(const Problem &p, const Tensors &t, const Accumulators &sums, const KeyTile &here,
                                   int first_key, const float (&dk)[1][D / 8][4], const float (&dv)[1][D / 8][4],
                                   int nth = 0, InTurn in_turn = {}) {
    if (sums.dk) {
        const size_t offset = accumulator_offset((size_t)here.kv_head * padded_keys(&p) + first_key, D, 0);
        if (here.steps > 0)
            in_turn(KEYS, nth, [&] { add_to(sums.dk + offset, dk), add_to(sums.dv + offset, dv); });
    } else {
        const size_t first = (size_t)here.kv_head * p.seqlen_k * D;
        const int key = first_key + threadIdx.x / 32 % 4 * 16;
        store_rows<D>((T *)t.dk + first, key, p.seqlen_k, dk, p.scale);
        store_rows<D>((T *)t.dv + first, key, p.seqlen_k, dv, 1);
    }
}

/* 64 rows of an accumulator, times `factor`, in the problem's dtype and order: rows padded_row .. of all, of which
 * `exist` of `padded` in each head do. */
template <typename T, int D>
__device__ inline void convert_rows(void *to, float *sums, size_t padded_row, int exist, int padded, float factor,
                                    bool clear) {
    float x[1][D / 8][4];
    UNROLL for (int n = 0; n < D / 8; n++) {
        const float4 sum = load_4(sums + accumulator_offset(padded_row, D, n));
        x[0][n][0] = sum.x, x[0][n][1] = sum.y, x[0][n][2] = sum.z, x[0][n][3] = sum.w;
    }
    if (clear) /* after all loads: a store after each is slower */
        UNROLL for (int n = 0; n < D / 8; n++)
            store_4(sums + accumulator_offset(padded_row, D, n), float4{});
    const int row = padded_row % padded + threadIdx.x / 32 * 16;
    store_rows<D>((T *)to + padded_row / padded * exist * D, row, exist, x, factor);
}

/* dQ = scale x accumulator. A block takes 64 rows. */
template <typename T, int D>
__global__ void __launch_bounds__(128) convert_dq(Problem p, Tensors t, float *dq_accumulator) {
    convert_rows<T, D>(t.dq, dq_accumulator, (size_t)blockIdx.x * 64, p.seqlen_q, padded_rows(&p), p.scale, false);
}

/* dK = scale x accumulator (blocks with y = 0) and dV (y = 1). Leaves zeros there for the next launch. */
template <typename T, int D>
__global__ void __launch_bounds__(128) convert_keys(Problem p, Tensors t, Accumulators sums) {
    const bool is_dk = blockIdx.y == 0;
    convert_rows<T, D>(is_dk ? t.dk : t.dv, is_dk ? sums.dk : sums.dv, (size_t)blockIdx.x * 64, p.seqlen_k,
                       padded_keys(&p), is_dk ? p.scale : 1, true);
}

/* What a kernel has in the workspace of its own, behind the statistics and the accumulators, which all kernels have. */
inline const Buffer *own_workspace(const Problem *p, const Buffer *workspace) {
    return workspace + (heads_share_keys(p) ? 5 : 3);
}

/* The kernels: launch(statistics, accumulators) launches the one between the others. If not all steps are wanted, dK
 * and dV are sums in any case. */
template <typename T, int D, typename Launch>
void launch_backward(const Problem &p, const Tensors &t, const Buffer *workspace, Launch launch_main,
                     int steps = ALL_STEPS) {
    Accumulators sums = {(float *)workspace[2].pointer, nullptr, nullptr};
    if (heads_share_keys(&p) || steps != ALL_STEPS)
        sums.dk = (float *)workspace[3].pointer, sums.dv = (float *)workspace[4].pointer;
    if (steps & PREPARE_ROWS)
        launch_prepare_rows<T, D>(p, t, workspace, sums.dq);
    if (steps & ADD_GRADIENTS)
        launch_main(statistics_in(workspace), sums);
    if (steps & WRITE_DQ)
        LAUNCH((convert_dq<T, D>), all_padded_rows(&p) / 64, 128, 0, p, t, sums.dq);
    if (sums.dk && steps & WRITE_KEYS)
        LAUNCH((convert_keys<T, D>), dim3(all_padded_keys(&p) / 64, 2), 128, 0, p, t, sums);
}

#endif
