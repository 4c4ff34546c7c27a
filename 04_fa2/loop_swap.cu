/* 04_fa2/loop_swap - FlashAttention-2, second change: queries outer, keys inner, so that O stays in registers.
 *
 * The idea. With keys outer, O, l and m of a query tile went to device memory and back at every key tile. Swap the loops:
 * a block owns one tile of queries and walks over all keys, and O, l and m stay in its registers from the first key to
 * the last. No block needs the O of another one, so the grid is query tiles x batch x heads instead of batch x heads: one
 * head alone can fill the chip (Dao 2023, section 3.2).
 *
 *                          keys ->                    Who owns what: a block of 4 warps owns 32 rows of queries. As in
 *                   tile 0   tile 1   tile 2          03_fa1, the keys of a tile are split over its warps:
 *     queries  0     step 1   step 2   ...  block 0                 keys 0-15   16-31    32-47    48-63
 *        |     1     step 1   step 2   ...  block 1      32 queries   warp 0   warp 1   warp 2   warp 3
 *        v     2     step 1   step 2   ...  block 2   A warp keeps an O of its own, 32 x D, summed over its own keys. At
 *                                                     the end, once, the four O are added through shared memory.
 *
 * They can be added because all four are measured against the same maximum of the row: in every step the warps exchange
 * the maxima of their keys through shared memory.
 *
 * K and V are loaded ahead without a second buffer: V arrives while Q K^T is computed, the next K while P V is.
 *
 * Registers a lane: D for O, 16 for S. Each warp has all rows, so 4 warps hold O four times. That limits Br to 32, and
 * each warp rescales 32 x D numbers for 32 x 16 scores. Shared memory: 41 KB (D = 64) or 61 KB (D = 128).
 *
 * Device memory, bytes a (batch, head), e = 2 bytes an element, sums over query tiles of 32 rows:
 *
 *              full, whole tiles     in general, `columns` being the keys that a tile's last row sees
 *     Q        Sq D e                the same           O      Sq D e written
 *     K, V     Sq/32 Sk D e each     sum columns D e    LSE    Sq 4 written
 *
 * No workspace. 03_fa1 reads K and V once, and Q, O, l and m once for each key tile. Here Q is read once, and K and V
 * once for each query tile, mostly from L2. K and V of a tile, 2 Bc D e bytes, bring 4 Br Bc D FLOPs: Br = 32 FLOPs a
 * byte. The next variant raises Br.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant loop_swap --head-dim 128 --causal
 */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/stage.h"

constexpr int Br = 32; /* rows of a tile of S: queries */
constexpr int Bc = 64; /* columns of a tile of S: keys. Larger tiles would save no passes over O: O stays in registers */
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16;      /* 16-row tiles of mma: a warp has all rows, */
constexpr int warp_keys = Bc / WARPS; /* and these keys of a tile */

constexpr int SLICE = 32;        /* columns of O summed over the warps at a time: all D of them would take up to 64 KB */
constexpr int PITCH = SLICE + 8; /* the 16 lanes that store float2 together, 4 rows x 4, then meet 32 different banks */

template <typename T, int D> struct LoopSwapShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
    float partial[WARPS][Br][PITCH];                /* each warp's O, one slice */
    float warp_max[WARPS][Br], warp_sum[WARPS][Br]; /* each warp's share of a tile's m and of the whole l */
};

/* Block: (tile of queries, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) loop_swap_kernel(Problem p, Tensors t) {
    using Shared = LoopSwapShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    static_assert(sizeof(Shared) <= 64 * 1024, "what a block can have on sm_75");
    int batch = blockIdx.y / p.heads, head = blockIdx.y % p.heads;
    int first_row = blockIdx.x * Br;
    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));
    size_t head_row = (size_t)blockIdx.y * p.seqlen_q; /* this head's first row in O and LSE */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int keys = key_length(&p, t.key_lengths, batch);
    int columns = visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.k, k, 0, columns);

    /* O, m and l of the key tiles so far. Index [i][h]: row 16 i + 8 h + lane / 4. m is that of the whole row. O is the
     * sum over this warp's keys alone, and l over this lane's keys alone. */
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

        /* S = scale Q K^T: all rows of the tile, this warp's keys */
        float s[m_tiles][warp_keys / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
                load_a_fragment(a[i], shared.q, 16 * i, d);
#pragma unroll
            for (int n = 0; n < warp_keys / 8; n += 2) {
                uint32_t b[4];
                load_b_fragments(b, shared.k, warp_keys * warp + 8 * n, d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(s[i][n], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(s[i][n + 1], a[i], b[2], b[3]);
                }
            }
        }

        /* the mask, and the maximum over this warp's keys */
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) { /* row g, then row g + 8 */
                int row = 16 * i + 8 * h + lane / 4;
                int visible = visible_keys(&p, keys, first_row + row);
                float row_max = -INFINITY;
#pragma unroll
                for (int n = 0; n < warp_keys / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int column = first_column + warp_keys * warp + 8 * n + 2 * (lane % 4) + j;
                        float &score = s[i][n][2 * h + j];
                        score = column < visible ? p.scale * score : -INFINITY;
                        row_max = fmaxf(row_max, score);
                    }
                row_max = quad_max(row_max);
                if (lane % 4 == 0)
                    shared.warp_max[warp][row] = row_max;
            }
        cp_async_wait<0>();
        __syncthreads(); /* V and every warp's maximum are there, and every warp has read K: the next K may come */
        if (first_column + Bc < columns)
            load_tile_async<THREADS>(shared.k, k, first_column + Bc, columns);

        /* m', the sums so far rescaled to it, and P = e^(S - m') */
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = 16 * i + 8 * h + lane / 4;
                float m_new = m[i][h];
                for (int w = 0; w < WARPS; w++)
                    m_new = fmaxf(m_new, shared.warp_max[w][row]);
                float alpha = __expf(m[i][h] - shift_of(m_new)), row_sum = 0;
                m[i][h] = m_new;
