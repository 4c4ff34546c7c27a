/* prepared.c - tests of common/judge/prepared.h: the bounds on prepared inputs and on what is computed of them, from both sides,
 * against each kind of reference. Here they are arrays: what a variant prepared, and what it computed.
 */
#include "../common/judge/prepared.h"
#include "../common/device/device.h"
#include "../common/harness/variant.h"
#include "../common/harness/run.h"
#include "../common/numeric.h"
#include "../common/judge/rows.h"
#include "../common/harness/judge_prepared.h"
#include "example.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 2, KV_HEADS = 1, ROWS = 5, KEYS = 20, D = 8 };
enum { QUERIES = BATCH * HEADS * ROWS * D, KV = BATCH * KV_HEADS * KEYS * D, LSE_ROWS = BATCH * HEADS * ROWS };
static const Problem problem = FP32_PROBLEM(BATCH, HEADS, KV_HEADS, ROWS, KEYS, D, 1, 0.4f);
static const int lengths[BATCH] = {3, 20}; /* rows of entry 0 see none, none, 1, 2 and 3 keys, of entry 1 16 to 20 */

/* fp32, so that what is stored is what was meant. */
static float inputs[3][KV], prepared[3][KV]; /* Q, K, V; Q is shorter */
static float o[QUERIES], lse[LSE_ROWS];
static PreparedRounding rounding;
static double want_o[QUERIES], want_lse[LSE_ROWS];

/* What is right for the inputs, prepared without a rounding. */
static void solve(void) {
    memcpy(prepared, inputs, sizeof inputs);
    Samples exact = samples_compute(&problem, lengths, &(HostTensors){inputs[0], inputs[1], inputs[2], NULL}, LSE_ROWS);
    memcpy(want_o, exact.o, sizeof want_o);
    memcpy(want_lse, exact.lse, sizeof want_lse);
    round_samples(&exact, o, lse);
    free_samples(&exact);
}

/* Inputs that are exact, and what is right for them. */
static void reset(void) {
    for (uint32_t i = 0; i < 3; i++)
        random_normal(DTYPE_FP32, inputs[i], i ? KV : QUERIES, 4, i, 0, 1);
    rounding = (PreparedRounding){0};
    solve();
}

/* What a variant prepared; another leaves Q as it is, and a third all three as they come. */
static PreparedRounding leaves_q(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    (void)p, (void)workspace, (void)q;
    memcpy(k, prepared[1], sizeof prepared[1]);
    memcpy(v, prepared[2], sizeof prepared[2]);
    return rounding;
}
static PreparedRounding all_three(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    memcpy(q, prepared[0], QUERIES * sizeof *q);
    return leaves_q(p, workspace, q, k, v);
}
static PreparedRounding zeros(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    (void)p, (void)workspace, (void)q, (void)k, (void)v;
    return (PreparedRounding){0};
}
#define THAT(f)                                                                                                             \
    (&(const Variant){.preparation = &(const Preparation) { .values = f }})

static Comparison comparisons[PREPARED_COMPARISONS];
static int compare_values(const Variant *variant, Attention *attention) {
    const HostTensors given = {inputs[0], inputs[1], inputs[2], NULL};
    return compare_prepared(&problem, variant, lengths, &given, NULL, o, lse, attention, MAX_SAMPLES, comparisons);
}
static void compare(void) { compare_values(THAT(all_three), samples_compute); }

/* Which comparisons are not ok, as bits. */
static int bad(void) {
    int bits = 0;
    for (int i = 0; i < PREPARED_COMPARISONS; i++)
        bits |= !comparisons[i].ok << i;
    return bits;
}

/* ---- which variants ---- */

static int always(const Problem *p) { return p != NULL; }
static int never(const Problem *p) { return p == NULL; }

