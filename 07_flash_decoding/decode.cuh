/* decode.cuh - what all variants share: how a warp gets its keys, and how (m, l, O) of several warps become one.
 *
 * A block walks over key tiles with a tile of rows. There are too few rows to divide among the warps (as 04_fa2 does),
 * so the warps divide the *keys* of each key tile, and merge once, at the end of the walk. Until then a warp shares
 * nothing with the others: it copies its own keys into its own part of shared memory, waits for its own copies only,
 * and keeps m, l and O of *all* rows over the keys that it has seen.
 *
 *                 key tile 0              key tile 1                    a warp's shared memory
 *          +-----+-----+-   -+-----+-----+-----+-   -+-----+         +---------+---------+-------+
 *     rows | w 0 | w 1 | ... | w 7 | w 0 | w 1 | ... | w 7 | ...     | K, V    | K, V    | m, l  |
 *          +-----+-----+-   -+-----+-----+-----+-   -+-----+         +---------+---------+-------+
 *                                                                     in use    on the way
 *
 * At the end each warp lays its O into a stage that no copy is on its way to (4 bytes x 16 rows x D: at D = 128 exactly
 * its size), and all threads merge. With M = max over the warps w of m_w, in powers of two:
 *
 *     l = sum_w 2^(m_w - M) l_w      O = sum_w 2^(m_w - M) O_w / l      LSE = ln 2 (M + log2 l)
 */
#ifndef FA_DECODE_CUH
#define FA_DECODE_CUH

#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "decode.h"

/* Where K and V are read: in the tensors; in the 8-bit cache, whose numbers must be multiplied by a scale per K/V head;
 * or in pages. */
struct Cache {
    const void *k, *v;
    const float *k_scale, *v_scale; /* [batch * kv_heads], or NULL: 1 */
    const int *table;               /* of the pages, or NULL: there are none */
    Pages pages;
};
inline Cache cache_of(const Problem &p, const Tensors &t, const Buffer *workspace) {
    if (!cache_wanted(&p))
        return {t.k, t.v, nullptr, nullptr, nullptr, {}};
    const void *k = workspace[CACHE_K].pointer, *v = workspace[CACHE_V].pointer;
    if (!cache_is_8_bit(&p))
        return {k, v, nullptr, nullptr, (const int *)workspace[CACHE_TABLE].pointer, pages_of(&p)};
    const float *scales = (const float *)workspace[CACHE_SCALES].pointer;
    return {k, v, scales, scales + p.batch * p.kv_heads, nullptr, {}};
}

/* A head in decode.h's sense: some rows of a group, and the K/V head that they read. */
struct Head {
    int kv;          /* batch entry * kv_heads + K/V head */
    int row, rows;   /* the first of its rows among the group's, and how many there are */
    int keys, tiles; /* that exist, and the key tiles that they make */
};
__device__ inline Head head_at(const Problem &p, const int *key_lengths, const Work &work, int index) {
    const int kv = work.row_tiles == 1 ? index : index / work.row_tiles; /* spares a division: 0.1 us */
    const int row = (index - kv * work.row_tiles) * work.tile_rows;
    Head head = {kv, row, min(work.tile_rows, work.rows - row), p.seqlen_k, work.tiles};
    if (key_lengths)
        head.keys = key_lengths[head.kv / p.kv_heads], head.tiles = tiles_of(head.keys, work.tile_keys);
    return head;
}
/* The number of a head's first row, counted through the whole problem: its place in LSE and, times D, in Q and O. */
__device__ inline size_t head_row_of(const Work &work, const Head &head) {
    return (size_t)head.kv * work.rows + head.row;
}
/* What K or V of this head is to be multiplied by. */
__device__ inline float scale_of(const float *scales, const Head &head) { return scales ? scales[head.kv] : 1; }

/* ---- a warp's shared memory. Rows is MmaRows (mma_rows.cuh) or FmaRows (fma_rows.cuh): the arithmetic. ---- */
template <typename Rows> struct alignas(128) WarpShared {
    union Stage {
        struct {
            typename Rows::KeyTile k, v;
        } in;
        float o[Rows::slab_rows * Rows::head_dim]; /* on its way out, slab_rows rows at a time: a *slab* */
    } stage[STAGES];
    float m[Rows::Br], l[Rows::Br];
};

template <typename Rows> constexpr bool as_planned = sizeof(WarpShared<Rows>) == warp_shared_bytes(Rows::Br);

