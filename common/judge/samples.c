/* samples.c - see samples.h. */
#include "samples.h"

#include "../host/memory.h"
#include "../host/parallel.h"
#include "oracle.h"
#include "rows.h"

#include <stdlib.h>

/* Every fourth sample moves to the first row of its head and every fourth to the last: there sit a causal row with one key
 * to see, and the tail of the last tile. A problem of up to 64 rows is taken whole. */
RowIndex sampled_row(const Problem *p, int sample, int count) {
    size_t rows = row_count(p);
    if (rows == (size_t)count)
        return row_index(p, (size_t)sample);
    RowIndex index = row_index(p, (size_t)((double)sample * (double)(rows - 1) / (count - 1)));
    if (sample % 4 == 0)
        index.row = 0;
    if (sample % 4 == 3)
        index.row = p->seqlen_q - 1;
    return index;
}

/* A row of Q or O. */
static double *query_row(const Problem *p, const void *tensor, RowIndex row) {
    return to_doubles(p->dtype, tensor, flat_row(p, row) * p->head_dim, (size_t)p->head_dim);
}

typedef struct {
    Samples *samples;
    const int *key_lengths;
    const HostTensors *inputs;
} SampleWork;

static void compute_samples(size_t begin, size_t end, void *context) {
    SampleWork *work = context;
    Samples *s = work->samples;
    const Problem *p = s->p;
    for (size_t i = begin; i < end; i++) {
        RowIndex row = s->rows[i];
        OracleView view = oracle_view(p, work->key_lengths, row.batch, row.head, row.row);
        size_t keys = (size_t)view.visible * p->head_dim;
        double *q = query_row(p, work->inputs->q, row);
        double *k = to_doubles(p->dtype, work->inputs->k, view.keys, keys);
        double *v = to_doubles(p->dtype, work->inputs->v, view.keys, keys);
        oracle_row(q, k, v, view.visible, p->head_dim, p->scale, s->o + i * p->head_dim, &s->lse[i]);
        free(q);
        free(k);
        free(v);
    }
}

Samples samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs) {
    Samples s = {.p = p, .count = row_count(p) < MAX_SAMPLES ? (int)row_count(p) : MAX_SAMPLES};
    s.o = host_alloc((size_t)s.count * p->head_dim, sizeof *s.o);
    for (int i = 0; i < s.count; i++)
        s.rows[i] = sampled_row(p, i, s.count);
    parallel_for((size_t)s.count, compute_samples, &(SampleWork){&s, key_lengths, inputs});
    s.score_size = score_size(p, inputs->q, inputs->k);
    return s;
}

Comparison samples_compare_output(const Samples *s, const void *o) {
    const Problem *p = s->p;
    Comparison c = comparison_start("O");
    for (int i = 0; i < s->count; i++) {
        RowIndex row = s->rows[i];
        const double *want = s->o + (size_t)i * p->head_dim;
        double *got = query_row(p, o, row);
        double allowed = output_allowance(p->dtype, want, p->head_dim, p->seqlen_k, s->lse[i], s->score_size);
        compare_row(&c, row.batch, row.head, row.row, got, want, p->head_dim, allowed);
        free(got);
    }
    c.empty = comparison_is_empty(&c, dtype_step(p->dtype));
    return c;
}

Comparison samples_compare_lse(const Samples *s, const float *lse) {
    Comparison c = comparison_start("LSE");
    for (int i = 0; i < s->count; i++) {
        RowIndex row = s->rows[i];
        double got = lse[flat_row(s->p, row)];
        compare_row(&c, row.batch, row.head, row.row, &got, &s->lse[i], 0,
                    lse_allowance(s->lse[i], s->score_size));
    }
    c.empty = comparison_is_empty(&c, LSE_FLOOR);
    return c;
}

SampleErrors samples_errors(const Samples *s, const void *o) {
    const Problem *p = s->p;
    SampleErrors errors = {0, 0};
    for (int i = 0; i < s->count; i++) {
        double *got = query_row(p, o, s->rows[i]);
        for (int d = 0; d < p->head_dim; d++) {
            double error = fabs(got[d] - s->o[(size_t)i * p->head_dim + d]);
            errors.rms += error * error;
            errors.worst = worse(error, errors.worst);
        }
        free(got);
    }
    errors.rms = sqrt(errors.rms / ((double)s->count * p->head_dim));
    return errors;
}
