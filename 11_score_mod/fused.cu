/* 11_score_mod/fused - 04_fa2/tuned with S' = f(S, batch, head, query, key), where f is a template argument.
 *
 * The idea. An f that the kernel learns at run time (`fma`) costs a test per score for each thing that f might do. Here
 * f is a type: the compiler puts its few instructions between the product and the softmax. With f = none, nothing
 * remains of it, and this kernel is `tuned`. score.cuh has one type per f, and explains why each brings a factor along.
 *
 *     f          after the product (scores of a lane)       before the loop                       after the loop
 *     softcap    tanh(scale x / C)
 *     alibi      x - slope / scale |pos - j|
 *     window     the mask, in tiles that it cuts            first_tile, whole_from, key_tiles
 *     sink                                                                                        add_sink
 *
 * The sink is added at the end, and not at the beginning as in `fma`: P is rounded to 16 bits, relative to m, and a
 * sink far above all scores would leave nothing of it.
 *
 * m and lazy rescaling work on what f returns; everything else is as in `tuned`, whose header explains it.
 *
 *                 keys ->                            window:left,0 under a causal mask, a block's tiles:
 *            +--------+--------+--------+--------+
 *     block  |        | \\\\   | whole  | \\     |     skipped, cut by the left end, whole, cut by the diagonal
 *            +--------+--------+--------+--------+
 *
 * Who owns what: as in `tuned`. A block owns Br queries of one head, and takes their tiles of Bc keys, the last first.
 *
 * What it costs per score beyond `tuned`: a softcap, two instructions of the special-function unit, which already has
 * one, and three of other units; ALiBi, two, and a quarter of one for the key's position, which a lane's four rows
 * share. A window saves the tiles that it skips. A sink costs some instructions per row.
 *
 *     make 11_score_mod && ./11_score_mod/11_score_mod --variant fused --score softcap:50 --score window:512,0 --causal
 */
#include "../common/gpu/query_tile.cuh"
#include "score.cuh"
#include "tiles.h"

#include <limits.h>

constexpr int WARPS = 4, THREADS = 32 * WARPS; /* a warp for each scheduler of the multiprocessor */

/* As 04_fa2/tuned: 32 rows per warp, and as many keys as the registers leave. */
template <int D, int capability> struct Shape {
    static constexpr int m_tiles = 2; /* m16 tiles per warp */
    static constexpr int Br = WARPS * 16 * m_tiles;
    static constexpr int Bc = (D <= 64 ? 128 : 64) / (capability < 80 ? 2 : 1);
};

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is
 * enough. */
template <typename T, int D, int capability> struct FusedShared {
    Tile<T, Shape<D, capability>::Br, D> q;
    Tile<T, Shape<D, capability>::Bc, D> k[2], v[2];
    float sink; /* of this head; in a register it would wait through the whole loop */
};

