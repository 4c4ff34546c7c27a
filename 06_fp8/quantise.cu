/* 06_fp8/quantise - the pre-pass: Q, K and V to 8 bits, with scales, and V transposed.
 *
 * The idea. A number x is stored as x / scale, rounded to 8 bits. The scale of a group of numbers maps their largest
 * |x|, amax, to the largest number of the format. In e4m3 all numbers down to amax / 28672 are rounded with the same
 * relative error, at most 2^-4; smaller ones are subnormal and lose bits. So the error of a score q . k = sum of q_d
 * k_d comes from its largest terms. Three options make it smaller, each for inputs of one kind:
 *
 *     --scaling block   a scale for 64 queries or 128 keys, not for all of a head. For heads in which some tiles are
 *                       thousands of times larger than others.
 *     --hadamard        q and k are both multiplied by an orthogonal matrix R. Scores do not change: (q R).(k R) =
 *                       q R R^T k = q . k. But one large component becomes D components 1/sqrt(D) as large, and their
 *                       D errors of random sign add up to less than one large error. For outliers.
 *     --smooth-k        the mean of all keys is subtracted from every key. q . (k - mean) = q . k - q . mean: every
 *                       score of a row falls by the same number, which softmax does not see. LSE falls by that number,
 *                       too, and the attention kernel adds it again. For keys that have much in common.
 *
 * Where what is. row_tile.cuh: a block's tile of 128 queries or keys in registers, and its scales. rotate.cuh,
 * smooth.cuh: the last two options. transpose.cuh: V, which is stored transposed. This file: rounding, and the order of
 * the work.
 *
 * What it costs. 2 (Sq + 2 Sk) D bytes per head are read, half as many are written. FLOPs do not count: device
 * memory is the limit. --smooth-k reads K once more before. And --scaling tensor reads everything twice, as
 * the maximum of a head is known only when all of it has been read. The second time L2 shall have it, so
 * maxima and rounding go on side by side:
 *
 *     maxima     ... tile 70   tile 71   tile 72 ...   an item each, numbered in this order: 140, 141, 142, 143 ...
 *     rounding   ... tile 10   tile 11   tile 12 ...   here 60 tiles behind; at least a head's, so that its maximum is
 *                                                      on its way, and few enough for L2
 *
 * Blocks draw items from a counter, until there are no more. To round a tile a block waits until all maxima of the head
 * are there. These items have lower numbers; so they are done, or blocks are at work on them or on lower ones. The
 * lowest one at work waits for nothing: no order of the blocks can hang.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant mma --scaling block --hadamard
 */
#include "smooth.cuh"
#include "transpose.cuh"

/* ---- rounding ---- */

/* Rounds a tile of Q, which has two scales, or of K. With Q, scale q . k_mean is written to lse_shift. k_mean:
 * [batch, kv_heads, D] or NULL. */
template <typename T, typename F, int D, bool Plain, bool IsQ>
__device__ static void round_rows(Warps (&shared)[2], const Problem &p, const Operand &x, const TileIndex &index,
                                  const float *k_mean, float *lse_shift) {
    constexpr int scales = IsQ ? ROWS / BLOCK_Q : 1;
    RowTile<T, D, Plain> tile;
    tile.load(x, index);
    float scale[scales];
    find_scales<F>(scale, shared, p, x, index,
                   [&](int i) { return tile.amax(i * tile.count / scales, (i + 1) * tile.count / scales); });

    float turned_mean[8] = {}; /* this thread's components of the mean, rotated if the rows of Q are */
    if (!Plain && IsQ && k_mean) {
        const float *mean =
            k_mean + (size_t)(index.batch * p.kv_heads + kv_head_of(&p, index.head)) * D + 8 * tile.chunk();
        spread(turned_mean, load_4(mean), load_4(mean + 4));
        if (x.rotated)
            rotate<D>(turned_mean, tile.chunk());
    }
    F *to = (F *)x.to + head_offset(x, index, D) + (size_t)(index.first_row + tile.row()) * D + 8 * tile.chunk();
    UNROLL for (int r = 0; r < tile.count; r++) {
        const int row = index.first_row + tile.row() + r * tile.down;
        const float its_scale = scale[r * scales / tile.count], inverse = 1 / its_scale;
        float eight[8];
        tile.get(eight, r);
        UNROLL for (int i = 0; i < 8; i++)
            eight[i] *= inverse;
        const uint2 packed = pack_8<F>(eight);
        if (row < x.seqlen)
            *reinterpret_cast<uint2 *>(to + (size_t)r * tile.down * D) = packed;
        if (IsQ) {
            const float shift = !Plain && k_mean ? p.scale * its_scale * dot_with_mean<F, D>(packed, turned_mean) : 0;
            if (tile.chunk() == 0 && row < x.seqlen)
                lse_shift[(size_t)matrix_of(x, index) * x.seqlen + row] = shift;
        }
    }
}

/* ---- the order of the work ---- */

/* With --scaling tensor item 2i is to find the maximum of tile i, and item 2i + 1 to round the tile `behind` tiles
 * before; with --scaling block item i is to round tile i. Tiles are counted through Q, K and V; some that are asked for
 * do not exist. */
struct Work {
    Operand x[3]; /* Q8, K8, VT8 */
    int tiles[3], behind, items;
    int *last_item; /* that has been drawn; -1: none */
};

