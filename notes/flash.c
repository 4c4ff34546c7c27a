/* flash.c - FlashAttention, forward and backward, in a single C file:         cc -O2 notes/flash.c -lm && ./a.out
 * Attention compares each of N queries with N keys, and the more similar a key is, the more its value counts:
 *     S = Q K^T / sqrt(D), the scores     P = softmax(S), weights that add up to 1 in each row     O = P V
 * Queries, keys, values and results are the rows of Q, K, V and O. The first part of this file computes O and its
 * gradients by that definition. It stores S and P, N x N numbers each, and on a GPU writing and reading them takes most
 * of the time. FlashAttention, the second part, computes the same results with at most one tile of Br x Bc scores in
 * memory, which a GPU keeps on the chip. The program compares both; the rest of this repository makes the second fast.
 * "Line 8" means line 8 of Algorithm 1 (forward) or 2 (backward) in Dao 2023, FlashAttention-2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
enum { N = 96, D = 16, Br = 16, Bc = 24, CAUSAL = 1 }; /* CAUSAL = 1: query i sees keys 0 to i; 0: it sees all */
_Static_assert(N % Br == 0 && N % Bc == 0, "N must be a multiple of Br and of Bc: this file has no partial tiles");
typedef float Matrix[N][D];
static Matrix Q, K, V, dO; /* the inputs; dX is the gradient, with respect to X, of the loss that training minimizes */
static float dot(const float *a, const float *b) {
    float sum = 0;
    for (int d = 0; d < D; d++) sum += a[d] * b[d];
    return sum;
}
static void add(float *sum, float factor, const float *row) {
    for (int d = 0; d < D; d++) sum[d] += factor * row[d];
}
static int sees(int i, int j) { return !CAUSAL || j <= i; }
static float score(int i, int j) { return sees(i, j) ? dot(Q[i], K[j]) / sqrtf(D) : -INFINITY; } /* e^-infinity = 0 */

/* ---- by the definition, with all of S and P in memory ---- */
static float S[N][N], P[N][N];
/* Softmax: a weight is e^S divided by the row's sum of e^S. Subtracting m, the row's largest score, from each S
 * divides numerator and denominator by e^m: the weight stays the same, but no e^S overflows, as it would above 88. */
static void standard_forward(Matrix O) {
    for (int i = 0; i < N; i++) {
        float m = -INFINITY, l = 0;
        for (int j = 0; j < N; j++) S[i][j] = score(i, j);
        for (int j = 0; j < N; j++) m = fmaxf(m, S[i][j]);
        for (int j = 0; j < N; j++) l += expf(S[i][j] - m);
        for (int j = 0; j < N; j++) P[i][j] = expf(S[i][j] - m) / l;
        for (int j = 0; j < N; j++) add(O[i], P[i][j], V[j]);
    }
}
/* The chain rule. O = P V gives dP_ij = dO_i . V_j. In a row of the softmax, the derivative of P_j by S_n is -P_j P_n,
 * plus P_n if j = n. This makes dS_n = P_n (dP_n - delta), where delta is the row's sum of P_j dP_j. */
static void standard_backward(Matrix dQ, Matrix dK, Matrix dV) {
    for (int i = 0; i < N; i++) {
        float delta = 0;
        for (int j = 0; j < N; j++) delta += P[i][j] * dot(dO[i], V[j]);
        for (int j = 0; j < N; j++) {
            float dS = P[i][j] * (dot(dO[i], V[j]) - delta);
            add(dV[j], P[i][j], dO[i]);
            add(dQ[i], dS / sqrtf(D), K[j]); /* S = Q K^T / sqrt(D) */
            add(dK[j], dS / sqrtf(D), Q[i]);
        }
    }
}

/* ---- FlashAttention, with at most a tile of S in memory ---- */
static float s[Br][Bc], m[Br], l[Br]; /* a tile of scores, then of weights; two numbers for each of its rows */
static float LSE[N], delta[N];        /* per query: LSE is kept for the backward pass, which begins with delta */
/* After each tile of keys, m is the largest score of a query so far, l is the sum of its e^(S - m), and its row of O is
 * the sum of e^(S - m) V. All terms contain e^-m; so when m grows to m_new, one factor e^(m - m_new) corrects all. */