/* The number of the warp's first key of a key tile. */
template <typename Rows> __device__ inline int first_column_of(const Work &work, int tile) {
    return tile * work.tile_keys + threadIdx.x / 32 * Rows::Bc;
}

/* Starts copying the warp's keys from pages, 16 at a time or all if it takes fewer: these lie in one page, whatever its
 * size. Here alone pages are followed: the table says which page it is, and the rest is as in a tensor. */
template <typename Rows>
__device__ inline void load_pages(typename WarpShared<Rows>::Stage &stage, const Problem &p, const Cache &cache,
                                  const Head &head, int first_column) {
    constexpr int units = Rows::units, count = Rows::Bc < SMALLEST_PAGE ? Rows::Bc : SMALLEST_PAGE;
    constexpr int across = units / 8, down = 32 / across; /* lanes per row, 16 bytes each; rows copied at once */
    const int lane_row = threadIdx.x % 32 / across, chunk = threadIdx.x % across, sequence = head.kv / p.kv_heads;
    const int *table = cache.table + (size_t)sequence * cache.pages.per_sequence;
    UNROLL for (int first = 0; first < Rows::Bc; first += count) {
        const int key = first_column + first, page = key < head.keys ? table[key >> cache.pages.shift] : 0;
        const size_t head_row = ((size_t)page * p.kv_heads + head.kv % p.kv_heads) << cache.pages.shift;
        UNROLL for (int r = 0; r < count; r += down) {
            const int row = r + lane_row;
            const size_t from = (head_row + key % cache.pages.size + row) * units + 8 * chunk;
            cp_async_16(stage.in.k.chunk(first + row, chunk), (const uint16_t *)cache.k + from, key + row < head.keys);
            cp_async_16(stage.in.v.chunk(first + row, chunk), (const uint16_t *)cache.v + from, key + row < head.keys);
        }
    }
    cp_async_commit(), cp_async_commit(); /* as many groups as without pages */
}

/* Starts copying the warp's keys of key tile `tile`, if it is before `end`; keys from head.keys on do not exist and
 * become zeros. Two groups of cp.async in any case. */
template <typename Rows>
__device__ inline void load_stage(typename WarpShared<Rows>::Stage &stage, const Problem &p, const Cache &cache,
                                  const Work &work, const Head &head, int tile, int end) {
    if (tile >= end)
        return cp_async_commit(), cp_async_commit();
    constexpr int units = Rows::units;
    const size_t offset = (size_t)head.kv * p.seqlen_k * units;
    const int first_column = first_column_of<Rows>(work, tile), lane = threadIdx.x % 32;
    if (cache.table)
        return load_pages<Rows>(stage, p, cache, head, first_column);
    load_tile_async<32>(stage.in.k, (const uint16_t *)cache.k + offset, first_column, head.keys, units, lane);
    load_tile_async<32>(stage.in.v, (const uint16_t *)cache.v + offset, first_column, head.keys, units, lane);
}

/* Waits for the oldest stage. */
__device__ inline void wait_for_stage() {
    cp_async_wait<2 * (STAGES - 1)>();
    __syncwarp();
}

/* Walks over key tiles first .. end - 1 of a head. Returns the warp's state: m, l and O of its keys. */
template <typename Rows>
__device__ inline Rows walk(WarpShared<Rows> *warp, const Problem &p, const Tensors &t, const Cache &cache,
                            const Work &work, const Head &head, int first, int end) {
    WarpShared<Rows> &own = warp[threadIdx.x / 32];
    const auto load = [&](int tile) { load_stage<Rows>(own.stage[tile % STAGES], p, cache, work, head, tile, end); };
    for (int tile = first; tile < first + STAGES - 1; tile++)
        load(tile);

    Rows state;
    const auto *q = (const typename Rows::Element *)t.q + head_row_of(work, head) * Rows::head_dim;
    state.begin(p, head, q, p.scale * scale_of(cache.k_scale, head));
    for (int tile = first; tile < end; tile++) {
        load(tile + STAGES - 1);
        wait_for_stage();
        auto &in = own.stage[tile % STAGES].in;
        state.step(in.k, in.v, first_column_of<Rows>(work, tile));
        __syncwarp(); /* all lanes are done with the stage */
    }
    return state;
}

/* ---- merging ---- */

/* Where element (row, column) of O lies in a slab. XORed as in tile.cuh, so that the four rows that
 * half a warp stores lie in different banks. */
template <int D> __device__ inline int slab_offset(int row, int column) { return row * D + (column ^ 8 * (row % 8)); }

