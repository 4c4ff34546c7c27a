/* 04_fa2/split_q - the third change of FlashAttention-2: each warp owns query rows, and warps exchange nothing.
 *
 * The idea. S = Q K^T can be cut between warps along the keys or along the queries. Along the keys (FlashAttention-1) every
 * warp ends up with a partial O for every row, to be summed through shared memory. Along the queries a warp owns its rows
 * from the first score to the final O: maximum, sum and output never leave its registers.
 *
 * Who owns what. One block: Br queries of one head. It walks over the keys in tiles of Bc, the last one first.
 *
 *                 keys ->                            In a warp's 16 x 8 piece of S or O (one mma accumulator)
 *            +--------+--------+--------+            lane 4r + c, c = 0..3, holds columns 2c, 2c + 1 of row r
 *     warp 0 | 32 x Bc|        |        |            and of row r + 8: the four lanes of a quad share two
 *     warp 1 | 32 x Bc|        |        |  queries   rows, and a row's maximum takes two shuffles.
 *     warp 2 | 32 x Bc|        |        |     |
 *     warp 3 | 32 x Bc|        |        |     v
 *            +--------+--------+--------+
 *
 * What it costs. A block and key tile: 4 Br Bc D FLOPs on the tensor cores, Br Bc exponentials on the special-function
 * units, and each warp reads all of the K and V tile and its part of Q from shared memory: 2 bytes x D x (8 Bc + Br).
 * Device memory, a block: 2 bytes x D x (2 Br + 2 Sk), the K and V part mostly from L2. No workspace.
 * Registers a lane: O takes Br D / 128, S takes Br Bc / 128; with Br = 128 together D + Bc. That decides the tile.
 * Shared memory: 2 bytes x D x (Br + 4 Bc).
 *
 * Beyond the paper: O is rescaled only when the maximum has grown a lot (SLACK); under a causal mask the longest blocks
 * start first. What was tried, what it brought and what limits the kernel now is in notes/04_fa2.md.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant split_q --head-dim 128 --causal
 */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"

#include <limits.h>

constexpr int WARPS = 4; /* one a scheduler of the multiprocessor */
constexpr int THREADS = 32 * WARPS;

/* How far, in powers of two, the maximum may pass m before O is rescaled: P is then at most 2^8, far from fp16's 65504. */
constexpr float SLACK = 8;

/* A warp owns 32 rows, two m16 tiles, so that each fragment of K and V read from shared memory feeds two mma. At D = 256
 * the O of 32 rows alone would fill the 255 registers of a lane, so there it owns 16. Bc is what O leaves: D + Bc <= 192.
 *
 * Two blocks fit on a multiprocessor (2 x 128 threads x 255 registers; on A100 and H100 also 2 x 96 KB of shared memory):
 * while one is at its softmax, the other can use the tensor cores. sm_75 has 64 KB a block: half of Bc. */
template <int D, int capability> struct Shape {
    static constexpr int m_tiles = D <= 128 ? 2 : 1; /* m16 tiles a warp */
    static constexpr int Br = WARPS * 16 * m_tiles;
    static constexpr int Bc = (D <= 64 ? 128 : D <= 128 ? 64 : 32) / (capability < 80 ? 2 : 1);
};

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is enough. */
template <typename T, int D, int capability> struct SplitQShared {
    Tile<T, Shape<D, capability>::Br, D> q; /* O on its way out */
    Tile<T, Shape<D, capability>::Bc, D> k[2], v[2];
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2) split_q(Problem p, Tensors t) {
    constexpr int m_tiles = Shape<D, CAPABILITY>::m_tiles, Br = Shape<D, CAPABILITY>::Br, Bc = Shape<D, CAPABILITY>::Bc;
    using Shared = SplitQShared<T, D, CAPABILITY>;
    SHARED_MEMORY(Shared, shared);
    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * (16 * m_tiles); /* the warp's first row in the tile */

    /* Which query tile of which head. Blocks start in the order of their index: the last query tile of every head first,
     * because under a causal mask it sees the most keys, and a long block that starts late keeps the whole chip waiting. */
    const int all_heads = p.batch * p.heads, batch_head = blockIdx.x % all_heads;
    const int batch = batch_head / p.heads, head = batch_head % p.heads;
    const int first_row = (ceil_div(p.seqlen_q, Br) - 1 - (int)blockIdx.x / all_heads) * Br;

    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));

    /* Key tiles up to the last key that the tile's last row sees; those below whole_tiles its first row sees whole. */
    const int keys = key_length(&p, t.key_lengths, batch);
    const int key_tiles = ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc);
    const int whole_tiles = visible_keys(&p, keys, first_row) / Bc;

    load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);
    if (key_tiles > 0) {
        const int last = key_tiles - 1;
        load_tile_async<THREADS>(shared.k[last % 2], k, last * Bc, keys);
        load_tile_async<THREADS>(shared.v[last % 2], v, last * Bc, keys);
    }

    /* The lane's share of the running state. Rows are indexed [i][h]: row 16 i + 8 h + lane / 4 of the warp. m is kept times
     * scale_log2, as the exponents are, and starts finite: -inf would make -inf - -inf = NaN of rows that see no key. */
    float o[m_tiles][D / 8][4] = {};
    float m[m_tiles][2], l[m_tiles][2];
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
        m[i][0] = m[i][1] = -1e30f, l[i][0] = l[i][1] = 0;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    for (int tile = key_tiles - 1; tile >= 0; tile--) {
        auto &k_tile = shared.k[tile % 2], &v_tile = shared.v[tile % 2];
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and every warp is done with the one before, whose place the next one takes */
        if (tile > 0) { /* a whole tile: only the first one visited can reach past the keys */
            load_tile_async<THREADS>(shared.k[(tile - 1) % 2], k, (tile - 1) * Bc, INT_MAX);
            load_tile_async<THREADS>(shared.v[(tile - 1) % 2], v, (tile - 1) * Bc, INT_MAX);
        }

        /* S = Q K^T */
        float s[m_tiles][Bc / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
                load_a_fragment(a[i], shared.q, warp_row + 16 * i, d);
#pragma unroll
            for (int c = 0; c < Bc / 8; c += 2) {
                uint32_t b[4];
                load_b_fragments(b, k_tile, 8 * c, d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(s[i][c], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(s[i][c + 1], a[i], b[2], b[3]);
                }
            }
        }

        /* Mask, only in tiles that the diagonal or the end of the keys cuts */
        if (tile >= whole_tiles) {
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int row = first_row + warp_row + 16 * i + 8 * (e / 2) + lane / 4;
                    const int seen = visible_keys(&p, keys, row) - tile * Bc - (2 * (lane % 4) + e % 2);
#pragma unroll
                    for (int c = 0; c < Bc / 8; c++)
                        s[i][c][e] = 8 * c < seen ? s[i][c][e] : -INFINITY;
                }
        }

        /* The maximum. Any m near it will do, since the division by l takes it out again: while a row's maximum is at most
         * SLACK above m, m stays. Mostly no row of the warp moves, and the rescaling of O and l is left out. */
        float shift[m_tiles][2]; /* old m - new m, at most 0 */
        bool rescale = false;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float tile_max = s[i][0][2 * h];
#pragma unroll
                for (int c = 0; c < Bc / 8; c++)
                    tile_max = fmaxf(tile_max, fmaxf(s[i][c][2 * h], s[i][c][2 * h + 1]));
                tile_max = quad_max(tile_max);
                const float m_new = tile_max * scale_log2 > m[i][h] + SLACK ? tile_max * scale_log2 : m[i][h];
                rescale |= m_new != m[i][h];
                shift[i][h] = m[i][h] - m_new;
                m[i][h] = m_new;
            }
        if (__any_sync(WHOLE_WARP, rescale)) {
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float factor = exp2_approx(shift[i][h]);
                    l[i][h] *= factor;
#pragma unroll
                    for (int d = 0; d < D / 8; d++)
                        o[i][d][2 * h] *= factor, o[i][d][2 * h + 1] *= factor;
                }
        }

        /* P = 2^(scale_log2 S - m): one FFMA and one ex2 an element. O += P V. 16 keys at a time, so that the special-
         * function units can work on the next 16 while the tensor cores multiply these. l stays the lane's own sum. */