static PreparedValues leaves_q;
static void test_prepares(void) {
    const Preparation always_asked = {.wanted = always}, never_asked = {.wanted = never}, unasked = {.name = ""};
    const Variant usual = {.name = ""}, plain = {.preparation = &unasked}, asked = {.preparation = &always_asked},
                  not_now = {.preparation = &never_asked};
    ok(!variant_prepares(&usual, &problem) && variant_prepares(&plain, &problem) && variant_prepares(&asked, &problem) &&
           !variant_prepares(&not_now, &problem),
       "who prepares its inputs");
    const Preparation leaves_inputs = {.wanted = always}, changes_inputs = {.wanted = always, .values = leaves_q},
                      not_asked = {.wanted = never, .values = leaves_q};
    ok(!variant_rounds(&(Variant){.preparation = NULL}, &problem) &&
           !variant_rounds(&(Variant){.preparation = &leaves_inputs}, &problem) &&
           variant_rounds(&(Variant){.preparation = &changes_inputs}, &problem) &&
           !variant_rounds(&(Variant){.preparation = &not_asked}, &problem),
       "who is validated against what it made of them");
}

/* ---- the prepared inputs ---- */

/* The rows of a tensor that share a scale with this one: of its head, as far as they exist, or of its block in there. */
typedef struct {
    int begin, end, head_begin, head_end;
} Group;
static Group group_of(int tensor, int row) {
    int rows = tensor ? KEYS : ROWS, block = tensor ? rounding.k_block : rounding.q_block, first = row / rows * rows;
    Group g = {first, first + (tensor ? lengths[row / rows] : rows), first, first + (tensor ? lengths[row / rows] : rows)};
    if (block)
        g.begin = first + (row - first) / block * block, g.end = g.begin + block < g.end ? g.begin + block : g.end;
    return g;
}

/* An element of what is rounded: of K perhaps without the mean of its head's keys. */
static double element(int tensor, int row, int d) {
    Group g = group_of(tensor, row);
    double mean = 0;
    for (int key = g.head_begin; key < g.head_end; key++)
        mean += inputs[tensor][key * D + d] / (g.head_end - g.head_begin);
    return inputs[tensor][row * D + d] - (tensor == 1 && rounding.has_mean ? mean : 0);
}
static double length(int tensor, int row) {
    double square = 0;
    for (int d = 0; d < D; d++)
        square += element(tensor, row, d) * element(tensor, row, d);
    return sqrt(square);
}

/* How far an element may be off; where Q and K are rotated, a whole row. */
static double allowed_input(int tensor, int row, int d) {
    int is_rotated = tensor < 2 && rounding.is_rotated, has_mean = tensor == 1 && rounding.has_mean;
    Group g = group_of(tensor, row);
    double amax = 0, largest = 0;
    for (int other = g.begin; other < g.end; other++)
        for (int i = 0; i < D; i++) {
            amax = fmax(amax, is_rotated ? length(tensor, other) : fabs(element(tensor, other, i)));
            largest = fmax(largest, fabs(inputs[tensor][other * D + i]));
        }
    double scale = rounding.input_largest ? fmax(amax / rounding.input_largest, rounding.least_scale) : 1;
    double noise = largest * (0x1p-20 + has_mean * 3 * sqrt(g.head_end - g.head_begin) * 0x1p-24);
    if (is_rotated)
        return rounding.input_roundoff * length(tensor, row) + sqrt(D) * (scale * rounding.input_half_step + noise);
    double power = 0x1p-60; /* of two, at most |x| / scale */
    while (2 * power <= fabs(element(tensor, row, d)) / scale)
        power *= 2;
    return scale * fmax(rounding.input_half_step, rounding.input_roundoff * power) + noise;
}

