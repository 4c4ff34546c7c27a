/* 02_online_softmax/fma - online softmax in plain CUDA: a row's maximum and sum tile by tile, S is not stored.
 *
 * The idea. Softmax needs m = max_j S_j and l = sum_j e^(S_j - m) of a whole row, so 01_tiled stored the row. But let
 * some columns have (m, l) and some others (m~, l~). Together they have the maximum m' = max(m, m~), and since
 * e^(S_j - m') = e^(S_j - m) e^(m - m'), each sum moves to the new maximum by one factor for all its terms:
 *
 *     m' = max(m, m~)     alpha = e^(m - m')     beta = e^(m~ - m')     l' = alpha l + beta l~
 *
 * (Milakov and Gimelshein 2018, section 3.1.) So two numbers per row stand for all columns seen so far. A single score
 * S_j is (S_j, 1), no column at all is (-inf, 0). Two passes over the keys:
 *
 *     pass 1     merges all scores of a row into m, l and LSE = m + ln l (flash_forward in notes/flash.c, lines 67 to
 *                75)
 *     pass 2     computes the same scores again, P = e^(S - LSE) (flash_backward, line 90), and O += P V
 *
 * What it saves and costs against 01_tiled/fma, for each (batch, head) with N queries and N keys: S and P are not kept,
 * 6 N^2 bytes in fp16, nor moved. Memory is the tensors alone, O(N). But Q K^T is computed twice: 6 N^2 D FLOPs, not 4.
 *
 * Who owns what: a block of 128 threads owns 32 rows, keeps their Q in shared memory and walks over the keys, 32 at a
 * time. Thread (r, c) of the 8 x 16 arrangement owns of each tile of S
 *
 *             c   +16            and of O the columns c, c+16, c+32, ... of the same four rows.
 *        r    x    x
 *        +8   x    x             The 16 threads of equal r share their rows: each has the (m, l) of its own columns,
 *        +16  x    x             and they are merged when all keys have gone by. They are half a warp, so shuffles
 *        +24  x    x             do it.
 *
 * P goes from the thread that owns a score to those that own the row of O through shared memory. All tiles are fp32,
 * 30.4 KB at D = 64, 54.4 at 128. Rows are padded for the banks: by one word where 16 threads read 16 rows (K), by 16
 * where a warp stores 16 columns of two rows (P).
 *
 * Device memory, bytes per (batch, head), e bytes per element. Sums are over the tiles of 32 rows, `columns` is how
 * many keys the last row of a tile sees; full attention, whole tiles: sum columns = Sq/32 Sk.
 *
 *     Q    Sq D e            K    2 sum columns D e, once in each pass            O      Sq D e written
 *                            V    sum columns D e                                 LSE    4 Sq written
 *
 *     make 02_online_softmax && ./02_online_softmax/02_online_softmax --variant fma
 */
#include "../common/gpu/softmax.cuh"
#include "../common/traffic.h"

/* A tile of S has Br rows, queries, and Bc columns, keys. Its threads stand DOWN by ACROSS, and each owns ROWS by
 * COLUMNS of it. */
constexpr int Br = 32, Bc = 32, DOWN = 8, ACROSS = 16, THREADS = DOWN * ACROSS;
constexpr int ROWS = Br / DOWN, COLUMNS = Bc / ACROSS;

template <int D> struct Shared {
    float q[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + ACROSS];
};

/* (m, l) of some columns becomes (m, l) of these and others. */
__device__ inline void merge(float &m, float &l, float m_other, float l_other) {
    float m_new = fmaxf(m, m_other), shift = shift_of(m_new);
    float alpha = expf(m - shift), beta = expf(m_other - shift);
    l = alpha * l + beta * l_other;
    m = m_new;
}

/* s = Q K^T: the elements that this thread owns. */
template <int D> __device__ inline void multiply(float (&s)[ROWS][COLUMNS], const Shared<D> &shared, int r, int c) {
    for (int d = 0; d < D; d++)
        for (int i = 0; i < ROWS; i++)
            for (int n = 0; n < COLUMNS; n++)
                s[i][n] += shared.q[r + DOWN * i][d] * shared.k[c + ACROSS * n][d];
}

