/* 04_fa2/tuned - tall (split_q with 32 query rows per warp) made fast by seven tricks. The algorithm stays as it is.
 *
 * The idea. Each trick below saves instructions or waiting. Its number is at its lines in the code; notes/tuning.md
 * explains them, and says what the kernel loses without each.
 *
 * [1] double buffering       the next K and V arrive while this tile is used: one barrier per tile
 * [2] last key tile first    the only tile that can reach past the keys is loaded before the loop
 * [3] base 2                 e^x = 2^(x log2 e): log2 e is folded into the scale, and a score costs one fused
 *                            multiply-add (FFMA) and one ex2
 * [4] finite start           m starts at a finite number, so that a row without keys needs no case in the loop
 * [5] mask where it matters  tiles that every row sees whole are not masked
 * [6] lazy rescaling         O is rescaled only when a maximum has grown by more than SLACK
 * [7] block order            full: the blocks at work share the K and V of few heads; causal: the longest start first
 *
 * The tile primitives (add_abt, mask, row_max, each_row, each, add_ab, write_output) are in common/gpu/warp.cuh.
 *
 * Who owns what. A block owns Br queries of one head. It walks over the keys in tiles of Bc, the last tile first.
 *
 *                 keys ->                            In a warp's 16 x 8 mma tile of S or O
 *            +--------+--------+--------+            lane 4r + c, c = 0..3, holds columns 2c, 2c + 1 of row r
 *     warp 0 | 32 x Bc|        |        |            and of row r + 8: the four lanes of a quad share two
 *     warp 1 | 32 x Bc|        |        |  queries   rows, and a row's maximum takes two shuffles.
 *     warp 2 | 32 x Bc|        |        |     |
 *     warp 3 | 32 x Bc|        |        |     v
 *            +--------+--------+--------+
 *
 * What it costs. A block, for each key tile: 4 Br Bc D FLOPs on the tensor cores, Br Bc exponentials on the
 * special-function units, and each warp reads all of the K and V tile and its part of Q from shared memory: 2 bytes x D
 * x (8 Bc + Br). Device memory per block: 2 bytes x D x (2 Br + 2 Sk), the K and V part mostly from L2. No workspace.
 * Registers per lane: O takes Br D / 128, S takes Br Bc / 128; with Br = 128 together D + Bc. That decides the tile.
 * Shared memory: 2 bytes x D x (Br + 4 Bc).
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant tuned --head-dim 128 --causal
 */
#include "../common/gpu/query_tile.cuh"
#include "../common/gpu/warp.cuh"
#include "../common/traffic.h"

#include <limits.h>

constexpr int WARPS = 4, THREADS = 32 * WARPS; /* a warp for each scheduler of the multiprocessor */

/* A warp owns 32 rows. At D = 256 the O of 32 rows alone would fill the 255 registers of a lane, so there it owns 16.
 * Bc is what O leaves: O and S of 32 rows take D + Bc registers, at most 192; of 16 rows (256 + 32) / 2 = 144.
 *
 * Two blocks per multiprocessor: while one is at its softmax, the other can use the tensor cores. Registers allow two
 * (2 x 128 threads x 255). So does the shared memory of an H100 (at most 2 x 96 KB of 228); an A100's 164 KB hold one
 * block at D = 128 and 256, two at smaller D. sm_75 has 64 KB per block: half of Bc. */
template <int D, int capability> struct Shape {
    static constexpr int m_tiles = D <= 128 ? 2 : 1; /* m16 tiles per warp */
    static constexpr int Br = WARPS * 16 * m_tiles;
    static constexpr int Bc = (D <= 64 ? 128 : D <= 128 ? 64 : 32) / (capability < 80 ? 2 : 1);
};

/* [1] K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is
 * enough. */
template <typename T, int D, int capability> struct TunedShared {
    Tile<T, Shape<D, capability>::Br, D> q;
    Tile<T, Shape<D, capability>::Bc, D> k[2], v[2];
};

