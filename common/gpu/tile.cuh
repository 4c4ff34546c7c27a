/* tile.cuh - tiles of 16-bit elements between device memory and swizzled shared memory.
 *
 * A tile row of D elements is D/8 chunks of 16 bytes. Unswizzled, chunk c of every row starts at bank 4*c (a 128-byte row
 * is exactly the 32 banks), so ldmatrix, which reads the same chunk of eight rows at once, would hit one bank group eight
 * times. So the chunk's place in its row is XORed with the row number:
 *
 *     place      0 1 2 3 4 5 6 7
 *     row 0      0 1 2 3 4 5 6 7        Down any column of this picture, each chunk number appears once: eight rows of
 *     row 1      1 0 3 2 5 4 7 6        one chunk lie in eight different bank groups. Across a row it is a permutation,
 *     row 2      2 3 0 1 6 7 4 5        so nothing is lost, and storing whole rows stays free of conflicts too.
 *     row 3      3 2 1 0 7 6 5 4 ...
 */
#ifndef FA_TILE_CUH
#define FA_TILE_CUH

#include "instructions.cuh"

/* Where chunk `chunk` of row `row` lives: an element offset into the tile. D is a multiple of 32. Rows of 64 elements (or
 * a multiple) span all banks, so eight rows need eight different XORs; rows of 32 or 96 already alternate between the two
 * halves of the banks, so pairs of rows share one of four. */
template <int D> __device__ inline int swizzle(int row, int chunk) {
    static_assert(D % 32 == 0, "a tile row is a multiple of 64 bytes");
    return row * D + 8 * (D % 64 == 0 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3));
}

/* A tile of `Rows` rows of D 16-bit elements, in shared memory. */
template <typename T, int Rows, int D> struct Tile {
    alignas(128) T element[Rows * D];
    __device__ T *chunk(int row, int chunk) { return element + swizzle<D>(row, chunk); }
};

/* Starts copying rows first_row .. first_row + Rows - 1 of `matrix` (row-major, D wide) into the tile, by all `Threads` threads of
 * the block. Rows from `row_end` on do not exist and become zeros. Ends with a committed cp.async group. */
template <int Threads, typename T, int Rows, int D>
__device__ inline void load_tile_async(Tile<T, Rows, D> &tile, const T *matrix, int first_row, int row_end) {
    constexpr int chunks = D / 8;
    static_assert(Rows * chunks % Threads == 0, "every thread copies the same number of chunks");
#pragma unroll
    for (int i = threadIdx.x; i < Rows * chunks; i += Threads) {
        int row = i / chunks, chunk = i % chunks;
        bool exists = first_row + row < row_end;
        /* a row that does not exist is not read, but its address must still be one that could be */
        const T *from = matrix + (size_t)(exists ? first_row + row : 0) * D + 8 * chunk;
        cp_async_16(tile.chunk(row, chunk), from, exists);
    }
    cp_async_commit();
}

#endif
