/* warp.cuh - tile primitives: what a warp does to its part of S and O in the kernels on tensor cores. warpgroup.cuh has
 * the products for the four warps of a warpgroup. 01_tiled/mma spells out what they stand for, fragment by fragment;
 * from 02_online_softmax on kernels use these primitives, and what a kernel adds of its own stands in the kernel.
 *
 *     add_abt       C += A B^T     two tiles; or A from registers         S = Q K^T
 *     add_ab        C += A B       A from registers, B a tile             O += P V
 *     add_step      one step of it: 16 columns of A, 16 rows of B
 *     each          every element of an accumulator                       scaling, rescaling
 *     each_summed   every element becomes f of it, and l grows by their sum      P and l
 *     each_row      every element of one row
 *     row_max       the largest element of a row; lane_max, of this lane's columns alone
 *     mask          scores of keys that a row does not see become -inf
 *     update_maximum  m follows a row's maximum, but lazily; l and O are rescaled where it does
 *     share_columns columns of an accumulator to shared memory, for other warps
 *     store_rows    rows of an accumulator to device memory
 *     write_output  the end of a row: O / l, and LSE
 *
 * An accumulator float c[M][N][4] has 16 M rows and 8 N columns, M x N mma tiles of 16 x 8 (instructions.cuh draws
 * one). A lane has 2 M of the rows: its row number r is row 8 r + lane / 4. What belongs to a row, like m and l, is
 * kept as [2 M]. The four lanes 4i .. 4i + 3, a *quad*, share their rows; of each row a lane has columns 2 (lane % 4)
 * and the next of every eight.
 */
#ifndef FA_WARP_CUH
#define FA_WARP_CUH

#include "softmax.cuh"
#include "tile.cuh"

/* Where the lane's row number r is among the warp's rows. */
__device__ inline int row_of(int r) { return 8 * r + threadIdx.x % 32 / 4; }

/* C += A B^T. A is rows `row` .. of a_tile, B rows `column` .. of b_tile, D columns each. T: what mma multiplies.
 * `Unrolled` of the D / 16 steps are written out, all unless a kernel is short of registers: the compiler loads ahead
 * within those. */
