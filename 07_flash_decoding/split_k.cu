/* 07_flash_decoding/split_k - Flash-Decoding: the keys are split over the blocks, and the partial results merged by LSE.
 *
 * The idea. softmax(S) V over all keys is a weighted mean of the same over any pieces of them, and a piece's weight follows
 * from its LSE alone (Dao et al. 2023, "Flash-Decoding"):
 *
 *     LSE = ln sum_i e^LSE_i          O = sum_i e^(LSE_i - LSE) O_i
 *
 * So pieces need not know of each other. All keys of all heads are laid end to end on one line, and the line is cut into as
 * many equal pieces as blocks are resident on the chip at once. Nobody is idle and nobody comes a second time, whatever
 * the number of heads and however unequal their lengths:
 *
 *     head       0            1       2                    3
 *            |------------|-------|--------------------|-----------|        tiles of keys ->
 *     block  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  |10 |        equal pieces
 *
 *     block 2 has the end of head 0 and the beginning of head 1: two partial results.
 *     Block g's part of head h goes to place g + h; no two such pairs have the same sum, since the line is walked one way.
 *
 * --splits n instead cuts each head into n pieces, and --split-size n into pieces of n keys. Then the line has a gap behind each
 * head up to a multiple of the piece, and no piece has two heads. With --split-size the pieces of a head depend on nothing but
 * its own length, and so do the bits of its result.
 *
 * The merge takes place in the same launch. Whoever has written a partial result draws a ticket of its head; who draws
 * the last one knows that all others are written, and merges them, in the order of the keys: the same bits every time.
 *
 * What it costs. Device memory: K and V once, as in one_block; O and LSE of each piece written and read, 8 D rows + 8 rows bytes
 * (4 rows, D = 128: 4 KB; beside 64 KB of keys a tile). Time: bytes / bandwidth, and the launch, the first answer of memory and
 * the merge, some microseconds.
 *
 *     make 07_flash_decoding && ./07_flash_decoding/07_flash_decoding --variant split_k --splits 8
 */
#include "cache.h"
#include "fma_rows.cuh"
#include "mma_rows.cuh"

#include <limits.h>

/* How the line is cut, in key tiles. */
struct Line {
    int piece; /* tiles a piece */
    int pitch; /* from one head's start to the next one's. 0: not known, as key lengths are only on the device; nor is piece */
    int gaps;  /* 1: pitch is a multiple of piece, and what a head does not fill is empty */
};

/* Partial results, [blocks + heads] places of `rows` rows each. */
struct Partials {
    float *o, *lse;
    int rows;
    int *tickets; /* [heads], drawn so far; 0 before and after a launch */
};

/* A place on the line. */
struct Cursor {
    int left;  /* tiles of the block's piece from here on */
    int index; /* of the head */
    int tile;  /* of the head */
    int start; /* where the head starts on the line */
    Head head;
};

__device__ inline void advance(Cursor &c, const Problem &p, const int *key_lengths, const Work &work) {
    c.left--;
    if (++c.tile == c.head.tiles && c.left > 0) {
        c.start += c.head.tiles, c.tile = 0;
        if (++c.index < work.heads)
            c.head = head_at(p, key_lengths, work, c.index);
        else
            c.left = 0; /* the end of the line */
    }
}

/* The sum over a warp's lanes up to this one. */
__device__ inline int sum_to_here(int x) {
    for (int offset = 1; offset < 32; offset *= 2) {
        const int before = __shfl_up_sync(WHOLE_WARP, x, offset);
        x += (int)threadIdx.x % 32 >= offset ? before : 0;
    }
    return x;
}

/* Heads of unequal length, end to end: fills in line.piece, and returns the batch entry with tile `block * piece` of the line
 * (batch: behind the last) and where on the line it starts. Lanes count the tiles of 32 entries at a time; all warps do so. */