static void test_prepared(void) {
    static const char *names[] = {"prepared Q", "prepared K", "prepared V"};
    const int first[3][4] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, last[3][4] = {{1, 1, 4}, {1, 0, 19}, {1, 0, 19}};
    for (int tensor = 0; tensor < 3; tensor++)
        for (int part = 0; part < 2; part++) {
            const int *at = part ? last[tensor] : first[tensor];
            int heads = tensor ? KV_HEADS : HEADS, rows = tensor ? KEYS : ROWS, which = PREPARED_Q + tensor;
            int row = (at[0] * heads + at[1]) * rows + at[2], column = part ? D - 1 : 0;
            const PreparedRounding kinds[] = {
                {.input_roundoff = 0x1p-4}, /* no scale */
                {.input_half_step = 0x1p-6},
                {.input_roundoff = 0x1p-4, .input_half_step = 0x1p-10, .input_largest = 448},
                {.input_roundoff = 0x1p-4, .input_half_step = 0x1p-10, .input_largest = 448, .q_block = 2, .k_block = 8},
                {.input_half_step = 0x1p-1, .input_largest = 3},                   /* half a step of the largest number, */
                {.input_half_step = 0x1p-1, .input_largest = 3, .least_scale = 7}, /* of the least scale */
                {.input_half_step = 0x1p-1, .input_largest = 3, .least_scale = 0x1p-9},
                {.input_roundoff = 0x1p-4, .input_half_step = 0x1p-3, .input_largest = 7, .q_block = 2, .has_mean = 1},
                {.input_roundoff = 0x1p-4, .input_half_step = 0x1p-3, .input_largest = 7, .k_block = 8, .is_rotated = 1},
                {.input_roundoff = 0x1p-4, .input_half_step = 0x1p-3, .input_largest = 7, .is_rotated = 1, .has_mean = 1},
                {.has_mean = 1},
                {.is_rotated = 1},
                {.input_roundoff = 0}};
            for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++) {
                reset();
                rounding = kinds[kind];
                double allowed = allowed_input(tensor, row, column);
                int good = 1;
                for (int whole = 0; whole < 2;
                     whole++) /* of a rotated row the length of the error counts, however many share it */
                    for (int outside = 0; outside < 2; outside++) {
                        reset();
                        rounding = kinds[kind];
                        for (int d = 0; d < D; d++) {
                            double error = (d % 2 ? -1 : 1) * (outside ? 1.1 : 0.9) *
                                           (!whole                              ? allowed * (d == column)
                                            : tensor < 2 && rounding.is_rotated ? allowed / sqrt(D)
                                                                                : allowed_input(tensor, row, d));
                            prepared[tensor][row * D + d] = (float)(inputs[tensor][row * D + d] + error);
                        }
                        compare();
                        const Comparison *c = &comparisons[which];
                        good = good && c->ok == !outside && (!outside || c->row == at[2]) &&
                               (whole || c->bad == (size_t)outside) && !strcmp(c->tensor, names[tensor]) &&
                               (whole || stands_at(c, at[0], at[1], at[2], column));
                        for (int other = 0; other < 3; other++)
                            good = good && (other == tensor || comparisons[PREPARED_Q + other].ok);
                    }
                ok(good, "%s[%d, %d, %d]: inside the bound, and outside of it (%d)", names[tensor], at[0], at[1], at[2],
                   kind);
            }
            reset();
            prepared[tensor][row * D + column] = NAN;
            compare();
            ok(!comparisons[which].ok && stands_at(&comparisons[which], at[0], at[1], at[2], column) &&
                   isnan(comparisons[which].got),
               "%s: NaN", names[tensor]);
        }
    reset();
    prepared[1][3 * D] = prepared[2][3 * D] = prepared[1][19 * D] = prepared[2][19 * D + 7] = NAN;
    compare();
    ok(comparisons[PREPARED_K].ok && comparisons[PREPARED_V].ok, "keys that do not exist are not looked at");
    reset();
    compare_values(THAT(leaves_q), samples_compute);
    ok(!bad(), "a variant may leave Q as it is");
}

/* Real rounding, to e4m3 with a scale a head: what is right passes; a scale of another tensor, or a mean that was subtracted though
 * nobody asked for it, does not. */