/* What some keys contribute to a row: m, l and four neighboring columns of O, before their
 * division by l. At first no key. */
struct Part {
    float m = LOWEST, l = 0;
    float4 o = {};
};

/* The merge of `sum` and n parts. */
template <int n> __device__ inline Part merged(const Part &sum, const Part (&parts)[n]) {
    float m = sum.m;
    UNROLL for (int i = 0; i < n; i++)
        m = fmaxf(m, parts[i].m);
    const float factor = exp2_approx(sum.m - m);
    Part result = {m, factor * sum.l, factor * sum.o};
    UNROLL for (int i = 0; i < n; i++) {
        const float weight = exp2_approx(parts[i].m - m);
        result.l += weight * parts[i].l;
        result.o = result.o + weight * parts[i].o;
    }
    return result;
}

/* Writes four columns of O, from `column` on, multiplied by o_scale; the thread of column 0 also writes LSE. o, lse:
 * this row's. */
template <typename Out>
__device__ inline void write_part(const Part &part, float o_scale, int column, Out *o, float *lse) {
    store_4(o + column, (part.l > 0 ? o_scale / part.l : 0) * part.o); /* l = 0: the row saw no key */
    if (column == 0)
        *lse = part.l > 0 ? (part.m + log2f(part.l)) * LN_2 : -INFINITY;
}

/* Merges what the warps of the block have stored: their O of the rows of one slab, in stage number `stage`, and their m
 * and l. Writes O, multiplied by o_scale, and LSE, for the rows of this slab that exist. `rows`: how many exist, all
 * slabs together. */
template <typename Rows, typename Out>
__device__ inline void merge_warps(WarpShared<Rows> *warp, int stage, int slab, int rows, float o_scale, Out *o,
                                   float *lse) {
    constexpr int D = Rows::head_dim, fours = D / 4;
    const int warps = blockDim.x / 32;
    const int slab_row = slab * Rows::slab_rows, count = min(Rows::slab_rows, rows - slab_row) * fours;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const int row = i / fours, column = i % fours * 4;
        Part parts[MAX_WARPS];
        UNROLL for (int w = 0; w < MAX_WARPS; w++) /* all loads before the first use */
            if (w < warps)
                parts[w] = {warp[w].m[slab_row + row], warp[w].l[slab_row + row],
                            load_4(warp[w].stage[stage].o + slab_offset<D>(row, column))};
        write_part(merged(Part{}, parts), o_scale, column, o + (size_t)(slab_row + row) * D, lse + slab_row + row);
    }
}

/* The end of a walk over keys: the states of the warps become O and LSE of `rows` rows, written to `o` and `lse`. They
 * pass through stage number `stage` of shared memory, which no copy may be on its way to. */
template <typename Rows, typename Out>
__device__ inline void finish(Rows &state, WarpShared<Rows> *warp, int stage, int rows, float o_scale, Out *o,
                              float *lse) {
    static_assert(as_planned<Rows>, "decode.h: warp_shared_bytes");
    WarpShared<Rows> &own = warp[threadIdx.x / 32];
    for (int slab = 0; slab * Rows::slab_rows < rows; slab++) {
        state.store(slab, own.stage[stage].o, own.m, own.l);
        __syncthreads(); /* all warps have come */
        merge_warps(warp, stage, slab, rows, o_scale, o, lse);
        __syncthreads(); /* the next slab, or the next keys, come to the same place */
    }
}

/* The statement with Rows bound to the arithmetic for `p`. */
#define WITH_MMA_ROWS(p, work, bytes, Rows, ...)                                                               \
    WITH_HEAD_DIM_64_128((p).head_dim, D, WITH_HALF_TYPE((p).dtype, T, {                                       \
        if ((work).tile_rows == 16) { using Rows = MmaRows<T, D, bytes, 1>; __VA_ARGS__; }                     \
        else { using Rows = MmaRows<T, D, bytes, 2>; __VA_ARGS__; }                                            \
    }))
#define WITH_ROWS(p, work, Rows, ...)                                                                          \
    if (cache_is_8_bit(&(p))) { WITH_MMA_ROWS(p, work, 1, Rows, __VA_ARGS__) }                                 \
    else if ((p).dtype != DTYPE_FP32) { WITH_MMA_ROWS(p, work, 2, Rows, __VA_ARGS__) }                         \
    else WITH_HEAD_DIM_64_128((p).head_dim, D, { using Rows = FmaRows<D>; __VA_ARGS__; })

#endif
