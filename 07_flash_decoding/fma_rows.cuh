/* fma_rows.cuh - four rows against a warp's keys on the CUDA cores, K and V in fp32.
 *
 * Tensor cores do not multiply fp32. A block takes FP32_ROWS = 4 rows at a time, whose Q fits a warp's registers: a
 * lane holds at most 32 numbers of each row. A problem with more rows reads K and V again for each four rows, mostly
 * from L2.
 *
 * Who owns what. Q K^T: lane l has key l % Bc and each (32 / Bc)-th 16-byte chunk of the key's row, so that eight
 * neighboring lanes read the same chunk of eight rows: no bank conflict. The lanes of a key add up their parts by
 * shuffles. P V: lane l has D / 32 neighboring columns of O and gets every key's P, by a shuffle, from a lane that has
 * it.
 */
#ifndef FA_FMA_ROWS_CUH
#define FA_FMA_ROWS_CUH

#include "decode.cuh"

template <int D> struct FmaRows {
    using Element = float;
    static constexpr int head_dim = D, Br = FP32_ROWS, slab_rows = FP32_ROWS;
    static constexpr int Bc = TILE_BYTES / (4 * D), units = 2 * D; /* a warp's keys of a tile; 16-bit units per row */
    static constexpr int lanes = 32 / Bc, chunks = D / 4 / lanes; /* lanes per key, and each one's chunks of its row */
    static constexpr int columns = D / 32;                          /* of O, a lane's */
    using KeyTile = Tile<uint16_t, Bc, units>;

    struct alignas(4 * columns) Columns { /* loaded and stored together */
        float x[columns];
    };

    float4 q[Br][chunks]; /* times scale_log2: m is then exactly the largest score, and its P is 1 */
    Columns o[Br];
    float m[Br], l[Br];
    int visible[Br], whole, keys; /* keys a row sees; those that all rows see; those that exist */

    __device__ void begin(const Problem &p, const Head &head, const float *from, float scale) {
        const int lane = threadIdx.x % 32;
        whole = visible_keys(&p, head.keys, 0);
        keys = head.keys;
        UNROLL for (int row = 0; row < Br; row++) {
            m[row] = LOWEST, l[row] = 0;
            visible[row] = visible_keys(&p, head.keys, (head.row + row) % p.seqlen_q);
            UNROLL for (int j = 0; j < chunks; j++)
                q[row][j] = row < head.rows ? scale * LOG2_E * load_4(from + row * D + 4 * (lanes * j + lane / Bc))
                                            : make_float4(0, 0, 0, 0);
            o[row] = {};
        }
    }

    __device__ void step(KeyTile &k_tile, KeyTile &v_tile, int first_column) {
        if (first_column >= keys)
            return;
        const int lane = threadIdx.x % 32, key = lane % Bc;

        /* S = Q K^T: the lane's chunks, then over the lanes of the key */
        float s[Br] = {};
        UNROLL for (int j = 0; j < chunks; j++) {
            const float4 k = load_4(reinterpret_cast<const float *>(k_tile.chunk(key, lanes * j + lane / Bc)));
            UNROLL for (int row = 0; row < Br; row++)
                s[row] += q[row][j].x * k.x + q[row][j].y * k.y + q[row][j].z * k.z + q[row][j].w * k.w;
        }
        UNROLL for (int row = 0; row < Br; row++) {
            UNROLL for (int offset = Bc; offset < 32; offset *= 2)
                s[row] += __shfl_xor_sync(WHOLE_WARP, s[row], offset);
            if (first_column + Bc > whole && first_column + key >= visible[row])
                s[row] = -INFINITY;

            /* m; O and l rescaled; P in place of S */
            float tile_max = s[row];
            UNROLL for (int offset = 1; offset < Bc; offset *= 2)
                tile_max = fmaxf(tile_max, __shfl_xor_sync(WHOLE_WARP, tile_max, offset));
            const float m_new = fmaxf(m[row], tile_max), factor = exp2_approx(m[row] - m_new);
            s[row] = exp2_approx(s[row] - m_new);
            l[row] = l[row] * factor + s[row];
            m[row] = m_new;
            UNROLL for (int i = 0; i < columns; i++)
                o[row].x[i] *= factor;
        }

        /* O += P V, the tile's P V by itself first, so that O is rounded once per tile */
        Columns pv[Br] = {};
        UNROLL for (int j = 0; j < Bc; j++) {
            const auto *chunk = reinterpret_cast<const float *>(v_tile.chunk(j, lane * columns / 4));
            const Columns v = *reinterpret_cast<const Columns *>(chunk + lane * columns % 4);
            UNROLL for (int row = 0; row < Br; row++) {
                const float p = __shfl_sync(WHOLE_WARP, s[row], j);
                UNROLL for (int i = 0; i < columns; i++)
                    pv[row].x[i] += p * v.x[i];
            }
        }
        UNROLL for (int row = 0; row < Br; row++)
            UNROLL for (int i = 0; i < columns; i++)
                o[row].x[i] += pv[row].x[i];
    }

    /* A lane's l is the sum of P over its key of every tile. The `lanes` lanes of a key have the same l, so Bc lanes
     * are added. */
    __device__ void store(int, float *to, float *to_m, float *to_l) {
        const int lane = threadIdx.x % 32;
        UNROLL for (int row = 0; row < Br; row++) {
            float sum = l[row];
            UNROLL for (int offset = 1; offset < Bc; offset *= 2)
                sum += __shfl_xor_sync(WHOLE_WARP, sum, offset);
            if (lane == 0)
                to_m[row] = m[row], to_l[row] = sum;
            *reinterpret_cast<Columns *>(to + slab_offset<D>(row, lane * columns)) = o[row];
        }
    }
};

#endif