template <typename T, int D> __global__ void __launch_bounds__(THREADS, 2) tuned(Problem p, Tensors t) {
    constexpr int m_tiles = Shape<D, CAPABILITY>::m_tiles, Br = Shape<D, CAPABILITY>::Br, Bc = Shape<D, CAPABILITY>::Bc;
    SHARED_MEMORY(shared, TunedShared<T, D, CAPABILITY>);

    /* [7] The query tile and its head (query_tile.cuh). Full attention: head by head. Causal: all heads together. */
    const QueryTile here = query_tile(p, t.key_lengths, p.causal ? p.batch * p.heads : 1, blockIdx.x, Br, Bc);
    const HeadTensors<T> head = head_tensors<T>(p, t, here.batch_head);
    const int warp_row = 16 * m_tiles * (threadIdx.x / 32); /* the warp's first row in the tile */

    const auto load_keys = [&](int tile, int row_end) {
        load_tile_async<THREADS>(shared.k[tile % 2], head.k, tile * Bc, row_end);
        load_tile_async<THREADS>(shared.v[tile % 2], head.v, tile * Bc, row_end);
    };
    load_tile_async<THREADS>(shared.q, head.q, here.first_row, p.seqlen_q);
    if (here.key_tiles > 0)
        load_keys(here.key_tiles - 1, here.keys);

    /* [4] O, m and l of the key tiles so far. m and O belong to whole rows, l to this lane's keys: write_output adds
     * the quad's four. m is kept times log2 e, as the exponents are. */
    float o[m_tiles][D / 8][4] = {}, m[2 * m_tiles], l[2 * m_tiles];
    for (int r = 0; r < 2 * m_tiles; r++)
        m[r] = LOWEST, l[r] = 0;
    const float scale_log2 = p.scale * LOG2_E; /* [3] e^(scale s) = 2^(scale_log2 s) */
    Limits limits = Limits::NOT_YET;
    for (int tile = here.key_tiles - 1; tile >= 0; tile--) {
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there; every warp has read the tile before, and the next one overwrites it */
        if (tile > 0)
            load_keys(tile - 1, INT_MAX); /* [2] a whole tile: only the first one visited can reach past the keys */

        /* S = Q K^T: this warp's rows, all keys of the tile. [5] The mask only in tiles that the diagonal or the end of
         * the keys cuts */
        float s[m_tiles][Bc / 8][4] = {};
        add_abt<T>(s, shared.q, warp_row, shared.k[tile % 2], 0);
        if (tile >= here.whole_tiles)
            mask(s, p, here.keys, here.first_row + warp_row, tile * Bc);

        /* [6] m, and with it l and O, in the few tiles where a row's maximum exceeds it by more than SLACK */
        const float factor = update_maximum(s, m, limits, l, scale_log2, [&](int r, float alpha) {
            each_row(o, r, [&](float &x) { x *= alpha; });
        });

        /* P = 2^(scale_log2 S - m): one FFMA and one ex2 per element. O += P V. */
        each_summed(s, l, [&](float x, int r) { return exp2_approx(x * factor - m[r]); });
        add_ab(o, s, shared.v[tile % 2], 0);
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q yet */
    write_output(head, here.first_row + warp_row, o, m, l, LN_2);
}

#define WITH_HEAD_DIM(head_dim, D, ...)                                  \
    if ((head_dim) == 32) { constexpr int D = 32; __VA_ARGS__; }         \
    else if ((head_dim) == 96) { constexpr int D = 96; __VA_ARGS__; }    \
    else if ((head_dim) == 256) { constexpr int D = 256; __VA_ARGS__; }  \
    else WITH_HEAD_DIM_64_128(head_dim, D, __VA_ARGS__)

LAUNCHER(fa2_tuned) {
    const bool small = device_properties()->capability < 80;
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM(p->head_dim, D, {
        const int blocks = p->batch * p->heads * ceil_div(p->seqlen_q, Shape<D, 80>::Br);
        LAUNCH((tuned<T, D>), blocks, THREADS, small ? sizeof(TunedShared<T, D, 75>) : sizeof(TunedShared<T, D, 80>),
               *p, *t);
    }));
}

PREDICTOR(fa2_tuned_traffic) {
    const bool small = device_properties()->capability < 80;
    WITH_HEAD_DIM(p->head_dim, D, return queries_outer_traffic(p, key_lengths, "tuned", Shape<D, 80>::Br,
                                                               small ? Shape<D, 75>::Bc : Shape<D, 80>::Bc, traffic));
}
