/* prepared.c - see prepared.h. */
#include "prepared.h"

#include "rows.h"

#include <float.h>
#include <stdlib.h>

/* What the inputs became, in fp32 (stage.h: PreparedValues). V is squared on the way. All on the host. */
typedef struct {
    const Problem *p;
    const int *key_lengths;
    float *q, *k, *v;
    PreparedRounding rounding;
} Prepared;

/* ---- the prepared inputs ---- */

/* Q, or K or V as far as keys exist, against what it was prepared from. */
typedef struct {
    Problem rows; /* whose queries are the tensor's rows */
    const PreparedRounding *r;
    const void *inputs;
    const float *prepared;
    const int *lengths; /* NULL: all rows exist */
    int block, is_rotated, has_mean;
} PreparedTensor;

/* The largest element's part of the length of got - want; 1 if there is no such length. */
static double share_of_worst(const float *got, const double *want, int columns) {
    double square = 0, worst = 0;
    for (int i = 0; i < columns; i++) {
        double error = fabs(got[i] - want[i]);
        square += error * error;
        worst = error > worst ? error : worst;
    }
    return square > 0 && isfinite(square) ? worst / sqrt(square) : 1;
}

/* Reads one row of the inputs, and what is left of it without the mean. Returns the size of that, as the scale sees it: its largest
 * element, or, of a row that is rotated, its length, which no element of it exceeds then. */
static double read_input(const PreparedTensor *x, size_t row, const double *mean, double *want, double *rest) {
    int columns = x->rows.head_dim;
    read_row(&x->rows, x->inputs, row, want);
    for (int d = 0; d < columns; d++)
        rest[d] = want[d] - mean[d];
    return x->is_rotated ? sqrt(dot(rest, rest, columns)) : largest_of(rest, columns);
}

/* Rows [begin, end) of the tensor, those that share a scale s, which maps the size of the largest to the format's largest number.
 *
 * Where 2^e <= |x / s| < 2^(e + 1) the format's numbers, times s, are 2 u 2^e s apart, and never less than 2 input_half_step s. x is
 * off by at most half of that. A rotation spreads the errors of a row over all of it, but keeps the length of all together: at most
 * u |row| + sqrt(D) input_half_step s. The worst element is shown with its share.
 *
 * noise    of fp32: 2^-20 of the largest input for the scale, the product and the rotation; the error of the mean, a sum of all
 *          keys; and 2^-150 where the scale is subnormal. */
static void compare_block(const PreparedTensor *x, size_t begin, size_t end, const double *mean, double noise,
                          Comparison *part) {
    const PreparedRounding *r = x->r;
    int columns = x->rows.head_dim;
    double want[MAX_HEAD_DIM], rest[MAX_HEAD_DIM], size = 0, largest = 0;
    for (size_t row = begin; row < end; row++) {
        size = worse(read_input(x, row, mean, want, rest), size);
        largest = worse(largest_of(want, columns), largest);
    }
    double scale = r->input_largest > 0 ? fmax(size / r->input_largest, r->least_scale) : 1;
    noise = noise * largest * (x->is_rotated ? sqrt(columns) : 1) + 0x1p-150 * r->input_largest;
    for (size_t row = begin; row < end; row++) {
        const float *got = x->prepared + row * columns;
        double length = read_input(x, row, mean, want, rest);
        double of_row = r->input_roundoff * length + sqrt(columns) * scale * r->input_half_step + noise;
        double of_worst = x->is_rotated ? of_row * share_of_worst(got, want, columns) : 0;
        for (int d = 0; d < columns; d++) {
            double half_step = rest[d] == 0 ? 0 : ldexp(r->input_roundoff, ilogb(rest[d] / scale));
            compare_element(part, row_index(&x->rows, row), d, got[d], want[d],
                            x->is_rotated ? of_worst : scale * fmax(half_step, r->input_half_step) + noise);
        }
    }
}

