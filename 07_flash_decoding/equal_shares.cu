/* 07_flash_decoding/equal_shares - Flash-Decoding, the line of all keys in equal shares, merged in the same launch.
 *
 * The idea. With a fixed number of splits per head, as in split_k, multiprocessors are idle if heads are not equally
 * long, or if the number of blocks is not a multiple of what the chip holds at once. So the key tiles of all heads are
 * laid end to end on one line, and the line is cut into as many equal shares as the chip holds blocks at once. All
 * blocks start together and, but for the last few, end together, whatever the number of heads and their lengths.
 * (Stream-K does the same for matrix products: Osama et al. 2023.)
 *
 *     head        0          1            2               3
 *            |-----------|------|-------------------|----------|        50 tiles of keys
 *     block  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  |        10 equal shares
 *
 *     Block 2 has the end of head 0 and the beginning of head 1: two partial results.
 *     Block g's part of head h goes to slot g + h of the workspace. From one part to the next on the line, g or h or
 *     both grow by one, so no two parts have the same slot.
 *
 * The merge takes place in the same launch. A block that has written a partial result adds 1 to a counter of the head;
 * the number before is its *ticket*. The block that draws the last ticket knows that all partial results of the head
 * are written. It merges them, in the order of the keys and not of arrival: the same bits every time.
 *
 * What it costs. Device memory: as split_k. Time: bytes / bandwidth; and some microseconds for the launch, the first
 * answer of memory and the merge. Where the line is cut depends on all heads of the batch, and so do the last bits of a
 * head's result.
 *
 *     make 07_flash_decoding && ./07_flash_decoding/07_flash_decoding --variant equal_shares
 */
#include "fma_rows.cuh"
#include "mma_rows.cuh"

/* Partial results: o [slots, rows, D], lse [slots, rows], with blocks + heads slots. */
struct SharePartials {
    float *o, *lse;
    int rows;     /* of a slot: those of one head */
    int *tickets; /* [heads]: how many tickets of the head have been drawn; 0 before and after a launch */
};

