/* transpose.cuh - V to 8 bits, and transposed. In P V the sum runs over keys, so mma and wgmma want neighboring keys
 * side by side; V has neighboring components side by side. In 8 bits neither ldmatrix nor wgmma can transpose on the
 * way. So the pre-pass does, through shared memory: a thread loads 8 components of each of four keys, and stores, for
 * each of the 8 components, four keys together, in the order of keys that fp8.h explains (key_at_position).
 */
#ifndef FA_TRANSPOSE_CUH
#define FA_TRANSPOSE_CUH

#include "row_tile.cuh"

/* A key tile of V in shared memory, transposed: row d holds component d of 128 keys, 128 bytes, so all rows start at
 * the same bank. In one store the lanes of a warp write to eight rows, d = 8 chunk + j for chunk = 0 .. 7, and to the
 * same 16 bytes of each row. Those would be the same banks; so a row's 16-byte chunks are permuted by d / 8. */
template <int D> struct TransposedTile {
    Warps warps[2];
    int number; /* of the block's item: quantise.cu */
    alignas(128) unsigned char byte[D * BLOCK_K];
    __device__ unsigned char *chunk(int d, int chunk) { return byte + d * BLOCK_K + 16 * (chunk ^ (d / 8 % 8)); }
};

__device__ static uint32_t word_of(uint4 x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

template <typename T, typename F, int D>
__device__ static void round_transposed(TransposedTile<D> &shared, const Problem &p, const Operand &v,
                                        const TileIndex &index) {
    const T *from = (const T *)v.from + head_offset(v, index, D);

    /* Thread: keys of the group threadIdx.x / 8, chunks of components threadIdx.x % 8, + 8 */
    constexpr int passes = D / 64;
    const int group = threadIdx.x / 8, chunk = threadIdx.x % 8;
    uint4 raw[passes * 4];
    UNROLL for (int i = 0; i < passes * 4; i++) {
        const int key = index.first_row + key_at_position(4 * group + i % 4);
        raw[i] = load_16_or_0(from + (size_t)key * D + 64 * (i / 4) + 8 * chunk, key < index.row_end);
    }
    float scale[1];
    find_scales<F>(scale, shared.warps, p, v, index, [&](int) {
        float x[8], largest = 0;
        UNROLL for (int i = 0; i < passes * 4; i++) {
            spread<T>(x, raw[i]);
            largest = largest_of(x, largest);
        }
        return largest;
    });

    const float inverse = 1 / scale[0];
    UNROLL for (int pass = 0; pass < passes; pass++)
        UNROLL for (int j = 0; j < 8; j += 2) {
            float2 x[4]; /* two components of four keys */
            UNROLL for (int i = 0; i < 4; i++)
                x[i] = unpack_pair<T>(word_of(raw[4 * pass + i], j / 2));
            auto *to = reinterpret_cast<uint32_t *>(shared.chunk(64 * pass + 8 * chunk + j, group / 4)) + group % 4;
            to[0] = pack_4<F>(x[0].x * inverse, x[1].x * inverse, x[2].x * inverse, x[3].x * inverse);
            to[BLOCK_K / 4] = pack_4<F>(x[0].y * inverse, x[1].y * inverse, x[2].y * inverse, x[3].y * inverse);
        }
    __syncthreads();
    F *to = (F *)v.to + vt_head_offset(&p, index.batch, index.head) + index.first_row;
    constexpr int chunks = BLOCK_K / 16;
    UNROLL for (int i = threadIdx.x; i < D * chunks; i += THREADS)
        store_16(to + (size_t)(i / chunks) * key_pitch(&p) + i % chunks * 16,
                 load_16(shared.chunk(i / chunks, i % chunks)));
}

#endif
