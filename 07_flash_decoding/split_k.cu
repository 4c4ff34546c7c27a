/* 07_flash_decoding/split_k - Flash-Decoding: the keys are split over the blocks; a second kernel merges the partial
 * results by LSE.
 *
 * The idea. softmax(S) V over all keys is a weighted mean of the same over any splits of them, and a split's weight
 * follows from its LSE alone (Dao et al. 2023, "Flash-Decoding"):
 *
 *     LSE = ln sum_i e^LSE_i          O = sum_i e^(LSE_i - LSE) O_i
 *
 * So splits need not know of each other. A head's keys are cut into splits. In the first launch each block walks over
 * one split (flash_forward in notes/flash.c, lines 62 to 80, over some of the keys) and writes its O and LSE to the
 * workspace. In the second launch merge_splits merges the splits of each row.
 *
 *                    keys ->
 *     head 0   | block 0 | block 1 | block 2 | block 3 |       O_i, LSE_i           merge_splits: a block per row,
 *     head 1   | block 4 | block 5 | block 6 | block 7 |    [splits, rows, D]       a thread a column
 *     ...
 *
 * --splits n cuts a head into at most n splits, all of equally many key tiles but the last. --split-size n cuts it into
 * splits of n keys, rounded up to whole key tiles; then a head's splits, and the bits of its result, depend on its own
 * length alone. Without these options there are as many splits as make the blocks fill the chip once. A head with fewer
 * keys than the longest one has empty splits at its end: O = 0, LSE = -inf, weight 0.
 *
 * What it costs. Device memory: K and V once, as in one_block; O and LSE of each split written and read, 8 D rows + 8
 * rows bytes (4 rows, D = 128: 4 KB; a key tile has 64 KB). Time: bytes / bandwidth; a second launch, which waits for
 * the last block of the first; and idle multiprocessors, where the number of blocks does not fit the chip or heads are
 * not equally long.
 *
 *     make 07_flash_decoding && ./07_flash_decoding/07_flash_decoding --variant split_k --splits 8
 */
#include "fma_rows.cuh"
#include "mma_rows.cuh"

/* O and LSE of each split: o [splits, rows, D], lse [splits, rows], the rows of all heads. */
struct Partials {
    float *o, *lse;
};

template <typename Rows>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1)
    split_k(Problem p, Tensors t, Cache cache, Work work, Split split, Partials partials) {
    SHARED_MEMORY(first_warp, WarpShared<Rows>); /* the others' follow */
    const int number = blockIdx.x % split.count;
    const Head head = head_at(p, t.key_lengths, work, blockIdx.x / split.count);
    const size_t head_row = head_row_of(work, head), split_row = number * row_count(&p) + head_row;
    const int first = number * split.tiles, end = min(first + split.tiles, head.tiles); /* the block's key tiles */

    Rows state = walk(&first_warp, p, t, cache, work, head, first, end);
    finish(state, &first_warp, 0, head.rows, scale_of(cache.v_scale, head), partials.o + split_row * Rows::head_dim,
           partials.lse + split_row);
}

/* Merges the splits of each row. A block is a row, a thread a column. */
template <typename T> __global__ void merge_splits(Tensors t, int splits, Partials partials) {
    const size_t row = blockIdx.x, rows = gridDim.x;
    const int column = threadIdx.x, D = blockDim.x;
    float m = LOWEST, l = 0, o = 0;
    for (int split = 0; split < splits; split++)
        m = fmaxf(m, partials.lse[split * rows + row]);
    for (int split = 0; split < splits; split++) {
        const float weight = expf(partials.lse[split * rows + row] - m);
        l += weight;
        o += weight * partials.o[(split * rows + row) * D + column];
    }
    ((T *)t.o)[row * D + column] = from_float<T>(l > 0 ? o / l : 0); /* l = 0: the row saw no key */
    if (column == 0)
        t.lse[row] = l > 0 ? m + logf(l) : -INFINITY;
}

/* ---- the host's side ---- */

template <typename Rows> static size_t shared_bytes(const Work &work) { return work.warps * sizeof(WarpShared<Rows>); }

extern "C" Split decode_split(const Problem *p) {
    const Work work = work_of(p);
    const int size = p->settings[SPLIT_SIZE];
    int splits = p->settings[SPLITS], resident = 0;
    if (!size && !splits) {
        WITH_ROWS(*p, work, Rows, resident = resident_blocks(split_k<Rows>, 32 * work.warps, shared_bytes<Rows>(work)));
        splits = max(1, resident / work.heads);
    }
    const int tiles = size ? ceil_div(size, work.tile_keys) : ceil_div(work.tiles, splits);
    return {tiles, ceil_div(work.tiles, tiles)};
}

PLANNER(decode_split_k_plan) {
    const int cache = cache_plan(p, workspace);
    const size_t rows = decode_split(p).count * row_count(p);
    workspace[cache] = {"partial O", rows * p->head_dim * sizeof(float), nullptr, 0};
    workspace[cache + 1] = {"partial LSE", rows * sizeof(float), nullptr, 0};
    return cache + 2;
}

LAUNCHER(decode_split_k) {
    const Work work = work_of(p);
    const Split split = decode_split(p);
    const Cache cache = cache_of(*p, *t, workspace);
    const Buffer *own = workspace + cache_buffers(p);
    const Partials partials = {(float *)own[0].pointer, (float *)own[1].pointer};
    WITH_ROWS(*p, work, Rows,
              LAUNCH(split_k<Rows>, work.heads * split.count, 32 * work.warps, shared_bytes<Rows>(work), *p, *t, cache,
                     work, split, partials));
    WITH_ANY_TYPE(p->dtype, T, LAUNCH(merge_splits<T>, row_count(p), p->head_dim, 0, *t, split.count, partials));
}