/* A position on the line. */
struct Cursor {
    int left;  /* key tiles of the block's share from here on */
    int index; /* the head's number */
    int tile;  /* which key tile of the head */
    int start; /* which tile of the line is the head's first */
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

/* The sum of x over the warp's lanes from 0 to this one. */
__device__ inline int sum_to_here(int x) {
    for (int offset = 1; offset < 32; offset *= 2) {
        const int before = __shfl_up_sync(WHOLE_WARP, x, offset);
        x += (int)threadIdx.x % 32 >= offset ? before : 0;
    }
    return x;
}

/* For heads of unequal length: fills in `share`, the key tiles of a block's share. Returns the batch entry in which
 * this block's share begins, that is, which has tile blockIdx.x * share of the line (p.batch if the line is shorter),
 * and in `start` the tile of the line at which the entry begins. Each warp does so for itself; its lanes count the
 * tiles of 32 entries at a time. */
__device__ inline int find_entry(const Problem &p, const int *key_lengths, const Work &work, int &share, int &start) {
    const int lane = threadIdx.x % 32, heads_an_entry = work.heads / p.batch;
    const auto tiles = [&](int b) {
        return b < p.batch ? heads_an_entry * tiles_of(key_lengths[b], work.tile_keys) : 0;
    };
    int total = 0;
    for (int first = 0; first < p.batch; first += 32)
        total += __shfl_sync(WHOLE_WARP, sum_to_here(tiles(first + lane)), 31);
    share = ceil_div(total, gridDim.x);

    start = 0;
    for (int first = 0; first < p.batch; first += 32) {
        const int mine = tiles(first + lane), end = sum_to_here(mine);
        const unsigned beyond = __ballot_sync(WHOLE_WARP, start + end > (int)blockIdx.x * share);
        const int found = beyond ? __ffs(beyond) - 1 : 31;
        start += __shfl_sync(WHOLE_WARP, beyond ? end - mine : end, found);
        if (beyond)
            return first + found;
    }
    return p.batch;
}

/* Where this block's share begins; left = 0 if it is empty. With key lengths, which only the device knows, fills in
 * `share`, too. */
__device__ inline Cursor find_share(const Problem &p, const int *key_lengths, const Work &work, int &share) {
    Cursor c = {};
    int tiles = work.tiles; /* of each head that `skipped` steps over: all heads, or an entry's */
    if (key_lengths) {
        const int entry = find_entry(p, key_lengths, work, share, c.start);
        c.index = entry * (work.heads / p.batch);
        if (entry < p.batch)
            tiles = tiles_of(key_lengths[entry], work.tile_keys);
    }
    const int distance = blockIdx.x * share - c.start, skipped = distance / tiles;
    c.index += skipped, c.start += skipped * tiles, c.tile = distance - skipped * tiles;
    if (c.index < work.heads) {
        c.head = head_at(p, key_lengths, work, c.index);
        c.left = share; /* or up to the end of the line: advance() */
    }
    return c;
}

/* Merges a head's partial results, `count` slots from `slot` on, and writes its O and LSE. A thread takes four columns
 * of a row and SLOTS_AT_ONCE slots at a time. Where fewer are left it loads the last one again and gives it the weight
 * 0: a branch would make each load wait for the one before. */
template <int D, typename Out>
__device__ inline void merge_slots(const SharePartials &partials, int slot, int count, int rows, Out *o, float *lse) {
    constexpr int fours = D / 4;
    for (int i = threadIdx.x; i < rows * fours; i += blockDim.x) {
        const int row = i / fours, column = i % fours * 4;
        const size_t from = (size_t)slot * partials.rows + row;
        const float *from_o = partials.o + from * D + column, *from_lse = partials.lse + from;
        Part sum;
        for (int first = 0; first < count; first += SLOTS_AT_ONCE) {
            Part parts[SLOTS_AT_ONCE];
            UNROLL for (int j = 0; j < SLOTS_AT_ONCE; j++) {
                const int distance = min(first + j, count - 1) * partials.rows;
                const float slot_lse = from_lse[distance];
                parts[j].m = first + j < count ? slot_lse * LOG2_E : -INFINITY;
                parts[j].l = 1; /* LSE is m and l in one */
                parts[j].o = load_4(from_o + distance * D);
            }
            sum = merged(sum, parts);
        }
        write_part(sum, 1, column, o + (size_t)row * D, lse + row);
    }
}

template <typename Rows>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1)
    equal_shares(Problem p, Tensors t, Cache cache, Work work, int share, SharePartials partials) {
    using T = typename Rows::Element;
    constexpr int D = Rows::head_dim;
    SHARED_MEMORY(first_warp, WarpShared<Rows>); /* the others' follow, and then the flag */
    WarpShared<Rows> *warp = &first_warp, &own = warp[threadIdx.x / 32];
    int &last_ticket = *reinterpret_cast<int *>(warp + blockDim.x / 32);

    /* Two positions on the line: `use`, the keys that are computed with, and ahead of it `load`, the keys that are
     * copied. `load` may have reached the next head already. */
    Cursor use = find_share(p, t.key_lengths, work, share);
    Cursor load = use;
    const auto load_next = [&](int stage) {
        /* behind the share's last tile, where load.left <= 0, nothing is copied */
        load_stage<Rows>(own.stage[stage], p, cache, work, load.head, load.tile, load.tile + load.left);
        advance(load, p, t.key_lengths, work);
    };
    for (int stage = 0; stage < STAGES - 1; stage++)
        load_next(stage);

    int next = 0, stage = 0; /* the stage that comes next, and the one in use */
    while (use.left > 0) {
        const Cursor part = use; /* of a head, up to its end or the share's */
        const Head &head = part.head;
        const size_t head_row = head_row_of(work, head);
        const int first = part.start / share, splits = (part.start + head.tiles - 1) / share - first + 1;
        Rows state;
        state.begin(p, head, (const T *)t.q + head_row * D, p.scale * scale_of(cache.k_scale, head));
        while (use.left > 0 && use.index == part.index) {
            stage = next, next = stage + 1 < STAGES ? stage + 1 : 0;
            load_next(stage > 0 ? stage - 1 : STAGES - 1); /* into the stage that was used before this one */
            wait_for_stage();
            auto &in = own.stage[stage].in;
            state.step(in.k, in.v, first_column_of<Rows>(work, use.tile));
            __syncwarp(); /* all lanes are done with the stage */
            advance(use, p, t.key_lengths, work);
        }

        const float o_scale = scale_of(cache.v_scale, head);
        if (splits == 1) {
            finish(state, warp, stage, head.rows, o_scale, (T *)t.o + head_row * D, t.lse + head_row);
            continue;
        }
        const size_t slot_row = ((size_t)blockIdx.x + part.index) * partials.rows;
        finish(state, warp, stage, head.rows, o_scale, partials.o + slot_row * D, partials.lse + slot_row);

        /* finish() ended with a barrier, so all threads of this block have written their part of the result before
         * thread 0 draws the ticket. The ordered atomic makes these results visible to whoever draws a later ticket. So
         * if this ticket is the last, the results of all blocks can be read after it. */
        if (threadIdx.x == 0)
            last_ticket = atomic_add_ordered(&partials.tickets[part.index], 1) == splits - 1;
        __syncthreads();
        if (last_ticket) {
            merge_slots<D>(partials, first + part.index, splits, head.rows, (T *)t.o + head_row * D, t.lse + head_row);
            if (threadIdx.x == 0)
                partials.tickets[part.index] = 0; /* for the next launch */
        }
    }
}

