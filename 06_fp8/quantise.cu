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
 * Where what is. row_tile.cuh: a block's tile of 64 queries or 128 keys in registers, and its scale. rotate.cuh,
 * smooth.cuh: the last two options. transpose.cuh: V, which is stored transposed. This file: scales of heads, rounding,
 * and the launches.
 *
 * What it costs. 2 (Sq + 2 Sk) D bytes a head are read, half as many are written. --scaling tensor reads all inputs
 * once more before, for the maxima; --smooth-k reads K once more. FLOPs do not count: device memory is the limit.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant mma --scaling block --hadamard
 */
#include "smooth.cuh"
#include "transpose.cuh"

/* ---- scales ---- */

/* --scaling tensor, first step: each tile's maximum, written to the place where the tile's scale will be. */
template <typename T, int D, int Rows> __global__ void tile_amax(Operand x, const float *k_mean, int rotated) {
    SHARED_MEMORY(Warps, shared);
    const TileIndex index = tile_index(x);
    RowTile<T, D, Rows> tile;
    tile.load((const T *)x.from + head_offset(x, index, D), index,
              k_mean ? k_mean + (size_t)(index.batch * x.heads + index.head) * D : nullptr, rotated);
    const float amax = block_max(shared, tile.amax());
    if (threadIdx.x == 0)
        x.scales[index.flat] = amax;
}

/* Second step, one block a head: the head's maximum becomes a scale, which is written for all of its tiles. */
template <typename F> __global__ void head_scale(float *scales, int tiles) {
    SHARED_MEMORY(Warps, shared);
    float *mine = scales + (size_t)blockIdx.x * tiles, amax = 0;
    for (int tile = threadIdx.x; tile < tiles; tile += THREADS)
        amax = fmaxf(amax, mine[tile]);
    amax = block_max(shared, amax);
    for (int tile = threadIdx.x; tile < tiles; tile += THREADS)
        mine[tile] = scale_of<F>(amax);
}

/* ---- rounding ---- */

/* Rounds Q or K. For K, lse_shift is NULL, and k_mean, if it is given, is subtracted. For Q nothing is subtracted:
 * scale q . k_mean is written to lse_shift. k_mean: [batch, kv_heads, D] or NULL. */
template <typename T, typename F, int D, int Rows>
__global__ void quantise_rows(Problem p, Operand x, const float *k_mean, float *lse_shift) {
    SHARED_MEMORY(Warps, shared);
    const TileIndex index = tile_index(x);
    RowTile<T, D, Rows> tile;
    const int kv_head = lse_shift ? kv_head_of(&p, index.head) : index.head;
    const float *mean = k_mean ? k_mean + (size_t)(index.batch * p.kv_heads + kv_head) * D : nullptr;
    tile.load((const T *)x.from + head_offset(x, index, D), index, lse_shift ? nullptr : mean, p.settings[HADAMARD]);

    const bool scale_is_known = p.settings[SCALING] == SCALING_TENSOR;
    const float scale = scale_is_known ? x.scales[index.flat] : scale_of<F>(block_max(shared, tile.amax()));
    if (!scale_is_known && threadIdx.x == 0)
        x.scales[index.flat] = scale;
    const float inverse = 1 / scale;

    float turned_mean[8] = {}; /* this thread's components of the mean, rotated if the rows of Q are */
    if (lse_shift && mean) {
        spread(turned_mean, load_4(mean + 8 * tile.chunk()), load_4(mean + 8 * tile.chunk() + 4));
        if (p.settings[HADAMARD])
            rotate<D>(turned_mean, tile.chunk());
    }
    F *to = (F *)x.to + head_offset(x, index, D) + (size_t)(index.first_row + tile.row()) * D + 8 * tile.chunk();
    UNROLL for (int r = 0; r < tile.count; r++) {
        const int row = index.first_row + tile.row() + r * tile.down;
        UNROLL for (int i = 0; i < 8; i++)
            tile.x[r][i] *= inverse;
        const uint2 packed = pack_8<F>(tile.x[r]);
        if (row < x.seqlen)
            *reinterpret_cast<uint2 *>(to + (size_t)r * tile.down * D) = packed;
        const float shift = lse_shift && mean ? p.scale * scale * dot_with_mean<F, D>(packed, turned_mean) : 0;
        if (lse_shift && tile.chunk() == 0 && row < x.seqlen)
            lse_shift[((size_t)index.batch * x.heads + index.head) * x.seqlen + row] = shift;
    }
}

/* ---- host ---- */

template <typename T, typename F, int D>
static void launch_all(const Problem &p, const Tensors &t, const Buffer *workspace) {
    const auto floats = [&](int buffer) { return (float *)workspace[buffer].pointer; };
    const Operand q = {t.q, workspace[Q8].pointer, floats(Q_SCALES), p.heads, p.seqlen_q, BLOCK_Q, nullptr};
    const Operand k = {t.k, workspace[K8].pointer, floats(K_SCALES), p.kv_heads, p.seqlen_k, BLOCK_K, t.key_lengths};
    const Operand v = {t.v, workspace[VT8].pointer, floats(V_SCALES), p.kv_heads, p.seqlen_k, BLOCK_K, t.key_lengths};
    const int q_heads = p.batch * p.heads, k_heads = p.batch * p.kv_heads;
    const int q_tiles = q_heads * q_scale_count(&p), k_tiles = k_heads * k_scale_count(&p);
    const int rotated = p.settings[HADAMARD];

    const float *mean = nullptr, *none = nullptr;
    if (p.settings[SMOOTH_K]) {
        float *sums = floats(VT8), *k_mean = floats(K_MEAN);
        LAUNCH((key_sums<T, D>), k_tiles, THREADS, sizeof(Sums<D>), k, sums);
        LAUNCH((key_mean<D>), k_heads, D, 0, p, sums, t.key_lengths, k_mean);
        mean = k_mean;
    }
    if (p.settings[SCALING] == SCALING_TENSOR) {
        LAUNCH((tile_amax<T, D, BLOCK_Q>), q_tiles, THREADS, sizeof(Warps), q, none, rotated);
        LAUNCH((tile_amax<T, D, BLOCK_K>), k_tiles, THREADS, sizeof(Warps), k, mean, rotated);
        LAUNCH((tile_amax<T, D, BLOCK_K>), k_tiles, THREADS, sizeof(Warps), v, none, 0);
        LAUNCH((head_scale<F>), q_heads, THREADS, sizeof(Warps), q.scales, q_scale_count(&p));
        LAUNCH((head_scale<F>), k_heads, THREADS, sizeof(Warps), k.scales, k_scale_count(&p));
        LAUNCH((head_scale<F>), k_heads, THREADS, sizeof(Warps), v.scales, k_scale_count(&p));
    }
    float *lse_shift = floats(LSE_SHIFT), *no_shift = nullptr;
    LAUNCH((quantise_rows<T, F, D, BLOCK_Q>), q_tiles, THREADS, sizeof(Warps), p, q, mean, lse_shift);
    LAUNCH((quantise_rows<T, F, D, BLOCK_K>), k_tiles, THREADS, sizeof(Warps), p, k, mean, no_shift);
    LAUNCH((quantise_v<T, F, D>), k_tiles, THREADS, sizeof(TransposedTile<D>), p, v);
}

LAUNCHER(fp8_quantise) {
    WITH_HALF_TYPE(p->dtype, T, WITH_FORMAT(p->settings[FORMAT], F, WITH_HEAD_DIM_64_128(p->head_dim, D,
        launch_all<T, F, D>(*p, *t, workspace))));
}