template <typename T, int Unrolled = 16, typename Stored, int M, int N, int ARows, int BRows, int D>
__device__ inline void add_abt(float (&c)[M][N][4], Tile<Stored, ARows, D> &a_tile, int row,
                               Tile<Stored, BRows, D> &b_tile, int column) {
    _Pragma("unroll Unrolled") for (int d = 0; d < D / 16; d++) {
        uint32_t a[M][4], b[4];
        UNROLL for (int i = 0; i < M; i++)
            load_a_fragment(a[i], a_tile, row + 16 * i, d);
        UNROLL for (int n = 0; n < N; n += 2) {
            load_b_fragments(b, b_tile, column + 8 * n, d);
            UNROLL for (int i = 0; i < M; i++) {
                mma<T>(c[i][n], a[i], b[0], b[1]);
                mma<T>(c[i][n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* The same with A in registers, as mma takes it: `Steps` steps of 16 columns (32 of 8 bits). */
template <typename T, typename Stored, int M, int N, int Steps, int BRows, int D>
__device__ inline void add_abt(float (&c)[M][N][4], const uint32_t (&a)[M][Steps][4], Tile<Stored, BRows, D> &b_tile,
                               int column) {
    UNROLL for (int d = 0; d < Steps; d++)
        UNROLL for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            load_b_fragments(b, b_tile, column + 8 * n, d);
            UNROLL for (int i = 0; i < M; i++) {
                mma<T>(c[i][n], a[i][d], b[0], b[1]);
                mma<T>(c[i][n + 1], a[i][d], b[2], b[3]);
            }
        }
}

/* C += A B, step number `step`. A is 16 columns, in registers as mma takes them; B is the 16 rows of b_tile from 16
 * step on, and its columns from `column` on. */
template <typename T, int M, int N, int BRows, int D>
__device__ inline void add_step(float (&c)[M][N][4], const uint32_t (&a)[M][4], Tile<T, BRows, D> &b_tile, int step,
                                int column = 0) {
    UNROLL for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        load_b_fragments_trans(b, b_tile, step, column + 8 * n);
        UNROLL for (int i = 0; i < M; i++) {
            mma<T>(c[i][n], a[i], b[0], b[1]);
            mma<T>(c[i][n + 1], a[i], b[2], b[3]);
        }
    }
}

/* C += f(A) B. A is an accumulator; f(element, r), or the element itself, rounded to T, is its element as an operand,
 * made just before it is multiplied; of a row the elements come from left to right. B is as many rows of b_tile, `row`
 * .., as A has columns. */
struct AsItIs {
    __device__ float operator()(float x, int) const { return x; }
};
template <typename T, int M, int K, int N, int BRows, int D, typename F = AsItIs>
__device__ inline void add_ab(float (&c)[M][N][4], const float (&a)[M][K][4], Tile<T, BRows, D> &b_tile, int row,
                              F f = {}) {
    UNROLL for (int k = 0; k < K / 2; k++) {
        uint32_t operand[M][4];
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int j = 0; j < 4; j++) { /* a quarter of it: j % 2 is 8 rows down, j / 2 is 8 columns right */
                const float *pair = &a[i][2 * k + j / 2][2 * (j % 2)];
                const int r = 2 * i + j % 2;
                const float low = f(pair[0], r), high = f(pair[1], r);
                operand[i][j] = pack_pair<T>(low, high);
            }
        add_step(c, operand, b_tile, row / 16 + k);
    }
}

/* f(element) for each of the lane's elements in its row number r. */
template <int M, int N, typename F> __device__ inline void each_row(float (&c)[M][N][4], int r, F f) {
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int j = 0; j < 2; j++)
            f(c[r / 2][n][2 * (r % 2) + j]);
}

/* f(element, r) for each of the lane's elements. */
template <int M, int N, typename F> __device__ inline void each(float (&c)[M][N][4], F f) {
    UNROLL for (int r = 0; r < 2 * M; r++)
        each_row(c, r, [&](float &x) { f(x, r); });
}

/* Each element x becomes f(x, r), and l[r] grows by their sum over row number r, added up first: beside a large l a
 * single one would lose its last bits. 16 at a time, first all f, then the sums: so the compiler's code is faster
 * (fa3_log.tsv, run 10). */
template <int M, int N, typename F> __device__ inline void each_summed(float (&c)[M][N][4], float (&l)[2 * M], F f) {
    constexpr int at_once = N < 4 ? N : 4;
    float sum[2 * M] = {};
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < N; n += at_once) {
            UNROLL for (int i = 0; i < 4 * at_once; i++) {
                float &x = c[m][n + i / 4][i % 4];
                x = f(x, 2 * m + i / 2 % 2);
            }
            UNROLL for (int i = 0; i < 4 * at_once; i++)
                sum[2 * m + i / 2 % 2] += c[m][n + i / 4][i % 4];
        }
    UNROLL for (int r = 0; r < 2 * M; r++)
        l[r] += sum[r];
}

/* The largest of this lane's elements of row number r; as four maxima side by side, because each fmaxf waits for the
 * one whose result it takes. */
template <int M, int N> __device__ inline float lane_max(const float (&s)[M][N][4], int r) {
    static_assert(N >= 2, "an element for each of the four");
    float largest[4];
    UNROLL for (int i = 0; i < 2 * N; i++) {
        const float x = s[r / 2][i / 2][2 * (r % 2) + i % 2];
        largest[i % 4] = i < 4 ? x : fmaxf(largest[i % 4], x);
    }
    return fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
}
/* The same by integers: Hopper finds the largest or the smallest of three in one instruction. As bits,
 * floats from 0 on have the order of signed integers, and floats below 0 count as negative: this is the
 * largest of the elements and 0. */
template <int M, int N> __device__ inline float positive_max(const float (&s)[M][N][4], int r) {
    int largest = 0;
    UNROLL for (int i = 0; i < 2 * N; i++)
        largest = max(largest, __float_as_int(s[r / 2][i / 2][2 * (r % 2) + i % 2]));
    return __int_as_float(largest);
}
/* As unsigned integers, floats below 0 come after all others, the largest first: this is the largest element where all
 * are below 0, and else one of those that are not. */
template <int M, int N> __device__ inline float negative_max(const float (&s)[M][N][4], int r) {
    unsigned smallest = ~0u;
    UNROLL for (int i = 0; i < 2 * N; i++)
        smallest = min(smallest, (unsigned)__float_as_int(s[r / 2][i / 2][2 * (r % 2) + i % 2]));
    return __int_as_float((int)smallest);
}
/* The largest over all columns: all four lanes of the quad get it. */
template <int M, int N> __device__ inline float row_max(const float (&s)[M][N][4], int r) {
    return quad_max(lane_max(s, r));
}

/* Scores of keys that a row does not see become -inf. In row number r: those from column `visible` of `s` on. */
template <int M, int N> __device__ inline void mask_row(float (&s)[M][N][4], int r, int visible) {
    visible -= 2 * (threadIdx.x % 4); /* from the lane's first column on */
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int j = 0; j < 2; j++) {
            float &score = s[r / 2][n][2 * (r % 2) + j];
            score = 8 * n + j < visible ? score : -INFINITY;
        }
}
/* In all rows, where the first row and column of `s` are query `row` and key `column`. */
template <int M, int N>
__device__ inline void mask(float (&s)[M][N][4], const Problem &p, int keys, int row, int column) {
    UNROLL for (int r = 0; r < 2 * M; r++)
        mask_row(s, r, visible_keys(&p, keys, row + row_of(r)) - column);
}

