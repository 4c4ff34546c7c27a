/* row_tile.cuh - the tile of Q, K or V that a block of the pre-pass works on: where it is, its rows in registers, their
 * largest number, and the scale that this asks for.
 *
 * A block: a tile of 128 queries or keys. A thread: 8 neighbors of a row, 16 bytes, and the same of a few rows further
 * down, all kept in registers as they came.
 */
#ifndef FA_ROW_TILE_CUH
#define FA_ROW_TILE_CUH

#include "../common/gpu/eight.cuh"
#include "rotate.cuh"

constexpr int THREADS = 256, ROWS = 128;
static_assert(ROWS == BLOCK_K && ROWS % BLOCK_Q == 0, "a tile has whole scales");
using Warps = Maxima<THREADS>;

/* One of Q, K and V: where it comes from, what is done to it, and where its 8-bit copy goes. */
struct Operand {
    const void *from;
    void *to;
    int *maxima;   /* the largest |x| of each tile, as bits; -1: not found yet */
    float *scales; /* one for 64 rows of Q, for 128 of K and V */
    int heads, seqlen;
    const int *key_lengths;      /* NULL for Q: all rows exist */
    const float *mean = nullptr; /* or what is subtracted from each row: [batch, heads, D] */
    int rotated = 0;
};

/* The tile with the number `flat`, counted through all heads. */
struct TileIndex {
    int batch, head, tile, flat, first_row, row_end;
};
__device__ static TileIndex tile_index(const Operand &x, int flat) {
    const int tiles = ceil_div(x.seqlen, ROWS), matrix = flat / tiles, tile = flat % tiles;
    TileIndex index = {matrix / x.heads, matrix % x.heads, tile, flat, tile * ROWS, x.seqlen};
    if (x.key_lengths)
        index.row_end = x.key_lengths[index.batch];
    return index;
}
__device__ static int matrix_of(const Operand &x, const TileIndex &index) { return index.batch * x.heads + index.head; }
__device__ static size_t head_offset(const Operand &x, const TileIndex &index, int D) {
    return (size_t)matrix_of(x, index) * x.seqlen * D;
}

/* The rows row, row + THREADS / (D / 8), ... of a tile, eight components of each. Plain:
 * none is smoothed or rotated. */
template <typename T, int D, bool Plain> struct RowTile {
    static constexpr int across = D / 8, down = THREADS / across, count = ROWS / down;
    uint4 raw[count];
    const float *mean; /* this thread's components, or NULL */
    int existing;      /* this thread's rows number 0 .. existing - 1 exist */
    bool rotated;

    __device__ static int chunk() { return threadIdx.x % across; }
    __device__ static int row() { return threadIdx.x / across; }

    __device__ void load(const Operand &x, const TileIndex &index) {
        const T *from =
            (const T *)x.from + head_offset(x, index, D) + (size_t)(index.first_row + row()) * D + 8 * chunk();
        existing = ceil_div(max(index.row_end - index.first_row - row(), 0), down);
        UNROLL for (int r = 0; r < count; r++)
            raw[r] = load_16_or_0(from + (size_t)r * down * D, r < existing);
        mean = x.mean ? x.mean + (size_t)matrix_of(x, index) * D + 8 * chunk() : nullptr;
        rotated = x.rotated;
    }
    /* Row number r, smoothed and rotated. */
    __device__ void get(float (&x)[8], int r) const {
        spread<T>(x, raw[r]);
        if (!Plain && mean && r < existing) {
            float offset[8];
            spread(offset, load_4(mean), load_4(mean + 4));
            UNROLL for (int i = 0; i < 8; i++)
                x[i] -= offset[i];
        }
        if (!Plain && rotated)
            rotate<D>(x, chunk());
    }
    __device__ float amax(int first, int end) const {
        float x[8], largest = 0;
        UNROLL for (int r = first; r < end; r++) {
            get(x, r);
            largest = largest_of(x, largest);
        }
        return largest;
    }
};

/* ---- scales ---- */

/* The largest |x| of a head, when those of all of its tiles have been found. */
__device__ static float wait_for_maximum(Warps &shared, const Operand &x, const TileIndex &index) {
    float largest = 0;
    for (int tile = threadIdx.x; tile < ceil_div(x.seqlen, ROWS); tile += THREADS)
        largest = fmaxf(largest, __int_as_float(wait_for_number(x.maxima + index.flat - index.tile + tile)));
    return block_max(shared, largest);
}

/* The scales of a tile: all its head's with --scaling tensor; else own_amax(i) is this thread's share of maximum number
 * i. What a scale must be for `amax` to land on the format's largest number: fp8.h. */
template <typename F, int Scales, typename Amax>
__device__ static void find_scales(float (&scale)[Scales], Warps (&shared)[2], const Problem &p, const Operand &x,
                                   const TileIndex &index, Amax own_amax) {
    float amax = p.settings[SCALING] == SCALING_TENSOR ? wait_for_maximum(shared[0], x, index) : 0;
    UNROLL for (int i = 0; i < Scales; i++) {
        if (p.settings[SCALING] == SCALING_BLOCK)
            amax = block_max(shared[i], own_amax(i));
        scale[i] = amax > 0 ? fmaxf(amax / F::largest, LEAST_SCALE) : 1;
        constexpr int scale_rows = ROWS / Scales;
        const int number = index.first_row / scale_rows + i, scales = ceil_div(x.seqlen, scale_rows);
        if (threadIdx.x == 0 && number < scales)
            x.scales[(size_t)matrix_of(x, index) * scales + number] = scale[i];
    }
}

#endif
