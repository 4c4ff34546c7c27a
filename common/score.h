/* score.h - what a score mod (problem.h: Score) leaves of the keys, and ALiBi's slopes: the same for kernels and formulas.
 *
 * The query in row i is at position pos = i + L - Sq, where L is its batch entry's key length: the last query is at the last key, as
 * under a causal mask.
 */
#ifndef FA_SCORE_H
#define FA_SCORE_H

#include "problem.h"

HOST_DEVICE static inline int position_of(const Problem *p, int key_length, int row) { return row + key_length - p->seqlen_q; }

/* Keys, or queries: begin <= i < end. */
typedef struct {
    int begin, end;
} Range;

HOST_DEVICE static inline Range range_within(int begin, int end, int size) {
    Range range = {begin < 0 ? 0 : begin, end < 0 ? 0 : end < size ? end : size};
    return range;
}

/* The keys that row `row` sees: causal mask, key length and window. Neither end falls from a row to the next. */
HOST_DEVICE static inline Range seen_keys(const Score *score, const Problem *p, int key_length, int row) {
    const int visible = visible_keys(p, key_length, row), pos = position_of(p, key_length, row);
    return score->window ? range_within(pos - score->left, pos + score->right + 1, visible) : range_within(0, visible, visible);
}

/* The queries that see any of the keys first_key .. end_key - 1. */
HOST_DEVICE static inline Range seeing_queries(const Score *score, const Problem *p, int key_length, int first_key, int end_key) {
    const int shift = key_length - p->seqlen_q; /* from a row to its position */
    int begin = p->causal ? first_key - shift : 0, end = p->seqlen_q;
    if (score->window) {
        const int reached = first_key - score->right - shift;
        begin = begin > reached ? begin : reached;
        end = end_key + score->left - shift;
    }
    return range_within(begin, end, p->seqlen_q);
}

/* ALiBi's slopes (Press et al. 2022): of n heads, n a power of two, 2^(-8/n), 2^(-16/n), ..., 2^-8. Of another number of heads those of
 * the next lower power of two come first, and then every other one of the next higher. */
HOST_DEVICE static inline float alibi_slope(int heads, int head) {
    int n = 1;
    while (2 * n <= heads)
        n *= 2;
    return exp2f(head < n ? -8.0f * (head + 1) / n : -4.0f * (2 * (head - n) + 1) / n);
}

#endif
