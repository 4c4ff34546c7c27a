/* mma_rows.cuh - up to 16 or 32 rows against a warp's keys on the tensor cores; K and V in
 * fp16 or bf16, or in an e4m3 cache.
 *
 * The same arithmetic as in 04_fa2, for one warp alone. Most of the 16 rows of an mma are empty (a group of four query
 * heads and one query fills four). That costs no time, because a warp waits for memory most of the time.
 *
 * From 8 bits to 16. The tensor cores are given 16-bit numbers also with an 8-bit cache. ldmatrix moves pairs of bytes,
 * so a register that gets two elements of a 16-bit tile gets four of an 8-bit one. mma sums over k, in any order, as
 * long as A and B have the same order of k. So there is an order in which a lane needs just the four elements that it
 * got. Bytes 0 and 2 become one register of B, bytes 1 and 3 another:
 *
 *     K                  The four bytes are four neighboring d of one key. Bytes 0 and 2 go into B's first register
 *                        (k = 0..7), bytes 1 and 3 into its second (k = 8..15). So Q's columns are read in the order
 *                        0 2 | 1 3, too.
 *     V, transposed      Bytes 0 and 1 are an even and an odd d of one key, bytes 2 and 3 the same d of the next key.
 *                        Bytes 0 and 2 belong to B of an mma for the even columns of O, bytes 1 and 3 to B of another
 *                        mma, for the odd columns.
 *
 * The tile primitives (add_abt, each, mask_row, row_max, each_row, add_ab) are in common/gpu/warp.cuh, unpack_e4m3 in
 * instructions.cuh.
 */
#ifndef FA_MMA_ROWS_CUH
#define FA_MMA_ROWS_CUH

#include "../common/gpu/warp.cuh"
#include "decode.cuh"

