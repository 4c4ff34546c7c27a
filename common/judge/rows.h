/* rows.h - what the judges do with rows of numbers: read them from a tensor as doubles, and measure them. */
#ifndef FA_ROWS_H
#define FA_ROWS_H

#include "../host/memory.h"
#include "../numeric.h"

/* Elements [offset, offset + count) of a tensor. */
static inline void read_doubles(Dtype dtype, const void *tensor, size_t offset, size_t count, double *to) {
    for (size_t i = 0; i < count; i++)
        to[i] = dtype_to_double(dtype, tensor, offset + i);
}

/* The same, in memory that free() frees. */
static inline double *to_doubles(Dtype dtype, const void *tensor, size_t offset, size_t count) {
    double *values = (double *)host_alloc(count, sizeof *values);
    read_doubles(dtype, tensor, offset, count, values);
    return values;
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
