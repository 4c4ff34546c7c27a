/* flash.c - FlashAttention, forward and backward, in one file of C:             cc -O2 notes/flash.c -lm && ./a.out
 * Attention compares each of N queries with N keys, and the more similar a key is, the more its value counts:
 *     S = Q K^T / sqrt(D), the scores     P = softmax(S), weights that add up to 1 in each row     O = P V
 * The first part computes O and the gradients of Q, K and V by this definition and stores S and P, N x N numbers each.
 * The second part, FlashAttention, computes the same with only one tile of S in memory. The program runs and compares
 * both. Everything else in this repository makes the second part fast. Lines are those of Dao 2023, Algorithms 1 and 2.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 96, D = 16, CAUSAL = 1 }; /* queries and keys; numbers per row; 1: query i sees keys 0 to i, 0: all keys */
enum { Br = 16, Bc = 24 };           /* a tile of S has Br rows (queries) and Bc columns (keys); both divide N */
typedef float Matrix[N][D];
static Matrix Q, K, V, dO; /* the inputs; dO is the gradient of O, handed back by whatever the model computed from O */

static float dot(const float *a, const float *b) {
    float sum = 0;
    for (int d = 0; d < D; d++) sum += a[d] * b[d];
    return sum;
}
static void add(float *sum, float factor, const float *row) {
    for (int d = 0; d < D; d++) sum[d] += factor * row[d];
}
static int sees(int i, int j) { return !CAUSAL || j <= i; } /* where not, the score is -infinity, and e^-infinity = 0 */
static float score(int i, int j) { return sees(i, j) ? dot(Q[i], K[j]) / sqrtf(D) : -INFINITY; }

/* ---- by the definition, with all of S and P in memory ---- */
static float S[N][N], P[N][N];
/* A weight is e^S divided by the sum of the row's e^S. Subtracting m, the row's largest score, from each S divides both
 * by e^m and changes no weight; but without it e^S would overflow from a score of 89 on. */
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
/* The chain rule, backward through O = P V, the softmax and S. The gradient of a weight is dP = dO . V. The weights of
 * a row add up to 1, so when one grows the others shrink: this is why delta, the row's average of dP, is subtracted. */
static void standard_backward(Matrix dQ, Matrix dK, Matrix dV) {
    for (int i = 0; i < N; i++) {
        float delta = 0;
        for (int j = 0; j < N; j++) delta += P[i][j] * dot(dO[i], V[j]);
        for (int j = 0; j < N; j++) {
            float dS = P[i][j] * (dot(dO[i], V[j]) - delta);
            add(dV[j], P[i][j], dO[i]);
            add(dQ[i], dS / sqrtf(D), K[j]);
            add(dK[j], dS / sqrtf(D), Q[i]);
        }
    }
}

/* ---- FlashAttention, with one tile of S in memory ---- */
static float s[Br][Bc], m[Br], l[Br]; /* a tile of scores and two numbers for each of its rows; they fit on a chip */
static float LSE[N], delta[N];        /* all that the backward pass needs of the softmax: two numbers per query */
/* After each tile of keys, m is the largest score that a query has met, l the sum of its e^(S - m), and its row of O
 * the sum of e^(S - m) V. When a larger score turns up, every term of both sums shrinks by the same e^(m - m_new). */
