/* backward.cuh - what both two_pass and atomic use: the two numbers LSE and delta of a tile's rows, which a pre-pass
 * has made (prepare_rows.cuh), and the choice of tiles that fit. Their common kernel, for dK and dV, is in
 * key_half.cuh.
 *
 * The gradients (Dao et al. 2022, appendix B.2; Dao 2023, algorithm 2). With dP = dO V^T,
 *
 *     P_ij = e^(scale S_ij - LSE_i)      dS_ij = P_ij (dP_ij - delta_i)      delta_i = sum_j P_ij dP_ij = dO_i . O_i
 *     dV = P^T dO                        dK = scale dS^T Q                   dQ = scale dS K
 *
 * where S_ij = q_i . k_j here. Of a whole row of P only LSE and delta must be known beforehand. P itself is computed
 * again, tile by tile. */
#ifndef FA_BACKWARD_CUH
#define FA_BACKWARD_CUH

#include "../common/gpu/prepare_rows.cuh"
#include "../common/gpu/warp.cuh"
#include "../common/host/errors.h"
#include "backward.h"

/* The statistics of a tile's rows in shared memory. */
template <int Rows> struct StatisticsTile { alignas(16) float lse[Rows], delta[Rows]; };

/* Starts copying those of `Rows` padded rows from `first` on; joins the caller's cp.async group. */
template <int Rows>
__device__ inline void load_statistics_async(StatisticsTile<Rows> &tile, const RowStatistics &statistics,
                                             size_t first) {
    const int i = 4 * threadIdx.x;
    if (i < Rows)
        cp_async_16(&tile.lse[i], statistics.lse + first + i);
    else if (i < 2 * Rows)
        cp_async_16(&tile.delta[i - Rows], statistics.delta + first + i - Rows);
}

/* use(shape) with the first of these shapes of a block that fits: for the launch, and for what the formula is told. */
template <typename S, typename... Smaller, typename Use> auto with_shape_that_fits(const char *gradients, Use use) {
    if (sizeof(typename S::Shared) <= device_properties()->shared_bytes)
        return use(S());
    else if constexpr (sizeof...(Smaller) > 0)
        return with_shape_that_fits<Smaller...>(gradients, use);
    else
        cannot_run("%s, head dim %d: the smallest tiles need more shared memory than the %zu bytes of a block here",
                   gradients, S::D, device_properties()->shared_bytes);
}
constexpr auto tile_of = [](auto shape) { return TileShape{shape.Br, shape.Bc}; };

#endif