__device__ inline int find_entry(const Problem &p, const int *key_lengths, const Work &work, Line &line, int &start) {
    const int lane = threadIdx.x % 32, heads_an_entry = work.heads / p.batch;
    const auto tiles = [&](int b) { return b < p.batch ? heads_an_entry * tiles_of(key_lengths[b], work.tile_keys) : 0; };
    int total = 0;
    for (int first = 0; first < p.batch; first += 32)
        total += __shfl_sync(WHOLE_WARP, sum_to_here(tiles(first + lane)), 31);
    line.piece = ceil_div(total, gridDim.x);

    start = 0;
    for (int first = 0; first < p.batch; first += 32) {
        const int mine = tiles(first + lane), end = sum_to_here(mine);
        const unsigned beyond = __ballot_sync(WHOLE_WARP, start + end > (int)blockIdx.x * line.piece);
        const int found = beyond ? __ffs(beyond) - 1 : 31;
        start += __shfl_sync(WHOLE_WARP, beyond ? end - mine : end, found);
        if (beyond)
            return first + found;
    }
    return p.batch;
}

/* Where this block's piece begins; left = 0: it is empty. */
__device__ inline Cursor find_piece(const Problem &p, const int *key_lengths, const Work &work, Line &line) {
    Cursor c = {};
    if (line.pitch) {
        const int position = blockIdx.x * line.piece;
        c.index = position / line.pitch;
        c.start = c.index * line.pitch;
        c.tile = position - c.start;
        if (c.index < work.heads) {
            c.head = head_at(p, key_lengths, work, c.index);
            c.left = min(line.piece, (line.gaps ? c.head.tiles : work.heads * line.pitch - c.start) - c.tile);
        }
    } else {
        const int entry = find_entry(p, key_lengths, work, line, c.start), position = blockIdx.x * line.piece;
        if (entry < p.batch) { /* its heads are equally long */
            c.index = entry * (work.heads / p.batch);
            c.head = head_at(p, key_lengths, work, c.index);
            const int skipped = (position - c.start) / c.head.tiles;
            c.index += skipped, c.start += skipped * c.head.tiles, c.tile = position - c.start;
            c.head = head_at(p, key_lengths, work, c.index);
            c.left = line.piece; /* or up to the end of the line: advance() */
        }
    }
    return c;
}

/* The partial results of one slab of a head's rows, merged into one (m, l, O) a warp, as if the warp had seen their keys: each
 * warp takes every warps-th of `count` places, the first of which is `place`. finish() then merges the warps. */
