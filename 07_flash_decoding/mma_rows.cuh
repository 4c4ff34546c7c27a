/* mma_rows.cuh - up to 16 or 32 rows against a warp's keys on the tensor cores; K and V in fp16 or bf16, or in an e4m3 cache.
 *
 * The same arithmetic as in 04_fa2/split_q.cu, for one warp alone. Most of the 16 rows of an mma are empty (grouped heads fill
 * four, say), and that costs nothing here: a warp waits for memory most of the time.
 *
 * From 8 bits to 16. ldmatrix moves pairs of bytes, so a register that holds two elements of a 16-bit tile holds four of an
 * 8-bit one. All four are needed by this very lane, if the order of k in an mma may change; and it may, as long as A and B
 * agree on it. Bytes 0 and 2 become one register of B, bytes 1 and 3 another:
 *
 *     byte       0     1     2     3                K: four neighbours in d of one key. B's two halves of k, so Q is
 *              even   odd  even   odd                  read with its columns in the order 0 2 | 1 3.
 *     even   [ 0     2 ]                            V: two d of two keys (transposed): B of two mma, one for the even
 *     odd          [ 1     3 ]                         columns of O and one for the odd.
 */
#ifndef FA_MMA_ROWS_CUH
#define FA_MMA_ROWS_CUH

#include "decode.cuh"
#include "e4m3.cuh"

/* `bytes`: of an element of the cache, 2 (then it is a T) or 1 (e4m3). */
template <typename T, int D, int bytes, int m_tiles> struct MmaRows {
    using Element = T;
    static constexpr int head_dim = D, rows = 16 * m_tiles, slab_rows = 16;
    static constexpr int keys = TILE_BYTES / (D * bytes); /* the warp's, of a key tile */
    static constexpr int units = D * bytes / 2; /* a row of the cache, in 16-bit units */
    using KeyTile = Tile<uint16_t, keys, units>;

    /* Indexed as in split_q.cu: row 16 i + 8 h + lane / 4. */
    uint32_t q[m_tiles][D / 16][4];
    float o[m_tiles][D / 8][4], m[m_tiles][2], l[m_tiles][2];
    int seen[m_tiles][2]; /* keys the row sees; `whole` all of them see, and `keys_end` any */
    int whole, keys_end, rows_there;
    float scale_log2;

    /* Starts on a head: Q from device memory to registers, its rows at `from`. `scale`: what Q K^T is multiplied by. */
    __device__ void begin(const Problem &p, const Head &head, const T *from, float scale) {
        const int r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        scale_log2 = scale * LOG2_E;
        whole = visible_keys(&p, head.keys, 0);
        keys_end = head.keys, rows_there = head.rows;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * i + 8 * h + r;
                m[i][h] = LOWEST, l[i][h] = 0;
                seen[i][h] = visible_keys(&p, head.keys, (head.row + row) % p.seqlen_q);
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    const uint32_t *pairs = reinterpret_cast<const uint32_t *>(from + row * D + 16 * d);
                    uint32_t low = 0, high = 0;
                    if (row < head.rows && bytes == 2) {
                        low = pairs[c], high = pairs[4 + c];
                    } else if (row < head.rows) {
                        const uint2 four = *reinterpret_cast<const uint2 *>(pairs + 2 * c);
                        low = (four.x & 0xffff) | four.y << 16, high = four.x >> 16 | (four.y & 0xffff0000);
                    }
                    q[i][d][h] = low, q[i][d][2 + h] = high;
                }
            }
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[i][d][e] = 0;
    }

    /* One tile of the warp's keys, the first of them key number first_key of the head. */
    __device__ void step(KeyTile &k_tile, KeyTile &v_tile, int first_key) {
        if (first_key >= keys_end)
            return;

        /* S = Q K^T, two 16-byte chunks of the keys' rows at a time */
        float s[m_tiles][keys / 8][4] = {};
#pragma unroll
        for (int x = 0; x < D * bytes / 32; x++)
#pragma unroll
            for (int c = 0; c < keys / 8; c += 2) {
                uint32_t b[4];
                load_b_fragments(b, k_tile, 8 * c, x);
                if constexpr (bytes == 2) {
#pragma unroll
                    for (int i = 0; i < m_tiles; i++) {
                        mma_m16n8k16<T>(s[i][c], q[i][x], b[0], b[1]);
                        mma_m16n8k16<T>(s[i][c + 1], q[i][x], b[2], b[3]);
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < 4; j++) { /* j / 2 is 8 keys down, j % 2 is 16 elements right */
                        const uint2 halves = unpack_e4m3<T>(b[j]);
#pragma unroll
                        for (int i = 0; i < m_tiles; i++)
                            mma_m16n8k16<T>(s[i][c + j / 2], q[i][2 * x + j % 2], halves.x, halves.y);
                    }
                }
            }

        /* Mask, only in tiles that some row does not see whole */
        if (first_key + keys > whole) {
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int left = seen[i][e / 2] - first_key - (2 * (threadIdx.x % 4) + e % 2);
#pragma unroll
                    for (int c = 0; c < keys / 8; c++)
                        s[i][c][e] = 8 * c < left ? s[i][c][e] : -INFINITY;
                }
        }

        /* m; and O and l rescaled where it has grown */
        float shift[m_tiles][2]; /* old m - new m */
        bool rescale = false;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float tile_max = s[i][0][2 * h];