static void compare_matrix(const void *context, size_t matrix, Comparison *part) {
    const PreparedTensor *x = context;
    const Problem *p = &x->rows;
    double mean[MAX_HEAD_DIM] = {0};
    int columns = p->head_dim, count = x->lengths ? x->lengths[matrix / p->heads] : p->seqlen_q,
        block = x->block ? x->block : count;
    size_t first = matrix * p->seqlen_q, last = first + count;
    for (size_t i = first * columns; x->has_mean && i < last * columns; i++)
        mean[i % columns] += dtype_to_double(p->dtype, x->inputs, i) / count;
    double noise = 0x1p-20 + (x->has_mean ? sum_error(count) : 0);
    for (size_t row = first; row < last; row += block)
        compare_block(x, row, row + block < last ? row + block : last, mean, noise, part);
}

static Comparison compare_inputs(const char *tensor, const PreparedTensor *x) {
    return compare_rows(tensor, INFINITY, (size_t)x->rows.batch * x->rows.heads, compare_matrix, x);
}

/* ---- the reference ---- */

/* Attention of the prepared inputs, and how strongly the errors of single P_j can add up: with random signs the standard
 * deviation of sum_j p_j e_j v_j is the root of sum_j p_j^2 v_j^2 times that of e. That sum is an attention, too: of the
 * squares of V, with twice the scale, because softmax of 2 S is p_j^2 over their sum:
 *
 *     p_j = e^(S_j - LSE)      p_j^2 = e^(2 S_j - 2 LSE) = softmax(2 S)_j e^(LSE' - 2 LSE),  LSE' that of 2 S
 *
 * A square leaves fp32's range where V is above 10^19 or below 10^-19. So each K/V head's V is first divided by a power of two
 * near its largest number. */
typedef struct {
    Samples result, squares; /* `squares`: of V^2, with twice the scale */
    float *largest_v;        /* [batch, kv_heads, seqlen_k]: the largest |V| of this key and those before it, as prepared */
    int *exponents;          /* [batch, kv_heads]: V is divided by 2^exponent before it is squared */
} Reference;

/* Squares one K/V head's V. */
static void square_v(const Prepared *x, size_t head, Reference *r) {
    const Problem *p = x->p;
    float *v = x->v + head * p->seqlen_k * p->head_dim, *largest_v = r->largest_v + head * p->seqlen_k, largest = 0;
    size_t exist = (size_t)key_length(p, x->key_lengths, (int)(head / p->kv_heads)) * p->head_dim;
    for (size_t i = 0; i < exist; i++) {
        largest = fabsf(v[i]) > largest ? fabsf(v[i]) : largest;
        largest_v[i / p->head_dim] = largest;
    }
    r->exponents[head] = largest > 0 && largest <= FLT_MAX ? ilogb(largest) : 0;
    for (size_t i = 0; i < exist; i++) {
        double scaled = ldexp(v[i], -r->exponents[head]);
        v[i] = (float)(scaled * scaled);
    }
}

/* Returns 0 if it does not fit. */
static int make_reference(const Prepared *x, Attention *attention, size_t limit, Reference *r) {
    const HostTensors prepared = {x->q, x->k, x->v, NULL};
    Problem p = *x->p;
    p.dtype = DTYPE_FP32; /* a scaled 8-bit number fits no 16-bit format */
    r->result = attention(&p, x->key_lengths, &prepared, limit);
    r->largest_v = host_alloc((size_t)p.batch * p.kv_heads * p.seqlen_k, sizeof *r->largest_v);
    r->exponents = host_alloc((size_t)p.batch * p.kv_heads, sizeof *r->exponents);
    for (size_t head = 0; head < (size_t)p.batch * p.kv_heads; head++)
        square_v(x, head, r);
    p.scale *= 2;
    r->squares = attention(&p, x->key_lengths, &prepared, limit);
    r->result.p = r->squares.p = x->p; /* not the one above, which ends here */
    return r->result.count && r->squares.count;
}

/* ---- the result ---- */

