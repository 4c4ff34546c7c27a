/* 01_tiled/mma - the same tiles, multiplied by the tensor cores.
 *
 * The idea. One mma.m16n8k16 instruction multiplies a 16 x 16 by a 16 x 8 matrix, 4096 FLOPs for a warp, where 32 lanes
 * of fused multiply-adds do 64. The tiles, what is stored and the softmax are those of fma.cu. Every later stage has
 * kernels that use tensor cores. This one shows what they buy apart from the later ideas, and spells out, fragment by
 * fragment, what the later ones say in the tile primitives of gpu/warp.cuh.
 *
 * What else must change against fma.cu, and why:
 *
 *     fp16 and bf16           the operands of mma are 16 bits wide
 *     D = 64 or 128           fragments are registers, so the loops over them are unrolled
 *     swizzled tiles          ldmatrix wants each row's 16 bytes aligned: rows padded by one word would not be
 *     cp.async                nothing is converted on the way, so nothing has to pass through registers
 *     no slices of D          in 16 bits all of D fits: one copy, one barrier, then only products
 *     128 threads, not 256    a warp owns the 16 rows of an mma, and the tile has 64
 *
 * One more change has nothing to do with mma: a block of the output owns all D columns, not 64 of them, so that P is
 * read once and not D / 64 times.
 *
 * Who owns what: a block of 4 warps owns 64 rows; warp w owns rows 16 w .. 16 w + 15 of the tile, in fragments (see
 * gpu/instructions.cuh) of 16 x 8. In each, lane T = 4 g + j holds columns 2j, 2j+1 of rows g and g + 8:
 *
 *                  8 columns      8 columns           scores: 64 columns = 8 fragments, 32 registers per lane
 *     row g        c[0][0..1]     c[1][0..1]  ...     output:  D columns = D/8 fragments, 32 or 64 registers
 *     row g + 8    c[0][2..3]     c[1][2..3]  ...
 *
 * Shared memory: two tiles of 16-bit elements, 16 KB (D = 64) or 32 KB (D = 128) for the scores, 16 or 24 KB for the
 * output, in the swizzled layout of gpu/tile.cuh. Without it the eight rows that ldmatrix reads together would lie in
 * the same four banks.
 *
 *     make 01_tiled && ./01_tiled/01_tiled --variant mma
 */
#include "../common/gpu/tile.cuh"
#include "tiled.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
static_assert(Br == 16 * WARPS, "a warp owns the 16 rows of one mma");

template <typename T, int D> struct ScoresShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k;
};

/* S = scale Q K^T, masked. Block: (tile of queries and of keys, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) mma_scores(Problem p, Tensors t, float *S) {
    SHARED_MEMORY(shared, ScoresShared<T, D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int row_tiles = ceil_div(p.seqlen_q, Br);
    int first_row = blockIdx.x % row_tiles * Br, first_column = blockIdx.x / row_tiles * Bc;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    /* The whole inner dimension fits: no slices. */
    load_tile_async<THREADS>(shared.q, head.q, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.k, head.k, first_column, p.seqlen_k);
    cp_async_wait<0>();
    __syncthreads();

    float c[Bc / 8][4] = {};
    UNROLL for (int d = 0; d < D / 16; d++) {
        uint32_t a[4];
        load_a_fragment(a, shared.q, 16 * warp, d);
        UNROLL for (int n = 0; n < Bc / 16; n++) {
            uint32_t b[4]; /* two fragments: keys 16n .. 16n+7 in b[0], b[1], keys 16n+8 .. 16n+15 in b[2], b[3] */
            load_b_fragments(b, shared.k, 16 * n, d);
            mma_m16n8k16<T>(c[2 * n], a, b[0], b[1]);
            mma_m16n8k16<T>(c[2 * n + 1], a, b[2], b[3]);
        }
    }

    int pitch = score_pitch(&p);
    UNROLL for (int h = 0; h < 2; h++) { /* row g, then row g + 8 */
        int row = first_row + 16 * warp + lane / 4 + 8 * h;
        if (row >= p.seqlen_q)
            continue;
        int visible = visible_keys(&p, head.keys, row);
        float *scores = S + (head.first_row + row) * pitch;
        UNROLL for (int n = 0; n < Bc / 8; n++) {
            int column = first_column + 8 * n + 2 * (lane % 4);
            float2 pair = make_float2(column < visible ? p.scale * c[n][2 * h] : -INFINITY,
                                      column + 1 < visible ? p.scale * c[n][2 * h + 1] : -INFINITY);
            *reinterpret_cast<float2 *>(&scores[column]) = pair;
        }
    }
}

template <typename T, int D> struct OutputShared {
    Tile<T, Br, Bc> p;
    Tile<T, Bc, D> v;
};

/* O = P V. Block: (tile of queries, batch x head); it walks over the key tiles. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) mma_output(Problem p, Tensors t, const T *P) {
    SHARED_MEMORY(shared, OutputShared<T, D>);
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, pitch = score_pitch(&p);
    const T *probabilities = P + head.first_row * pitch;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    float o[D / 8][4] = {};
    for (int first_key = 0; first_key < head.keys; first_key += Bc) {
        load_tile_async<THREADS>(shared.p, probabilities + first_key, first_row, p.seqlen_q, pitch);
        load_tile_async<THREADS>(shared.v, head.v, first_key, head.keys);
        cp_async_wait<0>();
        __syncthreads(); /* the tiles are there */
        UNROLL for (int key = 0; key < Bc / 16; key++) {
            uint32_t a[4];
            load_a_fragment(a, shared.p, 16 * warp, key);
            UNROLL for (int d = 0; d < D / 16; d++) {
                uint32_t b[4];
                load_b_fragments_trans(b, shared.v, key, 16 * d);
                mma_m16n8k16<T>(o[2 * d], a, b[0], b[1]);
                mma_m16n8k16<T>(o[2 * d + 1], a, b[2], b[3]);
            }
        }
        __syncthreads(); /* and done with, before the next overwrite them */
    }

    UNROLL for (int h = 0; h < 2; h++) {
        int row = first_row + 16 * warp + lane / 4 + 8 * h;
        if (row >= p.seqlen_q)
            continue;
        UNROLL for (int d = 0; d < D / 8; d++) {
            uint32_t pair = pack_pair<T>(o[d][2 * h] / P_SCALE, o[d][2 * h + 1] / P_SCALE);
            *reinterpret_cast<uint32_t *>(&head.o[(size_t)row * D + 8 * d + 2 * (lane % 4)]) = pair;
        }
    }
}

LAUNCHER(tiled_mma) {
    float *S = (float *)workspace[0].pointer;
    dim3 scores_grid(ceil_div(p->seqlen_q, Br) * (score_pitch(p) / Bc), p->batch * p->heads);
    dim3 output_grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        T *P = (T *)workspace[1].pointer;
        LAUNCH((mma_scores<T, D>), scores_grid, THREADS, sizeof(ScoresShared<T, D>), *p, *t, S);
        LAUNCH(tiled_softmax<T>, blocks_for(row_count(p), SOFTMAX_WARPS), 32 * SOFTMAX_WARPS, 0, *p, *t, S, P);
        LAUNCH((mma_output<T, D>), output_grid, THREADS, sizeof(OutputShared<T, D>), *p, *t, P);
    }));
}
