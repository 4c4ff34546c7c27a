/* 03_fa1/fa1 - FlashAttention-1 as published (Dao et al. 2022, Algorithm 1): one pass, O corrected at every key tile.
 *
 * fma.cu has the same on one screen, in plain CUDA. Here the products are mma's, and K and V are split over the warps.
 *
 * The idea. 02_online_softmax had to know LSE before it could multiply by V, and paid Q K^T twice. But O can start with
 * the statistics of the keys seen so far and be corrected later, exactly as l is. Let O = P V / l over the columns seen
 * so far. A new tile with P~ = e^(S - m~) and its own (m~, l~) changes it to
 *
 *     m' = max(m, m~)      l' = e^(m - m') l + e^(m~ - m') l~      O' = (l e^(m - m') O + e^(m~ - m') P~ V) / l'
 *
 * One pass, 4 N^2 D FLOPs, and O is a proper softmax average after every step.
 *
 * The loops, as published: a block owns a head. Its outer loop takes a tile of K and V into shared memory, its
 * inner loop lets all queries go by. So O, l and m of a query tile cannot stay on the chip between two key
 * tiles: they live in device memory. Each key tile is a pass over them, so Bc is what shared memory can hold:
 * 256 keys at D = 64, 128 at D = 128.
 *
 *                          keys ->                Who owns what: a block of 4 warps owns a head. The keys of the tile
 *                   tile 0   tile 1   tile 2      in shared memory are split over the warps, because K and V are what
 *     queries  0     step 1   step 5   ...        stays while queries go by:
 *        |     1     step 2   step 6                   D = 64:  keys 0-63   64-127   128-191  192-255
 *        v     2     step 3   step 7                 32 queries   warp 0   warp 1   warp 2   warp 3
 *              3     step 4   step 8              So a row's maximum and sum are found by four warps together, through
 *                                                 shared memory, and so is its O, as a sum of four products.
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, share_columns) are in common/gpu/warp.cuh.
 *
 * Keys are outer so that each key is loaded once, and because K and V stay while queries go by, each warp keeps a share
 * of the keys. That is how the algorithm was published. It costs what 02_online_softmax/online has: a block for each
 * query tile, and warps that own rows and exchange nothing.
 *
 * Registers per lane: the warp's S, 32 x Bc / 4, takes Bc / 4; its product with V, 32 x D, takes D. Shared memory: 64
 * KB for K and V, 64 D bytes for Q, 22 KB for what the warps exchange: 90 KB (D = 64) or 94 KB (D = 128); on sm_75,
 * with half of Bc, 58 or 62 KB.
 *
 * What it costs. Workspace O(N): O in fp32, l and m. But they are read and written at every step, and the partial
 * products go through shared memory at every step too: 4 warps x 32 x D x 4 bytes, written and read, for a 32 x Bc tile
 * of S. And the grid is batch x heads: with fewer heads than multiprocessors, the rest of the chip idles.
 *
 * Device memory. Bytes as in fma.cu, with steps = Sk / Bc: a key tile has 256 or 128 keys, not 32, so there are fewer
 * steps. One thread per row reads l and m, not 16.
 *
 *     make 03_fa1 && ./03_fa1/03_fa1 --head-dim 128 --causal
 */
#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

constexpr int Br = 32; /* rows of a tile of S: queries. With 64 and D = 128 a lane would need 256 registers for P V */
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16; /* 16-row mma tiles: a warp has all rows */

/* Bc, the columns of a tile of S: keys. Each key tile is one more pass over O, l and m, so tiles are large: K and V get
 * 64 KB of the 99 KB of shared memory that a block can have on every chip from sm_80 on, and 32 KB of the 64 KB of
 * sm_75. */
HOST_DEVICE constexpr int key_tile(int D, int capability) {
    return (capability < 80 ? 32 : 64) * 1024 / (2 * 2 * D); /* two tiles of D elements of 2 bytes per key */
}

constexpr int SLICE = 32;        /* columns of O summed over the warps at a time, since all D would take up to 64 KB */
constexpr int PITCH = SLICE + 8; /* the 16 lanes that store float2 together, 4 rows x 4, then meet 32 different banks */

template <typename T, int D, int capability> struct Fa1Shared {
    Tile<T, Br, D> q;
    Tile<T, key_tile(D, capability), D> k, v;
    float partial[WARPS][Br][PITCH];                /* each warp's P~ V, one slice */
    float warp_max[WARPS][Br], warp_sum[WARPS][Br]; /* each warp's share of m~ and l~ */
    float m[Br], l[Br];                             /* over the earlier key tiles */
    float old_factor[Br], tile_factor[Br];          /* O' = old_factor O + tile_factor P~ V */
};

