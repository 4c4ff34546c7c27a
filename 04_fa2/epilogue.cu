/* 04_fa2/epilogue - FlashAttention-2, first change: O is divided by l once, in the last step.
 *
 * The idea. After every step 03_fa1 divides O by l, and at the next step multiplies it by that l again. Only the O of the
 * last step is wanted. So this kernel keeps O undivided, measures O and l against the new maximum m' in each step,
 *
 *     m' = max(m, m~)      P = e^(S - m')      l' = e^(m - m') l + rowsum(P)      O' = e^(m - m') O + P V
 *
 * where m~ is the maximum of the step's tile, and writes O / l after the last key tile (Dao 2023, section 3.1.1). The
 * loops, the grid, who owns what and the bytes moved are those of 03_fa1; its header has the picture. `make
 * diff-fa1-epilogue` is these formulas and the division.
 *
 * What it saves, for a tile of S: one division and one exponential a row, and one multiplication for each of the Br D
 * elements of O, since in 03_fa1 both terms of O' have a factor. An A100 does 16 times as many FLOPs a second on its
 * tensor cores as elsewhere, so FLOPs outside the products are dear. Here they cost little, because this kernel waits for
 * device memory and for the exchange between warps, as 03_fa1 does: expect little before the next variant.
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
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant epilogue --head-dim 128 --causal
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

template <typename T, int D, int capability> struct EpilogueShared {
    Tile<T, Br, D> q;
    Tile<T, key_tile(D, capability), D> k, v;
    float partial[WARPS][Br][PITCH];                /* each warp's P V, one slice */
    float warp_max[WARPS][Br], warp_sum[WARPS][Br]; /* each warp's share of m' and l' */
    float m[Br], l[Br];                             /* over the earlier key tiles */
    float alpha[Br], inverse[Br];                   /* O' = alpha O + P V, and 1 / l' */
};

/* O_accumulator, l, m: workspace, [batch, heads, seqlen_q, D] and [batch, heads, seqlen_q] twice. Block: batch x head.
 * Two blocks a multiprocessor are the most that shared memory has room for, so registers need not be saved for more. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2)
epilogue_kernel(Problem p, Tensors t, float *O_accumulator, float *l, float *m) {
    constexpr int Bc = key_tile(D, CAPABILITY), warp_keys = Bc / WARPS;
    using Shared = EpilogueShared<T, D, CAPABILITY>;
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
        /* Nobody reads the K and V before any more: since its last P V every warp has passed a barrier, that of a slice
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

            /* P = e^(S - m'), and its sum over this warp's keys */
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int row = 16 * i + 8 * h + lane / 4;
                    float m_new = shared.m[row], row_sum = 0;
                    for (int w = 0; w < WARPS; w++)
                        m_new = fmaxf(m_new, shared.warp_max[w][row]);
#pragma unroll
                    for (int n = 0; n < warp_keys / 8; n++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            float &score = s[i][n][2 * h + j];
                            score = __expf(score - shift_of(m_new));
                            row_sum += score;
                        }
                    row_sum = quad_sum(row_sum);
                    if (lane % 4 == 0)
                        shared.warp_sum[warp][row] = row_sum;
                }
            __syncthreads(); /* every warp's sum is there */

            /* m', l', and by how much the O so far is scaled. Thread r has row r. */
            if (has_row) {
                float m_new = shared.m[threadIdx.x], l_tile = 0;
                for (int w = 0; w < WARPS; w++) {
                    m_new = fmaxf(m_new, shared.warp_max[w][threadIdx.x]);
                    l_tile += shared.warp_sum[w][threadIdx.x];
                }
                float alpha = __expf(shared.m[threadIdx.x] - shift_of(m_new));
                float l_new = alpha * shared.l[threadIdx.x] + l_tile;
                shared.alpha[threadIdx.x] = alpha;
                if (last) {
                    shared.inverse[threadIdx.x] = l_new > 0 ? 1 / l_new : 0;
                    t.lse[thread_row] = shift_of(m_new) + logf(l_new);
                } else {
                    m[thread_row] = m_new;
                    l[thread_row] = l_new;
                }
            }

            /* P V: all rows and columns of O, this warp's keys */
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

            /* O' = alpha O + the sum of the warps' P V, a slice of the columns at a time */
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
                __syncthreads(); /* every warp's slice is there, and alpha and inverse are */

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
                    float alpha = shared.alpha[row];
                    sum = make_float4(alpha * old.x + sum.x, alpha * old.y + sum.y, alpha * old.z + sum.z,
                                      alpha * old.w + sum.w);
                    if (last) {
                        float inverse = shared.inverse[row];
                        uint32_t low = pack_pair<T>(inverse * sum.x, inverse * sum.y);
                        uint32_t high = pack_pair<T>(inverse * sum.z, inverse * sum.w);
                        *reinterpret_cast<uint2 *>((T *)t.o + element) = make_uint2(low, high);
                    } else {
                        *reinterpret_cast<float4 *>(&O_accumulator[element]) = sum;
                    }
                }
            }
        }
    }
}

extern "C" Planner fa2_epilogue_plan;
extern "C" Launcher fa2_epilogue;

extern "C" int fa2_epilogue_plan(const Problem *p, Buffer *workspace) {
    workspace[0] = Buffer{"O accumulator", query_elements(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"l", row_count(p) * sizeof(float), nullptr, 0};
    workspace[2] = Buffer{"m", row_count(p) * sizeof(float), nullptr, 0};
    return 3;
}

extern "C" void fa2_epilogue(const Problem *p, const Tensors *t, const Buffer *workspace) {
    float *O_accumulator = (float *)workspace[0].pointer;
    float *l = (float *)workspace[1].pointer, *m = (float *)workspace[2].pointer;
    const bool small = device_properties()->capability < 80;
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const size_t shared_bytes = small ? sizeof(EpilogueShared<T, D, 75>) : sizeof(EpilogueShared<T, D, 80>);
        LAUNCH((epilogue_kernel<T, D>), p->batch * p->heads, THREADS, shared_bytes, *p, *t, O_accumulator, l, m);
    }));
}
