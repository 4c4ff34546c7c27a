/* 03_fa1/fa1 - FlashAttention-1 as published (Dao et al. 2022, Algorithm 1): one pass, O corrected at every key tile.
 *
 * fma.cu has the same on one screen, in plain CUDA. Here the products are mma's, and K and V are split over the warps.
 *
 * The idea. 02_online_softmax had to know LSE before it could multiply by V, and paid Q K^T twice. But O can start with the
 * statistics of the keys seen so far and be corrected later, exactly as l is. Let O = P V / l over the columns seen so far.
 * A new tile with P~ = e^(S - m~) and its own (m~, l~) changes it to
 *
 *     m' = max(m, m~)      l' = e^(m - m') l + e^(m~ - m') l~      O' = (l e^(m - m') O + e^(m~ - m') P~ V) / l'
 *
 * One pass, 4 N^2 D FLOPs, and O is a proper softmax average after every step.
 *
 * The loops, as published: a block owns a head. Its outer loop takes a tile of K and V into shared memory, its inner loop
 * lets all queries go by. So O, l and m of a query tile cannot stay on the chip between two key tiles: they live in device
 * memory. Each key tile is a pass over them, so Bc is what shared memory can hold: 256 keys at D = 64, 128 at D = 128.
 *
 *                          keys ->                    Who owns what: a block of 4 warps owns a head. The keys of the tile
 *                   tile 0   tile 1   tile 2          in shared memory are split over the warps, because K and V are what
 *     queries  0     step 1   step 5   ...            stays while queries go by:
 *        |     1     step 2   step 6                       D = 64:  keys 0-63   64-127   128-191  192-255
 *        v     2     step 3   step 7                     32 queries   warp 0   warp 1   warp 2   warp 3
 *              3     step 4   step 8                  So a row's maximum and sum are found by four warps together, through
 *                                                     shared memory, and so is its O, as a sum of four products.
 *
 * What this takes back. In 02_online_softmax/online queries are outer, a block a query tile, and a warp owns rows: nothing is
 * exchanged, and there are blocks for the whole chip. Both are given up here, because the algorithm was published so: keys
 * are outer, so that each key is loaded once; and as K and V stay while queries go by, each warp keeps a share of the keys.
 * 04_fa2 puts both back, one a kernel, and so shows what each of them is worth: loop_swap, split_q.
 *
 * Registers a lane: the warp's S, 32 x Bc / 4, takes Bc / 4; its product with V, 32 x D, takes D. Shared memory: 64 KB for K
 * and V, 64 D bytes for Q, 22 KB for what the warps exchange: 90 KB (D = 64) or 94 KB (D = 128); on sm_75, with half of Bc,
 * 58 or 62 KB.
 *
 * What it costs. Workspace O(N): O in fp32, l and m. But they are read and written at every step, and the partial products
 * go through shared memory at every step too: 4 warps x 32 x D x 4 bytes, written and read, for a 32 x Bc tile of S. And the
 * grid is batch x heads: with fewer heads than multiprocessors, the rest of the chip idles.
 *
 * Device memory, bytes a (batch, head), e = 2 bytes an element. Full attention, whole tiles, steps = Sk / Bc:
 *
 *     K, V     Sk D e each                         O accumulator    read and written, each   (steps - 1) Sq D 4
 *     Q        steps Sq D e                        l, m             read and written, each   (steps - 1) Sq 4
 *     O        Sq D e written                      LSE              Sq 4 written
 *
 * In general: the key length instead of Sk; and each row has the steps of its query tile, max(1, columns / Bc rounded
 * up), where columns is the number of keys the last row of the tile sees. The last step of a tile writes O and LSE, the
 * steps before it write the O accumulator, l and m.
 *
 *     make 03_fa1 && ./03_fa1/03_fa1 --head-dim 128 --causal
 */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/stage.h"

constexpr int Br = 32; /* rows of a tile of S: queries. With 64 and D = 128 a lane would need 256 registers for P V */
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16; /* 16-row tiles of mma: a warp has all rows */

/* Bc, the columns of a tile of S: keys. Each key tile is one more pass over O, l and m, so tiles are large: K and V get
 * 64 KB of the 99 KB of shared memory that a block can have on every chip from sm_80 on, and 32 KB of the 64 KB of
 * sm_75. */
