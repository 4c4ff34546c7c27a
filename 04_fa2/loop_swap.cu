/* 04_fa2/loop_swap - FlashAttention-2, second change, second half: queries outer, so that O stays in registers.
 *
 * The idea. With keys outer, O, l and m of a query tile went to device memory and back at every key tile. Swap the
 * loops: a block owns one tile of queries, as in parallel, and walks over all keys. Since it turns to no other queries
 * in between, O, l and m stay in its registers from the first key to the last (Dao 2023, section 3.2).
 *
 *                          keys ->                  Who owns what: a block of 4 warps owns 32 rows of queries. As in
 *                   tile 0   tile 1   tile 2        03_fa1, the keys of a tile are split over its warps, D = 128:
 *     queries  0     step 1   step 2   ...  block 0               keys 0-31   32-63    64-95    96-127
 *        |     1     step 1   step 2   ...  block 1    32 queries   warp 0   warp 1   warp 2   warp 3
 *        v     2     step 1   step 2   ...  block 2 A warp keeps an O of its own, 32 x D, summed over its own keys. At
 *                                                   the end, once, the four O are added through shared memory.
 *
 * They can be added because all four are measured against the same maximum of the row: in every step the warps exchange
 * the maxima of their keys through shared memory.
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, share_columns) are in common/gpu/warp.cuh.
 *
 * K and V are loaded ahead without a second buffer: V arrives while Q K^T is computed, the next K while P V is.
 *
 * Registers per lane: D for O, Bc / 4 for S. Each warp has all rows, so 4 warps hold O four times. That limits Br to
 * 32, and each warp rescales 32 x D numbers for 32 x Bc / 4 scores. Shared memory: 89 KB (D = 64) or 93 KB (D = 128);
 * on sm_75, with half of Bc, 57 or 61 KB.
 *
 * Device memory: bytes as in fma.cu, whose query tiles have 32 rows, too. No workspace. Q is read once, and K and V
 * once for each query tile, mostly from L2. K and V of a tile, 4 Bc D bytes, bring 4 Br Bc D FLOPs: Br = 32 FLOPs per
 * byte.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant loop_swap --head-dim 128 --causal
 */
#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

constexpr int Br = 32; /* rows of a tile of S: queries. With 64 and D = 128 a lane would need 256 registers for O */
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16; /* 16-row mma tiles: a warp has all rows */

/* Bc, the columns of a tile of S: keys. The warps exchange their maxima once per key tile, so tiles are as large as in
 * epilogue. */
HOST_DEVICE constexpr int key_tile(int D, int capability) {
    return (capability < 80 ? 32 : 64) * 1024 / (2 * 2 * D); /* two tiles of D elements of 2 bytes per key */
}

constexpr int SLICE = 32;        /* columns of O summed over the warps at a time, since all D would take up to 64 KB */
constexpr int PITCH = SLICE + 8; /* the 16 lanes that store float2 together, 4 rows x 4, then meet 32 different banks */

template <typename T, int D, int capability> struct LoopSwapShared {
    Tile<T, Br, D> q;
    Tile<T, key_tile(D, capability), D> k, v;
    float partial[WARPS][Br][PITCH];                /* each warp's O, one slice */
    float warp_max[WARPS][Br], warp_sum[WARPS][Br]; /* each warp's share of a tile's m and of the whole l */
    float m[Br];                                    /* of all key tiles, for LSE */
};

