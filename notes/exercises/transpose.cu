/* transpose.cu - the start of exercise banks_and_swizzles.4: to[column][row] = from[row][column].
 *
 *     from   [rows][columns] floats        to   [columns][rows] floats
 *
 * It compiles, and is wrong: it copies. `make exercise N=banks_and_swizzles.4` shows what your copy moves beside what it may
 * move. Neither rows nor columns need be a multiple of 32; both are multiples of 8. */
#include "../../common/gpu/kernel.cuh"
#include "transpose.h"

constexpr int TILE = 32; /* a block takes TILE x TILE elements; its warps have a row of them each */
constexpr int WARPS = 8;

struct Shared {
    float tile[TILE][TILE];
};

__global__ void transpose_kernel(const float *from, float *to, int rows, int columns) {
    SHARED_MEMORY(shared, Shared);
    (void)shared; /* not used yet */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first_row = TILE * blockIdx.y, first_column = TILE * blockIdx.x;
    for (int r = warp; r < TILE; r += WARPS) {
        int row = first_row + r, column = first_column + lane;
        if (row < rows && column < columns)
            to[row * columns + column] = from[row * columns + column];
    }
}

extern "C" void transpose(const float *from, float *to, int rows, int columns) {
    dim3 grid((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    LAUNCH(transpose_kernel, grid, 32 * WARPS, sizeof(Shared), from, to, rows, columns);
}