/* ---- the host's side ---- */

template <typename Rows> static size_t shared_bytes(const Work &work) {
    return work.warps * sizeof(WarpShared<Rows>) + sizeof(int);
}

/* How many blocks are launched: as many as the chip holds at the same time. With more, some would start when others
 * have ended, on a chip that is emptying; with fewer, a part of it would be unused. Not more than there are key tiles
 * on the line. */
extern "C" int decode_equal_shares_blocks(const Problem *p) {
    const Work work = work_of(p);
    int resident = 0;
    WITH_ROWS(*p, work, Rows,
              resident = resident_blocks(equal_shares<Rows>, 32 * work.warps, shared_bytes<Rows>(work)));
    return min(resident, work.heads * work.tiles);
}

PLANNER(decode_equal_shares_plan) {
    const Work work = work_of(p);
    const int cache = cache_plan(p, workspace);
    const size_t slots = (size_t)decode_equal_shares_blocks(p) + work.heads,
                 rows = slots * min(work.rows, work.tile_rows);
    workspace[cache] = {"partial O", rows * p->head_dim * sizeof(float), nullptr, 0};
    workspace[cache + 1] = {"partial LSE", rows * sizeof(float), nullptr, 0};
    workspace[cache + 2] = {"tickets", work.heads * sizeof(int), nullptr, 1};
    return cache + 3;
}

LAUNCHER(decode_equal_shares) {
    const Work work = work_of(p);
    const int blocks = decode_equal_shares_blocks(p);
    const Cache cache = cache_of(*p, *t, workspace);
    const Buffer *own = workspace + cache_buffers(p);
    const SharePartials partials = {(float *)own[0].pointer, (float *)own[1].pointer, min(work.rows, work.tile_rows),
                               (int *)own[2].pointer};
    WITH_ROWS(*p, work, Rows,
              LAUNCH(equal_shares<Rows>, blocks, 32 * work.warps, shared_bytes<Rows>(work), *p, *t, cache, work,
                     ceil_div(work.heads * work.tiles, blocks), partials));
}
