/* 01_tiled/fma - the two products through tiles in shared memory, on the CUDA cores.
 *
 * The idea. 00_naive reads 2 D elements for each element of S. But all 64 x 64 elements of a tile of S
 * need only 64 rows of Q and 64 rows of K: load those once into shared memory and use each of them 64
 * times. The same holds for O = P V.
 *
 *     device memory read for S, elements:    00_naive  2 D N^2        here  2 D N^2 / 64
 *
 * Then the same once more, one level up: a thread that owns 4 x 4 elements of the tile reads 4 + 4 numbers from shared
 * memory for 16 multiply-adds, instead of 2 for 1.
 *
 * Who owns what: a block of 256 threads owns a 64 x 64 tile of the product. Thread (r, col) of the 16 x 16 arrangement
 * owns the elements at rows r, r+16, r+32, r+48 and columns col, col+16, col+32, col+48:
 *
 *             col +16  +32  +48     The strides of 16 (not 4 neighbors) are for the banks: the 16 threads of equal r
 *        r    x    x    x    x      read 16 neighboring rows of the right-hand tile, PITCH = 33 words apart, which
 *        +16  x    x    x    x      are 16 different banks. With a pitch of 32 they would all be one bank.
 *        ...
 *
 * The inner dimension (D for S, the keys for O) is processed in slices of 32, so a block needs only two
 * tiles of 64 x 33 floats, 16.5 KB. S and P are still stored: these are lines 34 and 38 of
 * standard_forward in notes/flash.c, in tiles.
 *
 *     make 01_tiled && ./01_tiled/01_tiled --variant fma
 */
#include "tiled.cuh"

constexpr int THREADS = 256;
constexpr int SLICE = 32;        /* of the inner dimension: one per lane: a warp loads 64 bytes at once (fp32: 128) */
constexpr int PITCH = SLICE + 1; /* see the picture */
constexpr int OWN = 4;           /* a thread owns OWN x OWN elements */
constexpr int STRIDE = 16;       /* which lie STRIDE rows and STRIDE columns apart */
static_assert(Br == OWN * STRIDE && Bc == OWN * STRIDE && THREADS == STRIDE * STRIDE, "the threads cover the tile");

struct Shared {
    float a[Br][PITCH]; /* [row of the product][inner] */
    float b[Bc][PITCH]; /* [column of the product][inner] */
};

/* One slice: c += a b^T for the elements this thread owns. */
__device__ inline void multiply_slice(const Shared &shared, float (&c)[OWN][OWN]) {
    int r = threadIdx.x / STRIDE, col = threadIdx.x % STRIDE;
    for (int inner = 0; inner < SLICE; inner++) {
        float a[OWN], b[OWN]; /* 8 reads of shared memory for 16 multiply-adds */
        for (int i = 0; i < OWN; i++) {
            a[i] = shared.a[r + STRIDE * i][inner];
            b[i] = shared.b[col + STRIDE * i][inner];
        }
        for (int i = 0; i < OWN; i++)
            for (int j = 0; j < OWN; j++)
                c[i][j] += a[i] * b[j];
    }
}

/* S = scale Q K^T, masked. Block: (tile of queries and of keys, batch x head). */
template <typename T> __global__ void fma_scores(Problem p, Tensors t, float *S) {
    SHARED_MEMORY(shared, Shared);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int row_tiles = ceil_div(p.seqlen_q, Br);
    int first_row = blockIdx.x % row_tiles * Br, first_column = blockIdx.x / row_tiles * Bc;
    const T *q = head.q + (size_t)first_row * p.head_dim, *k = head.k + (size_t)first_column * p.head_dim;

    float c[OWN][OWN] = {};
    for (int first_d = 0; first_d < p.head_dim; first_d += SLICE) {
        /* a warp loads 32 neighboring d of one row; what lies outside the matrix becomes 0 and adds nothing */
        for (int i = threadIdx.x; i < Br * SLICE; i += THREADS) {
            int row = i / SLICE, d = i % SLICE;
            bool d_exists = first_d + d < p.head_dim;
            bool row_exists = first_row + row < p.seqlen_q, column_exists = first_column + row < p.seqlen_k;
            shared.a[row][d] = d_exists && row_exists ? to_float(q[(size_t)row * p.head_dim + first_d + d]) : 0;
            shared.b[row][d] = d_exists && column_exists ? to_float(k[(size_t)row * p.head_dim + first_d + d]) : 0;
        }
        __syncthreads(); /* the slice is there */
        multiply_slice(shared, c);
        __syncthreads(); /* and is done with, before the next overwrites it */
    }

    int pitch = score_pitch(&p);
    for (int i = 0; i < OWN; i++) {
        int row = first_row + threadIdx.x / STRIDE + STRIDE * i;
        if (row >= p.seqlen_q)
            continue;
        int visible = visible_keys(&p, head.keys, row);
        float *scores = S + (head.first_row + row) * pitch;
        for (int j = 0; j < OWN; j++) {
            int column = first_column + threadIdx.x % STRIDE + STRIDE * j;
            scores[column] = column < visible ? p.scale * c[i][j] : -INFINITY;
        }
    }
}