HOST_DEVICE constexpr int key_tile(int D, int capability) {
    return (capability < 80 ? 32 : 64) * 1024 / (2 * 2 * D); /* two tiles of D elements of 2 bytes a key */
}

constexpr int SLICE = 32;        /* columns of O summed over the warps at a time: all D of them would take up to 64 KB */
constexpr int PITCH = SLICE + 8; /* the 16 lanes that store float2 together, 4 rows x 4, then meet 32 different banks */

template <typename T, int D, int capability> struct Fa1Shared {
    Tile<T, Br, D> q;
    Tile<T, key_tile(D, capability), D> k, v;
    float partial[WARPS][Br][PITCH];                /* each warp's P~ V, one slice */
    float warp_max[WARPS][Br], warp_sum[WARPS][Br]; /* each warp's share of m~ and l~ */
    float m[Br], l[Br];                             /* over the earlier key tiles */
    float old_factor[Br], tile_factor[Br];          /* O' = old_factor O + tile_factor P~ V */
};

/* O_accumulator, l, m: workspace, [batch, heads, seqlen_q, D] and [batch, heads, seqlen_q] twice. Block: batch x head.
 * Two blocks a multiprocessor are the most that shared memory has room for, so registers need not be saved for more. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2) fa1_kernel(Problem p, Tensors t, float *O_accumulator, float *l, float *m) {
    constexpr int Bc = key_tile(D, CAPABILITY), warp_keys = Bc / WARPS;
    using Shared = Fa1Shared<T, D, CAPABILITY>;
    SHARED_MEMORY(Shared, shared);
    static_assert(sizeof(Shared) <= (CAPABILITY < 80 ? 64 : 99) * 1024, "what a block can have");
    int batch = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    const T *q = (const T *)t.q + query_head_offset(&p, batch, head);
    const T *k = (const T *)t.k + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = (const T *)t.v + key_head_offset(&p, batch, kv_head_of(&p, head));
    size_t head_row = (size_t)blockIdx.x * p.seqlen_q; /* this head's first row in O, l, m and LSE */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int keys = key_length(&p, t.key_lengths, batch);

    /* The first key tile is visited even if there are no keys: its step writes O = 0 and LSE = -inf. */
    for (int first_column = 0; first_column == 0 || first_column < keys; first_column += Bc) {
        bool first = first_column == 0;
        /* Nobody reads the K and V before any more: since its last P~ V every warp has passed a barrier, that of a slice
         * of O */
        load_tile_async<THREADS>(shared.k, k, first_column, keys);
        load_tile_async<THREADS>(shared.v, v, first_column, keys);

        /* Later queries see more keys: the tiles that see none of these keys are the first ones, and are skipped. */
        int first_row = 0;
        while (!first && visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1) <= first_column)
            first_row += Br;
        load_tile_async<THREADS>(shared.q, q, first_row, p.seqlen_q);

        for (; first_row < p.seqlen_q; first_row += Br) {
            bool last = first_column + Bc >= visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1);

            /* l and m of the earlier key tiles. None before the first: l = 0, m = -inf. Thread r has row r. */
            bool has_row = threadIdx.x < Br && first_row + (int)threadIdx.x < p.seqlen_q;
            size_t thread_row = head_row + first_row + threadIdx.x;
            if (threadIdx.x < Br) {
                shared.m[threadIdx.x] = first || !has_row ? -INFINITY : m[thread_row];
                shared.l[threadIdx.x] = first || !has_row ? 0 : l[thread_row];
            }
            cp_async_wait<0>();
            __syncthreads(); /* the tiles are there */

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
            __syncthreads(); /* every warp's maximum is there, and every warp has read Q: the next Q may come */
            if (first_row + Br < p.seqlen_q)
                load_tile_async<THREADS>(shared.q, q, first_row + Br, p.seqlen_q);

            /* P~ = e^(S - m~), and its sum over this warp's keys */
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int row = 16 * i + 8 * h + lane / 4;
                    float m_tile = -INFINITY, row_sum = 0;
                    for (int w = 0; w < WARPS; w++)
                        m_tile = fmaxf(m_tile, shared.warp_max[w][row]);