/* How far a score may be off: as in allowance.c, D errors of random sign and four times what they add up to. Hopper's tensor cores cut each
 * of the D products to 13 bits below the largest that they add it to, so D errors of that size it is for them, too. */
static double score_allowance(const Prepared *x, const Reference *r) {
    return 4 * sqrt(x->p->head_dim) * x->rounding.sum_roundoff * r->result.score_size;
}

/* How far a row of O may be from attention of the prepared inputs: as far as two kernels in the input's dtype may differ
 * (output_allowance), and what is listed here. `spread` is the root of sum_j p_j^2 v_j^2, the largest of the row; `squares` is sum_j p_j^2.
 *
 * 7 spread (u / sqrt(3) + 4 sqrt(D) sum_roundoff score_size)
 *              each P_j is rounded with a relative error up to u, root mean square u / sqrt(3), and has that of its score: of random
 *              sign, so they add up as derived above. Seven standard deviations: one in 4 x 10^11 elements is beyond.
 * (u + 2 score_allowance) largest |v|, of those that the row sees,
 *              if that is less, as in a row of few keys. The p_j add up to 1. So whatever the signs, P's rounding makes at most that of
 *              sum_j p_j e_j v_j; and the scores' errors, which are in the sum that P is divided by, too, of sum_j p_j e_j (v_j - O).
 * 8 sum_roundoff (largest + 7 spread)
 *              the sums of a key tile, for an accumulator shorter than fp32: a few steps that each round what is there.
 * p_step sqrt(keys squares) largest |v|
 *              P too small for the format's normal numbers is off by up to half its smallest step, with random sign: by at most
 *              p_step of the row's largest P. So p_j is off by p_step times the largest p_j, which is at most the root of `squares`. */
static double result_allowance(const Prepared *x, const Reference *of, const double *want, double lse, double largest_v,
                               double spread, double squares) {
    const PreparedRounding *r = &x->rounding;
    double largest = largest_of(want, x->p->head_dim), score = score_allowance(x, of);
    double base = output_allowance(x->p, want, lse, of->result.score_size);
    if (lse == -INFINITY)
        return base;
    double likely = 7 * spread * (r->p_roundoff / sqrt(3) + score);
    double most = (r->p_roundoff + 2 * score) * largest_v;
    return base + (likely < most ? likely : most) + 8 * r->sum_roundoff * (largest + 7 * spread) +
           r->p_step * sqrt(x->p->seqlen_k * squares) * largest_v;
}

/* The root of sum_j p_j^2 v_j^2, the largest of sample i. Where a row sees nothing of its head's large V, the squares of what it sees
 * may be too small for fp32: then it is taken for as large as it can be, the largest |V| that the row sees. */
static double spread_of(const Reference *r, size_t i, int exponent, double largest_v, double squares) {
    const int columns = r->squares.p->head_dim;
    double mean = largest_of(r->squares.o + i * columns, columns);
    if (mean < 0x1p-100 && largest_of(r->result.o + i * columns, columns) > 0)
        return largest_v;
    return ldexp(sqrt(mean * squares), exponent);
}

/* The largest |V| among the keys that a row sees. */
static double largest_seen(const Prepared *x, const Reference *r, RowIndex at, size_t head) {
    int visible = visible_keys(x->p, key_length(x->p, x->key_lengths, at.batch), at.row);
    return visible ? r->largest_v[head * x->p->seqlen_k + visible - 1] : 0;
}

/* A bound that is infinite or NaN, as where 00_naive's own numbers overflow, says nothing about a kernel. */
static int is_bound(double allowed) { return allowed <= DBL_MAX; }