static void flash_forward(Matrix O) {
    for (int i = 0; i < N; i += Br) {                                       /* line 3: a tile of queries, from i on */
        for (int r = 0; r < Br; r++) m[r] = -INFINITY;                      /* line 5 */
        for (int r = 0; r < Br; r++) l[r] = 0;
        for (int j = 0; j < N && sees(i + Br - 1, j); j += Bc)              /* line 6: the tiles of keys, in turn */
            for (int r = 0; r < Br; r++) {
                float m_new = m[r];
                for (int c = 0; c < Bc; c++) s[r][c] = score(i + r, j + c); /* line 8 */
                for (int c = 0; c < Bc; c++) m_new = fmaxf(m_new, s[r][c]); /* line 9 */
                float alpha = expf(m[r] - m_new);                           /* 1 if no score was larger */
                m[r] = m_new;
                l[r] *= alpha;
                for (int d = 0; d < D; d++) O[i + r][d] *= alpha;           /* line 10 */
                for (int c = 0; c < Bc; c++) s[r][c] = expf(s[r][c] - m[r]); /* S becomes e^(S - m) */
                for (int c = 0; c < Bc; c++) l[r] += s[r][c];
                for (int c = 0; c < Bc; c++) add(O[i + r], s[r][c], V[j + c]);
            }
        for (int r = 0; r < Br; r++)
            for (int d = 0; d < D; d++) O[i + r][d] /= l[r];                /* line 12: l is complete only now */
        for (int r = 0; r < Br; r++) LSE[i + r] = m[r] + logf(l[r]);        /* line 13: the logarithm of all e^S */
    }
}
/* P is computed again, one element at a time: P = e^(S - m) / l = e^(S - LSE). And delta, a row's sum of P (dO . V), is
 * dO . (the sum of P V) = dO . O, which needs no P. So neither S nor P had to be stored. */
static void flash_backward(Matrix dQ, Matrix dK, Matrix dV, Matrix O) {
    for (int i = 0; i < N; i++) delta[i] = dot(dO[i], O[i]);                /* line 4 */
    for (int j = 0; j < N; j++)                                             /* line 5: a key sums up its dK and dV */
        for (int i = 0; i < N; i++) {                                       /* line 8: over the queries, in turn */
            float p = expf(score(i, j) - LSE[i]);                           /* lines 10, 11 */
            float dS = p * (dot(dO[i], V[j]) - delta[i]);                   /* lines 13, 14 */
            add(dV[j], p, dO[i]);                                           /* line 12 */
            add(dQ[i], dS / sqrtf(D), K[j]);                                /* line 15 */
            add(dK[j], dS / sqrtf(D), Q[i]);                                /* line 16 */
        }
}
static void fill(float *a) {
    for (int i = 0; i < N * D; i++) a[i] = 4.0 * rand() / RAND_MAX - 2;
}
static int same(const char *name, Matrix pair[2]) {
    float most = 0; /* the largest difference; a NaN is not larger than anything, so it is taken for infinity */
    const float *a = pair[0][0], *b = pair[1][0];
    for (int i = 0; i < N * D; i++) most = fmaxf(most, isnan(a[i] - b[i]) ? INFINITY : fabsf(a[i] - b[i]));
    printf("%-2s differs by at most %.1e\n", name, most);
    return most < 1e-3f;
}
int main(void) {
    static Matrix O[2], dQ[2], dK[2], dV[2]; /* [0] by the definition, [1] FlashAttention; static, hence 0 at first */
    fill(Q[0]), fill(K[0]), fill(V[0]), fill(dO[0]);
    for (int i = 0; i < N; i++) K[i][0] = 20, Q[i][0] = i < N / 2 ? 20 : -20; /* scores near 100, then near -100 */
    for (int r = 0; r < Br; r++) m[r] = l[r] = NAN; /* a chip's memory may hold anything before it is written */
    standard_forward(O[0]);
    standard_backward(dQ[0], dK[0], dV[0]);
    flash_forward(O[1]);
    flash_backward(dQ[1], dK[1], dV[1], O[1]);
    printf("S, P: %zu bytes; a tile, m, l, LSE, delta: %zu\n", 2 * sizeof S, sizeof s + 2 * sizeof m + 2 * sizeof LSE);
    int agree = same("O", O) + same("dQ", dQ) + same("dK", dK) + same("dV", dV);
    puts(agree == 4 ? "FlashAttention agrees with the definition." : "FlashAttention does NOT agree.");
    return agree != 4;
}
