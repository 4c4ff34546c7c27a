/* prepared.h - judging a variant that prepares its inputs (stage.h): rounds them to a smaller format before it uses them.
 *
 * Its result is not attention of the inputs, and how far it is from that says more about the inputs than about the kernel. So
 * two questions are asked apart, each with a bound that follows from the format (derived in prepared.c):
 *
 *     Are the prepared inputs the inputs, as nearly as the format can say?               comparisons of Q, K and V
 *     Is the result attention of the prepared inputs, as nearly as P's format can say?   comparisons of O and LSE
 */
#ifndef FA_PREPARED_H
#define FA_PREPARED_H

#include "check.h"
#include "../stage.h"

enum { PREPARED_O, PREPARED_LSE, PREPARED_Q, PREPARED_K, PREPARED_V, PREPARED_COMPARISONS };

/* Inputs, and in fp32 what they became (stage.h: PreparedValues). V is squared on the way. All on the host. */
typedef struct {
    const Problem *p;
    const int *key_lengths;
    const HostTensors *inputs;
    float *q, *k, *v;
    PreparedRounding rounding;
} Prepared;

/* Fills in O and LSE, fp32 on the host, of attention of fp32 inputs. Returns 0 if it does not fit into memory. */
typedef int Attention(const Problem *p, const int *key_lengths, const HostTensors *inputs, float *o, float *lse);

/* Fills in all of `comparisons`; o and lse are what the variant left. `attention` makes the reference; NULL: the oracle, in up to
 * `limit` rows. Returns 0 if `attention` did; O and LSE are not filled in then. */
int compare_prepared(const Prepared *x, const void *o, const float *lse, Attention *attention, size_t limit,
                     Comparison comparisons[PREPARED_COMPARISONS]);

#endif
