/* 02_online_softmax/online - the row maximum and sum are found tile by tile, so S is never stored.
 *
 * fma.cu has the same on one screen, in plain CUDA. Here the products are mma's, as in 01_tiled/mma, and each pass is a
 * kernel of its own: the first needs neither shared memory for V nor registers for O, and twice as many of its blocks
 * run at a time.
 *
 * The idea. Softmax needs m = max_j S_j and l = sum_j e^(S_j - m) of a whole row, so 01_tiled stored the row. But let
 * some columns have (m, l) and some others (m~, l~). Together they have the maximum m' = max(m, m~), and since
 * e^(S_j - m') = e^(S_j - m) e^(m - m'), each sum moves to the new maximum by one factor for all its terms:
 *
 *     m' = max(m, m~)         l' = e^(m - m') l + e^(m~ - m') l~         (Milakov and Gimelshein 2018, section 3.1)
 *
 * So two numbers per row stand for all columns seen so far. The empty set is (-inf, 0). The rule merges any two sets of
 * columns: here first a lane's tiles, one after the other, then the four lanes that share a row.
 *
 *     online_statistics    walks over the key tiles with (m, l) and writes LSE = m + ln l, which stands for both
 *     online_output        computes the same tiles of S again, P = e^(S - LSE), and O += P V: nothing is ever rescaled
 *
 * What it saves and costs, for each (batch, head) with N queries and N keys: S and P are not kept, 6 N^2 bytes, nor
 * moved, 20 N^2 (S written once and read three times, P written and read). Memory is the tensors alone, O(N). But Q K^T
 * is computed twice: 6 N^2 D FLOPs instead of 4 N^2 D.
 *
 * Who owns what: as in 01_tiled/mma, a block of 4 warps owns 64 rows, warp w the rows 16 w .. 16 w + 15. But it now
 * walks over all key tiles of its rows. A lane holds parts of two rows, g = lane / 4 and g + 8, hence two (m, l):
 *
 *                    key tile 0   key tile 1   ...        registers per lane: S 32, then O 32 (D = 64) or 64 (D = 128)
 *     warp 0, row 0  -------------------------> m, l      shared memory: Q and K, 16 or 32 KB, for the statistics;
 *     ...                                                                Q, K and V, 24 or 48 KB, for the output
 *     warp 3, row 63 -------------------------> m, l
 *
 * P is an accumulator of the first product and the left operand of the second. Both fragments give a lane the same
 * elements, so P goes from one to the other in registers (pack_pair), and shared memory holds no tile of P any more.
 *
 * The tile primitives (add_abt, each, mask, each_row, add_ab, store_rows) are in common/gpu/warp.cuh.
 *
 * The mask is one number per row: columns from `visible` on do not count. `columns` is the largest of them in the
 * block, so that tiles no row sees are not visited at all.
 *
 * Device memory. Bytes as in fma.cu, with query tiles of 64 rows, not 32: K and V are read half as
 * often. Because each pass is a kernel, Q is loaded twice, and the second kernel reads LSE, which the
 * four lanes that share a row each load.
 *
 *     make 02_online_softmax && ./02_online_softmax/02_online_softmax --head-dim 128 --causal
 */
#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

constexpr int Br = 64, Bc = 64; /* a tile of S: rows are queries, columns are keys */
constexpr int WARPS = 4, THREADS = 32 * WARPS;
static_assert(Br == 16 * WARPS, "a warp owns the 16 rows of one mma");

/* P = e^(S - LSE) is 1024 times as large when it is multiplied by V, and O is divided by 1024, as in 00_naive: among N
 * keys P is about 1 / N, where fp16 has fewer digits when N is large. */
constexpr float P_SCALE = 1024, LN_P_SCALE = 6.9314718f;

/* Maximum and sum of e^(S - m) over a set of columns, and the merge rule. */
struct Statistics {
    float m, l;
};
__device__ inline Statistics merge(Statistics a, Statistics b) {
    float m = fmaxf(a.m, b.m), shift = shift_of(m);
    return Statistics{m, __expf(a.m - shift) * a.l + __expf(b.m - shift) * b.l};
}

/* S = scale Q K^T, masked: this warp's 16 rows of the tile that begins at first_row and first_column. */
template <typename T, int D>
__device__ inline void tile_scores(float (&s)[1][Bc / 8][4], Tile<T, Br, D> &q, Tile<T, Bc, D> &k, const Problem &p,
                                   int keys, int first_row, int first_column) {
    const int warp_row = threadIdx.x / 32 * 16;
    add_abt<T>(s, q, warp_row, k, 0);
    each(s, [&](float &score, int) { score *= p.scale; });
    mask(s, p, keys, first_row + warp_row, first_column);
}

