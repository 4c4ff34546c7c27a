/* 03_fa1/fma - FlashAttention-1 (Dao et al. 2022, Algorithm 1) in plain CUDA: one pass, O corrected at every key tile.
 *
 * The idea. 02_online_softmax had to know LSE before it could multiply by V, and paid Q K^T twice. But O can start with
 * the statistics of the keys seen so far and be corrected later, exactly as l is. Let O = P V / l over the columns seen
 * so far. A new tile has its own (m~, l~) and P~ = e^(S - m~); together they have
 *
 *     m' = max(m, m~)     alpha = e^(m - m')     beta = e^(m~ - m')
 *     l' = alpha l + beta l~                     O' = (alpha l O + beta P~ V) / l'
 *
 * One pass, 4 N^2 D FLOPs, and O is a proper softmax average after every step.
 *
 * The loops, as published: a block owns a head. Its outer loop loads a tile of K and V into shared memory, and its
 * inner loop visits all queries: lines 62 and 65 of flash_forward in notes/flash.c have changed places. So O, l and m
 * cannot stay on the chip between two key tiles: they are kept in device memory, and every step reads and writes them.
 *
 *                          keys ->                    Each step, by its lines in Algorithm 1:
 *                   tile 0   tile 1   tile 2
 *     queries  0     step 1   step 5   ...             8        Q, O, l and m of the query tile are loaded
 *        |     1     step 2   step 6                   9        S = scale Q K^T
 *        v     2     step 3   step 7                   10       m~, P~, l~
 *              3     step 4   step 8                   11       m', l'
 *                                                      12-13    O', l' and m' are stored
 *
 * Who owns what in a step, as in 02_online_softmax/fma: 128 threads, thread (r, c) of 8 x 16 owns rows r, r+8, r+16 and
 * r+24 of S and O, the columns c and c+16 of S, the columns c, c+16, c+32, ... of O. The 16 threads of equal r are half
 * a warp: by shuffles each of them gets m~ and l~ of its rows. P~ goes through shared memory. All tiles there are fp32:
 * 30.4 KB at D = 64, 54.4 KB at D = 128.
 *
 * What it costs. Workspace O(N): O in fp32, l and m. They are read and written at every step, and the grid is batch x
 * heads: with fewer heads than multiprocessors, the rest of the chip idles.
 *
 * Device memory, bytes per (batch, head), e bytes per element. Full attention, whole tiles, steps = Sk / 32:
 *
 *     K, V     Sk D e each                O accumulator    read and written, each   (steps - 1) Sq D 4
 *     Q        steps Sq D e               l, m             written (steps - 1) Sq 4 each; read 16 times that, by
 *     O        Sq D e written                              the 16 threads of a row
 *     LSE      Sq 4 written
 *
 * In general: the key length instead of Sk; and each row has the steps of its query tile, columns / 32 rounded up, at
 * least 1, where columns is the number of keys that the last row of the tile sees. The last step writes O and LSE
 * instead of O, l and m.
 *
 *     make 03_fa1 && ./03_fa1/03_fa1 --variant fma
 */
#include "../common/gpu/softmax.cuh"
#include "../common/traffic.h"

constexpr int Br = 32, Bc = 32;                               /* a tile of S: rows are queries, columns are keys */
constexpr int DOWN = 8, ACROSS = 16, THREADS = DOWN * ACROSS; /* the arrangement of the threads */
constexpr int ROWS = Br / DOWN, COLUMNS = Bc / ACROSS;        /* of a tile of S that a thread owns */

template <int D> struct Shared {
    float q[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + ACROSS];
};

