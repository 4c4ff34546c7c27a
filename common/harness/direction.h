/* direction.h - what a row of the table measures: one pass of attention, or what comes before it, and how its work is counted.
 */
#ifndef FA_DIRECTION_H
#define FA_DIRECTION_H

#include "../problem.h"

/* PREPARE: what a variant does to its inputs first (stage.h); WITH_PREPARE: that and the forward pass. BOTH: forward and
 * backward. */
typedef enum { FORWARD_PASS, BACKWARD_PASS, BOTH, PREPARE, WITH_PREPARE } Direction;

typedef struct {
    const char *name;
    double passes;                          /* FLOPs, in forward passes; 0: none are counted */
    int queries, keys, key_gradients, rows; /* tensors like Q, K and V, dK and dV, and like LSE that must move */
    int runs_forward, prepares, launches;   /* what one launch is made of */
} DirectionKind;
extern const DirectionKind directions[];

/* FLOPs of the forward pass, 4 * head_dim for each pair of a query and a key: batch * heads * seqlen_q * seqlen_k pairs and half of
 * that when causal, which is what everybody counts. Where key lengths cut pairs off (on the host; NULL: they do not) only those
 * pairs count that key lengths and mask leave, one by one. The backward pass has five such products to the forward's two: 2.5
 * times that; both together 3.5 times. Bytes that must move at least: Q, K, V read and O, LSE written once; backward Q, K, V, O, dO, LSE read
 * and dQ, dK, dV written. K and V as far as keys exist, their gradients whole. */
double counted_flops(const Problem *p, const int *key_lengths, Direction direction);
double compulsory_bytes(const Problem *p, const int *key_lengths, Direction direction);

#endif
