/* prepared.c - see prepared.h. */
#include "prepared.h"

#include "../host/memory.h"
#include "oracle.h"
#include "rows.h"
#include "samples.h"

#include <stdlib.h>
#include <string.h>

/* ---- the prepared inputs ---- */

/* They, and the problem they are the inputs of: fp32, since a scaled 8-bit number fits no 16-bit format. */
typedef struct {
    Problem p;
    PreparedRounding rounding;
    float *q, *k, *v;
    double score_size, largest_v; /* of the prepared inputs; see check.h */
} Prepared;

/* The largest element's part of the length of got - want; 1 if there is no such length. */
static double share_of_worst(const double *got, const double *want, int columns) {
    double square = 0, worst = 0;
    for (int i = 0; i < columns; i++) {
        double error = fabs(got[i] - want[i]);
        square += error * error;
        worst = error > worst ? error : worst;
    }
    return square > 0 && isfinite(square) ? worst / sqrt(square) : 1;
}

/* Q, or K or V as far as keys exist, against what it was prepared from. */
typedef struct {
    const Problem *p;
    const PreparedRounding *r;
    const void *inputs;
    const float *prepared;
    const int *lengths; /* NULL: all rows exist */
    int heads, seqlen, block;
    int is_rotated, has_mean;
} PreparedTensor;

/* Reads one row of the inputs, and what is left of it without the mean. Returns the size of that, as the scale sees it: its largest
 * element, or, of a row that is rotated, its length, which no element of it exceeds then. */
static double read_input(const PreparedTensor *x, size_t row, const double *mean, double *want, double *rest) {
    int columns = x->p->head_dim;
    read_doubles(x->p->dtype, x->inputs, row * columns, (size_t)columns, want);
    for (int d = 0; d < columns; d++)
        rest[d] = want[d] - mean[d];
    return x->is_rotated ? sqrt(dot(rest, rest, columns)) : largest_of(rest, columns);
}

/* Rows [begin, end) of one matrix, those that share a scale s, which maps the size of the largest to the format's largest number.
 *
 * Where 2^e <= |x / s| < 2^(e + 1) the format's numbers, times s, are 2 u 2^e s apart, and never less than 2 input_half_step s. x is
 * off by at most half of that. A rotation spreads the errors of a row over all of it, but keeps the length of all together: at most
 * u |row| + sqrt(D) input_half_step s. The worst element is shown with its share.
 *
 * noise    of fp32: 2^-20 of the largest input for the scale, the product and the rotation; the error of the mean, a sum of all
 *          keys; and 2^-150 where the scale is subnormal. */
static void compare_block(const PreparedTensor *x, size_t matrix, int begin, int end, const double *mean, double noise,
                          Comparison *part) {
    const PreparedRounding *r = x->r;
    int columns = x->p->head_dim;
    size_t first = matrix * x->seqlen;
    double want[MAX_HEAD_DIM], rest[MAX_HEAD_DIM], got[MAX_HEAD_DIM], size = 0, largest = 0;
    for (int row = begin; row < end; row++) {
        size = worse(read_input(x, first + row, mean, want, rest), size);
        largest = worse(largest_of(want, columns), largest);
    }
    double scale = r->input_largest > 0 ? fmax(size / r->input_largest, r->least_scale) : 1;
    noise = noise * largest * (x->is_rotated ? sqrt(columns) : 1) + 0x1p-150 * r->input_largest;
    for (int row = begin; row < end; row++) {
        double length = read_input(x, first + row, mean, want, rest);
        read_doubles(DTYPE_FP32, x->prepared, (first + row) * columns, (size_t)columns, got);
        double of_row = r->input_roundoff * length + sqrt(columns) * scale * r->input_half_step + noise;
        double share = x->is_rotated ? share_of_worst(got, want, columns) : 0;
        for (int d = 0; d < columns; d++) {
            double half_step = rest[d] == 0 ? 0 : ldexp(r->input_roundoff, ilogb(rest[d] / scale));
            Comparison one = comparison_start(part->tensor);
            compare_row(&one, (int)(matrix / x->heads), (int)(matrix % x->heads), row, &got[d], &want[d], 1,
                        x->is_rotated ? of_row * share : scale * fmax(half_step, r->input_half_step) + noise);
            one.column = d;
            comparison_merge(part, &one);
        }
    }
}

