/* 04_fa2/fma - FlashAttention-2 (Dao 2023, Algorithm 1) in plain CUDA: queries outer, O
 * stays in registers, divided once.
 *
 * The idea. 03_fa1/fma let all queries go by at every key tile. So O, l and m went to device memory and back each time,
 * and one block had to do a whole head. Two of the paper's three changes, both at once here:
 *
 *     loop order   queries outer, keys inner: a block owns a tile of queries and walks over the keys. O, l and m stay
 *                  in its registers, no other block needs them, and the grid is query tiles x batch x heads.
 *     epilogue     O is not divided by l at every key tile, but once, at the end. Until then it is relative to the
 *                  maximum m of the keys seen so far. A key tile brings m' and P~ = e^(S - m') :
 *
 *                  m' = max(m, max_j S_j)     alpha = e^(m - m')     l' = alpha l + sum_j P~_j     O' = alpha O + P~ V
 *
 * The third, that warps own rows, is there since 02_online_softmax/fma. On tensor cores, epilogue, parallel,
 * loop_swap and split_q make these changes one by one. This is flash_forward in notes/flash.c, whose outer loop (line
 * 62) is now the grid.
 *
 *                          keys ->                    Each step, by its lines in Algorithm 1:
 *                   tile 0   tile 1   tile 2
 *     queries  0     step 1   step 2   ...  block 0       7        K and V of the key tile are loaded
 *        |     1     step 1   step 2   ...  block 1       8        S = scale Q K^T
 *        v     2     step 1   step 2   ...  block 2       9        m', P~, l'
 *                                                         10       O'
 *
 * Who owns what in a step, as in 03_fa1/fma: 128 threads, thread (r, c) of 8 x 16 owns rows r, r+8, r+16 and r+24 of S
 * and O, the columns c and c+16 of S, the columns c, c+16, c+32, ... of O. The 16 threads of equal r are half a warp:
 * by shuffles each of them gets the maximum and the sum of its rows. P~ goes through shared memory. All tiles there are
 * fp32: 30.4 KB at D = 64, 54.4 KB at D = 128.
 *
 * What it costs. 4 N^2 D FLOPs for each (batch, head) with N queries and N keys, and no workspace. K and V are read
 * again by each tile of queries.
 *
 * Device memory, bytes per (batch, head), e bytes per element. Sums are over the tiles of 32 rows, `columns` is how
 * many keys the last row of a tile sees; full attention, whole tiles: sum columns = Sq/32 Sk.
 *
 *     Q    Sq D e            K, V    sum columns D e each            O    Sq D e written            LSE    4 Sq written
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant fma
 */
#include "../common/gpu/softmax.cuh"
#include "../common/traffic.h"

constexpr int Br = 32, Bc = 32;                               /* a tile of S: rows are queries, columns are keys */
constexpr int DOWN = 8, ACROSS = 16, THREADS = DOWN * ACROSS; /* the arrangement of the threads */
constexpr int ROWS = Br / DOWN, COLUMNS = Bc / ACROSS;        /* of a tile of S that a thread owns */

template <int D> struct Shared {
    float q[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + ACROSS];
};

