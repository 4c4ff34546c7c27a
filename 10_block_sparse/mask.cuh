/* mask.cuh - a block mask in a tile of scores. */
#ifndef FA_SPARSE_MASK_CUH
#define FA_SPARSE_MASK_CUH

#include "../common/block_mask.h"
#include "../common/gpu/warp.cuh"

#include <limits.h>

/* Scores of keys that a row does not keep become -inf: mask in warp.cuh under a block mask. The tile lies in one block
 * of it. What a row keeps ends somewhere, and may have a gap: between what every row has, on the left, and what it has
 * alone. The two are masked one after the other: one test of both for each score took more registers than there are. */
template <int M, int N>
__device__ inline void mask_block(float (&s)[M][N][4], const BlockMask &mask, const Problem &p, int keys, int row,
                                  int column) {
    const int key_block = column / MASK_BLOCK;
    const bool is_kept = block_is_kept(&mask, &p, row / MASK_BLOCK, key_block);
    const int of_every_row = mask.stride && key_block % mask.stride == 0 ? INT_MAX : mask.sink;
    UNROLL for (int r = 0; r < 2 * M; r++) {
        const RowKeys own = row_keys(&mask, &p, keys, row + row_of(r));
        const int common = min(of_every_row, own.limit);
        mask_row(s, r, is_kept ? max(common, own.to) - column : 0);
        if (common < own.from) {
            const int lane_column = column + 2 * (threadIdx.x % 4), gap = common - lane_column,
                      end = own.from - lane_column;
            UNROLL for (int n = 0; n < N; n++)
                UNROLL for (int j = 0; j < 2; j++) {
                    float &score = s[r / 2][n][2 * (r % 2) + j];
                    score = 8 * n + j < gap || 8 * n + j >= end ? score : -INFINITY;
                }
        }
    }
}

#endif