template <typename Rows> struct PartialRows {
    static constexpr int slab_rows = Rows::slab_rows;
    const Partials &partials;
    int place, count, rows;

    __device__ void store(int slab, float *to, float *to_m, float *to_l) {
        /* A lane takes four neighbouring columns, of so many items (32 lanes further on each) and so many places at a time.
         * Their loads are all under way together: with up to 32 places there is one wait. */
        constexpr int D = Rows::head_dim, fours = D / 4, items = 4, places = 4;
        const int slab_row = slab * slab_rows, end = min(slab_rows, rows - slab_row) * fours, warps = blockDim.x / 32;
        for (int first = threadIdx.x % 32; first < end; first += 32 * items) {
            float m[items], l[items] = {};
            float4 o[items] = {};
#pragma unroll
            for (int i = 0; i < items; i++)
                m[i] = LOWEST;
#pragma unroll 1
            for (int j = threadIdx.x / 32; j < count; j += places * warps) {
                float lse[places][items];
                float4 part[places][items];
#pragma unroll
                for (int a = 0; a < places; a++) {
                    const size_t row = (size_t)(place + j + a * warps) * partials.rows + slab_row;
                    const float *from = partials.o + row * D + 4 * first, *from_lse = partials.lse + row + first / fours;
#pragma unroll
                    for (int i = 0; i < items; i++) {
                        const bool exists = first + 32 * i < end && j + a * warps < count;
                        lse[a][i] = exists ? from_lse[32 / fours * i] : -INFINITY;
                        part[a][i] = exists ? load_4(from + 4 * 32 * i) : make_float4(0, 0, 0, 0);
                    }
                }
#pragma unroll
                for (int i = 0; i < items; i++) {
                    float m_new = m[i];
#pragma unroll
                    for (int a = 0; a < places; a++)
                        m_new = fmaxf(m_new, lse[a][i] * LOG2_E);
                    const float factor = exp2_approx(m[i] - m_new);
                    m[i] = m_new;
                    l[i] *= factor;
                    o[i].x *= factor, o[i].y *= factor, o[i].z *= factor, o[i].w *= factor;
#pragma unroll
                    for (int a = 0; a < places; a++) {
                        const float weight = exp2_approx(lse[a][i] * LOG2_E - m_new);
                        const float4 x = part[a][i];
                        l[i] += weight;
                        o[i].x += weight * x.x, o[i].y += weight * x.y, o[i].z += weight * x.z, o[i].w += weight * x.w;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < items; i++) {
                const int item = first + 32 * i, row = item / fours;
                if (item >= end)
                    continue;
                store_4(to + slab_place<D>(row, item % fours * 4), o[i]);
                if (item % fours == 0)
                    to_m[slab_row + row] = m[i], to_l[slab_row + row] = l[i];
            }
        }
    }
};

template <typename Rows>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1)
    split_k(Problem p, Tensors t, Cache cache, Work work, Line line, Partials partials) {
    using T = typename Rows::Element;
    constexpr int D = Rows::head_dim;
    static_assert(as_planned<Rows>, "decode.h: warp_shared_bytes");
    SHARED_MEMORY(WarpShared<Rows>, shared); /* the first warp's; the others' follow, and then the flag */
    WarpShared<Rows> *warp = &shared, &own = warp[threadIdx.x / 32];
    int &last_ticket = *reinterpret_cast<int *>(warp + blockDim.x / 32);

    /* `load` runs ahead of `use`, across the boundaries of heads */
    Cursor use = find_piece(p, t.key_lengths, work, line);
    Cursor load = use;
    const auto load_next = [&](int s) {
        if (load.left <= 0)
            return load_nothing();
        load_stage<Rows>(own.stage[s], p, cache, load.head, load.tile, work.tile_keys);
        advance(load, p, t.key_lengths, work);
    };
    for (int s = 0; s < STAGES - 1; s++)
        load_next(s);

    int next = 0, s = 0; /* the stage to be used next, and last */
    while (use.left > 0) {
        const Cursor part = use; /* of a head, up to its end or the piece's */
        const Head &head = part.head;
        const size_t row = first_row(work, head);
        Rows state;
        state.begin(p, head, (const T *)t.q + row * D, p.scale * (cache.k_scale ? cache.k_scale[head.kv] : 1));
        while (use.left > 0 && use.index == part.index) {
            s = next, next = s + 1 < STAGES ? s + 1 : 0;
            load_next(s > 0 ? s - 1 : STAGES - 1); /* to where the keys before these were */
            wait_for_stage();
            state.step(own.stage[s].in.k, own.stage[s].in.v, use.tile * work.tile_keys + threadIdx.x / 32 * Rows::keys);
            __syncwarp(); /* all lanes are done with the stage */
            advance(use, p, t.key_lengths, work);
        }

        const float o_scale = cache.v_scale ? cache.v_scale[head.kv] : 1;
        const int first = part.start / line.piece, pieces = (part.start + head.tiles - 1) / line.piece - first + 1;
        if (pieces == 1) {
            finish(state, warp, s, head.rows, o_scale, (T *)t.o + row * D, t.lse + row);
            continue;
        }
        const size_t place = ((size_t)blockIdx.x + part.index) * partials.rows;
        finish(state, warp, s, head.rows, o_scale, partials.o + place * D, partials.lse + place);

        /* finish() ended with a barrier, so the whole block's result is written before our ticket is drawn; and if that is the
         * last one, everybody's result is there to be read after it */
        if (threadIdx.x == 0)
            last_ticket = atomic_add_ordered(&partials.tickets[part.index], 1) == pieces - 1;
        __syncthreads();
        if (last_ticket) {
            PartialRows<Rows> all = {partials, first + part.index, pieces, head.rows};
            finish(all, warp, s, head.rows, 1, (T *)t.o + row * D, t.lse + row);
            if (threadIdx.x == 0)
                partials.tickets[part.index] = 0; /* for the next launch */
        }
    }
    cp_async_wait<0>();
}

/* ---- the host's side ---- */

template <typename Rows> static size_t shared_bytes(const Work &work) {
    return work.warps * sizeof(WarpShared<Rows>) + sizeof(int);
}

#define WITH_CACHED_ROWS(p, work, Rows, ...)                                                      \
    do {                                                                                          \
        if ((p).settings[KV_CACHE]) WITH_MMA_ROWS(p, work, 1, Rows, __VA_ARGS__);                 \
        else WITH_ROWS(p, work, Rows, __VA_ARGS__);                                               \
    } while (0)

/* Pieces a head with --splits or --split-size, each a whole number of key tiles; 0: auto. */
static int pieces_a_head(const Problem &p, const Work &work) {
    const int size = p.settings[SPLIT_SIZE];
    return size ? ceil_div(work.tiles, ceil_div(size, work.tile_keys)) : p.settings[SPLITS];
}

static Line line_of(const Problem &p, const Work &work, bool has_lengths, int blocks) {
    if (const int pieces = pieces_a_head(p, work)) {
        const int size = p.settings[SPLIT_SIZE], piece = size ? ceil_div(size, work.tile_keys) : ceil_div(work.tiles, pieces);
        return {piece, pieces * piece, 1};
    }
    return has_lengths ? Line{0, 0, 0} : Line{ceil_div(work.heads * work.tiles, blocks), work.tiles, 0};
}

/* auto: as many as are on the chip at the same time. More would come a second time, to a chip that empties; fewer would leave
 * a part of it unused. A tile each, if the whole line is shorter than that. */
extern "C" int decode_split_k_blocks(const Problem *p) {
    const Work work = work_of(p);
    if (const int pieces = pieces_a_head(*p, work))
        return work.heads * pieces;
    int resident = 0;
    WITH_CACHED_ROWS(*p, work, Rows,
                     resident = resident_blocks(split_k<Rows>, 32 * work.warps, shared_bytes<Rows>(work)));
    return min(resident, work.heads * work.tiles);
}

extern "C" int decode_split_k_plan(const Problem *p, Buffer *workspace) {
    const Work work = work_of(p);
    const size_t places = (size_t)decode_split_k_blocks(p) + work.heads, rows = places * min(work.rows, work.tile_rows);
    workspace[PARTIAL_O] = {"partial O", rows * p->head_dim * sizeof(float), nullptr, 0};
    workspace[PARTIAL_LSE] = {"partial LSE", rows * sizeof(float), nullptr, 0};
    workspace[TICKETS] = {"tickets", work.heads * sizeof(int), nullptr, 1};
    if (!p->settings[KV_CACHE])
        return TICKETS + 1;
    cache_plan(p, workspace);
    return DECODE_BUFFERS;
}

extern "C" const char *decode_split_k_refuses(const Problem *p) {
    if (p->settings[SPLITS] && p->settings[SPLIT_SIZE])
        return "takes --splits or --split-size, not both";
    if (p->settings[KV_CACHE] && p->dtype == DTYPE_FP32)
        return "has an 8-bit cache for fp16 and bf16 only: with fp32 choose --kv-cache same";
    const Work work = work_of(p);
    if ((double)work.heads * max(work.tiles, pieces_a_head(*p, work)) > INT_MAX)
        return "counts blocks in 31 bits, and these are more: choose fewer --splits, or larger ones";
    return NULL;
}

extern "C" void decode_split_k(const Problem *p, const Tensors *t, const Buffer *workspace) {
    const Work work = work_of(p);
    const int blocks = decode_split_k_blocks(p);
    const Line line = line_of(*p, work, t->key_lengths != nullptr, blocks);
    const Partials partials = {(float *)workspace[PARTIAL_O].pointer, (float *)workspace[PARTIAL_LSE].pointer,
                               min(work.rows, work.tile_rows), (int *)workspace[TICKETS].pointer};
    Cache cache = {t->k, t->v, nullptr, nullptr};
    if (p->settings[KV_CACHE]) {
        const float *scales = (const float *)workspace[CACHE_SCALES].pointer;
        cache = {workspace[CACHE_K].pointer, workspace[CACHE_V].pointer, scales, scales + p->batch * p->kv_heads};
    }
    WITH_CACHED_ROWS(*p, work, Rows,
                     LAUNCH(split_k<Rows>, blocks, 32 * work.warps, shared_bytes<Rows>(work), *p, *t, cache,
                            work, line, partials));
}
