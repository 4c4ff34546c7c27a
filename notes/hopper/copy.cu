/* copy - TMA brings a tile to shared memory: swizzled, and with zeros where the matrix has ended.
 *
 * The matrix has 7 rows of 128 bytes, the tile 8: the last row of the tile does not exist. Every row is 8 chunks of 16 bytes;
 * all bytes of a chunk have its number, 16 times the row, plus 1 + the chunk. The program prints where the chunks lie in
 * shared memory: letters are rows, digits chunks, a point is a zero.
 *
 *     make hopper
 */
#include "primer.cuh"

constexpr int ROWS = 7, TILE_ROWS = 8, BYTES = 128 * TILE_ROWS;

struct Shared {
    alignas(1024) unsigned char tile[BYTES];
    Mbarrier full;
};

__global__ void copy(const __grid_constant__ TensorMap map, unsigned char *seen) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared);
    if (elect_one()) { /* one thread for all */
        mbarrier_init(&shared.full, 1); /* one thread arrives in a phase */
        mbarrier_init_fence();
        mbarrier_arrive_expect(&shared.full, BYTES); /* arrives, and announces bytes; the row of zeros counts, too */
        tma_load(shared.tile, map, 0, 0, 0, &shared.full); /* starts the copy, and returns */
    }
    __syncthreads(); /* from here on all know of the mbarrier */

    mbarrier_wait(&shared.full, 0); /* until its first phase is over: the last byte is there */
    for (int i = threadIdx.x; i < BYTES; i += 32)
        seen[i] = shared.tile[i];
#endif
}

int main() {
    begin("copy");
    std::vector<unsigned char> matrix(128 * ROWS);
    for (int i = 0; i < 128 * ROWS; i++)
        matrix[i] = i / 128 * 16 + 1 + i % 128 / 16;
    Array<unsigned char> from(matrix, "matrix"), to(BYTES, "copy");
    LAUNCH(copy, 1, 32, sizeof(Shared), tensor_map<unsigned char, 128>(from.pointer, 128, ROWS, 1, TILE_ROWS), to.pointer);
    const std::vector<unsigned char> seen = to.read();

    int wrong = 0;
    for (int row = 0; row < TILE_ROWS; row++) {
        for (int place = 0; place < 8; place++) {
            const int chunk = place ^ row, number = row < ROWS ? row * 16 + 1 + chunk : 0;
            for (int i = 0; i < 16; i++)
                wrong += seen[128 * row + 16 * place + i] != number;
            const int found = seen[128 * row + 16 * place];
            if (found)
                printf("  %c%d", 'a' + found / 16, found % 16 - 1);
            else
                printf("   .");
        }
        printf("\n");
    }
    return end(wrong);
}
