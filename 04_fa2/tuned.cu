/* 04_fa2/tuned - split_q made fast by nine tricks. The algorithm stays as it is, and warps own query rows.
 *
 * The idea. Each trick below saves instructions or waiting. notes/04_fa2.md explains them, and says what the kernel loses
 * without each.
 *
 *     tile of 128 rows       a warp owns 32 rows, so that each fragment of K and V read from shared memory feeds two mma
 *     double buffering       the next K and V arrive while this tile is used: one barrier a tile
 *     last key tile first    the only tile that can reach past the keys is loaded before the loop
 *     base 2                 e^x = 2^(x log2 e): log2 e is folded into the scale, and a score costs one fused
 *                            multiply-add (FFMA) and one ex2
 *     finite start           m starts at a finite number, so that a row without keys needs no case of its own
 *     mask where it matters  tiles that every row sees whole are not masked
 *     lazy rescaling         O is rescaled only when a maximum has grown by more than SLACK
 *     block order            the blocks at work share the K and V of few heads; causal: the blocks with the most keys start first
 *     O by whole rows        O goes out through shared memory, 16 bytes a lane
 *
 * Who owns what. A block owns Br queries of one head. It walks over the keys in tiles of Bc, the last tile first.
 *
 *                 keys ->                            In a warp's 16 x 8 piece of S or O (an accumulator of mma)
 *            +--------+--------+--------+            lane 4r + c, c = 0..3, holds columns 2c, 2c + 1 of row r
 *     warp 0 | 32 x Bc|        |        |            and of row r + 8: the four lanes of a quad share two
 *     warp 1 | 32 x Bc|        |        |  queries   rows, and a row's maximum takes two shuffles.
 *     warp 2 | 32 x Bc|        |        |     |
 *     warp 3 | 32 x Bc|        |        |     v
 *            +--------+--------+--------+
 *
 * What it costs. A block, for each key tile: 4 Br Bc D FLOPs on the tensor cores, Br Bc exponentials on the
 * special-function units, and each warp reads all of the K and V tile and its part of Q from shared memory: 2 bytes x D x
 * (8 Bc + Br). Device memory, a block: 2 bytes x D x (2 Br + 2 Sk), the K and V part mostly from L2. No workspace.
 * Registers a lane: O takes Br D / 128, S takes Br Bc / 128; with Br = 128 together D + Bc. That decides the tile.
 * Shared memory: 2 bytes x D x (Br + 4 Bc).
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant tuned --head-dim 128 --causal
 */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/stage.h"

#include <limits.h>

constexpr int WARPS = 4; /* one a scheduler of the multiprocessor */
constexpr int THREADS = 32 * WARPS;

/* How far, in powers of two, the maximum may pass m before O is rescaled: P is then at most 2^8, far from fp16's
 * 65504. */
constexpr float SLACK = 8;

/* A warp owns 32 rows, two m16 tiles, so that each fragment of K and V read from shared memory feeds two mma. At D = 256
 * the O of 32 rows alone would fill the 255 registers of a lane, so there it owns 16. Bc is what O leaves: O and S of
 * 32 rows take D + Bc registers, at most 192; of 16 rows (256 + 32) / 2 = 144.
 *
 * Two blocks a multiprocessor: while one is at its softmax, the other can use the tensor cores. Registers allow two
 * (2 x 128 threads x 255). So does the shared memory of an H100 (at most 2 x 96 KB of 228); an A100's 164 KB hold one
 * block at D = 128 and 256, two at smaller D. sm_75 has 64 KB a block: half of Bc. */
template <int D, int capability> struct Shape {
    static constexpr int m_tiles = D <= 128 ? 2 : 1; /* m16 tiles a warp */
    static constexpr int Br = WARPS * 16 * m_tiles;
    static constexpr int Bc = (D <= 64 ? 128 : D <= 128 ? 64 : 32) / (capability < 80 ? 2 : 1);
};

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is
 * enough. */
template <typename T, int D, int capability> struct TunedShared {
    Tile<T, Shape<D, capability>::Br, D> q; /* and later O, on its way out */
    Tile<T, Shape<D, capability>::Bc, D> k[2], v[2];
};

