/* 02_online_softmax/online - the row maximum and sum are found tile by tile, so S is never stored.
 *
 * fma.cu has the same on one screen, in plain CUDA. Here the products are mma's, as in 01_tiled/mma, and each pass is a
 * kernel of its own: the first needs neither shared memory for V nor registers for O, and twice as many of its blocks run
 * at a time.
 *
 * The idea. Softmax needs m = max_j S_j and l = sum_j e^(S_j - m) of a whole row, so 01_tiled stored the row. But let some
 * columns have (m, l) and some others (m~, l~). Together they have the maximum m' = max(m, m~), and since
 * e^(S_j - m') = e^(S_j - m) e^(m - m'), each sum moves to the new maximum by one factor for all its terms:
 *
 *     m' = max(m, m~)          l' = e^(m - m') l + e^(m~ - m') l~               (Milakov and Gimelshein 2018, section 3.1)
 *
 * So two numbers a row stand for all columns seen so far. The empty set is (-inf, 0). The rule merges any two sets of
 * columns: here first a lane's tiles, one after the other, then the four lanes that share a row.
 *
 *     online_statistics    walks over the key tiles with (m, l) and writes LSE = m + ln l: the whole softmax in one number
 *     online_output        computes the same tiles of S again, P = e^(S - LSE), and O += P V: nothing is ever rescaled
 *
 * What it saves and costs, for each (batch, head) with N queries and N keys: S and P are not kept, 6 N^2 bytes, nor moved,
 * 20 N^2 (S written once and read three times, P written and read). Memory is the tensors alone, O(N). But Q K^T is
 * computed twice: 6 N^2 D FLOPs instead of 4 N^2 D.
 *
 * Who owns what: as in 01_tiled/mma, a block of 4 warps owns 64 rows, warp w the rows 16 w .. 16 w + 15. But it now walks
 * over all key tiles of its rows. A lane holds parts of two rows, g = lane / 4 and g + 8, hence two (m, l):
 *
 *                    key tile 0   key tile 1   ...              registers a lane: S 32, then O 32 (D = 64) or 64 (D = 128)
 *     warp 0, row 0  -------------------------> m, l            shared memory: Q and K, 16 or 32 KB, for the statistics;
 *     ...                                                                      Q, K and V, 24 or 48 KB, for the output
 *     warp 3, row 63 -------------------------> m, l
 *
 * P is an accumulator of the first product and the left operand of the second. Both fragments give a lane the same elements,
 * so P goes from one to the other in registers (pack_pair), and shared memory holds no tile of P any more.
 *
 * The mask is one number a row: columns from `visible` on do not count. `columns` is the largest of them in the block, so
 * that tiles no row sees are not visited at all.
 *
 * Device memory, bytes a (batch, head), e = 2 bytes an element, sums over query tiles of 64 rows with their `columns`:
 *
 *                        full, tile multiples          in general
 *     statistics   Q     Sq D e                        the same             LSE written   4 Sq
 *                  K     Sq/64 Sk D e                  sum columns D e
 *     output       Q     Sq D e                        the same             LSE read      4 Sq, by four lanes each
 *                  K, V  Sq/64 Sk D e each             sum columns D e      O written     Sq D e
 *
 *     make 02_online_softmax && ./02_online_softmax/02_online_softmax --head-dim 128 --causal
 */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/stage.h"

constexpr int Br = 64; /* rows of a tile of S: queries */
constexpr int Bc = 64; /* columns of a tile of S: keys */
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
static_assert(Br == 16 * WARPS, "a warp owns the 16 rows of one mma");

/* P = e^(S - LSE) is 1024 times as large when it is multiplied by V, and O is divided by 1024, as in 00_naive: among N keys P
 * is about 1 / N, where fp16 has fewer digits when N is large. */
constexpr float P_SCALE = 1024, LN_P_SCALE = 6.9314718f;

/* Maximum and sum of e^(S - m) over a set of columns, and the merge rule. */
struct Statistics {
    float m, l;
};
__device__ inline Statistics merge(Statistics a, Statistics b) {
    float m = fmaxf(a.m, b.m), shift = shift_of(m);
    return Statistics{m, __expf(a.m - shift) * a.l + __expf(b.m - shift) * b.l};
}

/* S = scale Q K^T, masked: this warp's 16 rows of the tile that begins at first_column. visible: how many
 * keys the lane's two rows, g and g + 8, see. */
