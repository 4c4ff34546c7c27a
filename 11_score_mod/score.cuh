/* score.cuh - score mods for a kernel that works in base 2: function objects, one type each, known at compile time.
 *
 * 04_fa2/tuned never computes S. It has x = q . k, and in P = 2^(scale log2 e x - m) one fused multiply-add scales and
 * subtracts. With an f that is not linear the scale must be inside and log2 e outside, so an f is two things here: what
 * becomes of x, and the factor that then remains for the fused multiply-add:      S' log2 e = factor f(x)
 *
 *     none       x                                  factor = scale log2 e
 *     softcap    tanh(scale x / C)                  factor = C log2 e
 *     alibi      x - slope / scale |pos - j|        factor = scale log2 e
 *
 * So a softcap's two multiplications are as many as before: the scale goes into the tanh, and C takes its place.
 */
#ifndef FA_SCORE_CUH
#define FA_SCORE_CUH

#include "../common/gpu/score.cuh" /* sink_of */
#include "../common/gpu/warp.cuh"

struct NoScore {
    float factor;
    __device__ NoScore(const Problem &p, const Score &, int) : factor(p.scale * LOG2_E) {}
    __device__ float operator()(float x, float, float) const { return x; }
};

/* tanh(y) = 2 (1/2 - 1 / (1 + e^2y)): two instructions of the special-function unit, with an error of some 2^-22.
 * tanh.approx is one, but its error of 2^-11, times C = 30, may change P by 1.5%, seven times what fp16 rounds it by.
 * TANH_APPROX: to measure that. */
struct SoftCap {
    float factor, inner;
#ifdef TANH_APPROX
    __device__ SoftCap(const Problem &p, const Score &score, int)
        : factor(score.softcap * LOG2_E), inner(p.scale / score.softcap) {}
    __device__ float operator()(float x, float, float) const { return tanh_approx(x * inner); }
#else
    __device__ SoftCap(const Problem &p, const Score &score, int)
        : factor(2 * score.softcap * LOG2_E), inner(2 * LOG2_E * p.scale / score.softcap) {}
    __device__ float operator()(float x, float, float) const {
        return 0.5f - reciprocal_approx(1 + exp2_approx(x * inner));
    }
#endif
};

struct Alibi {
    float factor, slope;
    __device__ Alibi(const Problem &p, const Score &, int head)
        : factor(p.scale * LOG2_E), slope(alibi_slope(p.heads, head) / p.scale) {}
    __device__ float operator()(float x, float query, float key) const { return x - slope * fabsf(query - key); }
};

/* Applies f to every score of an accumulator. Its first row is at position `pos`, its first column is key `column`. */
template <typename F, int M, int N>
__device__ inline void each_score(float (&s)[M][N][4], const F &f, int pos, int column) {
    const float key = column + 2 * (threadIdx.x % 4);
    UNROLL for (int r = 0; r < 2 * M; r++) {
        const float query = pos + row_of(r);
        UNROLL for (int n = 0; n < N; n++)
            UNROLL for (int j = 0; j < 2; j++) {
                float &score = s[r / 2][n][2 * (r % 2) + j];
                score = f(score, query, key + (8 * n + j));
            }
    }
}

/* `mask` of warp.cuh with a window: it also ends on the left. */
template <int M, int N>
__device__ inline void mask_window(float (&s)[M][N][4], const Score &score, const Problem &p, int keys, int row,
                                   int column) {
    UNROLL for (int r = 0; r < 2 * M; r++) {
        const Range seen = seen_keys(&score, &p, keys, row + row_of(r));
        mask_row(s, r, seen.end - column);
        const int begin = seen.begin - column - 2 * (threadIdx.x % 4); /* from the lane's first column on */
        UNROLL for (int n = 0; n < N; n++)
            UNROLL for (int j = 0; j < 2; j++) {
                float &x = s[r / 2][n][2 * (r % 2) + j];
                x = 8 * n + j < begin ? -INFINITY : x;
            }
    }
}

/* One more score in each row, which has no value: m, l and O as after a key with V = 0. l is the lane's own part of a
 * row's sum, which four lanes share: one of them adds the sink. */
template <int M, int N>
__device__ inline void add_sink(float (&o)[M][N][4], float (&m)[2 * M], float (&l)[2 * M], float sink_log2) {
    UNROLL for (int r = 0; r < 2 * M; r++) {
        const float m_new = fmaxf(m[r], sink_log2), alpha = exp2_approx(m[r] - m_new);
        l[r] = alpha * l[r] + (threadIdx.x % 4 == 0 ? exp2_approx(sink_log2 - m_new) : 0);
        each_row(o, r, [&](float &x) { x *= alpha; });
        m[r] = m_new;
    }
}

#endif
