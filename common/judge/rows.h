/* rows.h - what the judge does with rows of numbers: read them from a tensor as doubles, and measure them. */
#ifndef FA_ROWS_H
#define FA_ROWS_H

#include "../host/memory.h"
#include "../numeric.h"

/* A row of a matrix of head_dim columns, in the problem's dtype. */
static inline void read_row(const Problem *p, const void *matrix, size_t row, double *to) {
    for (size_t i = 0; i < (size_t)p->head_dim; i++)
        to[i] = dtype_to_double(p->dtype, matrix, row * p->head_dim + i);
}

/* A problem whose queries are p's keys, for what is done with the rows of both. */
static inline Problem keys_as_queries(const Problem *p) {
    Problem keys = *p;
    keys.heads = p->kv_heads, keys.seqlen_q = p->seqlen_k;
    return keys;
}

/* The larger of two errors, where NaN is larger than everything. */
static inline double worse(double a, double b) { return a > b || a != a ? a : b; }

/* The largest |element|; NaN if one is. */
static inline double largest_of(const double *row, int columns) {
    double largest = 0;
    for (int column = 0; column < columns; column++)
        largest = worse(fabs(row[column]), largest);
    return largest;
}

static inline double dot(const double *a, const double *b, int columns) {
    double sum = 0;
    for (int column = 0; column < columns; column++)
        sum += a[column] * b[column];
    return sum;
}

#endif
