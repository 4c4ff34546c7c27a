/* transpose.cuh - V to 8 bits, and transposed. In P V the sum runs over keys, so mma and wgmma want neighbouring keys
 * side by side; V has neighbouring components side by side. In 8 bits neither ldmatrix nor wgmma can transpose on the
 * way. So the pre-pass does, through shared memory: a thread loads 8 components of each of four keys, and stores, for
 * each of the 8 components, four keys together, in the order of keys that fp8.h explains (key_at_place).
 */
#ifndef FA_TRANSPOSE_CUH
#define FA_TRANSPOSE_CUH

#include "row_tile.cuh"

/* A key tile of V in shared memory, transposed: row d holds component d of 128 keys, 128 bytes, so all rows start at
 * the same bank. In one store the lanes of a warp write to eight rows, d = 8 chunk + j for chunk = 0 .. 7, and to the
 * same 16 bytes of each row. Those would be the same banks; so a row's 16-byte chunks are permuted by d / 8. */
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
    UNROLL for (int pass = 0; pass < passes; pass++)
        UNROLL for (int i = 0; i < 4; i++) {
            const int key = index.first_row + key_at_place(4 * group + i);
            load_8(x[pass][i], from + (size_t)key * D + 64 * pass + 8 * chunk, key < index.row_end);
            amax = largest_of(x[pass][i], amax);
        }

    const bool scale_is_known = p.settings[SCALING] == SCALING_TENSOR;
    const float scale = scale_is_known ? v.scales[index.flat] : scale_of<F>(block_max(shared.warps, amax));
    if (!scale_is_known && threadIdx.x == 0)
        v.scales[index.flat] = scale;
    const float inverse = 1 / scale;

    UNROLL for (int pass = 0; pass < passes; pass++)
        UNROLL for (int j = 0; j < 8; j++)
            *shared.four(64 * pass + 8 * chunk + j, group) = pack_4<F>(x[pass][0][j] * inverse, x[pass][1][j] * inverse, //
                                                                       x[pass][2][j] * inverse, x[pass][3][j] * inverse);
    __syncthreads();
    F *to = (F *)v.to + vt_head_offset(&p, index.batch, index.head) + index.first_row;
    constexpr int chunks = BLOCK_K / 16;
    UNROLL for (int i = threadIdx.x; i < D * chunks; i += THREADS)
        store_16(to + (size_t)(i / chunks) * key_pitch(&p) + i % chunks * 16,
                 load_16(shared.chunk(i / chunks, i % chunks)));
}

#endif
