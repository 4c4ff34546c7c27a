/* 10_block_sparse/skipping - 04_fa2/tuned on lists: tiles that the mask does not keep are neither loaded nor computed.
 *
 * The idea. `masked` visits every tile and throws most of its work away. Here a block reads which key blocks its query
 * tile keeps (lists.cu found them before), and visits those alone:
 *
 *     partial blocks first   the mask is evaluated, element by element
 *     then the full ones     no mask
 *     longest lists first    lists differ in length, and a long one that starts late keeps the whole chip waiting
 *
 * Time, bytes and FLOPs then follow the share of the blocks that is kept. Within a tile all is as in `tuned`, whose
 * header explains the rest.
 *
 *     key block        0  1  2  3  4  5  6
 *     query tile 5     .  /  #  #  #  \  .           visited: 5 1 4 3 2, where tuned visits 5 4 3 2 1 0
 *
 * Who owns what. As in `tuned`: a block owns Br queries of one head, a warp 32 of them. A tile of Bc keys is a block of
 * the mask, or half of one (D = 128).
 *
 * What it costs. A key tile costs what it costs in `tuned`: 4 Br Bc D FLOPs, Br Bc exponentials, 2 bytes x D x 2 Bc of
 * K and V. A partial tile costs some five more instructions per element. Each thread reads its list, 4 bytes per tile,
 * twice of a partial one. Q, O and LSE move whole, whatever is kept: at 1 of 32 key blocks they are most of what is
 * left at short lengths.
 *
 *     make 10_block_sparse && ./10_block_sparse/10_block_sparse --variant skipping --blocks window:128
 */
#include "../common/gpu/warp.cuh"
#include "lists.cuh"
#include "mask.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS; /* a warp for each scheduler of the multiprocessor */

/* 32 rows per warp, 128 per block: as many as a block of the mask has. sm_75 has 64 KB of shared memory per block: a
 * quarter of Bc. */
template <int D, int capability> struct Shape {
    static constexpr int m_tiles = 2;
    static constexpr int Br = WARPS * 16 * m_tiles;
    static constexpr int Bc = (D <= 64 ? 128 : 64) / (capability < 80 ? 4 : 1);
    static_assert(Br == MASK_BLOCK && MASK_BLOCK % Bc == 0, "each tile lies in one block of the mask");
};

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is
 * enough. */
template <typename T, int D, int capability> struct SkippingShared {
    Tile<T, Shape<D, capability>::Br, D> q;
    Tile<T, Shape<D, capability>::Bc, D> k[2], v[2];
    ListedTile here;
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2) skipping(Problem p, Tensors t, Lists lists, int together) {
    constexpr int m_tiles = Shape<D, CAPABILITY>::m_tiles, Bc = Shape<D, CAPABILITY>::Bc;
    SHARED_MEMORY(shared, SkippingShared<T, D, CAPABILITY>);

    /* Which query tile of which head, and its list: see lists.cuh. Registers are short, so
     * it is kept in shared memory. */
    const ListedTile &here = shared.here;
    if (threadIdx.x == 0)
        shared.here = listed_tile(p, t.key_lengths, lists, together, blockIdx.x, Bc);
    __syncthreads();
    const size_t key_head = (size_t)here.kv_head * p.seqlen_k * D;
    const T *k = (const T *)t.k + key_head, *v = (const T *)t.v + key_head;
    const int warp_row = 16 * m_tiles * (threadIdx.x / 32); /* the warp's first row in the tile */

    const auto load_keys = [&](int tile, int row_end) {
        const int key = listed_key(p, lists, here, tile, Bc);
        load_tile_async<THREADS>(shared.k[tile % 2], k, key, row_end);
        load_tile_async<THREADS>(shared.v[tile % 2], v, key, row_end);
    };
    load_tile_async<THREADS>(shared.q, (const T *)t.q + (size_t)here.batch_head * p.seqlen_q * D, here.first_row,
                             p.seqlen_q);
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
        if (tile > 0)
            load_keys(tile - 1, Bc == MASK_BLOCK ? INT_MAX : here.keys); /* only the first can reach past the keys */

        /* S = Q K^T: this warp's rows, all keys of the tile. The mask only in partial blocks */
        float s[m_tiles][Bc / 8][4] = {};
        add_abt<T>(s, shared.q, warp_row, shared.k[tile % 2], 0);
        if (tile >= here.whole_tiles)
            mask_block(s, t.mask, p, here.keys, here.first_row + warp_row, listed_key(p, lists, here, tile, Bc));

        /* m, and with it l and O, in the few tiles where a row's maximum exceeds it by more than SLACK */
        const float factor = update_maximum(s, m, limits, l, scale_log2, [&](int r, float alpha) {
            each_row(o, r, [&](float &x) { x *= alpha; });
        });

        /* P = 2^(scale_log2 S - m): one FFMA and one ex2 per element. O += P V. */
        each_summed(s, l, [&](float x, int r) { return exp2_approx(x * factor - m[r]); });
        add_ab(o, s, shared.v[tile % 2], 0);
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q yet */
    write_output(head_tensors<T, D>(p, t, here.batch_head), here.first_row + warp_row, o, m, l, LN_2);
}

LAUNCHER(sparse_skipping) {
    const bool small = device_properties()->capability < 80;
    const TileOrder order = listed_order(*p, t->mask);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((skipping<T, D>), order.count, THREADS,
               small ? sizeof(SkippingShared<T, D, 75>) : sizeof(SkippingShared<T, D, 80>), *p, *t, lists_in(workspace),
               order.together);
    }));
}
