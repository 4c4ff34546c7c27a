/* launch.c - see launch.h. */
#include "launch.h"

#include "../host/errors.h"
#include "report.h"
#include "row.h"

#include <stdio.h>

Row *new_row(Run *run, const Variant *variant, Role role) {
    int is_backward = run->stage->kind == BACKWARD && role != ROW_FORWARD;
    Row *row = &run->rows[run->row_count++];
    *row = (Row){.run = run, .variant = variant, .role = role, .tensors = run->tensors};
    row->passes = is_backward ? BACKWARD_PASS : FORWARD_PASS;
    row->outputs = run->outputs + (is_backward ? FORWARD_OUTPUTS : 0);
    row->output_count = is_backward ? run->output_count - FORWARD_OUTPUTS : FORWARD_OUTPUTS;
    row->tensor_bytes = run->input_bytes;
    for (const Tensor *output = run->outputs; output < row->outputs + row->output_count; output++)
        row->tensor_bytes += output->bytes; /* a backward pass needs O and LSE, too */
    row->peak_tflops = peak_tflops(run->device, run->p->dtype, variant->uses & EIGHT_BITS);
    if (role == ROW_VARIANT)
        snprintf(row->name, sizeof row->name, "%s/%s", run->stage->name, variant->name);
    else /* 00_naive, or the forward pass, whose name has its stage's in it */
        snprintf(row->name, sizeof row->name, "%s", variant->name);
    return row;
}

int device_of_buffer(const Variant *v, const Problem *p, int count, int i) {
    return v->devices ? i / (count / v->devices(p)) : 0;
}

int alloc_buffers(const Variant *v, const Problem *p, Buffer *buffers, int count) {
    int fits = 1;
    for (int i = 0; i < count; i++) {
        int is_here = device_use(device_of_buffer(v, p, count, i)) || !v->devices;
        void *pointer = buffers[i].pointer = fits && is_here ? device_alloc(buffers[i].bytes, buffers[i].purpose) : NULL;
        fits = fits && (pointer || !is_here);
        if (pointer && buffers[i].zeroed)
            device_fill(pointer, 0, buffers[i].bytes);
    }
    device_use(0);
    return fits;
}

void free_buffers(const Buffer *buffers, int count) {
    for (int i = 0; i < count; i++)
        device_free(buffers[i].pointer);
}

int alloc_row(Row *row) {
    int fits = 1;
    for (int i = 0; i < row->output_count; i++) {
        void **pointer = pointer_to(&row->tensors, &row->outputs[i]);
        *pointer = device_alloc(row->outputs[i].bytes, row->outputs[i].name);
        fits = fits && *pointer;
    }
    row->workspace_count = row->variant->plan ? row->variant->plan(row->run->p, row->workspace) : 0;
    for (int i = 0; i < row->workspace_count; i++)
        row->workspace_bytes += row->workspace[i].bytes;
    return alloc_buffers(row->variant, row->run->p, row->workspace, row->workspace_count) && fits;
}

void free_row(Row *row) {
    for (int i = 0; i < row->output_count; i++)
        device_free(*pointer_to(&row->tensors, &row->outputs[i]));
    free_buffers(row->workspace, row->workspace_count);
}

void launch_row(void *context) {
    const Row *row = context;
    const Run *run = row->run;
    if (row->passes & PREPARE)
        row->variant->preparation->launch(run->p, &row->tensors, row->workspace);
    if (row->passes == BOTH)
        run->forward->launch(run->p, &row->tensors, run->rows[0].workspace);
    if (row->passes != PREPARE)
        row->variant->launch(run->p, &row->tensors, row->workspace);
}

void launch_whole_row(Row *row) {
    const Variant *v = row->variant;
    if (v->scatter)
        v->scatter(row->run->p, &row->tensors, row->workspace);
    launch_row(row);
    if (v->collect)
        v->collect(row->run->p, &row->tensors, row->workspace);
}

void finish_row(Row *row) {
    for (const char *damaged; (damaged = device_damaged());)
        snprintf(row->damaged, sizeof row->damaged, "%s", damaged);
    end_progress();
    report_row(row);
}
