/* prepare.c - what the program does beyond the usual for a variant that prepares its inputs (stage.h): another
 * reference, and two more rows. See run.h.
 */
#include "prepare.h"
#include "../host/memory.h"
#include "../numeric.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

int variant_prepares(const Variant *v, const Problem *p) { 
    return v->preparation && (!v->preparation->wanted || v->preparation->wanted(p));
 }

int compare_preparation(const Problem *p, const Variant *variant, const int *key_lengths, const HostTensors *inputs,
                        const Buffer *workspace, const void *o, const float *lse, Attention *attention,
                        Comparison comparisons[PREPARED_COMPARISONS]) {
    float *q = host_alloc(query_elements(p), sizeof *q), *k = host_alloc(key_elements(p), sizeof *k),
          *v = host_alloc(key_elements(p), sizeof *v);
    for (size_t i = 0; i < query_elements(p); i++) /* a variant that prepares only K and V leaves it so */
        q[i] = (float)dtype_to_double(p->dtype, inputs->q, i);
    PreparedRounding rounding = variant->preparation->values(p, workspace, q, k, v);
    HostTensors prepared = {q, k, v, NULL};
    int fits = compare_prepared(p, key_lengths, inputs, &prepared, rounding, o, lse, attention, comparisons);
    free(q), free(k), free(v);
    return fits;
}

int naive_attention(const Problem *p, const int *key_lengths, const HostTensors *inputs, float *o, float *lse) {
    size_t query_bytes = 4 * query_elements(p), key_bytes = 4 * key_elements(p), row_bytes = 4 * row_count(p);
    const void *host[6] = {inputs->q, inputs->k, inputs->v, NULL, NULL, key_lengths};
    size_t bytes[6] = {query_bytes, key_bytes, key_bytes, query_bytes, row_bytes, (size_t)p->batch * sizeof(int)};
    void *device[6];
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    int buffers = naive_variant.plan(p, workspace), fits = 1;
    for (int i = 0; i < 6; i++) {
        fits &= (device[i] = device_alloc(bytes[i], "the reference's tensors")) != NULL;
        if (device[i] && host[i])
            device_write(device[i], host[i], bytes[i]);
    }
    for (int i = 0; i < buffers; i++)
        fits &= alloc_buffer(&workspace[i]);
    if (fits) {
        Tensors t = {.q = device[0], .k = device[1], .v = device[2], .o = device[3], .lse = device[4],
                     .key_lengths = key_lengths ? device[5] : NULL};
        naive_variant.launch(p, &t, workspace);
        device_synchronize();
        device_read(o, device[3], query_bytes);
        device_read(lse, device[4], row_bytes);
    }
    for (int i = 0; i < 6; i++)
        device_free(device[i]);
    for (int i = 0; i < buffers; i++)
        device_free(workspace[i].pointer);
    return fits;
}

void judge_prepared(Run *run, const Launch *launch, Row *row) {
    const int *lengths = run->options.key_lengths;
    const void *o = run->outputs[0].host;
    const float *lse = run->outputs[1].host;
    row->comparison_count = PREPARED_COMPARISONS;
    row->against_oracle = !compare_preparation(run->p, launch->variant, lengths, &run->inputs, launch->workspace, o, lse,
                                               naive_attention, row->comparisons);
    if (row->against_oracle)
        compare_preparation(run->p, launch->variant, lengths, &run->inputs, launch->workspace, o, lse, NULL,
                            row->comparisons);
}

/* Whether another variant of the stage has prepared its inputs in the same way. */
static int is_timed(const Run *run, const Variant *variant) {
    const Variant *first = run->only ? run->only : run->stage->variants;
    for (; first != variant; first++)
        if (variant_prepares(first, run->p) && first->preparation->launch == variant->preparation->launch &&
             !variant_refuses(first, run->p))
            return 1;
    return 0;
}

void run_preparation(Run *run, const Launch *launch, const Row *row) {
    const Variant *v = launch->variant;
    char both[sizeof row->name];
    if (!variant_prepares(v, run->p))
        return;
    if (!is_timed(run, v))
        run_part(run, launch, row, PREPARE, v->preparation->name);
    snprintf(both, sizeof both, "%s+%s", v->preparation->name, v->name);
    run_part(run, launch, row, WITH_PREPARE, both);
}