/* O = P V. Block: (tile of queries, tile of head_dim, batch x head); the inner dimension is the keys. Three blocks run
 * on a multiprocessor, as many as of fma_scores. */
template <typename T> __global__ void __launch_bounds__(THREADS, 3) fma_output(Problem p, Tensors t, const T *P) {
    SHARED_MEMORY(shared, Shared);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.z);
    int first_row = blockIdx.x * Br, first_d = blockIdx.y * Bc, pitch = score_pitch(&p);
    const T *probabilities = P + head.first_row * pitch;

    float o[OWN][OWN] = {};
    for (int first_key = 0; first_key < head.keys; first_key += SLICE) {
        for (int i = threadIdx.x; i < Br * SLICE; i += THREADS) {
            int row = i / SLICE, key = i % SLICE; /* neighboring lanes, neighboring keys of P */
            shared.a[row][key] = first_row + row < p.seqlen_q
                                     ? to_float(probabilities[(size_t)(first_row + row) * pitch + first_key + key])
                                     : 0;
            int d = i % Bc, v_key = i / Bc; /* neighboring lanes, neighboring d of V: stored transposed */
            shared.b[d][v_key] = first_d + d < p.head_dim && first_key + v_key < head.keys
                                     ? to_float(head.v[(size_t)(first_key + v_key) * p.head_dim + first_d + d]) : 0;
        }
        __syncthreads();
        float c[OWN][OWN] = {}; /* of the slice by itself, so that o is rounded once a slice */
        multiply_slice(shared, c);
        __syncthreads();
        for (int i = 0; i < OWN; i++)
            for (int j = 0; j < OWN; j++)
                o[i][j] += c[i][j];
    }

    for (int i = 0; i < OWN; i++)
        for (int j = 0; j < OWN; j++) {
            int row = first_row + threadIdx.x / STRIDE + STRIDE * i, d = first_d + threadIdx.x % STRIDE + STRIDE * j;
            if (row < p.seqlen_q && d < p.head_dim)
                head.o[(size_t)row * p.head_dim + d] = from_float<T>(o[i][j] / P_SCALE);
        }
}

PLANNER(tiled_plan) { /* of both variants */
    size_t elements = row_count(p) * score_pitch(p);
    workspace[0] = Buffer{"S", elements * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"P", elements * dtype_bytes(p->dtype), nullptr, 0};
    return 2;
}

LAUNCHER(tiled_fma) {
    float *S = (float *)workspace[0].pointer;
    dim3 scores_grid(ceil_div(p->seqlen_q, Br) * (score_pitch(p) / Bc), p->batch * p->heads);
    dim3 output_grid(ceil_div(p->seqlen_q, Br), ceil_div(p->head_dim, Bc), p->batch * p->heads);
    WITH_ANY_TYPE(p->dtype, T, {
        T *P = (T *)workspace[1].pointer;
        LAUNCH(fma_scores<T>, scores_grid, THREADS, sizeof(Shared), *p, *t, S);
        LAUNCH(tiled_softmax<T>, blocks_for(row_count(p), SOFTMAX_WARPS), 32 * SOFTMAX_WARPS, 0, *p, *t, S, P);
        LAUNCH(fma_output<T>, output_grid, THREADS, sizeof(Shared), *p, *t, P);
    });
}