static void compare_result(const Prepared *x, const Reference *r, const void *o, const float *lse, Comparison *c_o,
                           Comparison *c_lse) {
    const Problem *p = x->p;
    const Samples *exact = &r->result;
    int columns = p->head_dim, rows = 0, empty = 0; /* rows that are not 0, and of them those whose bound checks nothing */
    int boundless_o = 0, boundless_lse = 0;         /* rows in which they have no bound at all */
    double got[MAX_HEAD_DIM];
    *c_o = comparison_start("O");
    *c_lse = comparison_start("LSE");
    for (size_t i = 0; i < exact->count; i++) {
        size_t row = sampled_row(p, i, exact->count);
        RowIndex at = row_index(p, row);
        const double *want = exact->o + i * columns, want_lse = exact->lse[i];
        const size_t head = (size_t)at.batch * p->kv_heads + kv_head_of(p, at.head);
        double largest_v = largest_seen(x, r, at, head);
        double lse_allowed = lse_allowance(want_lse, exact->score_size) + (want_lse == -INFINITY ? 0 : score_allowance(x, r));
        double squares = exp(r->squares.lse[i] - 2 * want_lse); /* NaN in a row that sees no key: its bound is 0 */
        double spread = spread_of(r, i, r->exponents[head], largest_v, squares), largest = largest_of(want, columns);
        double allowed = result_allowance(x, r, want, want_lse, largest_v, spread, squares);
        boundless_o += !is_bound(allowed), boundless_lse += !is_bound(lse_allowed);
        if (is_bound(lse_allowed))
            compare_element(c_lse, at, -1, lse[row], want_lse, lse_allowed);
        if (!is_bound(allowed))
            continue;
        read_row(p, o, row, got);
        compare_row(c_o, at, got, want, columns, allowed);
        rows += largest > 0;
        empty += bound_is_empty(allowed, 0, largest);
    }
    c_o->empty = 2 * empty > rows; /* P's rounding makes the bound another in each row: a few wide ones are no matter */
    c_lse->empty = bound_is_empty(c_lse->loosest, LSE_FLOOR, c_lse->largest);
    if (boundless_o)
        c_o->empty = 1, c_o->loosest = INFINITY;
    if (boundless_lse)
        c_lse->empty = 1, c_lse->loosest = INFINITY;
}

int compare_prepared(const Problem *p, const Variant *variant, const int *key_lengths, const HostTensors *inputs,
                     const Buffer *workspace, const void *o, const float *lse, Attention *attention, size_t limit,
                     Comparison comparisons[PREPARED_COMPARISONS]) {
    Prepared x = {.p = p, .key_lengths = key_lengths};
    x.q = host_alloc(query_elements(p), sizeof *x.q);
    x.k = host_alloc(key_elements(p), sizeof *x.k);
    x.v = host_alloc(key_elements(p), sizeof *x.v);
    for (size_t i = 0; i < query_elements(p); i++) /* a variant that prepares only K and V leaves it so */
        x.q[i] = (float)dtype_to_double(p->dtype, inputs->q, i);
    const PreparedRounding *r = &x.rounding;
    x.rounding = variant->preparation->values(p, workspace, x.q, x.k, x.v);

    const Problem keys = keys_as_queries(p);
    const PreparedTensor q = {*p, r, inputs->q, x.q, NULL, r->q_block, r->is_rotated, .has_mean = 0},
                         k = {keys, r, inputs->k, x.k, key_lengths, r->k_block, r->is_rotated, r->has_mean},
                         v = {keys, r, inputs->v, x.v, key_lengths, r->k_block, .is_rotated = 0, .has_mean = 0};
    comparisons[PREPARED_Q] = compare_inputs("prepared Q", &q);
    comparisons[PREPARED_K] = compare_inputs("prepared K", &k);
    comparisons[PREPARED_V] = compare_inputs("prepared V", &v);
    Reference reference = {0};
    int fits = make_reference(&x, attention, limit, &reference);
    if (fits)
        compare_result(&x, &reference, o, lse, &comparisons[PREPARED_O], &comparisons[PREPARED_LSE]);
    free_samples(&reference.result), free_samples(&reference.squares), free(reference.largest_v), free(reference.exponents);
    free(x.q), free(x.k), free(x.v);
    return fits;
}
