/* 06_fp8/quantise - the pre-pass: Q, K and V to 8 bits, with scales, and V transposed.
 *
 * The idea. An 8-bit float has a few bits of mantissa and a small range. The scale maps the largest |x| of a group, amax, to
 * the largest number of the format: what is 2^14 times smaller (e4m3) still has all its bits of mantissa. So the error is
 * relative to x itself, and the largest products of a score make its error. Three remedies, each for inputs of its kind:
 *
 *     smaller groups    --scaling block: a scale for 64 queries or 128 keys, not for all of a head. For heads in which some
 *                       tiles are far larger than others.
 *     rotation          --hadamard: q and k are both multiplied by an orthogonal matrix R. Nothing changes, as (q R).(k R)
 *                       = q R R^T k = q . k. But one large component becomes D components 1/sqrt(D) as large, and D errors
 *                       of random sign in the place of one add up to less. For outliers.
 *     smoothing         --smooth-k: the mean of all keys is subtracted from every key. q . (k - mean) = q . k - q . mean:
 *                       every score of a row falls by the same number, and softmax does not see it. LSE does: it gets it
 *                       back. For keys that have much in common.
 *
 * The rotation R = diag(sign) H / sqrt(D). H is Hadamard's matrix, +-1: H[i][j] = (-1)^(number of binary digits that are 1
 * both in i and in j). It is never stored: like a Fourier transform it is log2(D) rounds of butterflies (a, b) -> (a + b,
 * a - b), between the components that differ in one binary digit. The signs keep a row that is constant, or in any other way
 * regular, from ending up in one component.
 *
 * Who owns what. A block: a tile of 64 queries or 128 keys, which is what may share a scale. A thread: 8 neighbours of a
 * row, 16 bytes, and the same of a few rows further down, all kept in registers. Digits 0-2 of a component are places in a
 * thread, digits 3 and up are lanes; so three rounds of butterflies stay in registers and the others are shuffles:
 *
 *     lane           0           1     ...    D/8 - 1     D/8  ...
 *     components   0..7       8..15          .. D - 1     0..7 ...
 *                  |-------- row r --------------------|  |-- row r + 1
 *
 * V goes through shared memory to be transposed: a thread brings 8 components of four keys and stores 8 times four keys of
 * one component, in the order of keys that fp8.h explains.
 *
 * What it costs. Read once 2 (Nq + 2 Nk) D bytes a head, written half of it; --scaling tensor reads all of it once more
 * before, for the maxima; --smooth-k reads K once more. No FLOPs to speak of: device memory is the limit.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant mma --scaling block --hadamard
 */
#include "../common/gpu/instructions.cuh"
#include "../common/gpu/softmax.cuh"

#include "fp8.h"

constexpr int THREADS = 256;

/* One of Q, K and V on its way. */
struct Operand {
    const void *from;
    void *to;      /* Q8, K8 or VT8 */
    float *scales; /* of all tiles of all heads */
    int heads, seqlen, tile_rows;
    const int *key_lengths; /* NULL for Q: all rows exist */
};

/* The tile that a block works on. */
struct TileIndex {
    int batch, head, tile;
    size_t flat; /* counted through the whole problem, as scales are */
    int first_row, row_end;
};
__device__ static TileIndex tile_index(const Operand &x) {
    const int tiles = ceil_div(x.seqlen, x.tile_rows), matrix = blockIdx.x / tiles;
    TileIndex index = {matrix / x.heads, matrix % x.heads, (int)(blockIdx.x % tiles), blockIdx.x, 0, x.seqlen};
    index.first_row = index.tile * x.tile_rows;
    if (x.key_lengths)
        index.row_end = x.key_lengths[index.batch];
    return index;
}
__device__ static size_t head_offset(const Operand &x, const TileIndex &index, int D) {
    return ((size_t)index.batch * x.heads + index.head) * x.seqlen * D;
}

/* ---- eight elements: in, out ---- */