/* O, l, m: workspace, [batch, heads, seqlen_q, D] and [batch, heads, seqlen_q] twice. Block: batch x head. Two blocks a
 * multiprocessor are the most that shared memory has room for, so registers need not be saved for more. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2) fa1_kernel(Problem p, Tensors t, float *O, float *l, float *m) {
    constexpr int Bc = key_tile(D, CAPABILITY), warp_keys = Bc / WARPS;
    SHARED_MEMORY(shared, Fa1Shared<T, D, CAPABILITY>);
    static_assert(sizeof(shared) <= (CAPABILITY < 80 ? 64 : 99) * 1024, "what a block can have");
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.x);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = threadIdx.x;

    /* The first key tile is visited even if there are no keys: its step writes O = 0 and LSE = -inf. */
    for (int first_column = 0; first_column == 0 || first_column < head.keys; first_column += Bc) {
        bool first = first_column == 0;
        /* No warp still reads the previous K and V: since its last P~ V, each has passed a barrier, that of a slice of
         * O. */
        load_tile_async<THREADS>(shared.k, head.k, first_column, head.keys);
        load_tile_async<THREADS>(shared.v, head.v, first_column, head.keys);

        /* Later queries see more keys: the tiles that see none of these keys are the first ones, and are skipped. */
        int first_row = 0;
        while (!first && visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1) <= first_column)
            first_row += Br;
        load_tile_async<THREADS>(shared.q, head.q, first_row, p.seqlen_q);

        for (; first_row < p.seqlen_q; first_row += Br) {
            bool last = first_column + Bc >= visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1);

            /* l and m of the earlier key tiles. None before the first: l = 0, m = -inf. Thread r has row r. */
            bool has_row = thread < Br && first_row + thread < p.seqlen_q;
            size_t thread_row = head.first_row + first_row + thread;
            if (thread < Br) {
                shared.m[thread] = first || !has_row ? -INFINITY : m[thread_row];
                shared.l[thread] = first || !has_row ? 0 : l[thread_row];
            }
            cp_async_wait<0>();
            __syncthreads(); /* the tiles are there */

            /* S = scale Q K^T: all rows of the tile, this warp's keys */
            float s[m_tiles][warp_keys / 8][4] = {};
            add_abt<T>(s, shared.q, 0, shared.k, warp_keys * warp);
            each(s, [&](float &score, int) { score *= p.scale; });
            mask(s, p, head.keys, first_row, first_column + warp_keys * warp);

            /* the maximum over this warp's keys, for the other warps */
            UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
                float warp_max = row_max(s, r);
                if (lane % 4 == 0)
                    shared.warp_max[warp][row_of(r)] = warp_max;
            }
            __syncthreads(); /* every warp's maximum is there, and every warp has read Q: the next Q may come */
            if (first_row + Br < p.seqlen_q)
                load_tile_async<THREADS>(shared.q, head.q, first_row + Br, p.seqlen_q);

            /* P~ = e^(S - m~), and its sum over this warp's keys */
            UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
                float m_tile = -INFINITY, row_sum = 0;
                for (int w = 0; w < WARPS; w++)
                    m_tile = fmaxf(m_tile, shared.warp_max[w][row_of(r)]);
                each_row(s, r, [&](float &x) { x = __expf(x - shift_of(m_tile)); row_sum += x; });
                row_sum = quad_sum(row_sum);
                if (lane % 4 == 0)
                    shared.warp_sum[warp][row_of(r)] = row_sum;
            }
            __syncthreads(); /* every warp's sum is there */

            /* m', l', and the factors of the two terms of O'. Thread r has row r. */
            if (has_row) {
                float m_tile = -INFINITY, l_tile = 0;
                for (int w = 0; w < WARPS; w++) {
                    m_tile = fmaxf(m_tile, shared.warp_max[w][thread]);
                    l_tile += shared.warp_sum[w][thread];
                }
                float m_new = fmaxf(shared.m[thread], m_tile);
                float alpha = __expf(shared.m[thread] - shift_of(m_new)), beta = __expf(m_tile - shift_of(m_new));
                float l_new = alpha * shared.l[thread] + beta * l_tile;
                float inverse = l_new > 0 ? 1 / l_new : 0;
                shared.old_factor[thread] = alpha * shared.l[thread] * inverse;
                shared.tile_factor[thread] = beta * inverse;
                if (last)
                    t.lse[thread_row] = shift_of(m_new) + logf(l_new);
                else
                    m[thread_row] = m_new, l[thread_row] = l_new;
            }

            /* P~ V: all rows and columns of O, this warp's keys */
            float o[m_tiles][D / 8][4] = {};
            add_ab(o, s, shared.v, warp_keys * warp);

            /* O' = old_factor O + tile_factor (sum of the warps' P~ V), a slice of the columns at a time */
            UNROLL for (int slice = 0; slice < D / SLICE; slice++) {
                if (slice > 0)
                    __syncthreads(); /* the slice before has been added up */
                share_columns<SLICE>(shared.partial[warp], o, SLICE * slice);
                __syncthreads(); /* every warp's slice is there, and both factors are */

                for (int quadruple = threadIdx.x; quadruple < Br * SLICE / 4; quadruple += THREADS) {
                    int row = quadruple / (SLICE / 4), column = 4 * (quadruple % (SLICE / 4));
                    if (first_row + row >= p.seqlen_q)
                        continue;
                    float4 sum = make_float4(0, 0, 0, 0);
                    for (int w = 0; w < WARPS; w++)
                        sum = sum + load_4(&shared.partial[w][row][column]);
                    size_t element = (size_t)(first_row + row) * D + SLICE * slice + column;
                    float *accumulator = O + head.first_row * D + element;
                    float4 old = first ? make_float4(0, 0, 0, 0) : load_4(accumulator);
                    sum = shared.old_factor[row] * old + shared.tile_factor[row] * sum;
                    if (last)
                        store_4(head.o + element, sum);
                    else
                        store_4(accumulator, sum);
                }
            }
        }
    }
}

LAUNCHER(fa1_forward) {
    float *O = (float *)workspace[0].pointer, *l = (float *)workspace[1].pointer, *m = (float *)workspace[2].pointer;
    const bool small = device_properties()->capability < 80;
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const size_t shared_bytes = small ? sizeof(Fa1Shared<T, D, 75>) : sizeof(Fa1Shared<T, D, 80>);
        LAUNCH((fa1_kernel<T, D>), p->batch * p->heads, THREADS, shared_bytes, *p, *t, O, l, m);
    }));
}

PREDICTOR(fa1_traffic) {
    const int Bc = key_tile(p->head_dim, device_properties()->capability);
    return keys_outer_traffic(p, key_lengths, "fa1_kernel", p->seqlen_q, Br, Bc, 1, traffic);
}