static void compare_matrices(const void *context, size_t begin, size_t end, Comparison *part) {
    const PreparedTensor *x = context;
    int columns = x->p->head_dim;
    for (size_t matrix = begin; matrix < end; matrix++) {
        double mean[MAX_HEAD_DIM] = {0};
        int rows = x->lengths ? x->lengths[matrix / x->heads] : x->seqlen, block = x->block ? x->block : rows;
        for (size_t i = 0; x->has_mean && i < (size_t)rows * columns; i++)
            mean[i % columns] += dtype_to_double(x->p->dtype, x->inputs, matrix * x->seqlen * columns + i) / rows;
        double noise = 0x1p-20 + (x->has_mean ? sum_error(rows) : 0);
        for (int row = 0; row < rows; row += block)
            compare_block(x, matrix, row, row + block < rows ? row + block : rows, mean, noise, part);
    }
}

static Comparison compare_inputs(const char *tensor, const PreparedTensor *x) {
    return compare_rows(tensor, INFINITY, (size_t)x->p->batch * x->heads, compare_matrices, x);
}

/* ---- the reference ---- */

/* Attention of the prepared inputs, and how strongly the errors of single P_j can add up: with random signs the standard
 * deviation of sum_j p_j e_j v_j is the root of sum_j p_j^2 v_j^2 times that of e. That sum is an attention, too: of the
 * squares of V, with twice the scale, because softmax of 2 S is p_j^2 over their sum:
 *
 *     p_j = e^(S_j - LSE)      p_j^2 = e^(2 S_j - 2 LSE) = softmax(2 S)_j e^(LSE' - 2 LSE),  LSE' that of 2 S */
typedef struct {
    int count;      /* rows */
    size_t *rows;   /* which ones, counted through the whole problem; NULL: all of them */
    float *o;       /* [count, head_dim] */
    float *lse;     /* [count] */
    float *squares; /* [count, head_dim] attention of V^2 with twice the scale, and its LSE */
    float *squares_lse;
} Reference;

static Reference new_reference(size_t count, int columns) {
    return (Reference){(int)count,
                       NULL,
                       host_alloc(count * columns, sizeof(float)),
                       host_alloc(count, sizeof(float)),
                       host_alloc(count * columns, sizeof(float)),
                       host_alloc(count, sizeof(float))};
}

static void free_reference(Reference *r) {
    free(r->rows);
    free(r->o);
    free(r->lse);
    free(r->squares);
    free(r->squares_lse);
}

static void square(float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] *= values[i];
}

/* Returns 0 if it does not fit. */
static int whole_reference(Prepared *x, const int *key_lengths, Attention *attention, Reference *r) {
    const Problem *p = &x->p;
    HostTensors inputs = {x->q, x->k, x->v, NULL};
    Problem twice = *p;
    twice.scale *= 2;
    *r = new_reference(row_count(p), p->head_dim);
    if (!attention(p, key_lengths, &inputs, r->o, r->lse))
        return 0;
    square(x->v, key_elements(p));
    return attention(&twice, key_lengths, &inputs, r->squares, r->squares_lse);
}

