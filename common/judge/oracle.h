/* oracle.h - attention and its gradients in double precision on the host: the definition, nothing else.
 *
 * Everything the project computes is in the end held against these functions, so they are written to be obviously right,
 * not fast: no tiles, no online softmax. The tests hold them in turn against central finite differences.
 * All arrays are doubles in the shapes of problem.h; key_lengths is on the host, NULL when all keys exist.
 */
#ifndef FA_ORACLE_H
#define FA_ORACLE_H

#include "../problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a query finds its head's keys, and how many of them it sees. Worked out here and not by problem.h, on purpose: a mistake
 * in the mask or the head groups there would be made by the kernels and by their judge alike, and nobody would notice. */
typedef struct {
    size_t keys; /* offset, in elements, of the head's K and V */
    int visible; /* its first `visible` keys are seen */
} OracleView;
OracleView oracle_view(const Problem *p, const int *key_lengths, int batch, int head, int row);

/* One query of one head. q_row: [head_dim]; k, v: this head's [visible or more, head_dim], of which the first `visible` keys
 * are seen; o_row: [head_dim] and *lse receive the result. visible == 0: O = 0, LSE = -infinity. */
void oracle_row(const double *q_row, const double *k, const double *v, int visible, int head_dim, double scale,
                double *o_row, double *lse);

/* O [batch, heads, seqlen_q, head_dim] and LSE [batch, heads, seqlen_q] of the whole problem, rows in parallel. */
void oracle_forward(const Problem *p, const int *key_lengths, const double *q, const double *k, const double *v, double *o,
                    double *lse);

/* The gradients dQ, dK, dV of a loss whose gradient with respect to O is d_o. Rows and keys in parallel; the same bits for
 * any number of threads. */
void oracle_backward(const Problem *p, const int *key_lengths, const double *q, const double *k, const double *v,
                     const double *d_o, double *dq, double *dk, double *dv);

#ifdef __cplusplus
}
#endif
#endif