/* How far, in powers of two, a row's maximum may exceed m before O is rescaled: P is then at most
 * 2^8, far from fp16's 65504. */
[[maybe_unused]] constexpr float SLACK = 8;

/* Where the limits m + SLACK of a warp's rows are. This changes only where m does, so it is kept beside m instead of
 * being computed for every tile. NOT_YET: before the first tile, and where a row's m is far (softmax.cuh: FAR). */
enum class Limits { NOT_YET, POSITIVE, NEGATIVE, MIXED };
template <int R> __device__ inline Limits limits_of(const float (&m)[R]) {
    float least = m[0], most = m[0];
    UNROLL for (int r = 1; r < R; r++)
        least = fminf(least, m[r]), most = fmaxf(most, m[r]);
    if (__any_sync(WHOLE_WARP, -least > FAR || most > FAR))
        return Limits::NOT_YET;
    if (__all_sync(WHOLE_WARP, least >= -SLACK))
        return Limits::POSITIVE;
    return __all_sync(WHOLE_WARP, most < -SLACK) ? Limits::NEGATIVE : Limits::MIXED;
}

/* Whether m of any row of the warp must be updated: a score exceeds it by more than SLACK, or it is far. The lanes
 * exchange nothing but votes, by which the compiler knows that none of them goes another way. Where all limits have the
 * same sign, integers find the largest scores. */
template <int M, int N>
__device__ inline bool must_update(const float (&s)[M][N][4], const float (&m)[2 * M], Limits limits,
                                   float scale_log2) {
    float largest[2 * M];
    if (__all_sync(WHOLE_WARP, limits == Limits::POSITIVE)) {
        UNROLL for (int r = 0; r < 2 * M; r++)
            largest[r] = positive_max(s, r);
    } else if (__all_sync(WHOLE_WARP, limits == Limits::NEGATIVE)) {
        UNROLL for (int r = 0; r < 2 * M; r++)
            largest[r] = negative_max(s, r);
    } else {
        UNROLL for (int r = 0; r < 2 * M; r++)
            largest[r] = lane_max(s, r);
    }
    bool update = limits == Limits::NOT_YET;
    UNROLL for (int r = 0; r < 2 * M; r++)
        update |= scale_log2 * largest[r] > m[r] + SLACK;
    return __any_sync(WHOLE_WARP, update);
}