/* `bytes`: of an element of the cache, 2 (then it is a T) or 1 (e4m3). */
template <typename T, int D, int bytes, int m_tiles> struct MmaRows {
    using Element = T;
    static constexpr int head_dim = D, Br = 16 * m_tiles, slab_rows = 16;
    static constexpr int Bc = TILE_BYTES / (D * bytes), units = D * bytes / 2; /* a warp's keys; 16-bit units per row */
    using KeyTile = Tile<uint16_t, Bc, units>;

    uint32_t q[m_tiles][D / 16][4];
    float o[m_tiles][D / 8][4], m[2 * m_tiles], l[2 * m_tiles];
    int visible[2 * m_tiles], whole, keys; /* keys a row sees; those that all rows see; those that exist */
    int rows_there;
    float scale_log2;

    /* Starts on a head: Q from device memory to registers, its rows at `from`. `scale`: what Q K^T is multiplied by. */
    __device__ void begin(const Problem &p, const Head &head, const T *from, float scale) {
        const int lane = threadIdx.x % 32;
        scale_log2 = scale * LOG2_E;
        whole = visible_keys(&p, head.keys, 0);
        keys = head.keys, rows_there = head.rows;
        UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
            m[r] = LOWEST, l[r] = 0;
            visible[r] = visible_keys(&p, head.keys, (head.row + row_of(r)) % p.seqlen_q);
            UNROLL for (int d = 0; d < D / 16; d++) {
                const uint32_t *pairs = reinterpret_cast<const uint32_t *>(from + row_of(r) * D + 16 * d);
                uint32_t low = 0, high = 0;
                if (row_of(r) < head.rows && bytes == 2) {
                    low = pairs[lane % 4], high = pairs[4 + lane % 4];
                } else if (row_of(r) < head.rows) {
                    const uint2 four = *reinterpret_cast<const uint2 *>(pairs + 2 * (lane % 4));
                    low = (four.x & 0xffff) | four.y << 16, high = four.x >> 16 | (four.y & 0xffff0000);
                }
                q[r / 2][d][r % 2] = low, q[r / 2][d][2 + r % 2] = high;
            }
        }
        each(o, [](float &x, int) { x = 0; });
    }

    /* One tile of the warp's keys, the first of them key number first_column of the head. */
    __device__ void step(KeyTile &k_tile, KeyTile &v_tile, int first_column) {
        if (first_column >= keys)
            return;

        /* S = Q K^T. In 8 bits two 16-byte chunks of a key's row are 32 elements, and `part` is one of four operands:
         * part / 2 is 8 keys down, part % 2 is 16 elements right. */
        float s[m_tiles][Bc / 8][4] = {};
        if constexpr (bytes == 2) { /* braces: after a loop that is a branch by itself nvcc 13.0 omits the next loop */
            add_abt<T>(s, q, k_tile, 0);
        } else {
            UNROLL for (int d = 0; d < D / 32; d++)
                UNROLL for (int n = 0; n < Bc / 8; n += 2) {
                    uint32_t b[4];
                    load_b_fragments(b, k_tile, 8 * n, d);
                    UNROLL for (int part = 0; part < 4; part++) {
                        const uint2 halves = unpack_e4m3<T>(b[part]);
                        UNROLL for (int i = 0; i < m_tiles; i++)
                            mma<T>(s[i][n + part / 2], q[i][2 * d + part % 2], halves.x, halves.y);
                    }
                }
        }

        /* Scale, and mask where some row does not see the whole tile. In this order: a folded scale so small
         * that it is 0 would make NaN of -inf. And rounded on its own: in one fma with - m below, the rounding
         * error of m would stay in the exponent, and where |m| passes 2^28 (fp16) or 2^31 (bf16), P of the
         * maximum could be infinite, not 1. */
        each(s, [&](float &score, int) { score = __fmul_rn(score, scale_log2); });
        if (first_column + Bc > whole)
            UNROLL for (int r = 0; r < 2 * m_tiles; r++)
                mask_row(s, r, visible[r] - first_column);

        /* m; and O and l rescaled where it has grown */
        float shift[2 * m_tiles]; /* old m - new m */
        bool rescale = false;
        UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
            const float m_new = fmaxf(m[r], row_max(s, r));
            rescale |= m_new != m[r];
            shift[r] = m[r] - m_new;
            m[r] = m_new;
        }
        if (__any_sync(WHOLE_WARP, rescale))
            UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
                const float factor = exp2_approx(shift[r]);
                l[r] *= factor;
                each_row(o, r, [&](float &x) { x *= factor; });
            }

        /* O += P V, where P = 2^(S - m) is made just before it is multiplied */
        float tile_l[2 * m_tiles] = {};
        const auto p_of = [&](float score, int r) {
            const float p = exp2_approx(score - m[r]);
            tile_l[r] += p;
            return p;
        };
        if constexpr (bytes == 2) {
            add_ab(o, s, reinterpret_cast<Tile<T, Bc, D> &>(v_tile), 0, p_of);
        } else {
            UNROLL for (int n = 0; n < Bc / 8; n += 2) {
                uint32_t a[m_tiles][4];
                UNROLL for (int i = 0; i < m_tiles; i++)
                    UNROLL for (int j = 0; j < 4; j++) {
                        const float *pair = &s[i][n + j / 2][2 * (j % 2)];
                        const float low = p_of(pair[0], 2 * i + j % 2), high = p_of(pair[1], 2 * i + j % 2);
                        a[i][j] = pack_pair<T>(low, high);
                    }
                UNROLL for (int d = 0; d < D / 8; d += 4) { /* 32 elements: two chunks of 8 keys, then of the next 8 */
                    uint32_t b[4];
                    load_b_fragments_trans(b, v_tile, n / 2, 4 * d);
                    UNROLL for (int part = 0; part < 2; part++) {
                        const uint2 upper = unpack_e4m3<T>(b[2 * part]), lower = unpack_e4m3<T>(b[2 * part + 1]);
                        UNROLL for (int i = 0; i < m_tiles; i++) {
                            mma<T>(o[i][d + 2 * part], a[i], upper.x, lower.x);
                            mma<T>(o[i][d + 2 * part + 1], a[i], upper.y, lower.y);
                        }
                    }
                }
            }
        }
        UNROLL for (int r = 0; r < 2 * m_tiles; r++)
            l[r] += tile_l[r]; /* l is the lane's own sum. It gets a tile's as one: so it is rounded less often */
    }

    /* Lays O, m and l of the slab's 16 rows into shared memory, or of its first 8 where no more exist. */
    __device__ void store(int slab, float *to, float *to_m, float *to_l) {
        const int lane = threadIdx.x % 32;
        UNROLL for (int r = 0; r < 2 * m_tiles; r++) {
            const int row = row_of(r);
            if (r / 2 != slab || 8 * r >= rows_there)
                continue;
            const float sum = quad_sum(l[r]);
            if (lane % 4 == 0)
                to_m[row] = m[r], to_l[row] = sum;
            UNROLL for (int d = 0; d < D / 8; d += 2) {
                const float *o0 = o[r / 2][d] + 2 * (r % 2), *o1 = o[r / 2][d + 1] + 2 * (r % 2);
                /* columns 8 d + 2 c, c = lane % 4, and 8 further on; 8 bits: 8 d + 4 c,
                 * even ones in o0, odd ones in o1 */
                const float2 a = bytes == 2 ? make_float2(o0[0], o0[1]) : make_float2(o0[0], o1[0]);
                const float2 b = bytes == 2 ? make_float2(o1[0], o1[1]) : make_float2(o0[1], o1[1]);
                const int column = 8 * d + (bytes == 2 ? 2 : 4) * (lane % 4), next = column + (bytes == 2 ? 8 : 2);
                *reinterpret_cast<float2 *>(to + slab_offset<D>(row % 16, column)) = a;
                *reinterpret_cast<float2 *>(to + slab_offset<D>(row % 16, next)) = b;
            }
        }
    }
};

#endif
