/* 10_block_sparse/masked - 04_fa2/tuned under a block mask: every tile is visited, and what the mask does not keep is
 * thrown away.
 *
 * The idea. A mask need not change the walk: the scores of pairs that it does not keep become -inf, as those behind the
 * diagonal do. So it is right, and does every tile's products; what skipping saves is measured against it. Three kinds
 * of tiles:
 *
 *     full      no mask is evaluated
 *     partial   it is, element by element
 *     none      all scores are -inf. P is 0 there, but 0 times NaN is NaN: V is not read, zeros stand in its place
 *
 * Everything else is as in `tuned`, whose header explains it.
 *
 * Who owns what: as in `tuned`. A tile lies in one block of the mask, so that a block of the mask is kept for all of it
 * or for none.
 *
 * What it costs: what `tuned` costs, but V as far as tiles keep something; and in a tile that is not full some
 * comparisons per element.
 *
 *     make 10_block_sparse && ./10_block_sparse/10_block_sparse --variant masked --blocks window:64
 */
#include "../common/gpu/query_tile.cuh"
#include "../common/traffic.h"
#include "mask.cuh"

#include <limits.h>

constexpr int WARPS = 4, THREADS = 32 * WARPS; /* a warp for each scheduler of the multiprocessor */

/* 32 rows per warp, and so many keys that O and S fit into the registers (04_fa2/tuned). sm_75 has 64 KB of shared
 * memory a block: half of Bc. */
template <int D, int capability> struct Shape {
    static constexpr int m_tiles = 2;
    static constexpr int Br = WARPS * 16 * m_tiles;
    static constexpr int Bc = (D <= 64 ? 128 : 64) / (capability < 80 ? 2 : 1);
    static_assert(MASK_BLOCK % Br == 0 && MASK_BLOCK % Bc == 0, "each tile lies in one block of the mask");
};

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is
 * enough. */
template <typename T, int D, int capability> struct MaskedShared {
    Tile<T, Shape<D, capability>::Br, D> q;
    Tile<T, Shape<D, capability>::Bc, D> k[2], v[2];
};

template <typename T, int D> __global__ void __launch_bounds__(THREADS, 2) masked(Problem p, Tensors t) {
    constexpr int m_tiles = Shape<D, CAPABILITY>::m_tiles, Br = Shape<D, CAPABILITY>::Br, Bc = Shape<D, CAPABILITY>::Bc;
    SHARED_MEMORY(shared, MaskedShared<T, D, CAPABILITY>);

    /* Which query tile of which head: see query_tile.cuh. Full attention: head by head. Causal: all heads together. */
    const QueryTile here = query_tile(p, t.key_lengths, p.causal ? p.batch * p.heads : 1, blockIdx.x, Br, Bc);
    const HeadTensors<T> head = head_tensors<T>(p, t, here.batch_head);
    const int warp_row = 16 * m_tiles * (threadIdx.x / 32); /* the warp's first row in the tile */

    TileKept next_kept = TILE_NONE; /* of the tile that is loaded last */
    const auto load_keys = [&](int tile, int row_end) {
        next_kept = tile_kept(&t.mask, &p, here.keys, here.first_row, here.first_row + Br, tile * Bc, (tile + 1) * Bc);
        load_tile_async<THREADS>(shared.k[tile % 2], head.k, tile * Bc, row_end);
        load_tile_async<THREADS>(shared.v[tile % 2], head.v, tile * Bc, next_kept == TILE_NONE ? 0 : row_end);
    };
    load_tile_async<THREADS>(shared.q, head.q, here.first_row, p.seqlen_q);
    if (here.key_tiles > 0)
        load_keys(here.key_tiles - 1, here.keys);

    /* O, m and l of the key tiles so far. m and O belong to whole rows, l to this lane's keys: write_output adds the
     * quad's four. m is kept times log2 e, as the exponents are. */
    float o[m_tiles][D / 8][4] = {}, m[2 * m_tiles], l[2 * m_tiles];
    for (int r = 0; r < 2 * m_tiles; r++)
        m[r] = LOWEST, l[r] = 0;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
    Limits limits = Limits::NOT_YET;
    for (int tile = here.key_tiles - 1; tile >= 0; tile--) {
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there; every warp has read the tile before, and the next one overwrites it */
        const TileKept kept = next_kept;
        if (tile > 0)
            load_keys(tile - 1, INT_MAX); /* a whole tile: only the first one visited can reach past the keys */

        /* S = Q K^T: this warp's rows, all keys of the tile. The mask only in tiles that are not full */
        float s[m_tiles][Bc / 8][4] = {};
        add_abt<T>(s, shared.q, warp_row, shared.k[tile % 2], 0);
        if (kept != TILE_FULL)
            mask_block(s, t.mask, p, here.keys, here.first_row + warp_row, tile * Bc);

        /* m, and with it l and O, in the few tiles where a row's maximum exceeds it by more than SLACK */
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

LAUNCHER(sparse_masked) {
    const bool small = device_properties()->capability < 80;
    const int blocks = p->batch * p->heads * ceil_div(p->seqlen_q, MASK_BLOCK);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((masked<T, D>), blocks, THREADS, small ? sizeof(MaskedShared<T, D, 75>) : sizeof(MaskedShared<T, D, 80>),
               *p, *t);
    }));
}