template <typename T, int D> __global__ void __launch_bounds__(THREADS, 2) tuned(Problem p, Tensors t) {
    constexpr int m_tiles = Shape<D, CAPABILITY>::m_tiles, Br = Shape<D, CAPABILITY>::Br, Bc = Shape<D, CAPABILITY>::Bc;
    using Shared = TunedShared<T, D, CAPABILITY>;
    SHARED_MEMORY(Shared, shared);

    /* Which query tile of which head. Blocks start in the order of their index. Full attention: the query tiles of a head
     * one after the other, so that few heads are read at a time, and their K and V stay in L2. Causal: the last tile of
     * every head first, because it sees the most keys, and a long block that starts late keeps the whole chip waiting. */
    int query_tiles = ceil_div(p.seqlen_q, Br), together = p.causal ? p.batch * p.heads : 1; /* heads that start together */
    int turn = blockIdx.x / together, batch_head = blockIdx.x % together + turn / query_tiles;
    int batch = batch_head / p.heads, head = batch_head % p.heads;
    int first_row = (query_tiles - 1 - turn % query_tiles) * Br;

    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int warp_row = 16 * m_tiles * warp; /* the warp's first row in the tile */
    int keys = key_length(&p, t.key_lengths, batch);

    /* Key tiles up to the last key that the tile's last row sees; those below whole_tiles its first row sees whole. */
    int key_tiles = ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc);
    int whole_tiles = visible_keys(&p, keys, first_row) / Bc;

    load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);
    if (key_tiles > 0) {
        int last = key_tiles - 1;
        load_tile_async<THREADS>(shared.k[last % 2], k, last * Bc, keys);
        load_tile_async<THREADS>(shared.v[last % 2], v, last * Bc, keys);
    }

    /* O, m and l of the key tiles so far. Index [i][h]: row 16 i + 8 h + lane / 4 of the warp. m is that of the whole
     * row, times log2 e, as the exponents are. O is the sum over all keys, and l over this lane's keys alone. */
    float o[m_tiles][D / 8][4] = {};
    float m[m_tiles][2], l[m_tiles][2];
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
        for (int h = 0; h < 2; h++) {
            m[i][h] = LOWEST;
            l[i][h] = 0;
        }
    float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    for (int tile = key_tiles - 1; tile >= 0; tile--) {
        auto &k_tile = shared.k[tile % 2], &v_tile = shared.v[tile % 2];
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there; every warp has read the tile before, and the next one takes its place */
        if (tile > 0) { /* a whole tile: only the first one visited can reach past the keys */
            load_tile_async<THREADS>(shared.k[(tile - 1) % 2], k, (tile - 1) * Bc, INT_MAX);
            load_tile_async<THREADS>(shared.v[(tile - 1) % 2], v, (tile - 1) * Bc, INT_MAX);
        }

        /* S = Q K^T: this warp's rows, all keys of the tile */
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
                load_b_fragments(b, k_tile, 8 * n, d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(s[i][n], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(s[i][n + 1], a[i], b[2], b[3]);
                }
            }
        }

        /* the mask, only in tiles that the diagonal or the end of the keys cuts */
        if (tile >= whole_tiles) {
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) { /* row g, then row g + 8 */
                    int row = warp_row + 16 * i + 8 * h + lane / 4;
                    int visible = visible_keys(&p, keys, first_row + row) - tile * Bc; /* of this tile */
#pragma unroll
                    for (int n = 0; n < Bc / 8; n++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            float &score = s[i][n][2 * h + j];
                            score = 8 * n < visible - (2 * (lane % 4) + j) ? score : -INFINITY;
                        }
                }
        }

        /* m. Any number near the maximum will do, since the division by l takes it out again: while a row's maximum is at
         * most SLACK above m, m stays. Mostly no row of the warp moves, and the rescaling of O and l is left out. */
        float shift[m_tiles][2]; /* old m - new m, at most 0 */
        bool rescale = false, far = false;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float row_max = s[i][0][2 * h];
