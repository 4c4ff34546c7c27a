/* tile.cuh - tiles of 16-bit elements between device memory and swizzled shared memory.
 *
 * A tile row of D elements is D/8 chunks of 16 bytes. Unswizzled, chunk c of every row starts at bank 4*c (a 128-byte
 * row is exactly the 32 banks), so ldmatrix, which reads the same chunk of eight rows at once, would meet the same four
 * banks eight times. So the chunk's position in its row is XORed with the row number:
 *
 *     position   0 1 2 3 4 5 6 7
 *     row 0      0 1 2 3 4 5 6 7        Down any column of this picture, each chunk number appears once: eight rows of
 *     row 1      1 0 3 2 5 4 7 6        one chunk lie in eight different bank groups. Across a row it is a permutation,
 *     row 2      2 3 0 1 6 7 4 5        so nothing is lost, and storing whole rows stays free of conflicts too.
 *     row 3      3 2 1 0 7 6 5 4 ...
 */
#ifndef FA_TILE_CUH
#define FA_TILE_CUH

#include "instructions.cuh"

/* What the chunk numbers of a row are XORed with. Rows of 64 elements (or a multiple) span all banks, so eight rows
 * need eight different XORs; rows of 32 or 96 already alternate between the two halves of the banks, so four XORs
 * suffice, and two neighboring rows share one. */
template <int D> __device__ inline int swizzle_key(int row) { return D % 64 == 0 ? row & 7 : (row >> 1) & 3; }

/* Where chunk `chunk` of row `row` lives: an element offset into the tile. D is a multiple of 32. */
template <int D> __device__ inline int swizzle(int row, int chunk) {
    static_assert(D % 32 == 0, "a tile row is a multiple of 64 bytes");
    return row * D + 8 * (chunk ^ swizzle_key<D>(row));
}

/* A tile of `Rows` rows of D 16-bit elements, in shared memory. */
template <typename T, int Rows, int D> struct Tile {
    alignas(128) T element[Rows * D];
    __device__ T *chunk(int row, int chunk) { return element + swizzle<D>(row, chunk); }

    /* chunk(row + r, chunk + c), where row is a multiple of 8, chunk is even and c is 0 or 1: what the fragments below
     * need. r and c depend on the lane. Adding row does not change what is XORed, and chunk + c is chunk ^ c. So one
     * address is computed from the lane, and in an unrolled loop each further one is that address XOR a constant, plus
     * a constant. With D = 96 rows do not start at powers of two, so the XOR is done within the row, before its start
     * is added. */
    __device__ T *chunk(int row, int r, int c, int chunk) {
        constexpr bool power_of_two = (D & (D - 1)) == 0;
        const int lane =
            power_of_two ? swizzle<D>(r, c) ^ 8 * chunk : r * D + (8 * (c ^ swizzle_key<D>(r)) ^ 8 * chunk);
        return element + row * D + lane;
    }
};

/* Starts copying rows first_row .. first_row + Rows - 1 of `matrix` into the tile. The matrix is row-major, with D
 * columns and rows `pitch` elements apart; each row starts at a multiple of 16 bytes. `Threads` threads copy: the whole
 * block, or some of it, which then pass their numbers 0 .. Threads - 1 as `thread`. Rows from `row_end` on do not exist
 * and become zeros. The copies are one committed group of cp.async. */
template <int Threads, typename T, int Rows, int D>
__device__ inline void load_tile_async(Tile<T, Rows, D> &tile, const T *matrix, int first_row, int row_end,
                                       int pitch = D, int thread = threadIdx.x) {
    /* A thread keeps its chunk and steps down the rows, so that its addresses differ by constants. Rows of 32 or 96
     * elements are taken 32 (four chunks) at a time. */
    constexpr int across = D % 64 == 0 ? D / 8 : 4, down = Threads / across;
    static_assert(Threads % across == 0 && Rows % down == 0, "every thread copies the same number of chunks");
    const int row = thread / across, chunk = thread % across;
    const T *from = matrix + (size_t)(first_row + row) * pitch + 8 * chunk;
    UNROLL for (int r = 0; r < Rows; r += down)
        UNROLL for (int c = 0; c < D / 8; c += across)
            cp_async_16(tile.chunk(row + r, chunk + c), from + (size_t)r * pitch + 8 * c,
                        first_row + row + r < row_end);
    cp_async_commit();
}

/* The operands of mma, from tiles. `lane` picks which row's address each lane hands to ldmatrix; the registers come
 * back in the order of the pictures in instructions.cuh.
 *
 * A, 16 x 16: rows row .. row + 15, columns 16 inner .. 16 inner + 15. Lanes 0-7 and 8-15 address the upper and lower
 * eight rows of the left half (a[0], a[1]), lanes 16-31 those of the right half (a[2], a[3]). */
template <typename T, int Rows, int D>
__device__ inline void load_a_fragment(uint32_t (&a)[4], Tile<T, Rows, D> &tile, int row, int inner) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a, tile.chunk(row, lane % 16, lane / 16, 2 * inner));
}

/* The same A of a tile stored the other way round, [k][m]: transposed on the way. Lanes 8-15 address the columns of the
 * lower eight rows of A, lanes 16-31 the rows of the tile that are A's right half. */
template <typename T, int Rows, int D>
__device__ inline void load_a_fragment_trans(uint32_t (&a)[4], Tile<T, Rows, D> &tile, int inner, int row) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(a, tile.chunk(16 * inner, lane % 8 + 8 * (lane / 16), lane / 8 % 2, row / 8));
}

/* B, two fragments of 16 x 8, of a tile stored [n][k] (K of Q K^T): b[0], b[1] for n .. n + 7, b[2], b[3] for n + 8 ..
 * n + 15, k from 16 inner on. */
template <typename T, int Rows, int D>
__device__ inline void load_b_fragments(uint32_t (&b)[4], Tile<T, Rows, D> &tile, int n, int inner) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(b, tile.chunk(n, lane % 8 + 8 * (lane / 16), lane / 8 % 2, 2 * inner));
}

/* The same of a tile stored [k][n] (V of P V): transposed on the way, so that a lane's two
 * elements are neighbors in k. */
template <typename T, int Rows, int D>
__device__ inline void load_b_fragments_trans(uint32_t (&b)[4], Tile<T, Rows, D> &tile, int inner, int n) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(b, tile.chunk(16 * inner, lane % 16, lane / 16, n / 8));
}

/* Stores 32 columns of a row that a quad has as four pieces of 8: x[i] is the lane's two columns of piece i, `to` where
 * the first piece goes, aligned to 16 bytes. A lane alone would store 4 bytes of each piece. So the four exchange
 * parts, lane c gives its part of piece i to lane i, and each stores a whole piece, 16 bytes. That takes two rounds,
 * with the lane at distance 1 and at distance 2. All lanes of the warp call it, also those whose row does not exist. */
template <typename T> __device__ inline void store_quad(T *to, uint32_t (&x)[4], bool exists) {
    const int c = threadIdx.x % 4;
    UNROLL for (int distance = 1; distance <= 2; distance *= 2)
        UNROLL for (int i = 0; i < 4; i++)
            if (!(i & distance)) { /* of the pieces i and i + distance, a lane keeps the one on its own side */
                const bool upper = c & distance;
                const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + distance], distance);
                if (upper)
                    x[i] = other;
                else
                    x[i + distance] = other;
            }
    if (exists) /* (to + 8 * c is the same address, but of the first piece of a row nvcc 13.0 then makes four stores) */
        store_16(reinterpret_cast<uint4 *>(to) + c, uint4{x[0], x[1], x[2], x[3]});
}

#endif