/* Block: (tile of queries, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS, 2) loop_swap_kernel(Problem p, Tensors t) {
    constexpr int Bc = key_tile(D, CAPABILITY), warp_keys = Bc / WARPS;
    SHARED_MEMORY(shared, LoopSwapShared<T, D, CAPABILITY>);
    static_assert(sizeof(shared) <= (CAPABILITY < 80 ? 64 : 99) * 1024, "what a block can have");
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile_async<THREADS>(shared.q, head.q, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.k, head.k, 0, columns);

    /* O, m and l of the key tiles so far. m is that of the whole row. O is the sum over this warp's keys alone, l over
     * this lane's alone. */
    float o[m_tiles][D / 8][4] = {}, m[2 * m_tiles], l[2 * m_tiles];
    for (int r = 0; r < 2 * m_tiles; r++)
        m[r] = -INFINITY, l[r] = 0;

    for (int first_column = 0; first_column < columns; first_column += Bc) {
        cp_async_wait<0>();
        __syncthreads(); /* K is there, and every warp has read the V before: this tile's V may come */
        load_tile_async<THREADS>(shared.v, head.v, first_column, columns);

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
        cp_async_wait<0>();
        __syncthreads(); /* V and every warp's maximum are there, and every warp has read K: the next K may come */
        if (first_column + Bc < columns)
            load_tile_async<THREADS>(shared.k, head.k, first_column + Bc, columns);

        /* m', the sums so far rescaled to it, and P = e^(S - m'). shift_of (softmax.cuh) is m', but 0 while a row has
         * seen no key: -inf - -inf is NaN */
        UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
            float m_new = m[r];
            for (int w = 0; w < WARPS; w++)
                m_new = fmaxf(m_new, shared.warp_max[w][row_of(r)]);
            float alpha = __expf(m[r] - shift_of(m_new)), row_sum = 0;
            m[r] = m_new;
            each_row(o, r, [&](float &x) { x *= alpha; });
            each_row(s, r, [&](float &x) { x = __expf(x - shift_of(m_new)); row_sum += x; });
            l[r] = alpha * l[r] + row_sum;
        }

        add_ab(o, s, shared.v, warp_keys * warp); /* O += P V */
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q and K yet */

    /* l = the sum over the quad's lanes and the warps; every warp knows m */
    UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
        float row_sum = quad_sum(l[r]);
        if (lane % 4 == 0)
            shared.warp_sum[warp][row_of(r)] = row_sum;
        if (lane % 4 == 0 && warp == 0)
            shared.m[row_of(r)] = m[r];
    }

    /* O = the sum of the warps' O, divided by l, a slice of the columns at a time. LSE = m + ln l */
    UNROLL for (int slice = 0; slice < D / SLICE; slice++) {
        if (slice > 0)
            __syncthreads(); /* the slice before has been added up */
        share_columns<SLICE>(shared.partial[warp], o, SLICE * slice);
        __syncthreads(); /* every warp's slice is there, and warp_sum and m are */

        for (int quadruple = threadIdx.x; quadruple < Br * SLICE / 4; quadruple += THREADS) {
            int row = quadruple / (SLICE / 4), column = 4 * (quadruple % (SLICE / 4));
            if (first_row + row >= p.seqlen_q)
                continue;
            float4 sum = make_float4(0, 0, 0, 0);
            float l_row = 0;
            for (int w = 0; w < WARPS; w++) {
                sum = sum + load_4(&shared.partial[w][row][column]);
                l_row += shared.warp_sum[w][row];
            }
            float inverse = l_row > 0 ? 1 / l_row : 0; /* a row without keys: O = 0 */
            store_4(head.o + (size_t)(first_row + row) * D + SLICE * slice + column, inverse * sum);
            if (slice + column == 0)
                head.lse[first_row + row] = shift_of(shared.m[row]) + logf(l_row);
        }
    }
}

LAUNCHER(fa2_loop_swap) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    const bool small = device_properties()->capability < 80;
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const size_t shared_bytes = small ? sizeof(LoopSwapShared<T, D, 75>) : sizeof(LoopSwapShared<T, D, 80>);
        LAUNCH((loop_swap_kernel<T, D>), grid, THREADS, shared_bytes, *p, *t);
    }));
}

PREDICTOR(fa2_loop_swap_traffic) {
    return queries_outer_traffic(p, key_lengths, "loop_swap_kernel", Br, ONLY_SEEN, traffic);
}