/* O, l, m: workspace, [batch, heads, seqlen_q, D] and [batch, heads, seqlen_q] twice. Block: batch x head. At
 * D = 128 shared memory has room for 4 blocks on a multiprocessor at most, so there is no use in saving registers for
 * more. At D = 64 the bound is the same, although an H100 has room for 7. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 4) fa1_fma(Problem p, Tensors t, float *O, float *l, float *m) {
    SHARED_MEMORY(shared, Shared<D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.x);
    int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS;

    /* The first key tile is visited even if there are no keys: its step writes O = 0 and LSE = -inf. */
    for (int first_column = 0; first_column == 0 || first_column < head.keys; first_column += Bc) {
        load_tile<THREADS>(shared.k, head.k + (size_t)first_column * D, head.keys - first_column);
        load_tile<THREADS>(shared.v, head.v + (size_t)first_column * D, head.keys - first_column);
        for (int first_row = 0; first_row < p.seqlen_q; first_row += Br) {
            int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */
            bool first = first_column == 0, last = first_column + Bc >= columns;
            if (!first && first_column >= columns)
                continue; /* no row of the tile sees any of these keys */

            /* line 8: all that belongs to the query tile. In its first step nothing is stored
             * yet: m = -inf, l = 0, O = 0 */
            load_tile<THREADS>(shared.q, head.q + (size_t)first_row * D, p.seqlen_q - first_row);
            float row_m[ROWS], row_l[ROWS], o[ROWS][D / ACROSS], s[ROWS][COLUMNS] = {};
            for (int i = 0; i < ROWS; i++) {
                bool old = !first && first_row + r + DOWN * i < p.seqlen_q;
                size_t row = head.first_row + first_row + r + DOWN * i;
                row_m[i] = old ? m[row] : -INFINITY, row_l[i] = old ? l[row] : 0;
                for (int d = 0; d < D / ACROSS; d++)
                    o[i][d] = old ? O[row * D + c + ACROSS * d] : 0;
            }
            __syncthreads(); /* the tiles are there */

            for (int d = 0; d < D; d++) /* line 9 */
                for (int i = 0; i < ROWS; i++)
                    for (int n = 0; n < COLUMNS; n++)
                        s[i][n] += shared.q[r + DOWN * i][d] * shared.k[c + ACROSS * n][d];

            for (int i = 0; i < ROWS; i++) { /* lines 10 and 11 */
                int visible = visible_keys(&p, head.keys, first_row + r + DOWN * i);
                float m_tile = -INFINITY, l_tile = 0; /* m~ and l~ */
                for (int n = 0; n < COLUMNS; n++) {
                    s[i][n] = first_column + c + ACROSS * n < visible ? p.scale * s[i][n] : -INFINITY;
                    m_tile = fmaxf(m_tile, s[i][n]);
                }
                for (int offset = ACROSS / 2; offset > 0; offset /= 2) /* over the 16 threads that share the row */
                    m_tile = fmaxf(m_tile, __shfl_xor_sync(WHOLE_WARP, m_tile, offset));
                float m_new = fmaxf(row_m[i], m_tile);
                float alpha = expf(row_m[i] - shift_of(m_new)), beta = expf(m_tile - shift_of(m_new));

                for (int n = 0; n < COLUMNS; n++) {
                    s[i][n] = expf(s[i][n] - shift_of(m_tile)); /* P~ */
                    l_tile += s[i][n];
                    shared.p[r + DOWN * i][c + ACROSS * n] = beta * s[i][n];
                }
                for (int offset = ACROSS / 2; offset > 0; offset /= 2)
                    l_tile += __shfl_xor_sync(WHOLE_WARP, l_tile, offset);
                for (int d = 0; d < D / ACROSS; d++)
                    o[i][d] *= alpha * row_l[i]; /* l O is what O was before it was divided */
                row_m[i] = m_new, row_l[i] = alpha * row_l[i] + beta * l_tile;
            }
            __syncthreads(); /* P~ is there, and all have read l and m */

            float pv[ROWS][D / ACROSS] = {}; /* lines 12, 13: P~ V of the tile by itself, so that O is rounded once */
            for (int key = 0; key < Bc; key++)
                for (int i = 0; i < ROWS; i++)
                    for (int d = 0; d < D / ACROSS; d++)
                        pv[i][d] += shared.p[r + DOWN * i][key] * shared.v[key][c + ACROSS * d];
            for (int i = 0; i < ROWS; i++)
                for (int d = 0; d < D / ACROSS; d++)
                    o[i][d] += pv[i][d];
            for (int i = 0; i < ROWS; i++) {
                if (first_row + r + DOWN * i >= p.seqlen_q)
                    continue;
                size_t row = head.first_row + first_row + r + DOWN * i;
                float inverse = row_l[i] > 0 ? 1 / row_l[i] : 0;
                for (int d = 0; d < D / ACROSS; d++)
                    if (last)
                        ((T *)t.o)[row * D + c + ACROSS * d] = from_float<T>(inverse * o[i][d]);
                    else
                        O[row * D + c + ACROSS * d] = inverse * o[i][d];
                if (c == 0 && last)
                    t.lse[row] = shift_of(row_m[i]) + logf(row_l[i]);
                else if (c == 0)
                    m[row] = row_m[i], l[row] = row_l[i];
            }
            __syncthreads(); /* Q, P~, K and V are done with, before the next overwrite them */
        }
    }
}

LAUNCHER(fa1_fma_forward) {
    float *O = (float *)workspace[0].pointer, *l = (float *)workspace[1].pointer, *m = (float *)workspace[2].pointer;
    WITH_ANY_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D,
        LAUNCH((fa1_fma<T, D>), p->batch * p->heads, THREADS, sizeof(Shared<D>), *p, *t, O, l, m)));
}

PREDICTOR(fa1_fma_traffic) {
    return keys_outer_traffic(p, key_lengths, "fa1_fma", p->seqlen_q, Br, Bc, ACROSS, traffic);
}