template <typename T, int D> struct StatisticsShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k;
};

/* LSE. Block: (tile of queries, batch x head); it walks over the key tiles. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) online_statistics(Problem p, Tensors t) {
    SHARED_MEMORY(shared, StatisticsShared<T, D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile_async<THREADS>(shared.q, head.q, first_row, p.seqlen_q);
    Statistics row_statistics[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    for (int first_column = 0; first_column < columns; first_column += Bc) {
        load_tile_async<THREADS>(shared.k, head.k, first_column, columns);
        cp_async_wait<0>();
        __syncthreads(); /* the tiles are there */
        float s[1][Bc / 8][4] = {};
        tile_scores(s, shared.q, shared.k, p, head.keys, first_row, first_column);

        /* m~ and l~ of this lane's 16 columns of the tile, merged into what it has of the row so far */
        UNROLL for (int r = 0; r < 2; r++) {
            Statistics tile = {-INFINITY, 0};
            each_row(s, r, [&](float score) { tile.m = fmaxf(tile.m, score); });
            each_row(s, r, [&](float score) { tile.l += __expf(score - shift_of(tile.m)); });
            row_statistics[r] = merge(row_statistics[r], tile);
        }
        __syncthreads(); /* and K is done with, before the next tile overwrites it */
    }
    cp_async_wait<0>(); /* Q was not waited for if there was no key tile */

    UNROLL for (int r = 0; r < 2; r++) {
        Statistics whole = row_statistics[r];
        for (int offset = 1; offset < 4; offset *= 2) { /* the four lanes of the quad share the row */
            const float m = __shfl_xor_sync(WHOLE_WARP, whole.m, offset),
                        l = __shfl_xor_sync(WHOLE_WARP, whole.l, offset);
            whole = merge(whole, {m, l});
        }
        int row = first_row + warp_row + row_of(r);
        if (lane % 4 == 0 && row < p.seqlen_q)
            head.lse[row] = shift_of(whole.m) + logf(whole.l);
    }
}

template <typename T, int D> struct OutputShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
};

/* O = e^(S - LSE) V. Block: (tile of queries, batch x head); it walks over the key tiles. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) online_output(Problem p, Tensors t) {
    SHARED_MEMORY(shared, OutputShared<T, D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, warp_row = threadIdx.x / 32 * 16;
    int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1);
    float shift[2] = {};
    for (int r = 0; r < 2; r++)
        if (first_row + warp_row + row_of(r) < p.seqlen_q)
            shift[r] = shift_of(head.lse[first_row + warp_row + row_of(r)]) - LN_P_SCALE;

    load_tile_async<THREADS>(shared.q, head.q, first_row, p.seqlen_q);
    float o[1][D / 8][4] = {};
    for (int first_column = 0; first_column < columns; first_column += Bc) {
        load_tile_async<THREADS>(shared.k, head.k, first_column, columns);
        load_tile_async<THREADS>(shared.v, head.v, first_column, columns);
        cp_async_wait<0>();
        __syncthreads(); /* the tiles are there */
        float s[1][Bc / 8][4] = {};
        tile_scores(s, shared.q, shared.k, p, head.keys, first_row, first_column);
        add_ab(o, s, shared.v, 0, [&](float score, int r) { return __expf(score - shift[r]); }); /* O += P V */
        __syncthreads(); /* and done with, before the next overwrite them */
    }
    cp_async_wait<0>();
    store_rows<D>(head.o, first_row + warp_row, p.seqlen_q, o, 1 / P_SCALE);
}

LAUNCHER(online_forward) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((online_statistics<T, D>), grid, THREADS, sizeof(StatisticsShared<T, D>), *p, *t);
        LAUNCH((online_output<T, D>), grid, THREADS, sizeof(OutputShared<T, D>), *p, *t);
    }));
}

PREDICTOR(online_traffic) {
    int count = queries_outer_traffic(p, key_lengths, "online_output", Br, ONLY_SEEN, traffic);
    traffic[count - 1] = {"online_output", "LSE", 4 * row_bytes(p), 0}; /* by the four lanes that share a row */
    traffic[count++] = {"online_statistics", "Q", query_bytes(p), 0};
    traffic[count++] = {"online_statistics", "K", traffic[1].read, 0};
    traffic[count++] = {"online_statistics", "LSE", 0, row_bytes(p)};
    return count;
}