static void round_rows(int tensor, int scale_of, int has_mean) {
    rounding.has_mean = 0;
    for (int row = 0; row < KEYS * BATCH; row++) {
        Group g = group_of(tensor, row);
        double amax = 0;
        rounding.has_mean = has_mean;
        for (int i = g.begin; i < g.end; i++)
            for (int d = 0; d < D; d++)
                amax = fmax(amax, fabs(element(scale_of, i, d)));
        for (int d = 0; d < D; d++) {
            double x = element(tensor, row, d), scale = amax / 448;
            prepared[tensor][row * D + d] =
                (float)(inputs[tensor][row * D + d] - x + e4m3_to_float(float_to_e4m3((float)(x / scale))) * scale);
        }
        rounding.has_mean = 0;
    }
}
static void test_mistakes(void) {
    const PreparedRounding e4m3 = {.input_roundoff = 0x1p-4, .input_half_step = 0x1p-10, .input_largest = 448};
    for (int mistake = 0; mistake < 4; mistake++) {
        reset();
        rounding = e4m3;
        round_rows(1, mistake == 2 ? 2 : 1, mistake == 3);
        round_rows(2, mistake == 1 ? 1 : 2, 0);
        compare();
        ok(comparisons[PREPARED_V].ok == (mistake != 1) && comparisons[PREPARED_K].ok == (mistake < 2), "%s",
           (const char *[]){"K and V in e4m3", "V with K's scale", "K with V's", "K without its mean"}[mistake]);
    }
    reset();
    rounding = e4m3;
    round_rows(1, 1, 1);
    rounding.has_mean = 1;
    compare();
    ok(comparisons[PREPARED_K].ok, "as it should be");
    reset();
    rounding = e4m3;
    memset(inputs[2], 0, sizeof inputs[2]), memset(prepared[2], 0, sizeof prepared[2]);
    compare();
    int zeros_are_right = comparisons[PREPARED_V].ok;
    prepared[2][0] = 1e-30f;
    compare();
    ok(zeros_are_right && !comparisons[PREPARED_V].ok, "zeros, which have no scale, stay zeros");
}

/* ---- the result ---- */

/* What is allowed in a row of O beyond two kernels' difference, by the definition: the root of sum_j p_j^2 v_j^2 from P itself. */
static int met[2]; /* whether either of the two bounds on what P's rounding does was the smaller one */
static double allowed_in(int row) {
    const float *q = inputs[0] + row * D;
    int batch = row / ROWS / HEADS, visible = row % ROWS + lengths[batch] - ROWS + 1;
    double squares = 0, weights = 0, largest = 0, largest_v = 0, size = score_size(&problem, inputs[0], inputs[1]);
    for (int d = 0; d < D; d++) {
        double sum = 0;
        for (int j = 0; j < visible; j++) {
            const float *k = inputs[1] + (batch * KEYS + j) * D, *v = inputs[2] + (batch * KEYS + j) * D;
            double s = 0;
            for (int i = 0; i < D; i++)
                s += (double)q[i] * k[i];
            double p = exp(problem.scale * s - want_lse[row]);
            sum += p * p * v[d] * v[d];
            weights += p * p / D;
        }
        squares = fmax(squares, sum);
        largest = fmax(largest, fabs(want_o[row * D + d]));
    }
    for (int i = 0; i < visible * D; i++)
        largest_v = fmax(largest_v, fabs(inputs[2][batch * KEYS * D + i]));
    double spread = sqrt(squares), score = 4 * sqrt(D) * rounding.sum_roundoff * size;
    double likely = 7 * spread * (rounding.p_roundoff / sqrt(3) + score),
           most = (rounding.p_roundoff + 2 * score) * largest_v;
    met[likely < most] = 1;
    return output_allowance(&problem, want_o + row * D, want_lse[row], size) + fmin(likely, most) +
           8 * rounding.sum_roundoff * (largest + 7 * spread) + rounding.p_step * sqrt(KEYS * weights) * largest_v;
}

/* Whether only this comparison is bad, in only this element. */
static int is_only(int which, int row, int column) {
    const Comparison *c = &comparisons[which];
    return bad() == 1 << which && c->bad == 1 && stands_at(c, row / ROWS / HEADS, row / ROWS % HEADS, row % ROWS, column);
}

/* Verdicts that are wrong if this number of the result is just inside its bound, just outside of it, or NaN. */
static int misses(float *number, double want, double allowed, int which, int row, int column) {
    int missed = 0;
    *number = (float)(want + 0.99 * allowed);
    compare();
    missed += bad() != 0;
    *number = (float)(want - 1.01 * allowed);
    compare();
    missed += !is_only(which, row, column);
    *number = NAN;
    compare();
    return missed + !is_only(which, row, column);
}

