/* oracle.h - attention in double precision on the host, in all rows of a problem or in a sample of them: the definition.
 *
 * Everything the project computes is in the end held against it, so it is written to be obviously right, not fast: no tiles, no
 * online softmax. 00_naive is held against a sample, at sizes where all rows would take minutes; so is every variant where
 * 00_naive does not fit into memory. The tests take all rows.
 */
#ifndef FA_ORACLE_H
#define FA_ORACLE_H

#include "../problem.h"

/* Whether a query sees a key, both counted in their head, by causal mask and key lengths; whether a block mask or a score mod keeps a key, by
 * the definition that comes with it; and where a query finds its head's keys. Worked out here and there and not by problem.h, block_mask.h
 * and score.h, on purpose: a mistake in the mask or the head groups there would be made by the kernels and by their judge alike, and
 * nobody would notice. */
int oracle_sees(const Problem *p, const int *key_lengths, int batch, int row, int key);
int oracle_keeps(const Problem *p, const int *key_lengths, int batch, int row, int key);
/* What becomes of a score, by that definition, and the head's sink (-inf: none). */
DefinedScore oracle_score(const Problem *p, const int *key_lengths, RowIndex at, int key, double s);
double oracle_sink(const Problem *p, int head);
typedef struct {
    size_t first_key; /* the head's first row of K and V */
    int visible;      /* keys from there on that the query sees */
} OracleView;
OracleView oracle_view(const Problem *p, const int *key_lengths, RowIndex at);

#define MAX_SAMPLES 64

typedef struct {
    const Problem *p;
    size_t count;
    double *o, *lse; /* [count, head_dim], [count] */
    double score_size;
    double underflow; /* what O may lack where a sink leaves P below the smallest normal float: notes/floating_point.md; 0 without sinks */
} Samples;

/* The largest length of a row of a tensor that has Q's shape; K's and V's are those of keys_as_queries(p) (rows.h). */
double largest_length(const Problem *p, const void *rows);

/* scale * max|q_i| * max|k_j|: the most a score of the problem can be, and the measure of its rounding error. */
double score_size(const Problem *p, const void *q, const void *k);

/* Up to `limit` rows spread evenly over batch entries, heads and rows, with first and last rows of heads among them.
 * key_lengths as in Tensors, on the host. */
Samples samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit);
void free_samples(Samples *samples);

/* Which row, counted through the whole problem, the sample-th of `count` looks at. */
size_t sampled_row(const Problem *p, size_t sample, size_t count);

/* Root of the mean square of the errors of O, a tensor in the problem's dtype, and the worst one. */
typedef struct {
    double rms, worst;
} SampleErrors;
SampleErrors samples_errors(const Samples *samples, const void *o);

#endif