template <typename T, typename F, int D, bool Plain>
__device__ static void do_item(TransposedTile<D> &shared, const Problem &p, const Work &work, int number,
                               const float *k_mean, float *lse_shift) {
    const bool is_maximum = work.behind > 0 && number % 2 == 0;
    int tile = work.behind == 0 ? number : number / 2 - (is_maximum ? 0 : work.behind), operand = 0;
    for (; operand < 3 && tile >= work.tiles[operand]; operand++)
        tile -= work.tiles[operand];
    if (tile < 0 || operand == 3)
        return;
    const Operand &x = work.x[operand];
    const TileIndex index = tile_index(x, tile);
    if (is_maximum) {
        RowTile<T, D, Plain> rows;
        rows.load(x, index);
        const float amax = block_max(shared.warps[0], rows.amax(0, rows.count));
        if (threadIdx.x == 0)
            atomicExch(x.maxima + tile, __float_as_int(amax));
    } else if (operand == Q8) {
        round_rows<T, F, D, Plain, true>(shared.warps, p, x, index, k_mean, lse_shift);
    } else if (operand == K8) {
        round_rows<T, F, D, Plain, false>(shared.warps, p, x, index, nullptr, nullptr);
    } else {
        round_transposed<T, F, D>(shared, p, x, index);
    }
}

/* blocks per multiprocessor */
template <int D, bool Plain> constexpr int BLOCKS = Plain ? (D == 64 ? 6 : 4) : (D == 64 ? 4 : 3);

template <typename T, typename F, int D, bool Plain>
__global__ void __launch_bounds__(THREADS, CAPABILITY == 75 ? 3 : BLOCKS<D, Plain>) /* sm_75 has threads for four */
    quantise(Problem p, Work work, const float *k_mean, float *lse_shift) {
    SHARED_MEMORY(shared, TransposedTile<D>);
    int drawn = 0;
    const auto draw = [&] {
        if (threadIdx.x == 0)
            drawn = atomicAdd(work.last_item, 1) + 1;
    };
    draw();
    for (;;) {
        if (threadIdx.x == 0)
            shared.number = drawn;
        __syncthreads();
        const int number = shared.number;
        if (number >= work.items)
            break;
        draw(); /* the next one, ahead: it takes its time */
        do_item<T, F, D, Plain>(shared, p, work, number, k_mean, lse_shift);
        __syncthreads();
    }
}

static __global__ void begin(int *progress, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        progress[i] = -1;
}

/* ---- host ---- */

template <typename T, typename F, int D>
static void launch_all(const Problem &p, const Tensors &t, const Buffer *workspace) {
    const auto floats = [&](int buffer) { return (float *)workspace[buffer].pointer; };
    const int q_in_head = ceil_div(p.seqlen_q, ROWS), k_in_head = ceil_div(p.seqlen_k, ROWS),
              k_heads = p.batch * p.kv_heads;
    const int q_tiles = p.batch * p.heads * q_in_head, k_tiles = k_heads * k_in_head, tiles = q_tiles + 2 * k_tiles;
    int *progress = (int *)workspace[PROGRESS].pointer, *maxima = progress + 1;
    Operand q = {t.q, workspace[Q8].pointer, maxima, floats(Q_SCALES), p.heads, p.seqlen_q, nullptr};
    Operand k = {t.k, workspace[K8].pointer, q.maxima + q_tiles, floats(K_SCALES), p.kv_heads, p.seqlen_k,
                 t.key_lengths};
    Operand v = {t.v, workspace[VT8].pointer, k.maxima + k_tiles, floats(V_SCALES), p.kv_heads, p.seqlen_k,
                 t.key_lengths};
    if (p.settings[SMOOTH_K]) {
        LAUNCH((key_sums<T, D>), k_tiles, THREADS, sizeof(Sums<D>), k, floats(VT8));
        LAUNCH((key_mean<D>), k_heads, D, 0, p, floats(VT8), t.key_lengths, floats(K_MEAN));
        k.mean = floats(K_MEAN);
    }
    q.rotated = k.rotated = p.settings[HADAMARD];

    const bool plain = !k.mean && !q.rotated;
    const int blocks = (plain ? BLOCKS<D, true> : BLOCKS<D, false>) * device_properties()->sm_count;
    Work work = {{q, k, v}, {q_tiles, k_tiles, k_tiles}, 0, tiles, progress};
    if (p.settings[SCALING] == SCALING_TENSOR) {
        work.behind = max(q_in_head, k_in_head) + blocks / 2;
        work.items = 2 * (tiles + work.behind);
    }
    LAUNCH(begin, ceil_div(1 + tiles, THREADS), THREADS, 0, progress, 1 + tiles);
    if (plain)
        LAUNCH((quantise<T, F, D, true>), blocks, THREADS, sizeof(TransposedTile<D>), p, work, k.mean,
               floats(LSE_SHIFT));
    else
        LAUNCH((quantise<T, F, D, false>), blocks, THREADS, sizeof(TransposedTile<D>), p, work, k.mean,
               floats(LSE_SHIFT));
}

LAUNCHER(fp8_quantise) {
    WITH_HALF_TYPE(p->dtype, T, WITH_FORMAT(p->settings[FORMAT], F, WITH_HEAD_DIM_64_128(p->head_dim, D,
        launch_all<T, F, D>(*p, *t, workspace))));
}
