/* split_q.cuh - the kernel of split_q and of tall, which differ in Br alone: how many rows of queries a warp owns.
 * split_q.cu explains it.
 */
#ifndef FA_SPLIT_Q_CUH
#define FA_SPLIT_Q_CUH

#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

constexpr int Bc = 64; /* a tile of S: Br rows are queries, Bc columns are keys */
constexpr int WARPS = 4, THREADS = 32 * WARPS;

template <typename T, int D, int Br> struct SplitQShared {
    Tile<T, Br, D> q;
    Tile<T, Bc, D> k, v;
};

/* Block: (tile of queries, batch x head). */
template <typename T, int D, int Br> __global__ void __launch_bounds__(THREADS) split_q_kernel(Problem p, Tensors t) {
    constexpr int m_tiles = Br / 16 / WARPS; /* 16-row mma tiles that a warp owns */
    SHARED_MEMORY(shared, SplitQShared<T, D, Br>);
    static_assert(sizeof(shared) <= 64 * 1024, "what a block can have on sm_75");
    const HeadTensors<T> head = head_tensors<T>(p, t, blockIdx.y);
    int first_row = blockIdx.x * Br, warp_row = 16 * m_tiles * (threadIdx.x / 32); /* the warp's first in the tile */
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

        /* m', the sums so far rescaled to it, and P = e^(S - m'). shift_of (softmax.cuh) is m', but 0 while a row has
         * seen no key: -inf - -inf is NaN */
        UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
            float m_new = fmaxf(m[r], row_max(s, r));
            float alpha = __expf(m[r] - shift_of(m_new)), row_sum = 0;
            m[r] = m_new;
            each_row(o, r, [&](float &x) { x *= alpha; });
            each_row(s, r, [&](float &x) { x = __expf(x - shift_of(m_new)); row_sum += x; });
            l[r] = alpha * l[r] + row_sum;
        }

        add_ab(o, s, shared.v, 0); /* O += P V */
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q and K yet */
    write_output(head, first_row + warp_row, o, m, l);
}

#endif
