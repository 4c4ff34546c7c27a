/* mma_rows.cuh - up to 16 or 32 rows against a warp's keys on the tensor cores; K and V in fp16 or bf16, or in an e4m3 cache.
 *
 * The same arithmetic as in 04_fa2, for one warp alone. Most of the 16 rows of an mma are empty (a group of four query
 * heads and one query fills four). That costs no time, because a warp waits for memory most of the time.
 *
 * From 8 bits to 16. The tensor cores are given 16-bit numbers also with an 8-bit cache. ldmatrix moves pairs of bytes,
 * so a register that gets two elements of a 16-bit tile gets four of an 8-bit one. mma sums over k, in any order, as
 * long as A and B have the same order of k. So there is an order in which a lane needs just the four elements that it
 * got. Bytes 0 and 2 become one register of B, bytes 1 and 3 another:
 *
 *     K                  The four bytes are four neighbouring d of one key. Bytes 0 and 2 go into B's first register
 *                        (k = 0..7), bytes 1 and 3 into its second (k = 8..15). So Q's columns are read in the order
 *                        0 2 | 1 3, too.
 *     V, transposed      Bytes 0 and 1 are an even and an odd d of one key, bytes 2 and 3 the same d of the next key.
 *                        Bytes 0 and 2 belong to B of an mma for the even columns of O, bytes 1 and 3 to B of another
 *                        mma, for the odd columns.
 *
 * The numbers themselves, exactly:
 *
 *     e4m3     s eeee mmm              value 2^(e - 7) x 1.m
 *     fp16     s 0eeee mmm0000000      2^(e - 15) x 1.m: the magnitude one place down, then times 2^8
 *     bf16     s 0000eeee mmm0000      2^(e - 127) x 1.m: the magnitude four places down, then times 2^120
 *
 * A subnormal number (e = 0) becomes a subnormal number of the wider format, and the multiplication makes it right,
 * too. The cache holds no NaN.
 */
#ifndef FA_MMA_ROWS_CUH
#define FA_MMA_ROWS_CUH

#include "decode.cuh"

/* Four e4m3 numbers, byte 0 the lowest, to two pairs of T. x: bytes 0 and 2; y: bytes 1 and 3; in each the lower byte's
 * number in the lower half. */
template <typename T> __device__ uint2 unpack_e4m3(uint32_t four);

#ifdef __CUDACC__
template <> __device__ inline uint2 unpack_e4m3<__half>(uint32_t four) {
#if __CUDA_ARCH__ >= 890 /* an instruction of its own, for two neighbouring bytes */
    const uint32_t ordered = __byte_perm(four, 0, 0x3120);
    uint2 pairs;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs.x), "=r"(pairs.y) : "r"(ordered));
#else
    uint2 pairs = make_uint2((four << 8 & 0x80008000) | (four << 7 & 0x3f803f80), (four & 0x80008000) | (four >> 1 & 0x3f803f80));
    __half2 *half = reinterpret_cast<__half2 *>(&pairs);
    const __half2 factor = __floats2half2_rn(0x1p8f, 0x1p8f);
    half[0] = __hmul2(half[0], factor), half[1] = __hmul2(half[1], factor);
#endif
    return pairs;
}
template <> __device__ inline uint2 unpack_e4m3<__nv_bfloat16>(uint32_t four) {
    uint2 pairs = make_uint2((four << 8 & 0x80008000) | (four << 4 & 0x07f007f0), (four & 0x80008000) | (four >> 4 & 0x07f007f0));
    __nv_bfloat162 *half = reinterpret_cast<__nv_bfloat162 *>(&pairs);
    const __nv_bfloat162 factor = __floats2bfloat162_rn(0x1p120f, 0x1p120f);
    half[0] = __hmul2(half[0], factor), half[1] = __hmul2(half[1], factor);
    return pairs;
}
#else /* the CPU device: through fp32 */
template <typename T> uint2 unpack_e4m3(uint32_t four) {
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = e4m3_to_float((uint8_t)(four >> 8 * i));
    return make_uint2(pack_pair<T>(x[0], x[2]), pack_pair<T>(x[1], x[3]));
}
#endif