/* Eight elements of T, or zeros, as floats. */
template <typename T> __device__ static void load_8(float (&x)[8], const T *from, bool exists) {
    const uint4 raw = exists ? load_16(from) : make_uint4(0, 0, 0, 0); /* 0 is 0 in every format */
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack_pair<T>(word[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}

/* Eight floats of an array aligned to 16 bytes. */
__device__ static void load_8(float (&x)[8], const float *from) {
    const float4 low = reinterpret_cast<const float4 *>(from)[0], high = reinterpret_cast<const float4 *>(from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/* Eight elements of F that are stored together. */
template <typename F> __device__ static uint2 pack_8(const float (&x)[8]) {
    return make_uint2(pack_4<F>(x[0], x[1], x[2], x[3]), pack_4<F>(x[4], x[5], x[6], x[7]));
}
template <typename F> __device__ static void unpack_8(float (&x)[8], uint2 packed) {
    const float4 low = unpack_4<F>(packed.x), high = unpack_4<F>(packed.y);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/* ---- rotation, maximum, scale ---- */

/* x := x R, for rows of D components of which this thread has eight, from component 8 chunk on. */
template <int D> __device__ static void rotate(float (&x)[8], int chunk) {
    const float factor = rsqrtf(D);
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] *= factor * rotation_sign(8 * chunk + i);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!(i & step)) {
                const float a = x[i], b = x[i + step];
                x[i] = a + b, x[i + step] = a - b;
            }
#pragma unroll
    for (int step = 1; step < D / 8; step *= 2) {
        const float sign = chunk & step ? -1 : 1; /* a + b in the lower lane of the two, a - b in the upper, by one FFMA */
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = sign * x[i] + __shfl_xor_sync(WHOLE_WARP, x[i], step);
    }
}

/* What a scale must be for `amax` to land on the format's largest number. The lower bound keeps its inverse finite: bf16 has
 * numbers so small that it would not be. */
template <typename F> __device__ static float scale_of(float amax) {
    return amax > 0 ? fmaxf(amax / F::largest, 0x1p-100f) : 1;
}

/* The largest of what the block's threads bring. */
struct Warps {
    float amax[THREADS / 32];
};
__device__ static float block_max(Warps &shared, float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, offset));
    if (threadIdx.x % 32 == 0)
        shared.amax[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++)
        x = fmaxf(x, shared.amax[warp]);
    return x;
}

/* ---- a tile of rows ---- */

/* The rows row, row + THREADS / (D / 8), ... of a tile, eight components of each, smoothed by `mean` (NULL: not) and
 * rotated. */
template <typename T, int D, int Rows> struct RowTile {
    static constexpr int across = D / 8, down = THREADS / across, count = Rows / down;
    float x[count][8];

    __device__ static int chunk() { return threadIdx.x % across; }
    __device__ static int row() { return threadIdx.x / across; }

    __device__ void load(const T *matrix, const TileIndex &index, const float *mean, bool rotated) {
        const T *from = matrix + (size_t)(index.first_row + row()) * D + 8 * chunk();
        float offset[8] = {};
        if (mean)
            load_8(offset, mean + 8 * chunk());
#pragma unroll
        for (int r = 0; r < count; r++)
            load_8(x[r], from + (size_t)r * down * D, index.first_row + row() + r * down < index.row_end);
#pragma unroll
        for (int r = 0; r < count; r++) {
            if (mean && index.first_row + row() + r * down < index.row_end)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[r][i] -= offset[i];
            if (rotated)
                rotate<D>(x[r], chunk());
        }
    }
    __device__ float amax() const {
        float largest = 0;
#pragma unroll
        for (int r = 0; r < count; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                largest = fmaxf(largest, fabsf(x[r][i]));
        return largest;
    }
};

/* --scaling tensor, first step: the maximum of each tile, to where its scale will be. */
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

/* Second step: the maximum of each head, as a scale, to all of its tiles. One block a head. */
template <typename F> __global__ void head_scale(float *scales, int tiles) {
    SHARED_MEMORY(Warps, shared);
    float *mine = scales + (size_t)blockIdx.x * tiles, amax = 0;
    for (int tile = threadIdx.x; tile < tiles; tile += THREADS)
        amax = fmaxf(amax, mine[tile]);
    amax = block_max(shared, amax);
    for (int tile = threadIdx.x; tile < tiles; tile += THREADS)
        mine[tile] = scale_of<F>(amax);
}

/* Q and K. lse_shift is NULL for K. `k_mean` is of the key heads; for Q it is not subtracted but gives LSE's shift. */
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

    /* The mean, as it looks from the rows that were rotated: what a row's scores lost is scale q . mean */
    float turned_mean[8] = {};
    if (lse_shift && mean) {
        load_8(turned_mean, mean + 8 * tile.chunk());
        if (p.settings[HADAMARD])
            rotate<D>(turned_mean, tile.chunk());
    }
    F *to = (F *)x.to + head_offset(x, index, D) + (size_t)(index.first_row + tile.row()) * D + 8 * tile.chunk();
#pragma unroll
    for (int r = 0; r < tile.count; r++) {
        const int row = index.first_row + tile.row() + r * tile.down;
#pragma unroll
        for (int i = 0; i < 8; i++)
            tile.x[r][i] *= inverse;
        const uint2 packed = pack_8<F>(tile.x[r]);
        if (row < x.seqlen)
            *reinterpret_cast<uint2 *>(to + (size_t)r * tile.down * D) = packed;
        float shift = 0;
        if (lse_shift && mean) { /* with q as it was rounded, since that is the q that the scores are made of */
            float rounded[8];
            unpack_8<F>(rounded, packed);
#pragma unroll
            for (int i = 0; i < 8; i++)
                shift += p.scale * scale * rounded[i] * turned_mean[i];
#pragma unroll
            for (int offset = D / 16; offset > 0; offset /= 2)
                shift += __shfl_xor_sync(WHOLE_WARP, shift, offset);
        }
        if (lse_shift && tile.chunk() == 0 && row < x.seqlen)
            lse_shift[((size_t)index.batch * x.heads + index.head) * x.seqlen + row] = shift;
    }
}

/* ---- V, transposed ---- */

/* A key tile of V on its way: row d holds that component of 128 keys. Four keys are stored together. A warp's lanes store
 * eight chunks of components (d / 8) of four neighbouring groups; rows start at the same bank, so the 16-byte chunks of a
 * row are permuted by d / 8, and the eight do not meet. */
template <int D> struct TransposedTile {
    Warps warps;
    alignas(128) unsigned char byte[D * BLOCK_K];
    __device__ void *chunk(int d, int chunk) { return byte + d * BLOCK_K + 16 * (chunk ^ (d / 8 % 8)); }
    __device__ uint32_t *four(int d, int group) {
        return reinterpret_cast<uint32_t *>((unsigned char *)chunk(d, 4 * group / 16) + 4 * group % 16);
    }
};

template <typename T, typename F, int D> __global__ void quantise_v(Problem p, Operand v) {
    SHARED_MEMORY(TransposedTile<D>, shared);
    const TileIndex index = tile_index(v);
    const T *from = (const T *)v.from + head_offset(v, index, D);

    /* Thread: keys of the group threadIdx.x / 8, chunks of components threadIdx.x % 8, + 8 */
    constexpr int passes = D / 64;
    const int group = threadIdx.x / 8, chunk = threadIdx.x % 8;
    float x[passes][4][8], amax = 0;
#pragma unroll
    for (int pass = 0; pass < passes; pass++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = index.first_row + key_at_place(4 * group + i);
            load_8(x[pass][i], from + (size_t)key * D + 64 * pass + 8 * chunk, key < index.row_end);
#pragma unroll
            for (int j = 0; j < 8; j++)
                amax = fmaxf(amax, fabsf(x[pass][i][j]));
        }

    const bool scale_is_known = p.settings[SCALING] == SCALING_TENSOR;
    const float scale = scale_is_known ? v.scales[index.flat] : scale_of<F>(block_max(shared.warps, amax));
    if (!scale_is_known && threadIdx.x == 0)
        v.scales[index.flat] = scale;
    const float inverse = 1 / scale;

#pragma unroll
    for (int pass = 0; pass < passes; pass++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            *shared.four(64 * pass + 8 * chunk + j, group) = pack_4<F>(x[pass][0][j] * inverse, x[pass][1][j] * inverse, //
                                                                       x[pass][2][j] * inverse, x[pass][3][j] * inverse);
    __syncthreads();
    F *to = (F *)v.to + vt_head_offset(&p, index.batch, index.head) + index.first_row;
    constexpr int chunks = BLOCK_K / 16;
#pragma unroll
    for (int i = threadIdx.x; i < D * chunks; i += THREADS)
        store_16(to + (size_t)(i / chunks) * key_pitch(&p) + i % chunks * 16,
                 load_16(shared.chunk(i / chunks, i % chunks)));
}

/* ---- the mean of the keys ---- */

/* First step: the sum over each key tile. The sums lie where VT8 will be: D floats a tile, of the 128 D bytes that V needs
 * there. */
template <int D> struct Sums {
    float row[THREADS / (D / 8)][D];
};
template <typename T, int D> __global__ void key_sums(Operand k, float *sums) {
    SHARED_MEMORY(Sums<D>, shared);
    const TileIndex index = tile_index(k);
    if (index.first_row >= index.row_end)
        return;
    RowTile<T, D, BLOCK_K> tile;
    tile.load((const T *)k.from + head_offset(k, index, D), index, nullptr, false);
#pragma unroll
    for (int r = 1; r < tile.count; r++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            tile.x[0][i] += tile.x[r][i];
    const float(&x)[8] = tile.x[0];
    float4 *to = reinterpret_cast<float4 *>(&shared.row[tile.row()][8 * tile.chunk()]);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
    __syncthreads();
    if (threadIdx.x < D) {
        float sum = 0;
        for (int row = 0; row < tile.down; row++)
            sum += shared.row[row][threadIdx.x];
        sums[index.flat * D + threadIdx.x] = sum;
    }
}

/* Second step: one block of D threads a head adds the tiles. */
template <int D> __global__ void key_mean(Problem p, const float *sums, const int *key_lengths, float *k_mean) {
    const int keys = key_length(&p, key_lengths, blockIdx.x / p.kv_heads);
    const float *mine = sums + (size_t)blockIdx.x * k_scale_count(&p) * D + threadIdx.x;
    float sum = 0;
#pragma unroll 16
    for (int tile = 0; tile < ceil_div(keys, BLOCK_K); tile++)
        sum += mine[(size_t)tile * D];
    k_mean[(size_t)blockIdx.x * D + threadIdx.x] = sum / max(keys, 1);
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

template <typename T, typename F> static void launch_format(const Problem &p, const Tensors &t, const Buffer *workspace) {
    WITH_HEAD_DIM_64_128(p.head_dim, D, launch_all<T, F, D>(p, t, workspace));
}

extern "C" void fp8_quantise(const Problem *p, const Tensors *t, const Buffer *workspace) {
    WITH_HALF_TYPE(p->dtype, T, {
        if (p->settings[FORMAT] == FORMAT_E4M3)
            launch_format<T, E4m3>(*p, *t, workspace);
        else
            launch_format<T, E5m2>(*p, *t, workspace);
    });
}