static void test_result(void) {
    /* each part of the bound is the largest once */
    const PreparedRounding kinds[] = {{.p_roundoff = 0x1p-4}, {.sum_roundoff = 0x1p-13}, {.p_step = 0x1p-12}};
    const int rows[] = {2, 4, 7, 9, 10, 14, 15, 19}; /* first and last with keys of each head */
    const double size = score_size(&problem, inputs[0], inputs[1]);
    for (int kind = 0; kind < 3; kind++) {
        int missed = 0;
        for (int r = 0; r < 8; r++) {
            const int row = rows[r];
            for (int column = 0; column < D; column += D - 1) {
                reset();
                rounding = kinds[kind];
                missed += misses(&o[row * D + column], want_o[row * D + column], allowed_in(row), PREPARED_O, row, column);
            }
            reset();
            rounding = kinds[kind];
            double allowed = lse_allowance(want_lse[row], size) + 4 * sqrt(D) * rounding.sum_roundoff * size;
            missed += misses(&lse[row], want_lse[row], allowed, PREPARED_LSE, row, -1);
        }
        ok(!missed && !strcmp(comparisons[PREPARED_O].tensor, "O") && !strcmp(comparisons[PREPARED_LSE].tensor, "LSE"),
           "O and LSE inside the bound, outside of it, NaN (%d)", kind);
    }

    reset();
    rounding = (PreparedRounding){.p_roundoff = 0x1p-4, .sum_roundoff = 0x1p-13, .p_step = 0x1p-12};
    o[D - 1] = 1e-30f;
    lse[1] = -1e30f;
    compare();
    ok(bad() == (1 << PREPARED_O | 1 << PREPARED_LSE) && stands_at(&comparisons[PREPARED_O], 0, 0, 0, D - 1) &&
           stands_at(&comparisons[PREPARED_LSE], 0, 0, 1, -1),
       "a row without keys is 0 and -infinity");

    reset(); /* prepared inputs that are others: their attention is what counts, and that the inputs are others is seen */
    for (int i = 0; i < KV; i++)
        prepared[2][i] = -2 * inputs[2][i];
    for (int i = 0; i < QUERIES; i++)
        o[i] = (float)(-2 * want_o[i]);
    rounding.sum_roundoff = 0x1p-24;
    compare();
    ok(bad() == 1 << PREPARED_V && !comparisons[PREPARED_O].empty && !comparisons[PREPARED_LSE].empty,
       "it is attention of what was prepared");

    /* V too small and too large for squares in fp32: all of it, one entry of the batch, or all keys but the first two */
    for (int kind = 0; kind < 6; kind++) {
        const double size = kind % 2 ? 0x1p80 : 0x1p-80;
        int missed = 0;
        for (int far = 0; far < 2; far++) { /* a result as right as rounding leaves it, and one that is not */
            reset();
            for (int i = 0; i < KV; i++)
                if (kind < 2 || (kind < 4 ? i >= KEYS * D : i / D % KEYS >= 2))
                    inputs[2][i] *= (float)size;
            solve();
            rounding.p_roundoff = 0x1p-4;
            const int row = kind < 4 ? 14 : 2; /* many keys; the first one alone */
            o[row * D] *= 1 + 0x1p-6f;
            for (int d = 0; far && d < D; d++)
                o[row * D + d] *= 4;
            compare();
            missed += far ? !(bad() == 1 << PREPARED_O && comparisons[PREPARED_O].row == row % ROWS) : bad() != 0;
            missed += !(comparisons[PREPARED_O].allowed <= 3e38) || comparisons[PREPARED_O].empty;
        }
        ok(!missed, "V of any size has a bound (%d)", kind);
    }

    reset(); /* an infinite bound: P's share of it is beyond any number */
    rounding.p_roundoff = INFINITY;
    o[2 * D] = NAN;
    compare();
    ok(!bad() && comparisons[PREPARED_O].empty && comparisons[PREPARED_O].loosest == INFINITY,
       "an infinite bound checks nothing, and blames nobody");
    lse[2] += 1;
    compare();
    ok(bad() == 1 << PREPARED_LSE && !comparisons[PREPARED_LSE].empty, "LSE has a bound of its own");
    rounding.sum_roundoff = INFINITY;
    lse[2] = NAN;
    compare();
    ok(!bad() && comparisons[PREPARED_LSE].empty && comparisons[PREPARED_LSE].loosest == INFINITY, "or none, either");

    reset();
    rounding.sum_roundoff = 1;
    compare();
    ok(comparisons[PREPARED_O].empty && comparisons[PREPARED_LSE].empty, "a wide bound is no check");
    int wrong = 0, few = 0, most = 0; /* roundings that leave some rows unchecked; more than half of those that see a key */
    for (int step = 1; step < 80; step++) {
        reset();
        rounding.p_roundoff = 0.005 * step;
        compare();
        int empty = 0;
        for (int row = 0; row < LSE_ROWS; row++)
            empty += want_lse[row] != -INFINITY && allowed_in(row) > largest_of(want_o + row * D, D) / 2;
        wrong += comparisons[PREPARED_O].empty != (empty > 16 / 2);
        few += empty > 0 && empty <= 16 / 2, most += empty > 16 / 2;
    }
    ok(!wrong && few && most, "a few rows with a wide one are no matter (%d), most of them are (%d)", few, most);
}