#pragma unroll
        for (int c = 0; c < Bc / 8; c += 2) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) { /* the A operand's quarters: j % 2 is 8 rows down, j / 2 is 8 keys right */
                    const int h = j % 2;
                    const float low = exp2_approx(s[i][c + j / 2][2 * h] * scale_log2 - m[i][h]);
                    const float high = exp2_approx(s[i][c + j / 2][2 * h + 1] * scale_log2 - m[i][h]);
                    l[i][h] += low + high;
                    a[i][j] = pack_pair<T>(low, high);
                }
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                load_b_fragments_trans(b, v_tile, c / 2, 8 * d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(o[i][d], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(o[i][d + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    /* Divide by l, once; write LSE. A row that saw no key has l = 0: O = 0, LSE = -inf */
    cp_async_wait<0>();
    __syncthreads(); /* without a key tile, Q is still being copied to where O goes now */
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = quad_sum(l[i][h]);
            const float inverse = sum > 0 ? 1 / sum : 0;
            const int tile_row = warp_row + 16 * i + 8 * h + lane / 4, row = first_row + tile_row;
            if (lane % 4 == 0 && row < p.seqlen_q)
                t.lse[(size_t)batch_head * p.seqlen_q + row] = sum > 0 ? m[i][h] * LN_2 + logf(sum) : -INFINITY;
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                const uint32_t pair = pack_pair<T>(o[i][d][2 * h] * inverse, o[i][d][2 * h + 1] * inverse);
                *reinterpret_cast<uint32_t *>(shared.q.chunk(tile_row, d) + 2 * (lane % 4)) = pair;
            }
        }

    /* O goes out through Q's tile, whose rows each warp has to itself */
    __syncwarp(); /* the warp's rows are complete */
    T *out = (T *)t.o + query_head_offset(&p, batch, head);
    store_rows<16 * m_tiles>(out, first_row, p.seqlen_q, shared.q, warp_row);
}

template <typename T, int D> static void launch_split_q(const Problem &p, const Tensors &t) {
    const int blocks = p.batch * p.heads * ceil_div(p.seqlen_q, Shape<D, 80>::Br);
    const bool small = device_properties()->capability < 80;
    const size_t shared_bytes = small ? sizeof(SplitQShared<T, D, 75>) : sizeof(SplitQShared<T, D, 80>);
    LAUNCH((split_q<T, D>), blocks, THREADS, shared_bytes, p, t);
}

extern "C" void fa2_split_q(const Problem *p, const Tensors *t, const Buffer *) {
    WITH_HALF_TYPE(p->dtype, T, {
        switch (p->head_dim) {
        case 32: launch_split_q<T, 32>(*p, *t); break;
        case 64: launch_split_q<T, 64>(*p, *t); break;
        case 96: launch_split_q<T, 96>(*p, *t); break;
        case 128: launch_split_q<T, 128>(*p, *t); break;
        case 256: launch_split_q<T, 256>(*p, *t); break;
        }
    });
}
