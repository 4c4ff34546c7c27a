/* oracle.c - see oracle.h.
 *
 * Dao et al. 2022, section 2.2, one row i:
 *     S_j = scale q_i . k_j,   m = max_j S_j,   l = sum_j e^(S_j - m),   P_j = e^(S_j - m) / l,   O_i = sum_j P_j v_j
 *     LSE_i = m + ln l, so that P_j = e^(S_j - LSE_i)
 * With a score mod S_j is what f makes of it, and a head's sink is one more score in m and l.
 * Subtracting m changes nothing in P (it cancels in the quotient) and keeps every exponential at or below 1.
 */
#include "oracle.h"

#include "../host/parallel.h"
#include "rows.h"

#include <stdlib.h>

int oracle_sees(const Problem *p, const int *key_lengths, int batch, int row, int key) {
    int length = key_lengths ? key_lengths[batch] : p->seqlen_k;
    return key < length && (!p->causal || key - length <= row - p->seqlen_q); /* both counted from the end */
}

/* Where the query stands among the keys: the last one at the last key. */
static int position(const Problem *p, const int *key_lengths, int batch, int row) {
    return (key_lengths ? key_lengths[batch] : p->seqlen_k) - (p->seqlen_q - row);
}

int oracle_keeps(const Problem *p, const int *key_lengths, int batch, int row, int key) {
    int pos = position(p, key_lengths, batch, row);
    return (!p->score || p->score->keeps(p->score, pos, key)) && (!p->blocks || p->blocks->defines(p->blocks, pos, row, key));
}

DefinedScore oracle_score(const Problem *p, const int *key_lengths, RowIndex at, int key, double s) {
    int pos = position(p, key_lengths, at.batch, at.row);
    return p->score ? p->score->defines(p->score, p->heads, at.head, pos, key, s) : (DefinedScore){s, 1};
}

double oracle_sink(const Problem *p, int head) { return p->score && p->score->score.sinks ? (double)p->score->score.sinks[head] : -INFINITY; }

OracleView oracle_view(const Problem *p, const int *key_lengths, RowIndex at) {
    size_t kv_head = (size_t)at.head * p->kv_heads / p->heads;
    OracleView view = {(at.batch * (size_t)p->kv_heads + kv_head) * p->seqlen_k, 0};
    while (oracle_sees(p, key_lengths, at.batch, at.row, view.visible))
        view.visible++;
    return view;
}

/* What the threads share. */
typedef struct {
    Samples *samples;
    const int *key_lengths;
    const HostTensors *inputs;
} SampleWork;

/* O = 0 and LSE = -infinity in a row that sees no key. A key that a block mask drops has the score -infinity, which no other has,
 * and is left out. */
static void compute_sample(const SampleWork *w, size_t sample) {
    const Problem *p = w->samples->p;
    int d = p->head_dim;
    size_t row = sampled_row(p, sample, w->samples->count);
    RowIndex at = row_index(p, row);
    OracleView view = oracle_view(p, w->key_lengths, at);
    double *o = w->samples->o + sample * d, *s = host_alloc((size_t)view.visible, sizeof *s);
    double sink = oracle_sink(p, at.head), m = sink;
    double q[MAX_HEAD_DIM], k[MAX_HEAD_DIM], v[MAX_HEAD_DIM];
    read_row(p, w->inputs->q, row, q);
    for (int j = 0; j < view.visible; j++) {
        read_row(p, w->inputs->k, view.first_key + j, k);
        s[j] = oracle_keeps(p, w->key_lengths, at.batch, at.row, j)
                   ? oracle_score(p, w->key_lengths, at, j, p->scale * dot(q, k, d)).value
                   : -INFINITY;
        m = fmax(m, s[j]);
    }
    double l = sink == -INFINITY ? 0 : exp(sink - m);
    for (int j = 0; j < view.visible; j++)
        l += s[j] == -INFINITY ? 0 : exp(s[j] - m);
    for (int j = 0; j < view.visible; j++) {
        if (s[j] == -INFINITY)
            continue;
        double p_j = exp(s[j] - m) / l;
        read_row(p, w->inputs->v, view.first_key + j, v);
        for (int i = 0; i < d; i++)
            o[i] += p_j * v[i];
    }
    w->samples->lse[sample] = m + log(l);
    free(s);
}

static void compute_samples(size_t begin, size_t end, void *context) {
    for (size_t i = begin; i < end; i++)
        compute_sample(context, i);
}

/* Every fourth sample moves to the first row of its head and every fourth to the last: there sit a causal row with one key
 * to see, and the tail of the last tile. A problem of up to `count` rows is taken whole. */
size_t sampled_row(const Problem *p, size_t sample, size_t count) {
    size_t rows = row_count(p);
    if (rows == count)
        return sample;
    size_t row = (size_t)((double)sample * (double)(rows - 1) / (double)(count - 1)), in_head = row % p->seqlen_q;
    return sample % 4 == 0 ? row - in_head : sample % 4 == 3 ? row - in_head + p->seqlen_q - 1 : row;
}

double largest_length(const Problem *p, const void *rows) {
    double row[MAX_HEAD_DIM], largest = 0;
    for (size_t i = 0; i < row_count(p); i++) {
        read_row(p, rows, i, row);
        largest = worse(dot(row, row, p->head_dim), largest);
    }
    return sqrt(largest);
}

double score_size(const Problem *p, const void *q, const void *k) {
    Problem keys = keys_as_queries(p);
    return p->scale * largest_length(p, q) * largest_length(&keys, k);
}

/* Without a sink a row's largest P is 1 / keys or more. With one that is far above the row's scores all P may be below 2^-126, where the
 * chip's 2^x is 0. Each P_j is then too small by less than 2^-126, because l is at least the 1 of the sink, and O by 2^-126 sum_j |v_j|. */
static double sink_underflow(const Problem *p, const void *v) {
    double largest = 0;
    for (size_t i = 0; i < key_elements(p); i++)
        largest = worse(fabs(dtype_to_double(p->dtype, v, i)), largest);
    return 0x1p-126 * p->seqlen_k * largest;
}

Samples samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit) {
    Samples s = {.p = p, .count = row_count(p) < limit ? row_count(p) : limit};
    s.o = host_alloc(s.count * p->head_dim, sizeof *s.o);
    s.lse = host_alloc(s.count, sizeof *s.lse);
    parallel_for(s.count, compute_samples, &(SampleWork){&s, key_lengths, inputs});
    s.score_size = score_size(p, inputs->q, inputs->k);
    s.underflow = p->score && p->score->score.sinks ? sink_underflow(p, inputs->v) : 0;
    return s;
}

void free_samples(Samples *s) {
    free(s->o);
    free(s->lse);
}

SampleErrors samples_errors(const Samples *s, const void *o) {
    const Problem *p = s->p;
    SampleErrors errors = {0, 0};
    double got[MAX_HEAD_DIM];
    for (size_t i = 0; i < s->count; i++) {
        read_row(p, o, sampled_row(p, i, s->count), got);
        for (int d = 0; d < p->head_dim; d++) {
            double error = fabs(got[d] - s->o[i * p->head_dim + d]);
            errors.rms += error * error;
            errors.worst = worse(error, errors.worst);
        }
    }
    errors.rms = sqrt(errors.rms / ((double)s->count * p->head_dim));
    return errors;
}