#pragma unroll
                for (int d = 0; d < D / 8; d++) {
                    o[i][d][2 * h] *= alpha;
                    o[i][d][2 * h + 1] *= alpha;
                }
#pragma unroll
                for (int n = 0; n < warp_keys / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float &score = s[i][n][2 * h + j];
                        score = __expf(score - shift_of(m_new));
                        row_sum += score;
                    }
                l[i][h] = alpha * l[i][h] + row_sum;
            }

        /* O += P V: all rows and columns of O, this warp's keys */
#pragma unroll
        for (int n = 0; n < warp_keys / 16; n++) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) /* rows g and g + 8 of the left eight keys, then of the right eight */
                    a[i][j] = pack_pair<T>(s[i][2 * n + j / 2][2 * (j % 2)], s[i][2 * n + j / 2][2 * (j % 2) + 1]);
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                load_b_fragments_trans(b, shared.v, warp_keys / 16 * warp + n, 8 * d);
#pragma unroll
                for (int i = 0; i < m_tiles; i++) {
                    mma_m16n8k16<T>(o[i][d], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(o[i][d + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q and K yet */

    /* l = the sum over the quad's lanes and the warps */
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float row_sum = quad_sum(l[i][h]);
            if (lane % 4 == 0)
                shared.warp_sum[warp][16 * i + 8 * h + lane / 4] = row_sum;
        }

    /* O = the sum of the warps' O, divided by l, a slice of the columns at a time */
#pragma unroll
    for (int slice = 0; slice < D / SLICE; slice++) {
        if (slice > 0)
            __syncthreads(); /* the slice before has been added up */
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float *pair = &o[i][SLICE / 8 * slice + n][2 * h];
                    float *to = &shared.partial[warp][16 * i + 8 * h + lane / 4][8 * n + 2 * (lane % 4)];
                    *reinterpret_cast<float2 *>(to) = make_float2(pair[0], pair[1]);
                }
        __syncthreads(); /* every warp's slice is there, and warp_sum is */

        for (int quadruple = threadIdx.x; quadruple < Br * SLICE / 4; quadruple += THREADS) {
            int row = quadruple / (SLICE / 4), column = 4 * (quadruple % (SLICE / 4));
            if (first_row + row >= p.seqlen_q)
                continue;
            float4 sum = make_float4(0, 0, 0, 0);
            float l_row = 0;
            for (int w = 0; w < WARPS; w++) {
                float4 part = *reinterpret_cast<const float4 *>(&shared.partial[w][row][column]);
                sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
                l_row += shared.warp_sum[w][row];
            }
            size_t element = (head_row + first_row + row) * D + SLICE * slice + column;
            float inverse = l_row > 0 ? 1 / l_row : 0; /* a row without keys: O = 0 */
            uint32_t low = pack_pair<T>(inverse * sum.x, inverse * sum.y);
            uint32_t high = pack_pair<T>(inverse * sum.z, inverse * sum.w);
            *reinterpret_cast<uint2 *>((T *)t.o + element) = make_uint2(low, high);
        }
    }

    /* LSE = m + ln l. Every warp knows m; the first one writes */
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = 16 * i + 8 * h + lane / 4;
            if (warp > 0 || lane % 4 > 0 || first_row + row >= p.seqlen_q)
                continue;
            float l_row = 0;
            for (int w = 0; w < WARPS; w++)
                l_row += shared.warp_sum[w][row];
            t.lse[head_row + first_row + row] = shift_of(m[i][h]) + logf(l_row);
        }
}

extern "C" Launcher fa2_loop_swap;
extern "C" void fa2_loop_swap(const Problem *p, const Tensors *t, const Buffer *) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((loop_swap_kernel<T, D>), grid, THREADS, sizeof(LoopSwapShared<T, D>), *p, *t);
    }));
}