#pragma unroll
                for (int c = 0; c < keys / 8; c++)
                    tile_max = fmaxf(tile_max, fmaxf(s[i][c][2 * h], s[i][c][2 * h + 1]));
                tile_max = quad_max(tile_max);
                const float m_new = fmaxf(m[i][h], tile_max * scale_log2);
                rescale |= m_new != m[i][h];
                shift[i][h] = m[i][h] - m_new;
                m[i][h] = m_new;
            }
        if (__any_sync(WHOLE_WARP, rescale)) {
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float factor = exp2_approx(shift[i][h]);
                    l[i][h] *= factor;
#pragma unroll
                    for (int d = 0; d < D / 8; d++)
                        o[i][d][2 * h] *= factor, o[i][d][2 * h + 1] *= factor;
                }
        }

        /* P = 2^(scale_log2 S - m); O += P V, 16 keys at a time. l is the lane's own sum. */
#pragma unroll
        for (int c = 0; c < keys / 8; c += 2) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int h = j % 2;
                    const float low = exp2_approx(s[i][c + j / 2][2 * h] * scale_log2 - m[i][h]);
                    const float high = exp2_approx(s[i][c + j / 2][2 * h + 1] * scale_log2 - m[i][h]);
                    l[i][h] += low + high;
                    a[i][j] = pack_pair<T>(low, high);
                }
#pragma unroll
            for (int chunk = 0; chunk < D * bytes / 16; chunk += 2) {
                uint32_t b[4]; /* two chunks of 16 bytes, [0] and [1] the first 8 keys and the next, [2] and [3] alike */
                load_b_fragments_trans(b, v_tile, c / 2, 8 * chunk);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if constexpr (bytes == 2) {
#pragma unroll
                        for (int i = 0; i < m_tiles; i++)
                            mma_m16n8k16<T>(o[i][chunk + j], a[i], b[2 * j], b[2 * j + 1]);
                    } else {
                        const uint2 upper = unpack_e4m3<T>(b[2 * j]), lower = unpack_e4m3<T>(b[2 * j + 1]);
#pragma unroll
                        for (int i = 0; i < m_tiles; i++) {
                            mma_m16n8k16<T>(o[i][2 * (chunk + j)], a[i], upper.x, lower.x);
                            mma_m16n8k16<T>(o[i][2 * (chunk + j) + 1], a[i], upper.y, lower.y);
                        }
                    }
                }
            }
        }
    }

    /* Lays O, m and l of the slab's 16 rows into shared memory, or of its first 8 where no more exist. */
    __device__ void store(int slab, float *to, float *to_m, float *to_l) {
        const int r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (i != slab || 16 * i + 8 * h >= rows_there)
                    continue;
                const float sum = quad_sum(l[i][h]);
                if (c == 0)
                    to_m[16 * i + 8 * h + r] = m[i][h], to_l[16 * i + 8 * h + r] = sum;
#pragma unroll
                for (int d = 0; d < D / 8; d += 2) {
                    const float *o0 = o[i][d] + 2 * h, *o1 = o[i][d + 1] + 2 * h;
                    /* columns 8 d + 2 c, and 8 further on; 8 bits: 8 d + 4 c, even ones in o0, odd ones in o1 */
                    const float2 a = bytes == 2 ? make_float2(o0[0], o0[1]) : make_float2(o0[0], o1[0]);
                    const float2 b = bytes == 2 ? make_float2(o1[0], o1[1]) : make_float2(o0[1], o1[1]);
                    const int column = 8 * d + (bytes == 2 ? 2 * c : 4 * c), next = column + (bytes == 2 ? 8 : 2);
                    *reinterpret_cast<float2 *>(to + slab_place<D>(8 * h + r, column)) = a;
                    *reinterpret_cast<float2 *>(to + slab_place<D>(8 * h + r, next)) = b;
                }
            }
    }
};

#endif
