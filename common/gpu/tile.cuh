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

/* Starts copying rows first_row .. first_row + Rows - 1 of `matrix` (row-major, D columns of rows `pitch` elements apart; the
 * start of each 16-byte aligned) into the tile, by all `Threads` threads of the block. Rows from `row_end` on do not exist and
 * become zeros. Ends with a committed cp.async group. */
template <int Threads, typename T, int Rows, int D>
__device__ inline void load_tile_async(Tile<T, Rows, D> &tile, const T *matrix, int first_row, int row_end, int pitch = D) {
    constexpr int chunks = D / 8;
    static_assert(Rows * chunks % Threads == 0, "every thread copies the same number of chunks");
#pragma unroll
    for (int i = threadIdx.x; i < Rows * chunks; i += Threads) {
        int row = i / chunks, chunk = i % chunks;
        bool exists = first_row + row < row_end;
        /* a row that does not exist is not read, but its address must still be one that could be */
        const T *from = matrix + (size_t)(exists ? first_row + row : 0) * pitch + 8 * chunk;
        cp_async_16(tile.chunk(row, chunk), from, exists);
    }
    cp_async_commit();
}

/* The operands of mma, from tiles. `lane` picks which row's address each lane hands to ldmatrix; the registers come back in
 * the order of the pictures in instructions.cuh.
 *
 * A, 16 x 16: rows row .. row + 15, columns 16 inner .. 16 inner + 15. Lanes 0-7 and 8-15 address the upper and lower eight
 * rows of the left half (a[0], a[1]), lanes 16-31 those of the right half (a[2], a[3]). */
template <typename T, int Rows, int D>
__device__ inline void load_a_fragment(uint32_t (&a)[4], Tile<T, Rows, D> &tile, int row, int inner) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4(a, tile.chunk(row + lane % 16, 2 * inner + lane / 16));
}

/* The same A of a tile stored the other way round, [k][m]: transposed on the way. Lanes 8-15 address the columns of the lower
 * eight rows of A, lanes 16-31 the rows of the tile that are A's right half. */
template <typename T, int Rows, int D>
__device__ inline void load_a_fragment_trans(uint32_t (&a)[4], Tile<T, Rows, D> &tile, int inner, int row) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(a, tile.chunk(16 * inner + lane % 8 + 8 * (lane / 16), row / 8 + lane / 8 % 2));
}

/* B, two fragments of 16 x 8, of a tile stored [n][k] (K of Q K^T): b[0], b[1] for n .. n + 7, b[2], b[3] for n + 8 .. n + 15,
 * k from 16 inner on. */
template <typename T, int Rows, int D>
__device__ inline void load_b_fragments(uint32_t (&b)[4], Tile<T, Rows, D> &tile, int n, int inner) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4(b, tile.chunk(n + lane % 8 + 8 * (lane / 16), 2 * inner + lane / 8 % 2));
}

/* The same of a tile stored [k][n] (V of P V): transposed on the way, so that a lane's two elements are neighbours in k. */
template <typename T, int Rows, int D>
__device__ inline void load_b_fragments_trans(uint32_t (&b)[4], Tile<T, Rows, D> &tile, int inner, int n) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(b, tile.chunk(16 * inner + lane % 16, n / 8 + lane / 16));
}

#endif
