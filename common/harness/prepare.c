/* prepare.c - see prepare.h. */
#include "prepare.h"

#include "../host/memory.h"
#include "../numeric.h"
#include "tensors.h"

#include <stdlib.h>

int compare_preparation(const Problem *p, const Variant *variant, const int *key_lengths, const HostTensors *inputs,
                        const Buffer *workspace, const void *o, const float *lse, Attention *attention, size_t limit,
                        Comparison comparisons[PREPARED_COMPARISONS]) {
    Prepared x = {.p = p, .key_lengths = key_lengths, .inputs = inputs};
    x.q = host_alloc(query_elements(p), sizeof *x.q);
    x.k = host_alloc(key_elements(p), sizeof *x.k);
    x.v = host_alloc(key_elements(p), sizeof *x.v);
    for (size_t i = 0; i < query_elements(p); i++) /* a variant that prepares only K and V leaves it so */
        x.q[i] = (float)dtype_to_double(p->dtype, inputs->q, i);
    x.rounding = variant->preparation->values(p, workspace, x.q, x.k, x.v);
    int fits = compare_prepared(&x, o, lse, attention, limit, comparisons);
    free(x.q), free(x.k), free(x.v);
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
        Tensors t = {.q = device[0],
                     .k = device[1],
                     .v = device[2],
                     .o = device[3],
                     .lse = device[4],
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

static int compare_with(Row *row, Attention *attention) {
    const Run *run = row->run;
    return compare_preparation(run->p, row->variant, run->options->key_lengths, &run->inputs, row->workspace,
                               row->outputs[0].host, row->outputs[1].host, attention, MAX_SAMPLES, row->comparisons);
}

void judge_prepared(Row *row) {
    row->comparison_count = PREPARED_COMPARISONS;
    row->against_oracle = !compare_with(row, naive_attention);
    if (row->against_oracle)
        compare_with(row, NULL);
}