template <typename T, int D>
__device__ inline void tile_scores(float (&s)[Bc / 8][4], Tile<T, Br, D> &q, Tile<T, Bc, D> &k, float scale,
                                   int first_column, const int (&visible)[2]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a[4];
        load_a_fragment(a, q, 16 * warp, d);
#pragma unroll
        for (int n = 0; n < Bc / 16; n++) {
            uint32_t b[4];
            load_b_fragments(b, k, 16 * n, d);
            mma_m16n8k16<T>(s[2 * n], a, b[0], b[1]);
            mma_m16n8k16<T>(s[2 * n + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < Bc / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = first_column + 8 * n + 2 * (lane % 4) + i % 2;
            s[n][i] = column < visible[i / 2] ? scale * s[n][i] : -INFINITY;
        }
}

template <typename T, int D> struct StatisticsShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k;
};

/* LSE. Block: (tile of queries, batch x head); it walks over the key tiles. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) online_statistics(Problem p, Tensors t) {
    using Shared = StatisticsShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    int batch = blockIdx.y / p.heads, head = blockIdx.y % p.heads;
    int first_row = blockIdx.x * Br;
    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    int keys = key_length(&p, t.key_lengths, batch), row = first_row + 16 * warp + lane / 4;
    int visible[2] = {visible_keys(&p, keys, row), visible_keys(&p, keys, row + 8)};
    int columns = visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);
    Statistics row_statistics[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    for (int first_column = 0; first_column < columns; first_column += Bc) {
        load_tile_async<THREADS>(shared.k, k, first_column, columns);
        cp_async_wait<0>();
        __syncthreads(); /* the tiles are there */
        float s[Bc / 8][4] = {};
        tile_scores(s, shared.q, shared.k, p.scale, first_column, visible);

        /* m~ and l~ of this lane's 16 columns of the tile, merged into what it has of the row so far */
#pragma unroll
        for (int h = 0; h < 2; h++) { /* row g, then row g + 8 */
            Statistics tile = {-INFINITY, 0};
#pragma unroll
            for (int n = 0; n < Bc / 8; n++)
                tile.m = fmaxf(tile.m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
#pragma unroll
            for (int n = 0; n < Bc / 8; n++)
                tile.l += __expf(s[n][2 * h] - shift_of(tile.m)) + __expf(s[n][2 * h + 1] - shift_of(tile.m));
            row_statistics[h] = merge(row_statistics[h], tile);
        }
        __syncthreads(); /* and K is done with, before the next tile overwrites it */
    }
    cp_async_wait<0>(); /* Q was not waited for if there was no key tile */

#pragma unroll
    for (int h = 0; h < 2; h++) {
        Statistics whole = row_statistics[h];
        for (int offset = 1; offset < 4; offset *= 2) { /* the four lanes of the quad share the row */
            Statistics other = {__shfl_xor_sync(WHOLE_WARP, whole.m, offset), __shfl_xor_sync(WHOLE_WARP, whole.l, offset)};
            whole = merge(whole, other);
        }
        if (lane % 4 == 0 && row + 8 * h < p.seqlen_q)
            t.lse[(size_t)blockIdx.y * p.seqlen_q + row + 8 * h] = shift_of(whole.m) + logf(whole.l);
    }
}

template <typename T, int D> struct OutputShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
};

/* O = e^(S - LSE) V. Block: (tile of queries, batch x head); it walks over the key tiles. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) online_output(Problem p, Tensors t) {
    using Shared = OutputShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    int batch = blockIdx.y / p.heads, head = blockIdx.y % p.heads;
    int first_row = blockIdx.x * Br;
    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    int keys = key_length(&p, t.key_lengths, batch), row = first_row + 16 * warp + lane / 4;
    int visible[2] = {visible_keys(&p, keys, row), visible_keys(&p, keys, row + 8)};
    int columns = visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1);
    float shift[2] = {};
    for (int h = 0; h < 2; h++)
        if (row + 8 * h < p.seqlen_q)
            shift[h] = shift_of(t.lse[(size_t)blockIdx.y * p.seqlen_q + row + 8 * h]) - LN_P_SCALE;

    load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);
    float o[D / 8][4] = {};
    for (int first_column = 0; first_column < columns; first_column += Bc) {
        load_tile_async<THREADS>(shared.k, k, first_column, columns);
        load_tile_async<THREADS>(shared.v, v, first_column, columns);
        cp_async_wait<0>();
        __syncthreads(); /* the tiles are there */
        float s[Bc / 8][4] = {};
        tile_scores(s, shared.q, shared.k, p.scale, first_column, visible);

#pragma unroll
        for (int key = 0; key < Bc / 16; key++) {
            uint32_t a[4]; /* P, 16 rows x 16 keys: rows g and g + 8 of the left eight keys, then of the right eight */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = &s[2 * key + i / 2][2 * (i % 2)];
                a[i] = pack_pair<T>(__expf(pair[0] - shift[i % 2]), __expf(pair[1] - shift[i % 2]));
            }
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t b[4];
                load_b_fragments_trans(b, shared.v, key, 16 * d);
                mma_m16n8k16<T>(o[2 * d], a, b[0], b[1]);
                mma_m16n8k16<T>(o[2 * d + 1], a, b[2], b[3]);
            }
        }
        __syncthreads(); /* and done with, before the next overwrite them */
    }
    cp_async_wait<0>();

    T *output = (T *)t.o + query_head_offset(&p, batch, head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= p.seqlen_q)
            continue;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            uint32_t pair = pack_pair<T>(o[d][2 * h] / P_SCALE, o[d][2 * h + 1] / P_SCALE);
            *reinterpret_cast<uint32_t *>(&output[(size_t)(row + 8 * h) * D + 8 * d + 2 * (lane % 4)]) = pair;
        }
    }
}

extern "C" Launcher online_forward;
extern "C" void online_forward(const Problem *p, const Tensors *t, const Buffer *) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((online_statistics<T, D>), grid, THREADS, sizeof(StatisticsShared<T, D>), *p, *t);
        LAUNCH((online_output<T, D>), grid, THREADS, sizeof(OutputShared<T, D>), *p, *t);
    }));
}
