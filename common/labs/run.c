/* run.c - the student's program: one launch of the lab's kernels on a problem that the judge sends. See lab.h.
 *
 *     build/cpu/labs/04/run <request >reply
 *
 * Where no key exists, K and V hold NaN, and so does the strip around every tensor. Exit code: 0, or 1 if the kernel wrote outside
 * of its tensors or, under the trace, if there is a race; what was wrong is on stderr.
 */
#include "../device/device.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "../trace/trace.h"
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void receive(void *to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes)
        cannot_run("the request on stdin ends too early: it is the judge, common/labs/judge.c, that starts this program");
}

/* Keys past the length of their batch entry do not exist: who reads them gets NaN. */
static void forget_keys(const Problem *p, const int *key_lengths, char *keys) {
    const size_t row = p->head_dim * dtype_bytes(p->dtype), head = p->seqlen_k * row;
    for (int i = 0; i < p->batch * p->kv_heads; i++) {
        const size_t exist = key_length(p, key_lengths, i / p->kv_heads) * row;
        memset(keys + i * head + exist, 0xff, head - exist);
    }
}

static void *allocate(size_t bytes, const char *purpose) {
    void *memory = device_alloc(bytes, purpose); /* full of NaN */
    if (!memory)
        cannot_run("no memory for %s", purpose);
    return memory;
}

static void receive_tensor(const Problem *p, const int *key_lengths, const LabTensor *tensor, void *device) {
    char *host = host_alloc(tensor->bytes, 1);
    receive(host, tensor->bytes);
    if (tensor->role == LAB_KEYS)
        forget_keys(p, key_lengths, host);
    device_write(device, host, tensor->bytes);
    free(host);
}

static void fill_output(const LabTensor *tensor, void *device) {
    uint16_t *host = host_alloc(tensor->bytes, 1);
    for (size_t i = 0; i < tensor->bytes / sizeof *host; i++)
        host[i] = LAB_UNTOUCHED;
    device_write(device, host, tensor->bytes);
    free(host);
}

static void send_tensor(const LabTensor *tensor, const void *device) {
    char *host = host_alloc(tensor->bytes, 1);
    device_read(host, device, tensor->bytes);
    fwrite(host, 1, tensor->bytes, stdout);
    free(host);
}

static float *receive_sinks(const Problem *p) {
    const size_t bytes = (size_t)p->heads * sizeof(float);
    float *host = host_alloc(bytes, 1), *device = allocate(bytes, "sinks");
    receive(host, bytes);
    device_write(device, host, bytes);
    free(host);
    return device;
}

#ifndef TRACE
/* ---- on a GPU: how long a launch takes ---- */

typedef struct {
    const Problem *p;
    const Tensors *t;
    const Buffer *workspace;
} Launched;
static void launch_again(void *context) {
    const Launched *what = context;
    lab_launch(what->p, what->t, what->workspace);
}
static int compare_ms(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

/* The median, as the harness measures: from a cold L2, after some to warm up. */
static double launch_ms(Launched what) {
    enum { WARM_UP = 5, COUNT = 21 };
    double ms[COUNT];
    for (int i = -WARM_UP; i < COUNT; i++)
        ms[i < 0 ? 0 : i] = device_time_ms(launch_again, &what, 0);
    qsort(ms, COUNT, sizeof *ms, compare_ms);
    return ms[COUNT / 2];
}
#endif

int main(void) {
    Request request;
    LabTensor all[LAB_MOST_TENSORS];
    Tensors t = {0};
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    int wrong = 0;

    program_is("lab");
    receive(&request, sizeof request);
    const Problem *p = &request.p;
    t.mask.window = request.window;
    int *key_lengths = request.has_lengths ? host_alloc((size_t)p->batch, sizeof *key_lengths) : NULL;
    if (key_lengths) {
        receive(key_lengths, (size_t)p->batch * sizeof *key_lengths);
        int *device = allocate((size_t)p->batch * sizeof *key_lengths, "key lengths");
        device_write(device, key_lengths, (size_t)p->batch * sizeof *key_lengths);
        t.key_lengths = device;
    }
    t.score = request.score;
    t.score.sinks = request.has_sinks ? receive_sinks(p) : NULL;
    const int count = lab_tensors(p, request.is_backward, all);
    for (int i = 0; i < count; i++) {
        void *device = *lab_pointer(&t, &all[i]) = allocate(all[i].bytes, all[i].name);
        if (all[i].role != LAB_OUTPUT)
            receive_tensor(p, key_lengths, &all[i], device);
        else
            fill_output(&all[i], device);
    }
    const int buffers = lab_plan(p, workspace);
    for (int i = 0; i < buffers; i++)
        workspace[i].pointer = allocate(workspace[i].bytes, workspace[i].purpose);

#ifdef TRACE
    trace_begin("h200");
#endif
    lab_launch(p, &t, workspace);
    for (int i = 0; i < count; i++)
        if (all[i].role == LAB_OUTPUT)
            send_tensor(&all[i], *lab_pointer(&t, &all[i]));
#ifndef TRACE
    if (!device_properties()->is_cpu)
        printf("{\"launch_ms\": %.5g}\n", launch_ms((Launched){p, &t, workspace}));
#else
    const Trace *trace = trace_end();
    trace_print(trace, "kernel", p, 0, NULL, 0, 1);
    trace_print_races(trace, stderr);
    wrong |= trace->race_count > 0;
#endif
    for (const char *damaged; (damaged = device_damaged()); wrong = 1)
        fprintf(stderr, "the kernel wrote outside of %s\n", damaged);
    flush_output();
    return wrong;
}
