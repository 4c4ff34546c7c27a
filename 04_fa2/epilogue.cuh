/* epilogue.cuh - the kernel of epilogue and of parallel, which differ in the grid alone: how many blocks share a head.
 * epilogue.cu explains the formulas, parallel.cu the grid.
 */
#ifndef FA_EPILOGUE_CUH
#define FA_EPILOGUE_CUH

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

template <typename T, int D, int capability> struct EpilogueShared {
    Tile<T, Br, D> q;
    Tile<T, key_tile(D, capability), D> k, v;
    float partial[WARPS][Br][PITCH];                /* each warp's P V, one slice */
    float warp_max[WARPS][Br], warp_sum[WARPS][Br]; /* each warp's share of m' and l' */
    float m[Br], l[Br];                             /* over the earlier key tiles */
    float alpha[Br], inverse[Br];                   /* O' = alpha O + P V, and 1 / l' */
};

/* O, l, m: workspace, [batch, heads, seqlen_q, D] and [batch, heads, seqlen_q] twice. Block: (block_rows queries,
 * batch x head). Two blocks per multiprocessor are the most that shared memory has room for, so registers need not be
 * saved for more. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2)
    epilogue_kernel(Problem p, Tensors t, float *O, float *l, float *m, int block_rows) {
    constexpr int Bc = key_tile(D, CAPABILITY), warp_keys = Bc / WARPS;
    SHARED_MEMORY(shared, EpilogueShared<T, D, CAPABILITY>);
    static_assert(sizeof(shared) <= (CAPABILITY < 80 ? 64 : 99) * 1024, "what a block can have");
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = threadIdx.x;
    int begin = blockIdx.x * block_rows, end = min(begin + block_rows, p.seqlen_q); /* this block's queries */
    int columns = visible_keys(&p, head.keys, end - 1); /* the last of them sees most */

    /* The first key tile is visited even if there are no keys: its step writes O = 0 and LSE = -inf. */
    for (int first_column = 0; first_column == 0 || first_column < columns; first_column += Bc) {
        bool first = first_column == 0;
        /* No warp still reads the previous K and V: since its last P V, each has passed a barrier, that of a slice of
         * O. */
        load_tile_async<THREADS>(shared.k, head.k, first_column, columns);
        load_tile_async<THREADS>(shared.v, head.v, first_column, columns);

        /* Later queries see more keys: the tiles that see none of these keys are the first ones, and are skipped. */
        int first_row = begin;
        while (!first && visible_keys(&p, head.keys, min(first_row + Br, end) - 1) <= first_column)
            first_row += Br;
        load_tile_async<THREADS>(shared.q, head.q, first_row, end);

        for (; first_row < end; first_row += Br) {
            bool last = first_column + Bc >= visible_keys(&p, head.keys, min(first_row + Br, end) - 1);

            /* l and m of the earlier key tiles. None before the first: l = 0, m = -inf. Thread r has row r. */
            bool has_row = thread < Br && first_row + thread < end;
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
            if (first_row + Br < end)
                load_tile_async<THREADS>(shared.q, head.q, first_row + Br, end);

            /* P = e^(S - m'), and its sum over this warp's keys */
            UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
                float m_new = shared.m[row_of(r)], row_sum = 0;
                for (int w = 0; w < WARPS; w++)
                    m_new = fmaxf(m_new, shared.warp_max[w][row_of(r)]);
                each_row(s, r, [&](float &x) { x = __expf(x - shift_of(m_new)); row_sum += x; });
                row_sum = quad_sum(row_sum);
                if (lane % 4 == 0)
                    shared.warp_sum[warp][row_of(r)] = row_sum;
            }
            __syncthreads(); /* every warp's sum is there */

            /* m', l', and by how much the O so far is scaled. Thread r has row r. */
            if (has_row) {
                float m_new = shared.m[thread], l_tile = 0;
                for (int w = 0; w < WARPS; w++) {
                    m_new = fmaxf(m_new, shared.warp_max[w][thread]);
                    l_tile += shared.warp_sum[w][thread];
                }
                float alpha = __expf(shared.m[thread] - shift_of(m_new));
                float l_new = alpha * shared.l[thread] + l_tile;
                shared.alpha[thread] = alpha;
                shared.inverse[thread] = l_new > 0 ? 1 / l_new : 0; /* wanted in the last step alone */
                if (last)
                    t.lse[thread_row] = shift_of(m_new) + logf(l_new);
                else
                    m[thread_row] = m_new, l[thread_row] = l_new;
            }

            /* P V: all rows and columns of O, this warp's keys */
            float o[m_tiles][D / 8][4] = {};
            add_ab(o, s, shared.v, warp_keys * warp);

            /* O' = alpha O + the sum of the warps' P V, a slice of the columns at a time */
            UNROLL for (int slice = 0; slice < D / SLICE; slice++) {
                if (slice > 0)
                    __syncthreads(); /* the slice before has been added up */
                share_columns<SLICE>(shared.partial[warp], o, SLICE * slice);
                __syncthreads(); /* every warp's slice is there, and alpha and inverse are */

                for (int quadruple = threadIdx.x; quadruple < Br * SLICE / 4; quadruple += THREADS) {
                    int row = quadruple / (SLICE / 4), column = 4 * (quadruple % (SLICE / 4));
                    if (first_row + row >= end)
                        continue;
                    float4 sum = make_float4(0, 0, 0, 0);
                    for (int w = 0; w < WARPS; w++)
                        sum = sum + load_4(&shared.partial[w][row][column]);
                    size_t element = (size_t)(first_row + row) * D + SLICE * slice + column;
                    float *accumulator = O + head.first_row * D + element;
                    float4 old = first ? make_float4(0, 0, 0, 0) : load_4(accumulator);
                    sum = shared.alpha[row] * old + sum;
                    if (last)
                        store_4(head.o + element, shared.inverse[row] * sum);
                    else
                        store_4(accumulator, sum);
                }
            }
        }
    }
}

/* A grid whose blocks have so many queries each, a multiple of Br or all. */
static void launch_epilogue(const Problem *p, const Tensors *t, const Buffer *workspace, int block_rows) {
    float *O = (float *)workspace[0].pointer, *l = (float *)workspace[1].pointer, *m = (float *)workspace[2].pointer;
    const dim3 grid(ceil_div(p->seqlen_q, block_rows), p->batch * p->heads);
    const bool small = device_properties()->capability < 80;
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const size_t shared_bytes = small ? sizeof(EpilogueShared<T, D, 75>) : sizeof(EpilogueShared<T, D, 80>);
        LAUNCH((epilogue_kernel<T, D>), grid, THREADS, shared_bytes, *p, *t, O, l, m, block_rows);
    }));
}

#endif