template <typename T, int D, typename F, bool has_window>
__global__ void __launch_bounds__(THREADS, 2) fused(Problem p, Tensors t) {
    constexpr int m_tiles = Shape<D, CAPABILITY>::m_tiles, Br = Shape<D, CAPABILITY>::Br, Bc = Shape<D, CAPABILITY>::Bc;
    SHARED_MEMORY(shared, FusedShared<T, D, CAPABILITY>);

    QueryTile here = query_tile(p, t.key_lengths, p.causal ? p.batch * p.heads : 1, blockIdx.x, Br, Bc);
    const HeadTensors<T> head = head_tensors<T>(p, t, here.batch_head);
    const int warp_row = 16 * m_tiles * (threadIdx.x / 32); /* the warp's first row in the tile */
    const F f(p, t.score, here.batch_head % p.heads);

    if (t.score.sinks && threadIdx.x == 0)
        shared.sink = sink_of(t.score, here.batch_head % p.heads);

    /* A window leaves the tiles from first_tile on; those below whole_from have keys that the last row does not see. */
    int first_tile = 0, whole_from = 0;
    if constexpr (has_window) {
        const Range first = seen_keys(&t.score, &p, here.keys, here.first_row);
        const Range last = seen_keys(&t.score, &p, here.keys, min(here.first_row + Br, p.seqlen_q) - 1);
        here.key_tiles = ceil_div(last.end, Bc), here.whole_tiles = first.end / Bc;
        first_tile = first.begin / Bc, whole_from = ceil_div(last.begin, Bc);
    }

    const auto load_keys = [&](int tile, int row_end) {
        load_tile_async<THREADS>(shared.k[tile % 2], head.k, tile * Bc, row_end);
        load_tile_async<THREADS>(shared.v[tile % 2], head.v, tile * Bc, row_end);
    };
    load_tile_async<THREADS>(shared.q, head.q, here.first_row, p.seqlen_q);
    if (here.key_tiles > first_tile)
        load_keys(here.key_tiles - 1, here.keys);

    /* O, m and l of the key tiles so far. m and O belong to whole rows, l to this lane's keys: write_output adds the
     * quad's four. m is kept times log2 e, as the exponents are. */
    float o[m_tiles][D / 8][4] = {}, m[2 * m_tiles], l[2 * m_tiles];
    for (int r = 0; r < 2 * m_tiles; r++)
        m[r] = LOWEST, l[r] = 0;
    Limits limits = Limits::NOT_YET;
    for (int tile = here.key_tiles - 1; tile >= first_tile; tile--) {
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there; every warp has read the tile before, and the next one takes its place */
        if (tile > first_tile)
            load_keys(tile - 1, INT_MAX); /* a whole tile: only the first one visited can reach past the keys */

        /* S = Q K^T: this warp's rows, all keys of the tile. f before the mask, since f(-inf) need not be -inf; and the
         * mask only in tiles that the diagonal, the end of the keys or the window cuts */
        float s[m_tiles][Bc / 8][4] = {};
        add_abt<T>(s, shared.q, warp_row, shared.k[tile % 2], 0);
        each_score(s, f, position_of(&p, here.keys, here.first_row + warp_row), tile * Bc);
        if (has_window && (tile >= here.whole_tiles || tile < whole_from))
            mask_window(s, t.score, p, here.keys, here.first_row + warp_row, tile * Bc);
        else if (tile >= here.whole_tiles)
            mask(s, p, here.keys, here.first_row + warp_row, tile * Bc);

        /* m, and with it l and O, in the few tiles where a row's maximum exceeds it by more than SLACK */
        const float factor = update_maximum(s, m, limits, l, f.factor, [&](int r, float alpha) {
            each_row(o, r, [&](float &x) { x *= alpha; });
        });

        /* P = 2^(factor f(x) - m): one FFMA and one ex2 per element. O += P V. */
        each_summed(s, l, [&](float x, int r) { return exp2_approx(x * factor - m[r]); });
        add_ab(o, s, shared.v[tile % 2], 0);
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q yet */
    if (t.score.sinks) {
        __syncthreads(); /* the loop, which has barriers, may have had no tile */
        add_sink(o, m, l, shared.sink * LOG2_E);
    }
    write_output(head, here.first_row + warp_row, o, m, l, LN_2);
}

#define WITH_SCORE(score, F, has_window, ...)                                                              \
    if ((score).alibi) { using F = Alibi; constexpr bool has_window = false; __VA_ARGS__; }                \
    else if ((score).softcap > 0 && (score).window) {                                                      \
        using F = SoftCap; constexpr bool has_window = true; __VA_ARGS__; }                                \
    else if ((score).softcap > 0) { using F = SoftCap; constexpr bool has_window = false; __VA_ARGS__; }   \
    else if ((score).window) { using F = NoScore; constexpr bool has_window = true; __VA_ARGS__; }         \
    else { using F = NoScore; constexpr bool has_window = false; __VA_ARGS__; }

LAUNCHER(score_fused_forward) {
    const bool small = device_properties()->capability < 80;
    const int blocks = p->batch * p->heads * ceil_div(p->seqlen_q, Shape<64, 80>::Br);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, WITH_SCORE(t->score, F, has_window, {
        LAUNCH((fused<T, D, F, has_window>), blocks, THREADS,
               small ? sizeof(FusedShared<T, D, 75>) : sizeof(FusedShared<T, D, 80>), *p, *t);
    })));
}

extern "C" const char *score_fused_refuses(const Problem *p) {
    if (!p->score || !p->score->score.alibi)
        return nullptr;
    if (p->score->score.softcap > 0 || p->score->score.window)
        return "takes alibi with neither softcap nor window";
    return p->scale < 0x1p-100f ? "takes --scale from 2^-100 on with alibi" : nullptr; /* slopes are divided by it */
}

extern "C" TileShape score_fused_tile(const Problem *p) {
    const bool small = device_properties()->capability < 80;
    WITH_HEAD_DIM_64_128(p->head_dim, D,
                         return (TileShape{Shape<D, 80>::Br, small ? Shape<D, 75>::Bc : Shape<D, 80>::Bc}));
}