/* The oracle in sampled rows. */
static void sampled_reference(Prepared *x, const int *key_lengths, Reference *r) {
    const Problem *p = &x->p;
    Problem twice = *p;
    twice.scale *= 2;
    HostTensors inputs = {x->q, x->k, x->v, NULL};
    for (int squares = 0; squares < 2; squares++) {
        if (squares)
            square(x->v, key_elements(p));
        Samples s = samples_compute(squares ? &twice : p, key_lengths, &inputs);
        if (!squares) {
            *r = new_reference((size_t)s.count, p->head_dim);
            r->rows = host_alloc((size_t)s.count, sizeof *r->rows);
        }
        float *o = squares ? r->squares : r->o, *lse = squares ? r->squares_lse : r->lse;
        for (int i = 0; i < s.count; i++) {
            r->rows[i] = flat_row(p, s.rows[i]);
            lse[i] = (float)s.lse[i];
            for (int d = 0; d < p->head_dim; d++)
                o[(size_t)i * p->head_dim + d] = (float)s.o[(size_t)i * p->head_dim + d];
        }
        free(s.o);
    }
}

int oracle_attention(const Problem *p, const int *key_lengths, const HostTensors *inputs, float *o, float *lse) {
    size_t queries = query_elements(p), keys = key_elements(p), rows = row_count(p);
    double *q = to_doubles(DTYPE_FP32, inputs->q, 0, queries), *k = to_doubles(DTYPE_FP32, inputs->k, 0, keys),
           *v = to_doubles(DTYPE_FP32, inputs->v, 0, keys), *o64 = host_alloc(queries, sizeof *o64),
           *lse64 = host_alloc(rows, sizeof *lse64);
    oracle_forward(p, key_lengths, q, k, v, o64, lse64);
    for (size_t i = 0; i < queries; i++)
        o[i] = (float)o64[i];
    for (size_t i = 0; i < rows; i++)
        lse[i] = (float)lse64[i];
    free(q), free(k), free(v), free(o64), free(lse64);
    return 1;
}

/* ---- the result ---- */

/* How far a score may be off: as in check.c, D errors of random sign and four times what they add up to. Hopper's tensor cores cut each
 * of the D products to 13 bits below the largest that they add it to, so D errors of that size it is for them, too. */
static double score_allowance(const Prepared *x) {
    return 4 * sqrt(x->p.head_dim) * x->rounding.sum_roundoff * x->score_size;
}

/* How far a row of O may be from attention of the prepared inputs, beyond what two kernels in the input's dtype may differ
 * by (output_allowance). `spread` is the root of sum_j p_j^2 v_j^2, the largest of the row.
 *
 * 7 spread (u / sqrt(3) + 4 sqrt(D) sum_roundoff score_size)
 *              each P_j is rounded with a relative error up to u, on average u / sqrt(3), and has that of its score: of random
 *              sign, so they add up as derived above. Seven standard deviations: one in 10^11 elements is beyond.
 * (u + 2 score_allowance) largest |v|
 *              if that is less, as in a row of few keys: the P_j add up to 1, so no signs make more of the first, sum_j p_j e_j v_j,
 *              nor of the second, sum_j p_j e_j (v_j - O), since the scores' errors are in the sum that P is divided by, too.
 * 8 sum_roundoff (largest + 7 spread)
 *              the sums of a key tile, for an accumulator shorter than fp32: a few steps that each round what is there.
 * p_step sqrt(keys) largest |v|
 *              P_j too small for the format's normal numbers is off by up to half its smallest step. */
static double result_allowance(const Prepared *x, Dtype dtype, const double *want, double lse, double spread) {
    const PreparedRounding *r = &x->rounding;
    double largest = largest_of(want, x->p.head_dim);
    double base = output_allowance(dtype, want, x->p.head_dim, x->p.seqlen_k, lse, x->score_size);
    if (lse == -INFINITY)
        return base;
    double likely = 7 * spread * (r->p_roundoff / sqrt(3) + score_allowance(x));
    double most = (r->p_roundoff + 2 * score_allowance(x)) * x->largest_v;
    return base + (likely < most ? likely : most) + 8 * r->sum_roundoff * (largest + 7 * spread) +
           r->p_step * sqrt(x->p.seqlen_k) * x->largest_v;
}

