/* judge_prepared.c - see judge_prepared.h. */
#include "judge_prepared.h"

#include "../host/memory.h"
#include "../judge/prepared.h"
#include "launch.h"
#include "run.h"

#include <stdlib.h>

static double *read_doubles(const void *device, size_t count) {
    float *floats = host_alloc(count, sizeof *floats);
    double *doubles = host_alloc(count, sizeof *doubles);
    device_read(floats, device, count * sizeof *floats);
    for (size_t i = 0; i < count; i++)
        doubles[i] = floats[i];
    free(floats);
    return doubles;
}

Samples naive_samples(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit) {
    (void)limit;
    size_t query_bytes = 4 * query_elements(p), key_bytes = 4 * key_elements(p), row_bytes = 4 * row_count(p);
    const void *host[6] = {inputs->q, inputs->k, inputs->v, NULL, NULL, key_lengths};
    size_t bytes[6] = {query_bytes, key_bytes, key_bytes, query_bytes, row_bytes, (size_t)p->batch * sizeof(int)};
    void *device[6];
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    int buffers = naive_variant.plan(p, workspace), fits = alloc_buffers(&naive_variant, p, workspace, buffers);
    for (int i = 0; i < 6; i++) {
        fits &= (device[i] = device_alloc(bytes[i], "the reference's tensors")) != NULL;
        if (device[i] && host[i])
            device_write(device[i], host[i], bytes[i]);
    }
    Samples s = {.p = p};
    if (fits) {
        Tensors t = {.q = device[0],
                     .k = device[1],
                     .v = device[2],
                     .o = device[3],
                     .lse = device[4],
                     .key_lengths = key_lengths ? device[5] : NULL};
        naive_variant.launch(p, &t, workspace);
        s.count = row_count(p);
        s.o = read_doubles(t.o, query_elements(p));
        s.lse = read_doubles(t.lse, row_count(p));
        s.score_size = score_size(p, inputs->q, inputs->k);
    }
    for (int i = 0; i < 6; i++)
        device_free(device[i]);
    free_buffers(workspace, buffers);
    return s;
}

static int compare_with(Row *row, Attention *attention) {
    const Run *run = row->run;
    return compare_prepared(run->p, row->variant, run->options->key_lengths, &run->inputs, row->workspace,
                            row->outputs[0].host, row->outputs[1].host, attention, MAX_SAMPLES, row->comparisons);
}

void judge_prepared(Row *row) {
    row->comparison_count = PREPARED_COMPARISONS;
    row->against_oracle = !compare_with(row, naive_samples);
    if (row->against_oracle)
        compare_with(row, samples_compute);
}
