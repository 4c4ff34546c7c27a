/* traffic.c - the bytes that 00_naive moves. Every product reads both its factors anew: nothing is kept. */
#include "../common/traffic.h"

int naive_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double e = (double)dtype_bytes(p->dtype), D = p->head_dim, scores = (double)score_elements(p);
    double visible =
        visible_pairs(p, key_lengths); /* elements of P that are multiplied: the sum ends where the row's keys do */

    int i = 0;
    traffic[i++] = (Traffic){"naive_scores", "Q", scores * D * e, 0};
    traffic[i++] = (Traffic){"naive_scores", "K", scores * D * e, 0};
    traffic[i++] = (Traffic){"naive_scores", "S", 0, (scores + (p->score ? visible : 0)) * 4}; /* f(S) once more */
    traffic[i++] = (Traffic){"naive_softmax", "S", 3 * scores * 4, 0}; /* maximum, sum, P */
    if (p->score && p->score->score.sinks)
        traffic[i++] = (Traffic){"naive_softmax", "sinks", row_bytes(p), 0};
    traffic[i++] = (Traffic){"naive_softmax", "P", 0, scores * e};
    traffic[i++] = (Traffic){"naive_softmax", "LSE", 0, row_bytes(p)};
    traffic[i++] = (Traffic){"naive_output", "P", visible * D * e, 0};
    traffic[i++] = (Traffic){"naive_output", "V", visible * D * e, 0};
    traffic[i++] = (Traffic){"naive_output", "O", 0, query_bytes(p)};
    return i;
}