/* The first half of a tile's softmax: where a row's maximum exceeds m by more than SLACK, m becomes the maximum. m is
 * kept times scale_log2 and starts at LOWEST, `limits` at NOT_YET. Any value near the maximum will do, since the
 * division by l cancels it. l is rescaled here, and rescale(r, alpha) rescales O in row number r; it is called for all
 * rows of a warp, or for none. Returns what to multiply the scores by: scale_log2, or 1 where they are far and have
 * been multiplied already. */
template <int M, int N, typename Rescale>
__device__ inline float update_maximum(float (&s)[M][N][4], float (&m)[2 * M], Limits &limits, float (&l)[2 * M],
                                       float scale_log2, Rescale rescale) {
    if (!must_update(s, m, limits, scale_log2))
        return scale_log2;
    bool far = false;
    UNROLL for (int r = 0; r < 2 * M; r++) {
        /* Not > m + SLACK: beyond 2^27, where floats are 16 apart, that sum may be 16 above m, and P 2^16. */
        const float largest = scale_log2 * row_max(s, r), m_new = largest - m[r] > SLACK ? largest : m[r];
        const float alpha = exp2_approx(m[r] - m_new);
        l[r] *= alpha;
        rescale(r, alpha);
        m[r] = m_new;
        far |= fabsf(m_new) > FAR;
    }
    limits = limits_of(m);
    if (!far)
        return scale_log2;
    each(s, [&](float &score, int) { score = __fmul_rn(score, scale_log2); }); /* rounded as m was */
    return 1;
}

/* Columns `first` .. first + Columns - 1 of an accumulator to shared memory, for other warps. */
template <int Columns, int M, int N, int Pitch>
__device__ inline void share_columns(float (&to)[16 * M][Pitch], const float (&c)[M][N][4], int first) {
    UNROLL for (int r = 0; r < 2 * M; r++)
        UNROLL for (int n = 0; n < Columns / 8; n++) {
            const float *pair = &c[r / 2][first / 8 + n][2 * (r % 2)];
            *reinterpret_cast<float2 *>(&to[row_of(r)][8 * n + 2 * (threadIdx.x % 4)]) = make_float2(pair[0], pair[1]);
        }
}

/* Writes the accumulator's rows, times `factor`, one for all or one per row, to rows `row` .. of `to`, whose rows have
 * D elements; rows from row_end on do not exist. The lanes of a quad exchange their parts, so that each stores 16 bytes
 * (store_quad). */
__device__ inline float of_row(float factor, int) { return factor; }
template <int R> __device__ inline float of_row(const float (&factor)[R], int r) { return factor[r]; }
template <int D, typename T, int M, int N, typename Factor>
__device__ inline void store_rows(T *to, int row, int row_end, const float (&c)[M][N][4], const Factor &factor) {
    UNROLL for (int r = 0; r < 2 * M; r++)
        UNROLL for (int n = 0; n < N; n += 4) {
            uint32_t x[4];
            UNROLL for (int i = 0; i < 4; i++) {
                const float *pair = &c[r / 2][n + i][2 * (r % 2)];
                x[i] = pack_pair<T>(of_row(factor, r) * pair[0], of_row(factor, r) * pair[1]);
            }
            store_quad(to + (size_t)(row + row_of(r)) * D + 8 * n, x, row + row_of(r) < row_end);
        }
}

/* The end: O / l, and LSE = m unit + ln l, of queries `row` .. of a head. l is the lane's own part of the sum. `unit`
 * is ln 2 in kernels that keep m times log2 e. A row that sees no key has l = 0: O = 0 and LSE = -inf. */
template <typename T, int M, int N>
__device__ inline void write_output(const HeadTensors<T> &head, int row, const float (&o)[M][N][4],
                                    const float (&m)[2 * M], const float (&l)[2 * M], float unit = 1) {
    float inverse[2 * M];
    UNROLL for (int r = 0; r < 2 * M; r++) {
        const float sum = quad_sum(l[r]);
        inverse[r] = sum > 0 ? 1 / sum : 0;
        if (threadIdx.x % 4 == 0 && row + row_of(r) < head.queries)
            head.lse[row + row_of(r)] = sum > 0 ? m[r] * unit + logf(sum) : -INFINITY;
    }
    store_rows<8 * N>(head.o, row, head.queries, o, inverse);
}

#endif