/* Block: (tile of queries, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) online_fma(Problem p, Tensors t) {
    SHARED_MEMORY(shared, Shared<D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS;
    int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */
    load_tile<THREADS>(shared.q, head.q + (size_t)first_row * D, p.seqlen_q - first_row);

    float m[ROWS], l[ROWS], lse[ROWS], o[ROWS][D / ACROSS] = {};
    int visible[ROWS]; /* how many keys the row sees */
    for (int i = 0; i < ROWS; i++)
        visible[i] = visible_keys(&p, head.keys, first_row + r + DOWN * i), m[i] = -INFINITY, l[i] = 0;

    for (int first_column = 0; first_column < columns; first_column += Bc) { /* pass 1: LSE */
        load_tile<THREADS>(shared.k, head.k + (size_t)first_column * D, columns - first_column);
        __syncthreads(); /* the tiles are there */
        float s[ROWS][COLUMNS] = {};
        multiply<D>(s, shared, r, c);
        for (int i = 0; i < ROWS; i++)
            for (int n = 0; n < COLUMNS; n++)
                if (first_column + c + ACROSS * n < visible[i])
                    merge(m[i], l[i], p.scale * s[i][n], 1);
        __syncthreads(); /* and K is done with, before the next tile overwrites it */
    }
    for (int i = 0; i < ROWS; i++) {
        for (int offset = ACROSS / 2; offset > 0; offset /= 2) /* the 16 threads that share the row */
            merge(m[i], l[i], __shfl_xor_sync(WHOLE_WARP, m[i], offset), __shfl_xor_sync(WHOLE_WARP, l[i], offset));
        lse[i] = m[i] + logf(l[i]); /* -inf in a row without keys */
        if (c == 0 && first_row + r + DOWN * i < p.seqlen_q)
            head.lse[first_row + r + DOWN * i] = lse[i];
    }

    for (int first_column = 0; first_column < columns; first_column += Bc) { /* pass 2: O */
        load_tile<THREADS>(shared.k, head.k + (size_t)first_column * D, columns - first_column);
        load_tile<THREADS>(shared.v, head.v + (size_t)first_column * D, columns - first_column);
        __syncthreads(); /* the tiles are there */
        float s[ROWS][COLUMNS] = {};
        multiply<D>(s, shared, r, c);
        for (int i = 0; i < ROWS; i++)
            for (int n = 0; n < COLUMNS; n++)
                shared.p[r + DOWN * i][c + ACROSS * n] =
                    first_column + c + ACROSS * n < visible[i] ? expf(p.scale * s[i][n] - lse[i]) : 0;
        __syncthreads(); /* P is there */
        float pv[ROWS][D / ACROSS] = {}; /* P V of the tile by itself, so that O is rounded once per tile */
        for (int key = 0; key < Bc; key++)
            for (int i = 0; i < ROWS; i++)
                for (int d = 0; d < D / ACROSS; d++)
                    pv[i][d] += shared.p[r + DOWN * i][key] * shared.v[key][c + ACROSS * d];
        for (int i = 0; i < ROWS; i++)
            for (int d = 0; d < D / ACROSS; d++)
                o[i][d] += pv[i][d];
        __syncthreads(); /* and all three are done with, before the next overwrite them */
    }
    for (int i = 0; i < ROWS && first_row + r + DOWN * i < p.seqlen_q; i++)
        for (int d = 0; d < D / ACROSS; d++)
            head.o[(size_t)(first_row + r + DOWN * i) * D + c + ACROSS * d] = from_float<T>(o[i][d]);
}

LAUNCHER(online_fma_forward) {
    WITH_ANY_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, LAUNCH(
        (online_fma<T, D>), dim3(ceil_div(p->seqlen_q, Br), p->batch * p->heads), THREADS, sizeof(Shared<D>), *p, *t)));
}

PREDICTOR(online_fma_traffic) { /* K is loaded in both passes */
    const int count = queries_outer_traffic(p, key_lengths, "online_fma", Br, ONLY_SEEN, traffic);
    return traffic[1].read *= 2, count;
}