/* Block: (tile of queries, batch x head). At D = 128 shared memory has room for 4 blocks on a multiprocessor at most,
 * so there is no use in saving registers for more. At D = 64 the bound is the same, although an H100 has room for 7. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS, 4) fa2_fma(Problem p, Tensors t) {
    SHARED_MEMORY(shared, Shared<D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS;
    int first_row = blockIdx.x * Br;
    int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile<THREADS>(shared.q, head.q + (size_t)first_row * D, p.seqlen_q - first_row);
    float row_m[ROWS], row_l[ROWS] = {}, o[ROWS][D / ACROSS] = {};
    for (int i = 0; i < ROWS; i++)
        row_m[i] = -INFINITY;

    for (int first_column = 0; first_column < columns; first_column += Bc) {
        load_tile<THREADS>(shared.k, head.k + (size_t)first_column * D, columns - first_column); /* line 7 */
        load_tile<THREADS>(shared.v, head.v + (size_t)first_column * D, columns - first_column);
        __syncthreads(); /* the tiles are there */

        float s[ROWS][COLUMNS] = {};
        for (int d = 0; d < D; d++) /* line 8 */
            for (int i = 0; i < ROWS; i++)
                for (int n = 0; n < COLUMNS; n++)
                    s[i][n] += shared.q[r + DOWN * i][d] * shared.k[c + ACROSS * n][d];

        for (int i = 0; i < ROWS; i++) { /* line 9 */
            int visible = visible_keys(&p, head.keys, first_row + r + DOWN * i);
            float m_tile = -INFINITY, l_tile = 0; /* the tile's share of m' and l' */
            for (int n = 0; n < COLUMNS; n++) {
                s[i][n] = first_column + c + ACROSS * n < visible ? p.scale * s[i][n] : -INFINITY;
                m_tile = fmaxf(m_tile, s[i][n]);
            }
            for (int offset = ACROSS / 2; offset > 0; offset /= 2) /* over the 16 threads that share the row */
                m_tile = fmaxf(m_tile, __shfl_xor_sync(WHOLE_WARP, m_tile, offset));
            float m_new = fmaxf(row_m[i], m_tile);
            float alpha = expf(row_m[i] - shift_of(m_new));

            for (int n = 0; n < COLUMNS; n++) {
                s[i][n] = expf(s[i][n] - shift_of(m_new)); /* P~ */
                l_tile += s[i][n];
                shared.p[r + DOWN * i][c + ACROSS * n] = s[i][n];
            }
            for (int offset = ACROSS / 2; offset > 0; offset /= 2)
                l_tile += __shfl_xor_sync(WHOLE_WARP, l_tile, offset);
            for (int d = 0; d < D / ACROSS; d++)
                o[i][d] *= alpha;
            row_m[i] = m_new, row_l[i] = alpha * row_l[i] + l_tile;
        }
        __syncthreads(); /* P~ is there */

        float pv[ROWS][D / ACROSS] = {}; /* line 10: P~ V of the tile by itself, so that O is rounded once per tile */
        for (int key = 0; key < Bc; key++)
            for (int i = 0; i < ROWS; i++)
                for (int d = 0; d < D / ACROSS; d++)
                    pv[i][d] += shared.p[r + DOWN * i][key] * shared.v[key][c + ACROSS * d];
        for (int i = 0; i < ROWS; i++)
            for (int d = 0; d < D / ACROSS; d++)
                o[i][d] += pv[i][d];
        __syncthreads(); /* P~, K and V are done with, before the next overwrite them */
    }

    for (int i = 0; i < ROWS; i++) { /* lines 12 and 13 */
        if (first_row + r + DOWN * i >= p.seqlen_q)
            continue;
        size_t row = head.first_row + first_row + r + DOWN * i;
        float inverse = row_l[i] > 0 ? 1 / row_l[i] : 0; /* a row without keys: O = 0 and LSE = -inf */
        for (int d = 0; d < D / ACROSS; d++)
            ((T *)t.o)[row * D + c + ACROSS * d] = from_float<T>(inverse * o[i][d]);
        if (c == 0)
            t.lse[row] = shift_of(row_m[i]) + logf(row_l[i]);
    }
}

LAUNCHER(fa2_fma_forward) {
    WITH_ANY_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, LAUNCH(
        (fa2_fma<T, D>), dim3(ceil_div(p->seqlen_q, Br), p->batch * p->heads), THREADS, sizeof(Shared<D>), *p, *t)));
}

PREDICTOR(fa2_fma_traffic) { return queries_outer_traffic(p, key_lengths, "fa2_fma", Br, ONLY_SEEN, traffic); }