#pragma unroll
                    for (int n = 0; n < warp_keys / 8; n++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            float &score = s[i][n][2 * h + j];
                            score = __expf(score - shift_of(m_tile));
                            row_sum += score;
                        }
                    row_sum = quad_sum(row_sum);
                    if (lane % 4 == 0)
                        shared.warp_sum[warp][row] = row_sum;
                }
            __syncthreads(); /* every warp's sum is there */

            /* m', l', and the factors of the two terms of O'. Thread r has row r. */
            if (has_row) {
                float m_tile = -INFINITY, l_tile = 0;
                for (int w = 0; w < WARPS; w++) {
                    m_tile = fmaxf(m_tile, shared.warp_max[w][threadIdx.x]);
                    l_tile += shared.warp_sum[w][threadIdx.x];
                }
                float m_new = fmaxf(shared.m[threadIdx.x], m_tile);
                float alpha = __expf(shared.m[threadIdx.x] - shift_of(m_new)), beta = __expf(m_tile - shift_of(m_new));
                float l_new = alpha * shared.l[threadIdx.x] + beta * l_tile;
                float inverse = l_new > 0 ? 1 / l_new : 0;
                shared.old_factor[threadIdx.x] = alpha * shared.l[threadIdx.x] * inverse;
                shared.tile_factor[threadIdx.x] = beta * inverse;
                if (last) {
                    t.lse[thread_row] = shift_of(m_new) + logf(l_new);
                } else {
                    m[thread_row] = m_new;
                    l[thread_row] = l_new;
                }
            }

            /* P~ V: all rows and columns of O, this warp's keys */
            float o[m_tiles][D / 8][4] = {};
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

            /* O' = old_factor O + tile_factor (sum of the warps' P~ V), a slice of the columns at a time */
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
                __syncthreads(); /* every warp's slice is there, and both factors are */

                for (int quadruple = threadIdx.x; quadruple < Br * SLICE / 4; quadruple += THREADS) {
                    int row = quadruple / (SLICE / 4), column = 4 * (quadruple % (SLICE / 4));
                    if (first_row + row >= p.seqlen_q)
                        continue;
                    float4 sum = make_float4(0, 0, 0, 0);
                    for (int w = 0; w < WARPS; w++) {
                        float4 part = *reinterpret_cast<const float4 *>(&shared.partial[w][row][column]);
                        sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
                    }
                    size_t element = (head_row + first_row + row) * D + SLICE * slice + column;
                    float4 old = first ? make_float4(0, 0, 0, 0) : *reinterpret_cast<float4 *>(&O_accumulator[element]);
                    float a = shared.old_factor[row], b = shared.tile_factor[row];
                    sum = make_float4(a * old.x + b * sum.x, a * old.y + b * sum.y, a * old.z + b * sum.z,
                                      a * old.w + b * sum.w);
                    if (last)
                        *reinterpret_cast<uint2 *>((T *)t.o + element) =
                            make_uint2(pack_pair<T>(sum.x, sum.y), pack_pair<T>(sum.z, sum.w));
                    else
                        *reinterpret_cast<float4 *>(&O_accumulator[element]) = sum;
                }
            }
        }
    }
}

extern "C" Planner fa1_plan;
extern "C" Launcher fa1_forward;

extern "C" int fa1_plan(const Problem *p, Buffer *workspace) {
    workspace[0] = Buffer{"O accumulator", query_elements(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"l", row_count(p) * sizeof(float), nullptr, 0};
    workspace[2] = Buffer{"m", row_count(p) * sizeof(float), nullptr, 0};
    return 3;
}

extern "C" void fa1_forward(const Problem *p, const Tensors *t, const Buffer *workspace) {
    float *O_accumulator = (float *)workspace[0].pointer;
    float *l = (float *)workspace[1].pointer, *m = (float *)workspace[2].pointer;
    const bool small = device_properties()->capability < 80;
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const size_t shared_bytes = small ? sizeof(Fa1Shared<T, D, 75>) : sizeof(Fa1Shared<T, D, 80>);
        LAUNCH((fa1_kernel<T, D>), p->batch * p->heads, THREADS, shared_bytes, *p, *t, O_accumulator, l, m);
    }));
}
