/* 04_fa2/split_q - FlashAttention-2, third change: warps own query rows, and exchange nothing.
 *
 * The idea. S = Q K^T can be split between warps along the keys or along the queries. loop_swap splits the keys: every
 * warp has a share of every row, so the maximum is exchanged at each tile, and at the end four partial O are added. Here
 * the queries are split: a warp owns its rows from the first score to the final O, and their maximum, sum and O never
 * leave its registers (Dao 2023, section 3.3).
 *
 *            keys 0-63                                Who owns what: a block of 4 warps owns 64 rows of queries, and each
 *            +--------+                               warp 16 of them, with all keys of a tile. mma takes 16 rows at once,
 *     warp 0 | 16 x 64|  tile 1   tile 2   ...        so the tile had to grow: with 32 rows two of the four warps would
 *     warp 1 | 16 x 64|                               have none.
 *     warp 2 | 16 x 64|
 *     warp 3 | 16 x 64|                               An accumulator of mma is a 16 x 8 piece of S or O. Lane 4r + c holds
 *            +--------+                               its columns 2c and 2c + 1 in row r and in row r + 8. So the four
 *                                                     lanes 4r .. 4r + 3 share a row, and two shuffles find its maximum.
 *
 * The rest is as in loop_swap: the grid, the loads ahead, the order of the tiles, e^x, the mask at every tile, and both
 * barriers of a step, which the loads of K and V need. The shared memory of the exchange is gone.
 *
 * Registers a lane: D / 2 for O, 32 for S. For 16 x 64 scores a warp rescales 16 x D numbers; in loop_swap it is 32 x D
 * numbers for 32 x 16 scores. But each warp reads the whole tile of K and V from shared memory, in loop_swap a quarter of
 * it. Shared memory: 24 KB (D = 64) or 48 KB (D = 128).
 *
 * Device memory: as for loop_swap, with query tiles of 64 rows and not 32, so half as many bytes of K and V. They bring 4
 * Br Bc D FLOPs for 2 Bc D e bytes: Br = 64 FLOPs a byte. No workspace.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant split_q --head-dim 128 --causal
 */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/stage.h"

constexpr int Br = 64; /* rows of a tile of S: queries */
constexpr int Bc = 64; /* columns of a tile of S: keys */
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16 / WARPS; /* 16-row pieces, as mma takes them, that a warp owns: one */

template <typename T, int D> struct SplitQShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
};

/* Block: (tile of queries, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) split_q_kernel(Problem p, Tensors t) {
    using Shared = SplitQShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    static_assert(sizeof(Shared) <= 64 * 1024, "what a block can have on sm_75");
    int batch = blockIdx.y / p.heads, head = blockIdx.y % p.heads;
    int first_row = blockIdx.x * Br;
    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));
    size_t head_row = (size_t)blockIdx.y * p.seqlen_q; /* this head's first row in O and LSE */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int warp_row = 16 * m_tiles * warp; /* the warp's first row in the tile */
    int keys = key_length(&p, t.key_lengths, batch);
    int columns = visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.k, k, 0, columns);

    /* O, m and l of the key tiles so far. Index [i][h]: row 16 i + 8 h + lane / 4 of the warp. m is that of the whole
     * row. O is the sum over all keys, and l over this lane's keys alone. */
    float o[m_tiles][D / 8][4] = {};
    float m[m_tiles][2], l[m_tiles][2];
    for (int i = 0; i < m_tiles; i++)
        for (int h = 0; h < 2; h++) {
            m[i][h] = -INFINITY;
            l[i][h] = 0;
        }

    for (int first_column = 0; first_column < columns; first_column += Bc) {
        cp_async_wait<0>();
        __syncthreads(); /* K is there, and every warp has read the V before: this tile's V may come */
        load_tile_async<THREADS>(shared.v, v, first_column, columns);

        /* S = scale Q K^T: this warp's rows, all keys of the tile */
        float s[m_tiles][Bc / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
                load_a_fragment(a[i], shared.q, warp_row + 16 * i, d);
#pragma unroll
            for (int n = 0; n < Bc / 8; n += 2) {
                uint32_t b[4];
                load_b_fragments(b, shared.k, 8 * n, d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(s[i][n], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(s[i][n + 1], a[i], b[2], b[3]);
                }
            }
        }

        /* the mask, and the maximum with this tile's keys, m' */
        float m_new[m_tiles][2];
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) { /* row g, then row g + 8 */
                int row = warp_row + 16 * i + 8 * h + lane / 4;
                int visible = visible_keys(&p, keys, first_row + row);
                float row_max = -INFINITY;
#pragma unroll
                for (int n = 0; n < Bc / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int column = first_column + 8 * n + 2 * (lane % 4) + j;
                        float &score = s[i][n][2 * h + j];
                        score = column < visible ? p.scale * score : -INFINITY;
                        row_max = fmaxf(row_max, score);
                    }
                m_new[i][h] = fmaxf(m[i][h], quad_max(row_max));
            }
        cp_async_wait<0>();
        __syncthreads(); /* V is there, and every warp has read K: the next K may come */
        if (first_column + Bc < columns)
            load_tile_async<THREADS>(shared.k, k, first_column + Bc, columns);

        /* the sums so far rescaled to m', and P = e^(S - m') */
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float alpha = __expf(m[i][h] - shift_of(m_new[i][h])), row_sum = 0;
                m[i][h] = m_new[i][h];
#pragma unroll
                for (int d = 0; d < D / 8; d++) {
                    o[i][d][2 * h] *= alpha;
                    o[i][d][2 * h + 1] *= alpha;
                }
#pragma unroll
                for (int n = 0; n < Bc / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float &score = s[i][n][2 * h + j];
                        score = __expf(score - shift_of(m[i][h]));
                        row_sum += score;
                    }
                l[i][h] = alpha * l[i][h] + row_sum;
            }

        /* O += P V: this warp's rows, all columns of O, all keys of the tile */
#pragma unroll
        for (int n = 0; n < Bc / 16; n++) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) /* rows g and g + 8 of the left eight keys, then of the right eight */
                    a[i][j] = pack_pair<T>(s[i][2 * n + j / 2][2 * (j % 2)], s[i][2 * n + j / 2][2 * (j % 2) + 1]);
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                load_b_fragments_trans(b, shared.v, n, 8 * d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(o[i][d], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(o[i][d + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q and K yet */

    /* l = the sum over the quad's lanes; O divided by l; LSE = m + ln l */
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = first_row + warp_row + 16 * i + 8 * h + lane / 4;
            float l_row = quad_sum(l[i][h]);
            if (row >= p.seqlen_q)
                continue;
            float inverse = l_row > 0 ? 1 / l_row : 0; /* a row without keys: O = 0 */
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                size_t element = (head_row + row) * D + 8 * d + 2 * (lane % 4);
                uint32_t pair = pack_pair<T>(inverse * o[i][d][2 * h], inverse * o[i][d][2 * h + 1]);
                *reinterpret_cast<uint32_t *>((T *)t.o + element) = pair;
            }
            if (lane % 4 == 0)
                t.lse[head_row + row] = shift_of(m[i][h]) + logf(l_row);
        }
}

extern "C" Launcher fa2_split_q;
extern "C" void fa2_split_q(const Problem *p, const Tensors *t, const Buffer *) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((split_q_kernel<T, D>), grid, THREADS, sizeof(SplitQShared<T, D>), *p, *t);
    }));
}
