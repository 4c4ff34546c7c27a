/* 04_fa2/split_q - FlashAttention-2, third change: warps own query rows, and exchange nothing.
 *
 * The idea. S = Q K^T can be split between warps along the keys or along the queries. loop_swap splits the keys: every
 * warp has a share of every row, so the maximum is exchanged at each tile, and at the end four partial O are added. Here
 * the queries are split: a warp owns its rows from the first score to the final O, and their maximum, sum and O never
 * leave its registers (Dao 2023, section 3.3).
 *
 *            keys 0-63                                Who owns what: a block of 4 warps owns 64 rows of queries, and each
 *            +--------+                               warp 16 of them, with all keys of a tile. mma takes 16 rows at once,
 *     warp 0 | 16 x 64|  tile 1   tile 2   ...        so the tile had to grow: with 32 rows two of the four warps would
 *     warp 1 | 16 x 64|                               have none.
 *     warp 2 | 16 x 64|
 *     warp 3 | 16 x 64|                               An accumulator of mma is a 16 x 8 piece of S or O. Lane 4r + c holds
 *            +--------+                               its columns 2c and 2c + 1 in row r and in row r + 8. So the four
 *                                                     lanes 4r .. 4r + 3 share a row, and two shuffles find its maximum.
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, write_output) are in common/gpu/warp.cuh.
 *
 * The rest is as in loop_swap: the grid, the loads ahead, the order of the tiles, e^x, the mask at every tile, and both
 * barriers of a step, which the loads of K and V need. The shared memory of the exchange is gone.
 *
 * Registers a lane: D / 2 for O, 32 for S. For 16 x 64 scores a warp rescales 16 x D numbers; in loop_swap it is 32 x D
 * numbers for 32 x 16 scores. But each warp reads the whole tile of K and V from shared memory, in loop_swap a quarter of
 * it. Shared memory: 24 KB (D = 64) or 48 KB (D = 128).
 *
 * Device memory: as for loop_swap, with query tiles of 64 rows and not 32, so half as many bytes of K and V. K and V of a
 * tile, 4 Bc D bytes, bring 4 Br Bc D FLOPs: Br = 64 FLOPs a byte. No workspace.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant split_q --head-dim 128 --causal
 */
#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

constexpr int Br = 64, Bc = 64; /* a tile of S: rows are queries, columns are keys */
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16 / WARPS; /* 16-row pieces, as mma takes them, that a warp owns: one */

template <typename T, int D> struct SplitQShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
};

/* Block: (tile of queries, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) split_q_kernel(Problem p, Tensors t) {
    SHARED_MEMORY(shared, SplitQShared<T, D>);
    static_assert(sizeof(shared) <= 64 * 1024, "what a block can have on sm_75");
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, warp_row = 16 * m_tiles * (threadIdx.x / 32); /* the warp's first row in the tile */
    int columns = visible_keys(&p, head.keys, min(first_row + Br, p.seqlen_q) - 1); /* the last row sees most */

    load_tile_async<THREADS>(shared.q, head.q, first_row, p.seqlen_q);
    load_tile_async<THREADS>(shared.k, head.k, 0, columns);

    /* O, m and l of the key tiles so far. m and O belong to whole rows, l to this lane's keys: write_output adds the
     * quad's four */
    float o[m_tiles][D / 8][4] = {}, m[2 * m_tiles], l[2 * m_tiles];
    for (int r = 0; r < 2 * m_tiles; r++)
        m[r] = -INFINITY, l[r] = 0;

    for (int first_column = 0; first_column < columns; first_column += Bc) {
        cp_async_wait<0>();
        __syncthreads(); /* K is there, and every warp has read the V before: this tile's V may come */
        load_tile_async<THREADS>(shared.v, head.v, first_column, columns);

        /* S = scale Q K^T: this warp's rows, all keys of the tile */
        float s[m_tiles][Bc / 8][4] = {};
        add_abt<T>(s, shared.q, warp_row, shared.k, 0);
        each(s, [&](float &score, int) { score *= p.scale; });
        mask(s, p, head.keys, first_row + warp_row, first_column);

        cp_async_wait<0>();
        __syncthreads(); /* V is there, and every warp has read K: the next K may come */
        if (first_column + Bc < columns)
            load_tile_async<THREADS>(shared.k, head.k, first_column + Bc, columns);

        /* m', the sums so far rescaled to it, and P = e^(S - m'). shift_of (softmax.cuh) is m', but 0 while a row has seen
         * no key: -inf - -inf is NaN */
        UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
            float m_new = fmaxf(m[r], row_max(s, r));
            float alpha = __expf(m[r] - shift_of(m_new)), row_sum = 0;
            m[r] = m_new;
            each_row(o, r, [&](float &x) { x *= alpha; });
            each_row(s, r, [&](float &x) { x = __expf(x - shift_of(m_new)), row_sum += x; });
            l[r] = alpha * l[r] + row_sum;
        }

        add_ab(o, s, shared.v, 0); /* O += P V */
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q and K yet */
    write_output(head, first_row + warp_row, o, m, l);
}

LAUNCHER(fa2_split_q) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D,
        LAUNCH((split_q_kernel<T, D>), grid, THREADS, sizeof(SplitQShared<T, D>), *p, *t)));
}

PREDICTOR(fa2_split_q_traffic) { return queries_outer_traffic(p, key_lengths, "split_q_kernel", Br, ONLY_SEEN, traffic); }
