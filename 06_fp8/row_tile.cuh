/* row_tile.cuh - the tile of Q, K or V that a block of the pre-pass works on: where it is, its rows in registers, their largest
 * number, and the scale that this asks for.
 *
 * A block: a tile of 64 queries or 128 keys, which is what may share a scale. A thread: 8 neighbours of a row, 16 bytes,
 * and the same of a few rows further down, all kept in registers.
 */
#ifndef FA_ROW_TILE_CUH
#define FA_ROW_TILE_CUH

#include "../common/gpu/eight.cuh"
#include "rotate.cuh"

constexpr int THREADS = 256;
using Warps = Maxima<THREADS>;

/* One of Q, K and V: where it comes from and where its 8-bit copy goes. */
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

/* What a scale must be for `amax` to land on the format's largest number (fp8.h). */
template <typename F> __device__ static float scale_of(float amax) {
    return amax > 0 ? fmaxf(amax / F::largest, LEAST_SCALE) : 1;
}

/* ---- the rows ---- */

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
            spread(offset, load_4(mean + 8 * chunk()), load_4(mean + 8 * chunk() + 4));
        UNROLL for (int r = 0; r < count; r++)
            load_8(x[r], from + (size_t)r * down * D, index.first_row + row() + r * down < index.row_end);
        UNROLL for (int r = 0; r < count; r++) {
            if (mean && index.first_row + row() + r * down < index.row_end)
                UNROLL for (int i = 0; i < 8; i++)
                    x[r][i] -= offset[i];
            if (rotated)
                rotate<D>(x[r], chunk());
        }
    }
    __device__ float amax() const {
        float largest = 0;
        UNROLL for (int r = 0; r < count; r++)
            largest = largest_of(x[r], largest);
        return largest;
    }
};

#endif