/* ---- the reference ---- */

static void test_naive(void) {
    double worst = 0;
    reset();
    Samples naive =
        naive_samples(&problem, lengths, &(HostTensors){inputs[0], inputs[1], inputs[2], NULL}, MAX_SAMPLES);
    for (int i = 0; i < QUERIES; i++)
        worst = worse(fabs(naive.o[i] - want_o[i]), worst);
    for (int i = 0; i < LSE_ROWS; i++)
        worst = worse(naive.lse[i] == want_lse[i] ? 0 : fabs(naive.lse[i] - want_lse[i]), worst);
    ok(naive.count == LSE_ROWS && worst < 1e-5 && naive.score_size == score_size(&problem, inputs[0], inputs[1]),
       "00_naive is attention, too");
    free_samples(&naive);
    compare_values(THAT(all_three), naive_samples);
    int good = bad() == 0;
    o[2 * D] += 1;
    compare_values(THAT(all_three), naive_samples);
    ok(good && is_only(PREPARED_O, 2, 0), "and what is compared with it");
}

/* Scores of 00_naive that no memory holds: 1 TiB. */
static void test_too_large(void) {
    const Problem p = FP32_PROBLEM(1, 1, 1, 1 << 19, 1 << 19, 1, 0, 1);
    size_t before = device_allocated();
    float *zero = host_alloc(query_elements(&p), sizeof(float));
    comparisons[PREPARED_O].tensor = "as it was";
    HostTensors given = {zero, zero, zero, NULL};
    ok(naive_samples(&p, NULL, &given, 1).count == 0, "00_naive may need too much memory");
    ok(!compare_prepared(&p, THAT(zeros), NULL, &given, NULL, zero, zero, naive_samples, 1, comparisons) &&
           !strcmp(comparisons[PREPARED_O].tensor, "as it was"),
       "and then nothing is compared with it");
    ok(device_allocated() == before, "and gives back what there was");
    free(zero);
}

/* A row that is no sample, and one that is. All have the same key, so O is V. */
static void test_unsampled(void) {
    const Problem p = FP32_PROBLEM(1, 1, 1, 200, 1, 1, 0, 0);
    float *all = host_alloc(200, sizeof *all); /* Q = K = V = 0 */
    HostTensors given = {all, all, all, NULL};
    float *result = host_alloc(200, sizeof *result);
    for (int sampled = 0; sampled < 2; sampled++) {
        const int row = sampled ? 199 : 2;
        result[row] = 1;
        for (int i = 0; i < 3; i++) {
            compare_prepared(&p, THAT(zeros), NULL, &given, NULL, result, all, i == 2 ? naive_samples : samples_compute,
                             i == 1 ? 200 : MAX_SAMPLES, comparisons);
            ok(i || sampled ? bad() == 1 << PREPARED_O && comparisons[PREPARED_O].row == row : !bad(), "row %d: %s", row,
               (const char *[]){"64 samples look at some rows", "200 at all", "and 00_naive"}[i]);
        }
        result[row] = 0;
    }
    free(all), free(result);
}

int main(void) {
    test_prepares();
    test_prepared();
    test_mistakes();
    test_result();
    test_naive();
    ok(met[0] && met[1], "rows of few keys, which one number rules, and others are among them");
    test_too_large();
    test_unsampled();
    ok(device_allocated() == 0, "nothing is left on the device");
    return tap_done();
}
