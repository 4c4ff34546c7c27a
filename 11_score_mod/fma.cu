/* 11_score_mod/fma - 04_fa2/fma with S' = f(S, batch, head, query, key) between the two products.
 *
 * The idea. Models change a score before the softmax: they cap it, lower it with the distance of query and key, or drop
 * it. All that follows, m, l, P~ and O, needs S' and never S, so one line is enough where S has been computed:
 *
 *     S'_ij = f(scale q_i . k_j)        softcap:C       C tanh(S / C)
 *                                       alibi           S - slope(head) |pos_i - j|
 *                                       window:L,R      S where pos_i - L <= j <= pos_i + R, else -inf
 *
 * Two of the four do more than replace a score:
 *
 *     window    a block's rows together see a range of the keys, and the loop visits only those: less work and traffic
 *     sink      a score of every row that has no key and no value. It is what the row has seen before its first key:
 *               m = sink, l = 1, O = 0. Without sinks the same line gives m = -inf and l = 0
 *
 * f of a masked score must stay -inf, and C tanh(-inf / C) is -C. So f comes first, and then the mask.
 *
 * Who owns what, and the loops: as in 04_fa2/fma. The kernel learns f at run time, so all of them can be combined.
 *
 * What it costs. A softcap takes a division and a tanh per score, ALiBi three additions and multiplications. With a
 * window of W keys a tile of 32 rows visits W + 31 of them, however many there are.
 *
 * Device memory: as 04_fa2/fma, where `columns` is how many keys the rows of a tile see together; and 4 bytes for each
 * of the 16 threads of a row, if there are sinks.
 *
 *     make 11_score_mod && ./11_score_mod/11_score_mod --variant fma --score softcap:30 --score window:1024,0
 */
#include "../common/gpu/score.cuh"
#include "../common/gpu/softmax.cuh"
#include "tiles.h"

constexpr int Br = 32, Bc = 32;                               /* a tile of S: rows are queries, columns are keys */
constexpr int DOWN = 8, ACROSS = 16, THREADS = DOWN * ACROSS; /* the arrangement of the threads */
constexpr int ROWS = Br / DOWN, COLUMNS = Bc / ACROSS;        /* of a tile of S that a thread owns */

template <int D> struct ScoreShared {
    float q[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + ACROSS];
};

/* Block: (tile of queries, batch x head). At D = 128 shared memory has room for 4 blocks per multiprocessor at most, so
 * there is no use in saving registers for more. At D = 64 the bound is the same, although an H100 has room for 7. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS, 4) score_fma(Problem p, Tensors t) {
    SHARED_MEMORY(shared, ScoreShared<D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS;
    int first_row = blockIdx.x * Br;
    int columns = seen_keys(&t.score, &p, head.keys, min(first_row + Br, p.seqlen_q) - 1).end; /* of the last row */
    const AnyScore f(p, t.score, blockIdx.y % p.heads);

    load_tile<THREADS>(shared.q, head.q + (size_t)first_row * D, p.seqlen_q - first_row);
    float row_m[ROWS], row_l[ROWS], o[ROWS][D / ACROSS] = {};
    for (int i = 0; i < ROWS; i++)
        row_m[i] = sink_of(t.score, blockIdx.y % p.heads),
        row_l[i] = expf(row_m[i] - shift_of(row_m[i])); /* 1, or 0 without a sink */

    for (int first_column = seen_keys(&t.score, &p, head.keys, first_row).begin; first_column < columns;
         first_column += Bc) {
        load_tile<THREADS>(shared.k, head.k + (size_t)first_column * D, columns - first_column); /* line 7 */
        load_tile<THREADS>(shared.v, head.v + (size_t)first_column * D, columns - first_column);
        __syncthreads(); /* the tiles are there */

        float s[ROWS][COLUMNS] = {};
        for (int d = 0; d < D; d++) /* line 8 */
            for (int i = 0; i < ROWS; i++)
                for (int n = 0; n < COLUMNS; n++)
                    s[i][n] += shared.q[r + DOWN * i][d] * shared.k[c + ACROSS * n][d];

        for (int i = 0; i < ROWS; i++) { /* line 9 */
            int row = first_row + r + DOWN * i, pos = position_of(&p, head.keys, row);
            Range seen = seen_keys(&t.score, &p, head.keys, row);
            float m_tile = -INFINITY, l_tile = 0; /* the tile's share of m' and l' */
            for (int n = 0; n < COLUMNS; n++) {
                int key = first_column + c + ACROSS * n;
                s[i][n] = key >= seen.begin && key < seen.end ? f(p.scale * s[i][n], pos, key) : -INFINITY; /* S' */
                m_tile = fmaxf(m_tile, s[i][n]);
            }
            for (int offset = ACROSS / 2; offset > 0; offset /= 2) /* over the 16 threads that share the row */
                m_tile = fmaxf(m_tile, __shfl_xor_sync(WHOLE_WARP, m_tile, offset));
            float m_new = fmaxf(row_m[i], m_tile);
            float alpha = expf(row_m[i] - shift_of(m_new));

            for (int n = 0; n < COLUMNS; n++) {
                s[i][n] = expf(s[i][n] - shift_of(m_new)), l_tile += s[i][n]; /* P~ */
                shared.p[r + DOWN * i][c + ACROSS * n] = s[i][n];
            }
            for (int offset = ACROSS / 2; offset > 0; offset /= 2)
                l_tile += __shfl_xor_sync(WHOLE_WARP, l_tile, offset);
            for (int d = 0; d < D / ACROSS; d++)
                o[i][d] *= alpha;
            row_m[i] = m_new, row_l[i] = alpha * row_l[i] + l_tile;
        }
        __syncthreads(); /* P~ is there */

        float pv[ROWS][D / ACROSS] = {}; /* line 10: P~ V of the tile by itself, so that O is rounded once a tile */
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

LAUNCHER(score_fma_forward) {
    WITH_ANY_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, LAUNCH(
        (score_fma<T, D>), dim3(ceil_div(p->seqlen_q, Br), p->batch * p->heads), THREADS, sizeof(ScoreShared<D>), *p,
        *t)));
}

extern "C" TileShape score_fma_tile(const Problem *) { return {Br, Bc}; }