static void flash_forward(Matrix O) {
    for (int i = 0; i < N; i += Br) {                                        /* line 3: a tile of Br queries */
        for (int r = 0; r < Br; r++) m[r] = -INFINITY;                       /* line 5 */
        for (int r = 0; r < Br; r++) l[r] = 0;
        for (int j = 0; j < N && sees(i + Br - 1, j); j += Bc)               /* line 6: up to the last key they see */
            for (int r = 0; r < Br; r++) {
                float m_new = m[r];
                for (int c = 0; c < Bc; c++) s[r][c] = score(i + r, j + c);  /* line 8 */
                for (int c = 0; c < Bc; c++) m_new = fmaxf(m_new, s[r][c]);  /* line 9 */
                float alpha = expf(m[r] - m_new);                            /* 0 in the first tile; 1 if m stays */
                m[r] = m_new;
                l[r] *= alpha;
                for (int d = 0; d < D; d++) O[i + r][d] *= alpha;            /* line 10 */
                for (int c = 0; c < Bc; c++) s[r][c] = expf(s[r][c] - m[r]); /* from S to e^(S - m) */
                for (int c = 0; c < Bc; c++) l[r] += s[r][c];
                for (int c = 0; c < Bc; c++) add(O[i + r], s[r][c], V[j + c]);
            }
        for (int r = 0; r < Br; r++) /* only now: at the next tile a division would have to be undone */
            for (int d = 0; d < D; d++) O[i + r][d] /= l[r];                 /* line 12 */
        for (int r = 0; r < Br; r++) LSE[i + r] = m[r] + logf(l[r]);         /* line 13: log of the sum of e^S */
    }
}
/* P is recomputed, one element at a time: P = e^(S - m) / l = e^(S - LSE). And delta, a row's sum of P (dO . V), is
 * dO . (the sum of P V) = dO . O. So neither S nor P had to be stored. */
static void flash_backward(Matrix dQ, Matrix dK, Matrix dV, Matrix O) {
    for (int i = 0; i < N; i++) delta[i] = dot(dO[i], O[i]);                 /* line 4 */
    for (int first = 0; first < N; first += Bc)                              /* line 5: a tile of keys */
        for (int i = 0; i < N; i++)                                          /* line 8: all queries, for dK and dV */
            for (int j = first; j < first + Bc; j++) {
                float p = expf(score(i, j) - LSE[i]);                        /* lines 10 and 11 */
                float dS = p * (dot(dO[i], V[j]) - delta[i]);                /* lines 13 and 14 */
                add(dV[j], p, dO[i]);                                        /* line 12 */
                add(dQ[i], dS / sqrtf(D), K[j]);                             /* line 15 */
                add(dK[j], dS / sqrtf(D), Q[i]);                             /* line 16 */
            }
}
static void fill(Matrix a) {
    for (int i = 0; i < N * D; i++) a[i / D][i % D] = 4.0 * rand() / RAND_MAX - 2;
}
static int same(const char *name, Matrix pair[2]) {
    float most = 0; /* the largest difference; a NaN is not larger than anything, so it counts as infinite */
    for (int i = 0; i < N * D; i++) {
        float here = fabsf(pair[0][i / D][i % D] - pair[1][i / D][i % D]);
        most = fmaxf(most, isnan(here) ? INFINITY : here);
    }
    printf("%-2s differs by at most %.1e\n", name, most);
    return most < 1e-3f;
}
int main(void) {
    static Matrix O[2], dQ[2], dK[2], dV[2]; /* [0] by the definition, [1] FlashAttention; static, so sums start at 0 */
    fill(Q), fill(K), fill(V), fill(dO);
    for (int i = 0; i < N; i++) K[i][0] = 20, Q[i][0] = i < N / 2 ? 20 : -20; /* scores near 100, then -100 */
    for (int r = 0; r < Br; r++) m[r] = l[r] = NAN; /* it shows if m or l is used before it is set */
    standard_forward(O[0]), standard_backward(dQ[0], dK[0], dV[0]);
    flash_forward(O[1]), flash_backward(dQ[1], dK[1], dV[1], O[1]);
    printf("S, P: %zu bytes; a tile, m, l, LSE, delta: %zu\n", 2 * sizeof S, sizeof s + 2 * sizeof m + 2 * sizeof LSE);
    int agree = same("O", O) + same("dQ", dQ) + same("dK", dK) + same("dV", dV);
    puts(agree == 4 ? "FlashAttention agrees with the definition." : "FlashAttention does NOT agree.");
    return agree != 4;
}