/* `bytes`: of an element of the cache, 2 (then it is a T) or 1 (e4m3). */
template <typename T, int D, int bytes, int m_tiles> struct MmaRows {
    using Element = T;
    static constexpr int head_dim = D, Br = 16 * m_tiles, slab_rows = 16;
    static constexpr int Bc = TILE_BYTES / (D * bytes), units = D * bytes / 2; /* the warp's keys of a key tile; 16-bit units a row */
    using KeyTile = Tile<uint16_t, Bc, units>;

    /* Indexed as in 04_fa2: row 16 i + 8 h + lane / 4. */
    uint32_t q[m_tiles][D / 16][4];
    float o[m_tiles][D / 8][4], m[m_tiles][2], l[m_tiles][2];
    int visible[m_tiles][2], whole, keys; /* keys a row sees; those that all rows see; those that exist */
    int rows_there;
    float scale_log2;

    /* Starts on a head: Q from device memory to registers, its rows at `from`. `scale`: what Q K^T is multiplied by. */
    __device__ void begin(const Problem &p, const Head &head, const T *from, float scale) {
        const int lane = threadIdx.x % 32;
        scale_log2 = scale * LOG2_E;
        whole = visible_keys(&p, head.keys, 0);
        keys = head.keys, rows_there = head.rows;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * i + 8 * h + lane / 4;
                m[i][h] = LOWEST, l[i][h] = 0;
                visible[i][h] = visible_keys(&p, head.keys, (head.row + row) % p.seqlen_q);
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    const uint32_t *pairs = reinterpret_cast<const uint32_t *>(from + row * D + 16 * d);
                    uint32_t low = 0, high = 0;
                    if (row < head.rows && bytes == 2) {
                        low = pairs[lane % 4], high = pairs[4 + lane % 4];
                    } else if (row < head.rows) {
                        const uint2 four = *reinterpret_cast<const uint2 *>(pairs + 2 * (lane % 4));
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
                for (int j = 0; j < 4; j++)
                    o[i][d][j] = 0;
    }

    /* One tile of the warp's keys, the first of them key number first_column of the head. */
    __device__ void step(KeyTile &k_tile, KeyTile &v_tile, int first_column) {
        if (first_column >= keys)
            return;

        /* S = Q K^T, two 16-byte chunks of the keys' rows at a time */
        float s[m_tiles][Bc / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D * bytes / 32; d++)
#pragma unroll
            for (int n = 0; n < Bc / 8; n += 2) {
                uint32_t b[4];
                load_b_fragments(b, k_tile, 8 * n, d);
                if constexpr (bytes == 2) {
#pragma unroll
                    for (int i = 0; i < m_tiles; i++) {
                        mma_m16n8k16<T>(s[i][n], q[i][d], b[0], b[1]);
                        mma_m16n8k16<T>(s[i][n + 1], q[i][d], b[2], b[3]);
                    }
                } else {
#pragma unroll
                    for (int part = 0; part < 4; part++) { /* part / 2 is 8 keys down, part % 2 is 16 elements right */
                        const uint2 halves = unpack_e4m3<T>(b[part]);
#pragma unroll
                        for (int i = 0; i < m_tiles; i++)
                            mma_m16n8k16<T>(s[i][n + part / 2], q[i][2 * d + part % 2], halves.x, halves.y);
                    }
                }
            }

        /* Scale, and mask where some row does not see the whole tile. In this order: a folded scale so small that it is 0 would
         * make NaN of -inf. And rounded on its own: in one fma with - m below, the rounding error of m would stay in
         * the exponent, and where |m| passes 2^28 (fp16) or 2^31 (bf16), P of the maximum could be infinite, not 1. */
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int n = 0; n < Bc / 8; n++)
                    s[i][n][j] = __fmul_rn(s[i][n][j], scale_log2);
                if (first_column + Bc > whole) {
                    const int left = visible[i][j / 2] - first_column - (2 * (threadIdx.x % 4) + j % 2);
#pragma unroll
                    for (int n = 0; n < Bc / 8; n++)
                        s[i][n][j] = 8 * n < left ? s[i][n][j] : -INFINITY;
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
                for (int n = 0; n < Bc / 8; n++)
                    tile_max = fmaxf(tile_max, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
                const float m_new = fmaxf(m[i][h], quad_max(tile_max));
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

        /* P = 2^(S - m); O += P V, 16 keys at a time. l is the lane's own sum. */
#pragma unroll
        for (int n = 0; n < Bc / 8; n += 2) {
            uint32_t a[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const int h = part % 2;
                    const float *pair = s[i][n + part / 2] + 2 * h;
                    const float low = exp2_approx(pair[0] - m[i][h]), high = exp2_approx(pair[1] - m[i][h]);
                    l[i][h] += low + high;
                    a[i][part] = pack_pair<T>(low, high);
                }
#pragma unroll
            for (int chunk = 0; chunk < D * bytes / 16; chunk += 2) {
                uint32_t b[4]; /* two chunks of 16 bytes, [0] and [1] the first 8 keys and the next, [2] and [3] alike */
                load_b_fragments_trans(b, v_tile, n / 2, 8 * chunk);
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    if constexpr (bytes == 2) {
#pragma unroll
                        for (int i = 0; i < m_tiles; i++)
                            mma_m16n8k16<T>(o[i][chunk + part], a[i], b[2 * part], b[2 * part + 1]);
                    } else {
                        const uint2 upper = unpack_e4m3<T>(b[2 * part]), lower = unpack_e4m3<T>(b[2 * part + 1]);
#pragma unroll
                        for (int i = 0; i < m_tiles; i++) {
                            mma_m16n8k16<T>(o[i][2 * (chunk + part)], a[i], upper.x, lower.x);
                            mma_m16n8k16<T>(o[i][2 * (chunk + part) + 1], a[i], upper.y, lower.y);
                        }
                    }
                }
            }
        }
    }

    /* Lays O, m and l of the slab's 16 rows into shared memory, or of its first 8 where no more exist. */
    __device__ void store(int slab, float *to, float *to_m, float *to_l) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * i + 8 * h + lane / 4;
                if (i != slab || 16 * i + 8 * h >= rows_there)
                    continue;
                const float sum = quad_sum(l[i][h]);
                if (lane % 4 == 0)
                    to_m[row] = m[i][h], to_l[row] = sum;
#pragma unroll
                for (int d = 0; d < D / 8; d += 2) {
                    const float *o0 = o[i][d] + 2 * h, *o1 = o[i][d + 1] + 2 * h;
                    /* columns 8 d + 2 c, c = lane % 4, and 8 further on; 8 bits: 8 d + 4 c, even ones in o0, odd ones in o1 */
                    const float2 a = bytes == 2 ? make_float2(o0[0], o0[1]) : make_float2(o0[0], o1[0]);
                    const float2 b = bytes == 2 ? make_float2(o1[0], o1[1]) : make_float2(o0[1], o1[1]);
                    const int column = 8 * d + (bytes == 2 ? 2 : 4) * (lane % 4), next = column + (bytes == 2 ? 8 : 2);
                    *reinterpret_cast<float2 *>(to + slab_place<D>(row % 16, column)) = a;
                    *reinterpret_cast<float2 *>(to + slab_place<D>(row % 16, next)) = b;
                }
            }
    }
};

#endif