#pragma unroll
                for (int n = 0; n < Bc / 8; n++)
                    row_max = fmaxf(row_max, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
                row_max = scale_log2 * quad_max(row_max);
                float m_new = row_max > m[i][h] + SLACK ? row_max : m[i][h];
                rescale |= m_new != m[i][h];
                far |= fabsf(m_new) > FAR;
                shift[i][h] = m[i][h] - m_new;
                m[i][h] = m_new;
            }
        if (__any_sync(WHOLE_WARP, rescale)) {
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float alpha = exp2_approx(shift[i][h]);
                    l[i][h] *= alpha;
#pragma unroll
                    for (int d = 0; d < D / 8; d++) {
                        o[i][d][2 * h] *= alpha;
                        o[i][d][2 * h + 1] *= alpha;
                    }
                }
        }

        float factor = scale_log2;
        if (far) { /* m is rounded, and its error would show in P: round the products alike (softmax.cuh: FAR) */
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int n = 0; n < Bc / 8; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        s[i][n][j] = __fmul_rn(s[i][n][j], scale_log2);
            factor = 1;
        }

        /* P = 2^(scale_log2 S - m): one FFMA and one ex2 an element. O += P V. 16 keys at a time, so that the special-
         * function units can work on the next 16 while the tensor cores multiply these. l stays the sum over the lane's
         * own keys. */
#pragma unroll
        for (int n = 0; n < Bc / 16; n++) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++) {
                float row_sum[2]; /* of these keys: they join l together, so that it is rounded less often */
#pragma unroll
                for (int j = 0; j < 4; j++) { /* rows g and g + 8 of the left eight keys, then of the right eight */
                    int h = j % 2;
                    float low = exp2_approx(s[i][2 * n + j / 2][2 * h] * factor - m[i][h]);
                    float high = exp2_approx(s[i][2 * n + j / 2][2 * h + 1] * factor - m[i][h]);
                    row_sum[h] = j < 2 ? low + high : row_sum[h] + (low + high);
                    a[i][j] = pack_pair<T>(low, high);
                }
                l[i][0] += row_sum[0], l[i][1] += row_sum[1];
            }
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                load_b_fragments_trans(b, v_tile, n, 8 * d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(o[i][d], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(o[i][d + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    cp_async_wait<0>();
    __syncthreads(); /* without a key tile, Q is still being copied to where O goes now */

    /* l = the sum over the quad's lanes; O divided by l, into Q's tile; LSE = m + ln l */
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = warp_row + 16 * i + 8 * h + lane / 4;
            float l_row = quad_sum(l[i][h]);
            float inverse = l_row > 0 ? 1 / l_row : 0; /* a row without keys: O = 0 */
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                uint32_t pair = pack_pair<T>(inverse * o[i][d][2 * h], inverse * o[i][d][2 * h + 1]);
                *reinterpret_cast<uint32_t *>(shared.q.chunk(row, d) + 2 * (lane % 4)) = pair;
            }
            if (lane % 4 == 0 && first_row + row < p.seqlen_q)
                t.lse[(size_t)batch_head * p.seqlen_q + first_row + row] = l_row > 0 ? m[i][h] * LN_2 + logf(l_row) : -INFINITY;
        }
    __syncwarp(); /* the warp's rows of O are complete */
    store_rows<16 * m_tiles>((T *)t.o + query_head_offset(&p, batch, head), first_row, p.seqlen_q, shared.q, warp_row);
}

template <typename T, int D> static void launch_tuned(const Problem &p, const Tensors &t) {
    const int blocks = p.batch * p.heads * ceil_div(p.seqlen_q, Shape<D, 80>::Br);
    const bool small = device_properties()->capability < 80;
    const size_t shared_bytes = small ? sizeof(TunedShared<T, D, 75>) : sizeof(TunedShared<T, D, 80>);
    LAUNCH((tuned<T, D>), blocks, THREADS, shared_bytes, p, t);
}

extern "C" Launcher fa2_tuned;
extern "C" void fa2_tuned(const Problem *p, const Tensors *t, const Buffer *) {
    WITH_HALF_TYPE(p->dtype, T, {
        switch (p->head_dim) {
        case 32: launch_tuned<T, 32>(*p, *t); break;
        case 64: launch_tuned<T, 64>(*p, *t); break;
        case 96: launch_tuned<T, 96>(*p, *t); break;
        case 128: launch_tuned<T, 128>(*p, *t); break;
        case 256: launch_tuned<T, 256>(*p, *t); break;
        }
    });
}