static void compare_result(const Prepared *x, const Reference *r, Dtype dtype, const void *o, const float *lse,
                           Comparison *c_o, Comparison *c_lse) {
    const Problem *p = &x->p;
    int columns = p->head_dim;
    double *want = host_alloc((size_t)columns, sizeof *want), *got = host_alloc((size_t)columns, sizeof *got);
    *c_o = comparison_start("O");
    *c_lse = comparison_start("LSE");
    int rows = 0, empty = 0; /* that are not 0, and of them those whose bound checks nothing */
    for (int i = 0; i < r->count; i++) {
        size_t row = r->rows ? r->rows[i] : (size_t)i;
        RowIndex index = row_index(p, row);
        double want_lse = r->lse[i], got_lse = lse[row], largest_square = 0;
        double from_squares = want_lse == -INFINITY ? 0 : exp(r->squares_lse[i] - 2 * want_lse);
        for (int d = 0; d < columns; d++) {
            size_t element = (size_t)i * columns + d;
            want[d] = r->o[element];
            got[d] = dtype_to_double(dtype, o, row * columns + d);
            double square = r->squares[element] * from_squares;
            largest_square = worse(square, largest_square);
        }
        double allowed = result_allowance(x, dtype, want, want_lse, sqrt(largest_square));
        compare_row(c_o, index.batch, index.head, index.row, got, want, columns, allowed);
        Comparison alone = comparison_start("O");
        compare_row(&alone, index.batch, index.head, index.row, want, want, columns, allowed);
        rows += alone.largest > 0;
        empty += comparison_is_empty(&alone, dtype_step(dtype));
        double lse_allowed =
            want_lse == -INFINITY ? 0 : lse_allowance(want_lse, x->score_size) + score_allowance(x);
        compare_row(c_lse, index.batch, index.head, index.row, &got_lse, &want_lse, 0, lse_allowed);
    }
    c_o->empty = 2 * empty > rows; /* P's rounding makes the bound another in each row: a few wide ones are no matter */
    c_lse->empty = comparison_is_empty(c_lse, LSE_FLOOR);
    free(want);
    free(got);
}

int compare_prepared(const Problem *p, const int *key_lengths, const HostTensors *inputs, const HostTensors *prepared,
                     PreparedRounding rounding, const void *o, const float *lse, Attention *attention,
                     Comparison comparisons[PREPARED_COMPARISONS]) {
    Prepared x = {.p = *p, .rounding = rounding, .q = prepared->q, .k = prepared->k, .v = prepared->v};
    const PreparedRounding *r = &x.rounding;
    Reference reference = {0};
    x.p.dtype = DTYPE_FP32;
    x.score_size = score_size(&x.p, x.q, x.k);
    for (size_t i = 0; i < key_elements(p); i++)
        x.largest_v = fabs(x.v[i]) > x.largest_v ? fabs(x.v[i]) : x.largest_v;
    comparisons[PREPARED_Q] = compare_inputs(
        "prepared Q", &(PreparedTensor){p, r, inputs->q, x.q, NULL, p->heads, p->seqlen_q, r->q_block, r->is_rotated, 0});
    comparisons[PREPARED_K] =
        compare_inputs("prepared K", &(PreparedTensor){p, r, inputs->k, x.k, key_lengths, p->kv_heads, p->seqlen_k, r->k_block,
                                                    r->is_rotated, r->has_mean});
    comparisons[PREPARED_V] = compare_inputs(
        "prepared V", &(PreparedTensor){p, r, inputs->v, x.v, key_lengths, p->kv_heads, p->seqlen_k, r->k_block, 0, 0});
    int fits = 1; /* the reference squares x.v as it goes: it is not needed after it */
    if (attention)
        fits = whole_reference(&x, key_lengths, attention, &reference);
    else
        sampled_reference(&x, key_lengths, &reference);
    if (fits)
        compare_result(&x, &reference, p->dtype, o, lse, &comparisons[PREPARED_O], &comparisons[PREPARED_LSE]);
    free_reference(&reference);
    return fits;
}
