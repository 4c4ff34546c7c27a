/* 04_fa2/tall - split_q with twice as many rows a warp: each piece of K and V read from shared memory is used twice.
 *
 * The idea. In split_q a warp reads the whole tile of K and V from shared memory for 16 rows of queries. Here it owns 32
 * rows, two 16-row pieces of mma, and each fragment of K and V that it has read feeds two products. Nothing else changes
 * but Br.
 *
 *            keys 0-63                          For each key tile a warp reads from shared memory, D = 128:
 *            +--------+
 *     warp 0 | 32 x 64|  tile 1   tile 2                       split_q (16 rows)      tall (32 rows)
 *     warp 1 | 32 x 64|                              K, V       32 KB                  32 KB
 *     warp 2 | 32 x 64|                              Q           4 KB                   8 KB
 *     warp 3 | 32 x 64|                              FLOPs       4 16 64 D              4 32 64 D
 *            +--------+                              a byte      14                     26
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, write_output) are in common/gpu/warp.cuh.
 *
 * What it costs. Registers a lane: D for O, 64 for S: 192 of 255 at D = 128. Shared memory: 32 KB (D = 64) or 64 KB
 * (D = 128). Half as many blocks as split_q, so a short problem fills the chip less.
 *
 * Device memory: as for split_q, with half as many query tiles, so half as many bytes of K and V. Br = 128 FLOPs a byte. No
 * workspace.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant tall --head-dim 128 --causal
 */
#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

constexpr int Br = 128, Bc = 64; /* a tile of S: rows are queries, columns are keys */
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int m_tiles = Br / 16 / WARPS; /* 16-row pieces, as mma takes them, that a warp owns: two */

template <typename T, int D> struct TallShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
};

/* Block: (tile of queries, batch x head). */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) tall_kernel(Problem p, Tensors t) {
    SHARED_MEMORY(shared, TallShared<T, D>);
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

LAUNCHER(fa2_tall) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D,
        LAUNCH((tall_kernel<T, D>), grid, THREADS, sizeof(TallShared<T, D>), *p, *t)));
}

PREDICTOR(fa2_tall_traffic) { return queries_outer_traffic(p, key_lengths, "tall_kernel", Br, ONLY_SEEN, traffic); }
